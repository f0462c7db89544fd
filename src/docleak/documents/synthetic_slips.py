"""Slips: synthetic pages too small for an invoice, with the issuer's name and up to three fields on a line or two each.

An evaluation of an attack costs little on them, so that searches of thousands of steps are affordable.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

from docleak.documents.synthetic_layouts import LAYOUTS, Block, Sheet, Template
from docleak.documents.synthetic_providers import provider, provider_rng
from docleak.documents.synthetic_templates import row_blocks
from docleak.errors import DocumentError

#: Width and height, in pixels, at which every provider has room for one field.
SMALLEST_SLIP = (96, 64)
#: Fields of a slip, the fullest first.
FIELDS = (("invoice_number", "date", "total"), ("date", "total"), ("total",))
#: Pixels of paper at every edge.
EDGE = 3


@lru_cache(maxsize=2048)
def build_slip(index: int, size: tuple[int, int]) -> Template:
    """Provider ``index``'s blank slip of ``size`` (width, height); DocumentError if not even one field has room."""
    owner = provider(index)
    layout = LAYOUTS[owner.layout % len(LAYOUTS)]
    for keys, squeeze in itertools.product(FIELDS, range(3)):
        sheet = Sheet(*size, owner, layout, provider_rng(index, 5, *size), 1.0, squeeze)
        sheet.left, sheet.right = EDGE, size[0] - EDGE
        blocks = [_name_block(sheet), *row_blocks(sheet, keys, flush=True, lines=False, shade=False)]
        spare = size[1] - 2 * EDGE - sum(block.height for block in blocks)
        if spare >= 0 and all(sheet.fits_cell(key, sheet.span) for key in keys):
            top = EDGE
            for block in blocks:
                block.draw(top)
                top += block.height + spare // len(keys)
            return sheet.template()
    raise DocumentError(
        f"synthetic slips of {size[0]} x {size[1]} pixels: provider {index} needs more room for one legible "
        f"field. Use {SMALLEST_SLIP[0]} x {SMALLEST_SLIP[1]} or more."
    )


def _name_block(sheet: Sheet) -> Block:
    """The provider's name, as many of its words as have room."""
    words = sheet.owner.name.split()
    while len(words) > 1 and sheet.text.width(" ".join(words)) > sheet.span:
        words.pop()

    def draw(top: int) -> None:
        sheet.write(" ".join(words), sheet.text, sheet.left, top + sheet.text.ascent, (0, 0, 0))

    return Block(sheet.text.ascent + sheet.text.descent, draw)
