"""Draw a table as a page image with the exact boxes of its words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from docleak.documents.fonts import Glyphs, Type, blend, draws, type_for, word_ink
from docleak.documents.page import Field, Page, Question, Word
from docleak.documents.table_layout import Line, Lines, Row, TableLayout, lay_out
from docleak.documents.tables import BLACK, Colour, Table, TableStyle, draw_style

#: Largest page, width x height: letter paper at 96 dots per inch.
PAGE_SIZE = (816, 1056)


def style_rng(seed: int, data_set: str, table: str) -> np.random.Generator:
    """The stream of one table's style, the same on every machine and in every order of the tables."""
    name = int.from_bytes(hashlib.sha256(f"{data_set}/{table}".encode()).digest()[:8], "big")
    return np.random.default_rng(np.random.SeedSequence((seed, name)))


def table_page(
    table: Table,
    questions: Sequence[Question],
    *,
    rng: np.random.Generator,
    size: tuple[int, int] = PAGE_SIZE,
    style: TableStyle | None = None,
) -> Page:
    """The table on a page no larger than ``size`` in a style drawn from ``rng`` (or ``style``).

    Words are in reading order of the cells, row by row. Each cell below the header is a private field whose key is the
    column's header ("column 3" without one), the caption is a private field "caption"; headers are public. The page
    ends with the table; what does not fit is told in ``notes``. All questions stay, as their answers may not be on the
    page anyway. Letters without a typeface (Chinese, Japanese, Korean, Indic) are drawn as empty boxes, which
    ``notes`` tells too; right-to-left scripts are drawn letter by letter from the left.
    """
    style = style or draw_style(rng)
    layout = lay_out(table, style, size)
    image = np.full((layout.height, layout.width, 3), 255, dtype=np.uint8)
    _shade(image, layout, style)
    _rule(image, layout, style)
    sheet = _Sheet(image, layout, style)
    fields = list(_caption(sheet))
    sheet.row(layout.header, header=True)
    for row in layout.rows:
        for column, numbers in enumerate(sheet.row(row, header=False)):
            if numbers:
                key = table.header[column] or f"column {column + 1}"
                text = " ".join(word for line in row.cells[column] for word in line)
                fields.append(Field(key, text, numbers))
    return Page(
        name=table.name,
        image=image,
        words=tuple(sheet.words),
        fields=tuple(fields),
        questions=tuple(questions),
        document=table.name,
        notes=(*layout.notes, *_unreadable(sheet)),
    )


def _unreadable(sheet: _Sheet) -> list[str]:
    type_ = sheet.style.body(sheet.layout.size)
    count = sum(not draws(type_, word.text) for word in sheet.words)
    return [f"{count} words of scripts without a typeface are drawn as empty boxes"] if count else []


def _caption(sheet: _Sheet) -> list[Field]:
    type_ = sheet.style.strong(sheet.layout.size)
    for top, line in sheet.layout.caption:
        sheet.line(line, type_, sheet.style.margin, top + type_.ascent, BLACK)
    if not sheet.words:
        return []
    text = " ".join(word for _, line in sheet.layout.caption for word in line)
    return [Field("caption", text, tuple(range(len(sheet.words))))]


class _Sheet:
    """The image while words are put on it, and the words so far."""

    def __init__(self, image: NDArray[np.uint8], layout: TableLayout, style: TableStyle) -> None:
        self.image, self.layout, self.style = image, layout, style
        self.words: list[Word] = []
        body, strong = style.body(layout.size), style.strong(layout.size)
        self.ascent = max(body.ascent, strong.ascent)
        self.leading = style.leading(layout.size)

    def row(self, row: Row, *, header: bool) -> list[tuple[int, ...]]:
        """Draw the cells of a row; gives the numbers of the words of each."""
        numbers = []
        for column, lines in enumerate(row.cells):
            before = len(self.words)
            self._cell(lines, column, row.y0 + self.style.pad_y, header=header)
            numbers.append(tuple(range(before, len(self.words))))
        return numbers

    def _cell(self, lines: Lines, column: int, top: int, *, header: bool) -> None:
        style = self.style
        bold = style.bold_header if header else style.bold_first and column == 0
        type_ = style.strong(self.layout.size) if bold else style.body(self.layout.size)
        x0, x1 = self.layout.x[column] + style.pad_x, self.layout.x[column + 1] - style.pad_x
        for number, line in enumerate(lines):
            free = x1 - x0 - type_.space * (len(line) - 1) - sum(_glyphs(type_, word).advance for word in line)
            shift = free if self.layout.right[column] else free // 2 if style.centred else 0
            baseline = top + self.ascent + number * self.leading
            self.line(line, type_, x0 + max(0, shift), baseline, style.header_ink if header else BLACK)

    def line(self, line: Line, type_: Type, x: int, baseline: int, colour: Colour) -> None:
        """Put the words of a line on the image, each with the box of its ink; words without ink are no words."""
        space = type_.space
        for text in line:
            glyphs = _glyphs(type_, text)
            height, width = glyphs.ink.shape
            left, top = x + glyphs.dx, max(0, baseline + glyphs.dy)
            height = min(height, self.image.shape[0] - top)
            width = min(width, self.image.shape[1] - left)
            if height > 0 and width > 0:
                blend(self.image, glyphs.ink[:height, :width], left, top, colour)
                self.words.append(Word(text, (left, top, left + width, top + height)))
            x += glyphs.advance + space


def _glyphs(type_: Type, word: str) -> Glyphs:
    return word_ink(type_for(type_, word), word)


def _shade(image: NDArray[np.uint8], layout: TableLayout, style: TableStyle) -> None:
    columns = slice(layout.x[0], layout.x[-1])
    if style.header_fill:
        image[layout.header.y0 : layout.header.y1, columns] = style.header_fill
    if style.stripe:
        for row in layout.rows[1::2]:
            image[row.y0 : row.y1, columns] = style.stripe


def _rule(image: NDArray[np.uint8], layout: TableLayout, style: TableStyle) -> None:
    header, rows, x = layout.header, layout.rows, layout.x
    bottom = rows[-1].y1 if rows else header.y1
    across = {
        "grid": [header.y0, header.y1, *(row.y1 for row in rows)],
        "rows": [header.y1, *(row.y1 for row in rows)],
        "frame": [header.y0, header.y1, bottom],
        "header": [header.y0, header.y1, bottom],
        "none": [],
    }[style.rules]
    down = {"grid": list(x), "frame": [x[0], x[-1]]}.get(style.rules, [])
    for y in across:
        image[y, x[0] : x[-1] + 1] = style.rule_grey
    for place in down:
        image[header.y0 : bottom + 1, place] = style.rule_grey
