"""Where known text may stand: words in private places, and private places for a text without one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import ndimage
from torch import Tensor

from docleak.attacks.gradients.joint.drawing import Line, lines_of
from docleak.documents.page import Box, Word
from docleak.models.base import Transcript

#: Boxes are rounded down to this share of the page (LayoutLM's 0..1000); half of it is added back.
GRID = 1 / 1000
#: Pixels that ``private_mask`` puts around a field.
MARGIN = 1


def private_lines(transcript: Transcript, private: Tensor) -> tuple[Line, ...]:
    """The words (in pixels) of a page whose middle lies in ``private`` (H, W), as lines."""
    height, width = private.shape
    half = (width * GRID / 2, height * GRID / 2) * 2
    words = []
    for word in transcript.words:
        box: Box = tuple(edge + h for edge, h in zip(word.box, half, strict=True))  # type: ignore[assignment]
        x, y = int((box[0] + box[2]) / 2), int((box[1] + box[3]) / 2)
        if box[0] < box[2] and box[1] < box[3] and x < width and y < height and bool(private[y, x]):
            words.append(Word(word.text, box))
    return lines_of(words)


def regions(private: Tensor) -> tuple[tuple[slice, slice], ...]:
    """Rows and columns of each connected piece of ``private`` (H, W)."""
    labels, _ = ndimage.label(private.cpu().numpy())
    return tuple((rows, columns) for rows, columns in ndimage.find_objects(labels))


def boxes_of(found: Sequence[tuple[slice, slice]], size: tuple[int, int]) -> tuple[Box, ...]:
    """The ink's place in each region: without the margin that the mask has on the sides where there was room for it."""
    height, width = size
    boxes = []
    for rows, columns in found:
        x0, x1 = (columns.start + MARGIN * (columns.start > 0), columns.stop - MARGIN * (columns.stop < width))
        y0, y1 = (rows.start + MARGIN * (rows.start > 0), rows.stop - MARGIN * (rows.stop < height))
        if x0 < x1 and y0 < y1:
            boxes.append((float(x0), float(y0), float(x1), float(y1)))
    return tuple(boxes)


def touched(private: Tensor, ink: np.ndarray) -> Tensor:
    """Which private pixels (H, W) are in a region with any of ``ink`` (H, W)."""
    out = private.clone()
    for rows, columns in regions(private):
        if not ink[rows, columns].any():
            out[rows, columns] = False
    return out
