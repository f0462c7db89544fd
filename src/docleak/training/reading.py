"""Dense reading supervision for small vision encoders: which character stands in each output cell.

Learning to read from answers alone takes a Donut hundreds of thousands of pages. Synthetic pages come
with exact word boxes, so a throw-away linear head can be asked, for every cell of the encoder's output
grid, for the character whose centre lies in it; the encoder learns its letters from a few thousand pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from PIL import ImageFont
from torch import Tensor, nn

from docleak.documents.page import Page, Word

FIRST, LAST = 33, 126  # printable ASCII without the space
CLASSES = LAST - FIRST + 2  # 0 is "no character here"
BACKGROUND_WEIGHT = 0.1


@lru_cache(maxsize=256)
def _advance(character: str) -> float:
    return float(ImageFont.load_default(20).getlength(character))


def character_centres(word: Word) -> Iterator[tuple[str, float, float]]:
    """(character, x, y) along the word's box, widths shared out as in a proportional font."""
    x0, y0, x1, y1 = word.box
    widths = [_advance(c) for c in word.text]
    scale = (x1 - x0) / (sum(widths) or 1.0)
    x = x0
    for character, width in zip(word.text, widths, strict=True):
        yield character, x + width * scale / 2, (y0 + y1) / 2
        x += width * scale


def cell_labels(page: Page, grid: tuple[int, int]) -> Tensor:
    """(rows * columns,) class per output cell: the character whose centre is in it (the last, if two are)."""
    rows, columns = grid
    labels = torch.zeros(rows, columns, dtype=torch.long)
    for word in page.words:
        for character, x, y in character_centres(word):
            code = ord(character)
            if FIRST <= code <= LAST:
                row, column = int(y * rows / page.height), int(x * columns / page.width)
                labels[min(row, rows - 1), min(column, columns - 1)] = code - FIRST + 1
    return labels.flatten()


class ReadingHead(nn.Module):
    """A linear layer over the encoder's cells; used in pretraining only and thrown away."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, CLASSES)

    def loss(self, cells: Tensor, pages: Sequence[Page], grid: tuple[int, int]) -> Tensor:
        """Cross-entropy over cells (B, rows * columns, width), the background weighted down."""
        labels = torch.stack([cell_labels(page, grid) for page in pages]).to(cells.device)
        weight = torch.ones(CLASSES, device=cells.device)
        weight[0] = BACKGROUND_WEIGHT
        return F.cross_entropy(self.linear(cells).transpose(1, 2), labels, weight=weight)
