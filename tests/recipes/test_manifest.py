"""A row is never continued with other settings, weights, pages or another docleak."""

from __future__ import annotations

from pathlib import Path

import pytest

import docleak
from docleak.errors import RunError
from docleak.recipes.manifest import note_row, require_same


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"first")
    return {"model": str(tmp_path / "model"), "rounds": 3, "documents": ["synthetic"]}


def test_the_same_row_goes_on(tmp_path: Path, asked: dict[str, object]) -> None:
    note_row(tmp_path / "row", asked, "docleak reproduce")
    note_row(tmp_path / "row", asked, "docleak reproduce")
    require_same(tmp_path / "none", asked)


def test_other_settings_weights_and_versions_are_refused(
    tmp_path: Path, asked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tmp_path / "row"
    note_row(row, asked, "docleak reproduce")
    with pytest.raises(RunError, match="rounds is 3 there, 4 now"):
        note_row(row, {**asked, "rounds": 4}, "")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"again")
    with pytest.raises(RunError, match=r"results of other weights or pages.*\n  - .*model: its files have the hash"):
        note_row(row, asked, "")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"first")
    monkeypatch.setattr(docleak, "__version__", "99.0")
    with pytest.raises(RunError, match=r"begun by docleak .*, this is 99\.0"):
        note_row(row, asked, "")
