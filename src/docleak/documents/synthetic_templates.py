"""The blank page of a provider: which fields it has, and its blocks stacked from top to bottom."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from docleak.documents.synthetic_blocks import BODIES, footer_block, header_block, title_block, total_block
from docleak.documents.synthetic_layouts import LAYOUTS, Sheet, Template, default_unit
from docleak.documents.synthetic_providers import Provider, provider, provider_rng
from docleak.documents.synthetic_values import pick
from docleak.errors import DocumentError

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
    owner: Provider = provider(index)
    unit = default_unit(size)
    layout = LAYOUTS[owner.layout % len(LAYOUTS)]
    wish = pick(provider_rng(index, 3), (4, 5, 5, 6, 6)) + round(2.5 * (size[0] * size[1] / (192 * 256 * unit**2) - 1))
    shuffled = [EXTRAS[i] for i in provider_rng(index, 4).permutation(len(EXTRAS))]
    order = list(dict.fromkeys(shuffled))
    counts = range(min(wish, len(ORDER)), len(CORE) - 1, -1)
    for squeeze, count in itertools.product(range(3), counts):
        sheet = Sheet(size[0], size[1], owner, layout, provider_rng(index, 5, *size), unit, squeeze)
        if sheet.fits_width() and _stack(sheet, count, order):
            packed = zlib.compress(sheet.image.tobytes(), 1)
            return Template(owner, layout, size, packed, tuple(sheet.words), tuple(sheet.baselines), tuple(sheet.slots))
    raise DocumentError(
        f"synthetic pages of {size[0]} x {size[1]} pixels: provider {index} ({layout.name}) needs more room for "
        f"{len(CORE)} legible fields. Use a larger size; the default is 192 x 256."
    )
