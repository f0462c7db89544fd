"""The notebooks run, and show what their stored outputs show; the site takes its pages from these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.notebooks import NOTEBOOKS, executed


def shown(notebook: dict[str, Any]) -> list[list[set[str]]]:
    """The kinds of what each code cell shows."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [[{output["output_type"], *output.get("data", ())} for output in cell["outputs"]] for cell in cells]


@pytest.mark.parametrize("name", ["attack", "audit", "defence", "frame"])
def test_a_notebook_runs_and_shows_what_is_stored(name: str, tmp_path: Path) -> None:
    path = NOTEBOOKS / f"{name}.ipynb"
    notebook = json.loads(path.read_text())
    assert shown(executed(notebook, tmp_path)) == shown(notebook), "python -m scripts.notebooks stores it anew"
    pictures = [cell for cell in notebook["cells"] if "image/png" in str(cell.get("outputs"))]
    assert pictures and all(cell["metadata"]["alt"] for cell in pictures) and path.stat().st_size < 200_000


def test_a_cell_that_fails_is_not_hidden(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": ["x = 1\n", "x / 0"], "metadata": {}, "outputs": []}
    with pytest.raises(ZeroDivisionError):
        executed({"cells": [cell]}, tmp_path)
