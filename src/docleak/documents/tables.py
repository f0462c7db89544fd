"""Tables of text, before they are drawn: a caption, one row of headers, and rows of cells."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """``header`` and every row have the same number of cells; texts have no line ends and single spaces only."""

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def make_table(name: str, lines: Sequence[Sequence[str]], *, caption: str = "") -> Table:
    """The table whose first line is the header; texts are cleaned, and short rows filled up with empty cells."""
    width = max((len(line) for line in lines), default=0)
    cells = [tuple(clean(cell) for cell in [*line, *[""] * (width - len(line))]) for line in lines]
    return Table(name, clean(caption), cells[0] if cells else (), tuple(cells[1:]))


def clean(text: str) -> str:
    """``text`` with single spaces and without characters that print nothing (byte-order marks, soft hyphens)."""
    spaced = " ".join(text.split())
    if spaced.isascii() and spaced.isprintable():
        return spaced
    return " ".join("".join(c for c in spaced if c == " " or unicodedata.category(c)[0] != "C").split())
