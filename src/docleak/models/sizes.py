"""Sizes of pages in pixels, as people write them."""

from __future__ import annotations

import re

from docleak.errors import AttackError

#: Pixels of a model's input at most; Donut's own size, 1920 x 2560, has 4.9 million.
MOST_MODEL_PIXELS = 16_000_000


def parse_size(text: str) -> tuple[int, int]:
    """``WIDTHxHEIGHT`` in pixels; AttackError for anything else."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})[xX]([1-9][0-9]{0,5})", text.strip())
    if match is None:
        raise AttackError(f"image size {text!r} is not WIDTHxHEIGHT in pixels; expected for instance 320x608.")
    size = int(match[1]), int(match[2])
    if size[0] * size[1] > MOST_MODEL_PIXELS:
        raise AttackError(
            f"image size {text!r} has {size[0] * size[1]:,} pixels; expected at most {MOST_MODEL_PIXELS:,}, for a "
            "model's memory grows with them."
        )
    return size
