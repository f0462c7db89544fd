"""Take what is private off a page: which pixels those are, and the blank template that remains without them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from docleak.documents.locate import repeats_of
from docleak.documents.page import Box, Image, Page

#: Width in pixels of the ring around a private region in which the paper's colour is looked for.
RING = 3


def private_mask(page: Page, *, margin: int = 1, repeats: bool = True) -> NDArray[np.bool_]:
    """True on the pixels of private fields and of the repeats of their values (``repeats_of``), shape (H, W).

    One rectangle per line of each field: rounded outwards to whole pixels, grown by ``margin`` pixels on each side
    and clipped to the page. A field without words has no pixels. ``repeats=False`` leaves the repeats out. Raises
    ValueError for a negative margin.
    """
    mask = np.zeros((page.height, page.width), dtype=bool)
    for rows, columns in private_regions(page, margin=margin, repeats=repeats):
        mask[rows, columns] = True
    return mask


def private_regions(page: Page, *, margin: int = 1, repeats: bool = True) -> list[tuple[slice, slice]]:
    """Rows and columns of each rectangle of ``private_mask``, in the order of the fields, repeats last."""
    if margin < 0:
        raise ValueError(f"margin is {margin} pixels; expected 0 or more")
    fields = (*page.private_fields, *(repeats_of(page) if repeats else ()))
    return [_grown(page, box, margin) for field in fields for box in page.field_boxes(field)]


def blank_template(page: Page, *, margin: int = 1) -> Image:
    """The page as uint8 RGB (H, W, 3) with every private region filled with the colour of the paper around it.

    Each region gets one colour, taken only from public pixels: the commonest colour in the ring of RING pixels
    around it, else (nothing public is near) of the whole page, else white. So neither the ink of a field nor that
    of its neighbours can show in the template: pages that differ only in private pixels have the same template.
    Places that print a private value again are blanked too, where words are known (``repeats_of``).
    Ink outside the boxes (a tight box, the halo of JPEG compression) stays; a larger ``margin`` takes it away.
    """
    private = private_mask(page, margin=margin)
    template = page.image.copy()
    elsewhere = None
    for rows, columns in private_regions(page, margin=margin):
        around = (_wider(rows, page.height), _wider(columns, page.width))
        public = page.image[around][~private[around]]  # (N, 3)
        if not len(public):
            elsewhere = commonest_colour(page.image[~private]) if elsewhere is None else elsewhere
            template[rows, columns] = elsewhere
        else:
            template[rows, columns] = commonest_colour(public)
    return template


def commonest_colour(pixels: Image) -> Image:
    """The paper among ``pixels`` (N, 3): the median, shape (3,), of the fullest of 8^3 colour bins; white for N = 0.

    Of equally full bins the lightest is taken. The mode, unlike the median, is still paper when half the ring is ink.
    """
    if not len(pixels):
        return np.full(3, 255, dtype=np.uint8)
    coarse = (pixels.astype(np.int64) // 32) @ np.array([64, 8, 1])
    bins, counts = np.unique(coarse, return_counts=True)
    lightness = bins // 64 + bins // 8 % 8 + bins % 8
    best = bins[np.lexsort((lightness, counts))[-1]]
    return np.asarray(np.median(pixels[coarse == best], axis=0).round(), dtype=np.uint8)


def _grown(page: Page, box: Box, margin: int) -> tuple[slice, slice]:
    x0, y0, x1, y1 = box
    rows = slice(max(math.floor(y0) - margin, 0), min(math.ceil(y1) + margin, page.height))
    columns = slice(max(math.floor(x0) - margin, 0), min(math.ceil(x1) + margin, page.width))
    return rows, columns


def _wider(extent: slice, size: int) -> slice:
    return slice(max(extent.start - RING, 0), min(extent.stop + RING, size))
