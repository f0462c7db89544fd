"""Run the notebooks in docs/notebooks and store what they show: python -m scripts.notebooks [NAME ...].

Each runs as Jupyter would run it, cell by cell in a new folder, without Jupyter: what is printed and the value of a
cell's last expression (text, a table, a picture) become its outputs. scripts/site_pages.py shows them on the site.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
#: How a value shows itself, by the kind of what is shown; the first that a value has is taken.
SHOWN = {"image/png": "_repr_png_", "text/html": "_repr_html_"}


def executed(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of its cells, run in ``folder``; their exceptions are raised."""
    module = ModuleType("docleak_notebook")
    sys.modules[module.__name__] = module  # where dataclasses look for what they are made of
    with contextlib.chdir(folder):
        cells, count = [], 0
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                outputs = [*_outputs("".join(cell["source"]), module, count)]
                cell = {**cell, "execution_count": count, "outputs": outputs}
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(code: str, module: ModuleType, count: int) -> Iterator[dict[str, Any]]:
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), module.__dict__)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), module.__dict__)
    if printed.getvalue():
        yield {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
    if value is not None:
        shown = {
            "data": {**_shown(value), "text/plain": [re.sub(r" at 0x\w+", "", repr(value))]},
            "metadata": {},
            "execution_count": count,
        }
        yield {"output_type": "execute_result", **shown}


def _shown(value: Any) -> dict[str, Any]:
    for kind, method in SHOWN.items():
        if callable(show := getattr(value, method, None)):
            made = show()
            return {kind: base64.b64encode(made).decode() if isinstance(made, bytes) else [made]}
    return {}


def main() -> None:
    """Run the named notebooks, or all."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for path in [NOTEBOOKS / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
        with TemporaryDirectory(prefix="notebook-") as folder:
            made = executed(json.loads(path.read_text()), Path(folder))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
