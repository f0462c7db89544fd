"""The blank page of a provider: header, title, fields, total and footer, stacked from top to bottom."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from docleak.documents.fonts import Type, blend
from docleak.documents.synthetic_layouts import LAYOUTS, Block, Sheet, Template, default_unit
from docleak.documents.synthetic_providers import Provider, provider, provider_rng
from docleak.documents.synthetic_values import pick
from docleak.errors import DocumentError

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


Grid = NDArray[np.float64]
#: Where the ink of a logo is, by coordinates -1 to 1.
LOGOS: dict[str, Callable[[Grid, Grid], NDArray[np.bool_]]] = {
    "disc": lambda x, y: np.hypot(x, y) < 0.95,
    "ring": lambda x, y: (np.hypot(x, y) < 0.95) & (np.hypot(x, y) > 0.5),
    "square": lambda x, y: (np.abs(x) < 0.85) & (np.abs(y) < 0.85) & ~((np.abs(x) < 0.3) & (np.abs(y) < 0.3)),
    "diamond": lambda x, y: np.abs(x) + np.abs(y) < 0.95,
    "bars": lambda x, y: (np.floor((x + 1) * 2.5) % 2 == 0) & (y > -0.8 + 0.5 * np.abs(np.floor((x + 1) * 1.25) - 1)),
    "triangle": lambda x, y: (y < 0.8) & (np.abs(x) < (y + 0.9) / 1.8),
    "cross": lambda x, y: (np.abs(x) < 0.3) | (np.abs(y) < 0.3),
}


@lru_cache(maxsize=256)
def logo_ink(shape: str, side: int) -> NDArray[np.uint8]:
    """Ink of a logo in a square of ``side`` pixels."""
    axis = (np.arange(side * FINE) + 0.5) / (side * FINE) * 2 - 1
    x, y = np.meshgrid(axis, axis)
    inside = LOGOS[shape](x, y)
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


#: Fields every page has, then those it may have besides (likelier to be chosen, the more often listed).
CORE = ("invoice_number", "date", "customer_name", "total")
EXTRAS = (
    *["customer_email"] * 5, *["tax_number"] * 4, "due_date", "order_number", "iban", "subtotal", "tax_amount",
)  # fmt: skip
#: The order of fields down the page.
ORDER = (
    "invoice_number", "order_number", "date", "due_date", "customer_name", "customer_email", "tax_number", "iban",
    "subtotal", "tax_amount", "total",
)  # fmt: skip


def choose_keys(sheet: Sheet, count: int, order: Sequence[str]) -> list[str]:
    """``count`` fields down the page: the core and the first extras of ``order``."""
    extras = [key for key in order if sheet.need(key) <= sheet.span]
    if sheet.layout.body == "table":
        extras = ["subtotal", "tax_amount", *(k for k in extras if k not in ("subtotal", "tax_amount"))]
    chosen = {*CORE, *extras[: count - len(CORE)]}
    return [key for key in ORDER if key in chosen]


def _stack(sheet: Sheet, count: int, order: Sequence[str]) -> bool:
    """Set the page with ``count`` fields, if it fits."""
    keys = choose_keys(sheet, count, order)
    body = BODIES[sheet.layout.body](sheet, [key for key in keys if key != "total"])
    blocks = [header_block(sheet), title_block(sheet), *body, total_block(sheet)]
    footer = footer_block(sheet)
    # Gaps: above the header, after header, after title, within the body (all alike), before the total and the footer.
    band = sheet.layout.header == "band"
    least = [0 if band else sheet.px(4), sheet.px(6), sheet.px(5), sheet.px(1), sheet.px(5)]
    caps = [0 if band else sheet.px(8), sheet.px(20), sheet.px(14), sheet.px(7), sheet.px(20)]
    counts = np.array([1, 1, 1, len(body) - 1, 1])
    spare = sheet.height - sheet.px(5) - sum(block.height for block in blocks) - int(counts @ np.array(least))
    if spare < 0:
        return False
    if footer and spare >= footer.height + sheet.px(6):
        spare -= footer.height + sheet.px(6)
    else:
        footer = None
    shares = sheet.rng.dirichlet([1.0, 2.0, 2.0, 6.0, 3.0]) * spare
    above, *between = (
        low + min(int(share // max(1, number)), cap)
        for low, share, number, cap in zip(least, shares, counts, caps, strict=True)
    )
    gaps = [between[0], between[1], *[between[2]] * (len(body) - 1), between[3], 0]
    top = above
    for block, gap in zip(blocks, gaps, strict=True):
        block.draw(top)
        top += block.height + gap
    if footer:
        bottom = sheet.height - sheet.px(5) - footer.height
        footer.draw(min(top + sheet.px(6) + int(sheet.rng.integers(0, sheet.px(30))), bottom))
    return True


@lru_cache(maxsize=2048)
def build_template(index: int, size: tuple[int, int]) -> Template:
    """The blank page of provider ``index`` at ``size`` (width, height); DocumentError if that is too small."""
    return lay_out(provider(index), size)


def lay_out(owner: Provider, size: tuple[int, int]) -> Template:
    """The blank page of any provider, as ``build_template``."""
    index, unit = owner.index, default_unit(size)
    layout = LAYOUTS[owner.layout % len(LAYOUTS)]
    wish = pick(provider_rng(index, 3), (4, 5, 5, 6, 6)) + round(2.5 * (size[0] * size[1] / (192 * 256 * unit**2) - 1))
    shuffled = [EXTRAS[i] for i in provider_rng(index, 4).permutation(len(EXTRAS))]
    order = list(dict.fromkeys(shuffled))
    counts = range(min(wish, len(ORDER)), len(CORE) - 1, -1)
    for squeeze, count in itertools.product(range(3), counts):
        sheet = Sheet(size[0], size[1], owner, layout, provider_rng(index, 5, *size), unit, squeeze)
        if sheet.fits_width() and _stack(sheet, count, order):
            return sheet.template()
    raise DocumentError(
        f"synthetic pages of {size[0]} x {size[1]} pixels: provider {index} ({layout.name}) needs more room for "
        f"{len(CORE)} legible fields. Use a larger size; the default is 192 x 256."
    )
