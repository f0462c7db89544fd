"""The parts a synthetic invoice is stacked from: header, title, fields, total, footer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from docleak.documents.fonts import Type, blend
from docleak.documents.synthetic_layouts import Block, Sheet

WHITE = (255, 255, 255)
PALE = 236
#: Samples per pixel and axis when a shape's edge is antialiased.
FINE = 4


def header_block(sheet: Sheet) -> Block:
    """Logo, name, address and contact of the provider."""
    owner, style = sheet.owner, sheet.layout.header
    small = sheet.text
    pad = sheet.px(4) if style in ("band", "frame") else 0
    first = sheet.heading.ascent + sheet.heading.descent + sheet.px(2)
    step = small.ascent + small.descent + sheet.px(2)
    lines = [(owner.name, sheet.heading), (owner.address, small), (owner.contact, small)]
    logo = 0 if owner.logo == "none" else first + step - sheet.px(4)
    inner = (sheet.left + pad, sheet.right - pad)
    if logo and max(t.width(s) for s, t in lines) + logo + sheet.px(6) > inner[1] - inner[0]:
        logo = 0
    if max(t.width(s) for s, t in lines) > inner[1] - inner[0]:
        lines[0] = (owner.name, Type(sheet.text.face, sheet.text.size))
    after = sheet.px(5) if style == "rule" else 0
    height = first + 2 * step + 2 * pad + after
    align = {"right": "right", "centre": "centre"}.get(style, "left")

    def draw(top: int) -> None:
        ink = (0, 0, 0)
        if style == "band":
            dark = sum(owner.accent) < 300 and owner.index % 2 == 0
            sheet.fill(0, 0, sheet.width, top + height, owner.accent if dark else (PALE - 10,) * 3)
            ink = WHITE if dark else ink
        elif style == "frame":
            sheet.frame(sheet.left, top, sheet.right, top + height)
        elif style == "rule":
            sheet.rule(top + height - sheet.px(2))
        x0, x1 = inner
        if logo:
            logo_x = x1 - logo if align == "left" and owner.index % 3 == 0 else x0
            colour = ink if ink == WHITE else owner.accent
            blend(sheet.image, logo_ink(owner.logo, logo), logo_x, top + pad + sheet.px(1), colour)
            x0 = x0 + logo + sheet.px(6) if logo_x == x0 else x0
        baseline = top + pad + sheet.heading.ascent
        for number, (text, type_) in enumerate(lines):
            sheet.write(text, type_, sheet.aligned(text, type_, align, x0, x1), baseline, ink)
            baseline += (first if number == 0 else step) - (sheet.heading.ascent - small.ascent if number == 0 else 0)

    return Block(height, draw)


def title_block(sheet: Sheet) -> Block:
    """The word INVOICE, or what the provider calls it."""
    style, type_, text = sheet.layout.title, sheet.title, sheet.owner.title
    pad = sheet.px(4) if style in ("box", "strip", "underline") else sheet.px(1)
    height = type_.ascent + type_.descent + 2 * pad
    align = style if style in ("right", "centre") else "left"

    def draw(top: int) -> None:
        x = sheet.aligned(text, type_, align, sheet.left, sheet.right)
        if style == "box":
            sheet.frame(x, top, x + type_.width(text) + sheet.px(10), top + height)
            x += sheet.px(5)
        elif style == "strip":
            sheet.fill(sheet.left, top, sheet.right, top + height, (PALE,) * 3)
            x += sheet.px(4)
        elif style == "underline":
            sheet.rule(top + height - sheet.px(2))
        sheet.write(text, type_, x, top + pad + type_.ascent, sheet.owner.accent)

    return Block(height, draw)


def _row_height(sheet: Sheet, type_: Type) -> tuple[int, int]:
    """Rise above the baseline and full height of a row that holds labels and values of ``type_``."""
    up = max(sheet.text.ascent, type_.ascent)
    return up + 1, max(up + max(sheet.text.descent, type_.descent) + sheet.px(3), sheet.leading)


def _tab(sheet: Sheet, keys: Sequence[str], gap: int) -> int:
    """Where left-aligned values start: beyond the labels of the fields that fit on one row."""
    room = sheet.span - gap
    fitting = [w for key in keys if (w := sheet.text.width(sheet.owner.labels[key])) + sheet.need(key) <= room]
    return sheet.left + max(fitting, default=0) + gap


def row_blocks(sheet: Sheet, keys: Sequence[str], *, flush: bool, lines: bool, shade: bool) -> list[Block]:
    """One field per row: label left, value at a tab or flush right; two rows where it is too long for one."""
    gap = sheet.px(6) + int(sheet.rng.integers(0, sheet.px(6)))
    tab = _tab(sheet, keys, gap)
    rise, row = _row_height(sheet, sheet.value)
    extra = sheet.px(3) if lines else 0

    def block(key: str) -> Block:
        clear = sheet.left + sheet.text.width(sheet.owner.labels[key]) + gap
        start = clear if flush else tab
        single = clear <= start and start + sheet.need(key) <= sheet.right
        indent = 0 if flush else min(sheet.px(8), sheet.span - sheet.need(key))
        height = (row if single else 2 * row) + extra

        def draw(top: int) -> None:
            baseline = top + rise
            if shade and single:
                sheet.fill(sheet.left - sheet.px(2), top - 1, tab - sheet.px(3), top + row, (PALE,) * 3)
            sheet.label(key, sheet.left, baseline)
            if single:
                sheet.slot(key, start, sheet.right, baseline, right=flush)
            else:
                sheet.slot(key, sheet.left + indent, sheet.right, baseline + row, right=flush)
            if lines:
                sheet.rule(top + height - sheet.px(2), grey=190)

        return Block(height, draw)

    return [block(key) for key in keys]


def stack_blocks(sheet: Sheet, keys: Sequence[str]) -> list[Block]:
    """Every label above its value."""
    rise, row = _row_height(sheet, sheet.value)
    indent = int(sheet.rng.integers(0, sheet.px(7)))

    def block(key: str) -> Block:
        def draw(top: int) -> None:
            sheet.label(key, sheet.left, top + rise)
            shift = min(indent, sheet.span - sheet.need(key))
            sheet.slot(key, sheet.left + shift, sheet.right, top + rise + row)

        return Block(2 * row, draw)

    return [block(key) for key in keys]


def grid_blocks(sheet: Sheet, keys: Sequence[str], *, framed: bool, right: bool) -> list[Block]:
    """Cells with the label above the value, two to a row where both are short enough."""
    rise, row = _row_height(sheet, sheet.value)
    pad = sheet.px(3) if framed else 0
    gap = sheet.px(8) - pad
    half = (sheet.span - gap) // 2
    waiting, pairs = list(keys), []
    while waiting:
        key = waiting.pop(0)
        mate = None
        if sheet.fits_cell(key, half - 2 * pad):
            mate = next((k for k in waiting if sheet.fits_cell(k, half - 2 * pad)), None)
        if mate:
            waiting.remove(mate)
        pairs.append((key, mate))

    def block(key: str, mate: str | None) -> Block:
        height = 2 * row + 2 * pad

        def cell(key: str, x0: int, x1: int, top: int, right: bool) -> None:
            if framed:
                sheet.frame(x0, top, x1, top + height, grey=150)
            x0, x1, label = x0 + pad, x1 - pad, sheet.owner.labels[key]
            sheet.label(key, sheet.aligned(label, sheet.text, "right" if right else "left", x0, x1), top + pad + rise)
            sheet.slot(key, x0, x1, top + pad + rise + row, right=right)

        def draw(top: int) -> None:
            cell(key, sheet.left, sheet.right if mate is None else sheet.left + half, top, False)
            if mate is not None:
                cell(mate, sheet.right - half, sheet.right, top, right)

        return Block(height, draw)

    return [block(key, mate) for key, mate in pairs]


def table_blocks(sheet: Sheet, keys: Sequence[str]) -> list[Block]:
    """Rows, then a table head over the amounts."""
    money = [key for key in keys if key in ("subtotal", "tax_amount")]
    blocks = row_blocks(sheet, [key for key in keys if key not in money], flush=False, lines=False, shade=False)
    rise, row = _row_height(sheet, sheet.text)

    def head(top: int) -> None:
        sheet.fill(sheet.left, top, sheet.right, top + row + 1, (PALE - 16,) * 3)
        sheet.write("Item", sheet.text, sheet.left + sheet.px(3), top + rise, (0, 0, 0))
        text = "Amount"
        x = sheet.aligned(text, sheet.text, "right", sheet.left, sheet.right - sheet.px(3))
        sheet.write(text, sheet.text, x, top + rise, (0, 0, 0))

    if money:
        blocks.append(Block(row + sheet.px(3), head))
        blocks += row_blocks(sheet, money, flush=True, lines=True, shade=False)
    return blocks


def total_block(sheet: Sheet) -> Block:
    """The amount to pay."""
    style, label = sheet.layout.total, sheet.owner.labels["total"]
    type_ = sheet.heading if style == "big" else sheet.bold
    pad = sheet.px(1 if style in ("plain", "big") else 4)
    edge = pad if style in ("box", "tag") else 0
    height = type_.ascent + type_.descent + 2 * pad + 1

    def draw(top: int) -> None:
        ink = (0, 0, 0)
        stop = sheet.left + 2 * edge + type_.width(label)
        if style == "box":
            sheet.frame(sheet.left, top, sheet.right, top + height)
        elif style == "tag":
            sheet.fill(sheet.left, top, stop, top + height, sheet.owner.accent)
            ink = WHITE
        elif style in ("rule", "double"):
            sheet.rule(top)
            if style == "double":
                sheet.rule(top + height - sheet.px(2))
                sheet.rule(top + height)
        baseline = top + pad + 1 + type_.ascent
        sheet.write(label, type_, sheet.left + edge, baseline, ink)
        sheet.slot(
            "total",
            stop + sheet.px(6),
            sheet.right - (edge if style == "box" else 0),
            baseline,
            right=True,
            type_=type_,
        )

    return Block(height + (sheet.px(2) if style == "double" else 0), draw)


def footer_block(sheet: Sheet) -> Block | None:
    """A last public line, if the provider prints one that fits."""
    text = sheet.owner.footer
    if not text or sheet.text.width(text) > sheet.span:
        return None

    def draw(top: int) -> None:
        x = sheet.aligned(text, sheet.text, "centre", sheet.left, sheet.right)
        sheet.write(text, sheet.text, x, top + sheet.text.ascent, (110, 110, 110))

    return Block(sheet.text.ascent + sheet.text.descent, draw)


def logo_ink(shape: str, side: int) -> NDArray[np.uint8]:
    """Ink of a logo in a square of ``side`` pixels."""
    axis = (np.arange(side * FINE) + 0.5) / (side * FINE) * 2 - 1
    x, y = np.meshgrid(axis, axis)
    radius = np.hypot(x, y)
    inside = {
        "disc": radius < 0.95,
        "ring": (radius < 0.95) & (radius > 0.5),
        "square": (np.abs(x) < 0.85) & (np.abs(y) < 0.85) & ~((np.abs(x) < 0.3) & (np.abs(y) < 0.3)),
        "diamond": np.abs(x) + np.abs(y) < 0.95,
        "bars": (np.floor((x + 1) * 2.5) % 2 == 0) & (y > -0.8 + 0.5 * np.abs(np.floor((x + 1) * 1.25) - 1)),
        "triangle": (y < 0.8) & (np.abs(x) < (y + 0.9) / 1.8),
        "cross": (np.abs(x) < 0.3) | (np.abs(y) < 0.3),
    }[shape]
    coverage = inside.reshape(side, FINE, side, FINE).mean(axis=(1, 3))
    ink: NDArray[np.uint8] = np.round(coverage * 255).astype(np.uint8)
    return ink


BODIES: dict[str, Callable[[Sheet, Sequence[str]], list[Block]]] = {
    "rows": lambda sheet, keys: row_blocks(sheet, keys, flush=False, lines=False, shade=False),
    "flush": lambda sheet, keys: row_blocks(sheet, keys, flush=True, lines=False, shade=False),
    "lines": lambda sheet, keys: row_blocks(sheet, keys, flush=False, lines=True, shade=False),
    "sidebar": lambda sheet, keys: row_blocks(sheet, keys, flush=False, lines=False, shade=True),
    "stack": stack_blocks,
    "grid": lambda sheet, keys: grid_blocks(sheet, keys, framed=False, right=False),
    "wide": lambda sheet, keys: grid_blocks(sheet, keys, framed=False, right=True),
    "cells": lambda sheet, keys: grid_blocks(sheet, keys, framed=True, right=False),
    "table": table_blocks,
}
