"""Tiny vision-language models with other widths than the package's: spans need room, and pixels patches to spare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docleak.models.vlm import tiny


def make_wide(
    family: str,
    out: Path,
    *,
    text: Mapping[str, Any] | None = None,
    vision: Mapping[str, Any] | None = None,
    images: Mapping[str, Any] | None = None,
) -> None:
    """The package's tiny model of a family with these settings changed."""
    made = tiny.FAMILIES[family]()
    kind, settings = made.images
    pictures = (kind, {**settings, **(images or {})})
    changed = replace(
        made, text={**made.text, **(text or {})}, vision={**made.vision, **(vision or {})}, images=pictures
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.FAMILIES, family, lambda: changed)
        tiny.make_tiny(family, out, seed=0)
