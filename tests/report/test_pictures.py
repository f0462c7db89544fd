"""Pictures of reports: each is made a PNG once, and what is kept is bounded and never mixed up."""

from __future__ import annotations

import numpy as np
import pytest

from docleak.report import pictures
from docleak.report.pictures import decoded, png_of


def test_a_picture_is_made_a_png_once_and_only_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_PNGS", {})
    monkeypatch.setattr(pictures, "KEPT", 2)
    wide, high, other = np.zeros((2, 8, 3), np.uint8), np.zeros((8, 2, 3), np.uint8), np.ones((2, 8, 3), np.uint8)
    first = png_of(wide)
    assert png_of(wide.copy()) is first and png_of(wide[:, ::-1]) is first, "by what it shows"
    for image in (high, wide, other):
        assert (decoded(png_of(image)) == image).all()
    assert png_of(wide) is first, "asked for after the one that had to go"
    assert len(pictures._PNGS) == 2
