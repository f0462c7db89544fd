"""Bring a page to the size a model takes, and its boxes with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image as PILImage

from docleak.documents.page import Box, Page, Word


def fit_page(
    page: Page,
    size: tuple[int, int],
    *,
    keep_aspect: bool,
    fill: int = 255,
    resample: int = PILImage.Resampling.BILINEAR,
) -> Page:
    """The page on a canvas of ``size`` (width, height), words and fields moved along; ``resample``: Pillow's filter.

    ``keep_aspect`` scales by one factor, centres, and fills the rest with grey level ``fill``;
    otherwise width and height are stretched separately. A page that already fits is returned as it is.
    """
    width, height = size
    if (page.width, page.height) == size:
        return page
    if keep_aspect:
        scale = min(width / page.width, height / page.height)
        inner = (max(1, round(page.width * scale)), max(1, round(page.height * scale)))
    else:
        inner = size
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    canvas = np.full((height, width, 3), fill, dtype=np.uint8)
    scaled = PILImage.fromarray(page.image).resize(inner, PILImage.Resampling(resample))
    canvas[top : top + inner[1], left : left + inner[0]] = np.asarray(scaled)
    fx, fy = inner[0] / page.width, inner[1] / page.height

    def move(box: Box) -> Box:
        x0, y0, x1, y1 = box
        return x0 * fx + left, y0 * fy + top, min(x1 * fx + left, width), min(y1 * fy + top, height)

    words = tuple(Word(word.text, move(word.box)) for word in page.words)
    return replace(page, image=canvas, words=words)
