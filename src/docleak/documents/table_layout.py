"""Where the words of a table stand on its page: type size, column widths, broken lines, and what does not fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from docleak.documents.fonts import Type, type_for
from docleak.documents.tables import Table, TableStyle

#: One line of a cell: its words.
Line = tuple[str, ...]
#: The lines of one cell.
Lines = tuple[Line, ...]

#: A column may be squeezed to this many times the type size before columns are left out.
NARROWEST = 4
NUMBER = re.compile(r"[-+−–$€£¥]?[\d.,:/% ]*\d[\d.,:/%]*")


@dataclass(frozen=True)
class Row:
    """One row on the page: rows of pixels [y0, y1) and the lines of each cell."""

    y0: int
    y1: int
    cells: tuple[Lines, ...]


@dataclass(frozen=True)
class TableLayout:
    """The geometry of one table page in pixels.

    ``x`` holds the left edge of each column and the right edge of the last one; ``notes`` says what was left out.
    """

    width: int
    height: int
    size: int
    caption: tuple[tuple[int, Line], ...]  # top and words of each line
    x: tuple[int, ...]
    right: tuple[bool, ...]  # columns set flush right
    header: Row
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """The width of each column without its padding, and the type size and page width they are for."""

    size: int
    page: tuple[int, int]
    widths: tuple[int, ...]


@lru_cache(maxsize=65536)
def word_width(type_: Type, word: str) -> int:
    """Pixels the pen moves over ``word``, within a few (kerning is left out, so that nothing need be drawn)."""
    return type_for(type_, word).estimate(word)


def line_width(type_: Type, words: Sequence[str]) -> int:
    """Pixels from the pen to the end of the last word."""
    total = sum(word_width(type_, word) for word in words)
    return total + type_.space * (len(words) - 1) if len(words) > 1 else total


def break_lines(type_: Type, text: str, width: int) -> Lines:
    """The words of ``text`` on lines of at most ``width``; a word wider than that is cut into pieces."""
    lines: list[Line] = []
    line: list[str] = []
    used, space = 0, type_.space
    for word in (piece for whole in text.split() for piece in _pieces(type_, whole, width)):
        wide = word_width(type_, word)
        if line and used + space + wide > width:
            lines.append(tuple(line))
            line, used = [], 0
        used += wide + (space if line else 0)
        line.append(word)
    return (*lines, tuple(line)) if line else ()


def _pieces(type_: Type, word: str, width: int) -> list[str]:
    if word_width(type_, word) <= width:
        return [word]
    pieces, start = [], 0
    while start < len(word):
        end = start + 1
        while end < len(word) and word_width(type_, word[start : end + 1]) <= width:
            end += 1
        pieces.append(word[start:end])
        start = end
    return pieces


def share(minimum: Sequence[int], natural: Sequence[int], room: int) -> tuple[int, ...]:
    """Column widths that fill at most ``room``: the natural ones, or the minimum and a fair part of what is left.

    Fair is that narrow columns get all they want before wide ones get more. Where even the minimum is too wide, the
    widest columns are levelled down until it fits.
    """
    spare = room - sum(minimum)
    if spare < 0:
        return _levelled(minimum, room)
    more = _levelled([full - low for low, full in zip(minimum, natural, strict=True)], spare)
    return tuple(low + extra for low, extra in zip(minimum, more, strict=True))


def _levelled(widths: Sequence[int], room: int) -> tuple[int, ...]:
    """``widths`` cut at the one level at which their sum is at most ``room``."""
    if sum(widths) <= room:
        return tuple(widths)
    left, level = room, 0
    for place, width in enumerate(sorted(widths)):
        level = left // (len(widths) - place)
        if width > level:
            break
        left -= width
    return tuple(min(width, level) for width in widths)


def choose_grid(table: Table, style: TableStyle, largest: int, size: tuple[int, int], rows: int) -> Grid:
    """Type size up to ``largest``, orientation and column widths; fewer columns where not even squeezed ones fit."""
    turned = (max(size), min(size))
    tries = [(points, size) for points in range(largest, style.smallest - 1, -1)] + [(style.smallest, turned)]
    for points, page in tries:
        minimum, natural = _measure(table, style, points, rows)
        room = _room(style, page) - 2 * style.pad_x * len(minimum)
        if sum(minimum) <= room:
            break
    narrowest = NARROWEST * points
    fitting = max(1, _room(style, page) // (narrowest + 2 * style.pad_x))
    count = len(minimum) if sum(min(narrowest, low) for low in minimum) <= room else min(fitting, len(minimum))
    room = _room(style, page) - 2 * style.pad_x * count
    return Grid(points, page, share(minimum[:count], natural[:count], room))


def _room(style: TableStyle, page: tuple[int, int]) -> int:
    """Pixels between the margins, less the one that the last rule takes."""
    return page[0] - 2 * style.margin - 1


def _measure(table: Table, style: TableStyle, points: int, rows: int) -> tuple[list[int], list[int]]:
    """Widest word and widest cell of each column."""
    body, strong = style.body(points), style.strong(points)
    minimum, natural = [], []
    for place, title in enumerate(table.header):
        first = strong if place == 0 and style.bold_first else body
        cells = [(strong if style.bold_header else body, title)]
        cells += [(first, row[place]) for row in table.rows[:rows]]
        minimum.append(max((word_width(t, w) for t, text in cells for w in text.split()), default=0) or points)
        natural.append(max(minimum[-1], *(line_width(t, text.split()) for t, text in cells)))
    return minimum, natural


def lay_out(table: Table, style: TableStyle, size: tuple[int, int]) -> TableLayout:
    """Place the table on a page of at most ``size`` (width, height), turned to landscape if its columns need that.

    The page ends where the table ends. If rows do not fit, the smallest type is taken; rows, columns and words that
    are still beyond the page are left out and told in ``notes``.
    """
    lowest = style.body(style.smallest)
    most = max(size) // (lowest.ascent + lowest.descent + 2 * style.pad_y) + 1
    layout = _stack(table, style, choose_grid(table, style, style.size, size, most))
    if len(layout.rows) < len(table.rows) and layout.size > style.smallest:
        layout = _stack(table, style, choose_grid(table, style, style.smallest, size, most))
    return layout


def _stack(table: Table, style: TableStyle, grid: Grid) -> TableLayout:
    """Caption, header and rows from the top of the page on, as many as fit."""
    body, strong, leading = style.body(grid.size), style.strong(grid.size), style.leading(grid.size)
    title, first = strong if style.bold_header else body, strong if style.bold_first else body
    limit = grid.page[1] - style.margin - 1  # the last rule takes a row of pixels
    caption = break_lines(strong, table.caption, _room(style, grid.page))
    tops = [style.margin + leading * i for i in range(len(caption))]
    y = style.margin + leading * len(caption) + (leading // 2 if caption else 0)
    header, lost = _row(table.header, grid, style, y, (title, title), (y + limit) // 2)
    rows: list[Row] = []
    y = header.y1
    for cells in table.rows:
        row, missing = _row(cells, grid, style, y, (first, body), limit)
        if rows and (missing or row.y1 > limit):
            break
        rows.append(row)
        lost += missing
        y = row.y1
    x = [style.margin]
    for width in grid.widths:
        x.append(x[-1] + width + 2 * style.pad_x)
    right_end = max(x[-1], *(style.margin + line_width(strong, line) for line in caption), 0)
    return TableLayout(
        width=right_end + style.margin + 1,
        height=y + style.margin + 1,
        size=grid.size,
        caption=tuple(zip(tops, caption, strict=True)),
        x=tuple(x),
        right=tuple(style.numbers_right and _numeric(table, i, len(rows)) for i in range(len(grid.widths))),
        header=header,
        rows=tuple(rows),
        notes=tuple(_notes(table, len(rows), len(grid.widths), lost)),
    )


def _row(
    cells: Sequence[str], grid: Grid, style: TableStyle, y0: int, types: tuple[Type, Type], bottom: int
) -> tuple[Row, int]:
    """The row that begins at ``y0`` and how many words it loses by ending at ``bottom``; types: first cell, others."""
    lines = [break_lines(types[min(i, 1)], cells[i], width) for i, width in enumerate(grid.widths)]
    leading = style.leading(grid.size)
    most = max(1, (bottom - y0 - 2 * style.pad_y + style.line_gap) // leading)
    lost = sum(len(line) for cell in lines for line in cell[most:])
    shown = tuple(cell[:most] for cell in lines)
    height = max(1, *map(len, shown)) * leading - style.line_gap + 2 * style.pad_y
    return Row(y0, y0 + height, shown), lost


def _numeric(table: Table, column: int, rows: int) -> bool:
    cells = [row[column] for row in table.rows[:rows] if row[column]]
    return bool(cells) and sum(NUMBER.fullmatch(cell) is not None for cell in cells) >= 0.7 * len(cells)


def _notes(table: Table, rows: int, columns: int, words: int) -> list[str]:
    """What is not on the page, in phrases."""
    notes = []
    for what, shown, there in (("row", rows, len(table.rows)), ("column", columns, len(table.header))):
        if there - shown == 1:
            notes.append(f"{what} {there} of the table is not shown")
        elif shown < there:
            notes.append(f"{what}s {shown + 1} to {there} of the table are not shown")
    if words:
        notes.append(f"{words} words of long cells are not shown")
    return notes
