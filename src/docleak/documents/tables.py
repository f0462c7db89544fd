"""Tables of text before they are drawn, and how: typeface, rules, shades and spacing, drawn at random for each."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from docleak.documents.fonts import FAMILIES, Family, Type
from docleak.documents.synthetic_values import pick

Colour = tuple[int, int, int]

BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)

#: Which rules are drawn: all cells boxed, lines under rows, a frame, lines around the header only, or none.
RULES = ("grid", "grid", "rows", "frame", "header", "none")
#: Fill and ink of the header row; None is the paper's own white.
HEADERS: tuple[tuple[Colour | None, Colour], ...] = (
    (None, BLACK),
    (None, BLACK),
    ((234, 236, 240), BLACK),
    ((215, 222, 235), BLACK),
    ((60, 60, 60), WHITE),
    ((35, 62, 110), WHITE),
    ((110, 35, 45), WHITE),
)
STRIPES: tuple[Colour | None, ...] = (None, None, (243, 243, 243), (236, 241, 248), (248, 244, 234))


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


@dataclass(frozen=True)
class TableStyle:
    """Everything about the looks of one table; lengths in pixels."""

    family: Family
    size: int
    rules: str
    rule_grey: int
    header_fill: Colour | None
    header_ink: Colour
    bold_header: bool
    bold_first: bool
    stripe: Colour | None
    pad_x: int
    pad_y: int
    line_gap: int
    margin: int
    numbers_right: bool
    centred: bool

    @property
    def smallest(self) -> int:
        """The size at which the family is still legible."""
        return min(self.size, self.family.sizes[0])

    def body(self, size: int) -> Type:
        """The type of cells."""
        return Type(self.family.regular, size)

    def strong(self, size: int) -> Type:
        """The bold type of the same family."""
        return Type(self.family.bold, size)

    def leading(self, size: int) -> int:
        """Pixels from one line of a cell to the next."""
        return max(t.ascent + t.descent for t in (self.body(size), self.strong(size))) + self.line_gap


def draw_style(rng: np.random.Generator) -> TableStyle:
    """One style; a table without any rule has stripes or a bold or filled header, so that it reads as a table."""
    family = pick(rng, FAMILIES)
    rules = pick(rng, RULES)
    header_fill, header_ink = pick(rng, HEADERS)
    return TableStyle(
        family=family,
        size=family.sizes[0] + int(rng.integers(1, 4)),
        rules=rules,
        rule_grey=int(rng.integers(0, 190)),
        header_fill=header_fill,
        header_ink=header_ink,
        bold_header=bool(rng.random() < 0.75) or (rules == "none" and header_fill is None),
        bold_first=bool(rng.random() < 0.15),
        stripe=pick(rng, STRIPES),
        pad_x=int(rng.integers(5, 10)),
        pad_y=int(rng.integers(3, 6)),
        line_gap=int(rng.integers(1, 4)),
        margin=int(rng.integers(12, 33)),
        numbers_right=bool(rng.random() < 0.4),
        centred=bool(rng.random() < 0.2),
    )
