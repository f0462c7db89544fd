"""Dense supervision of a small Donut: what stands in each output cell, and where the decoder should look.

Learning to read from answers alone takes a Donut hundreds of thousands of pages. Synthetic pages come
with exact word boxes, so a throw-away linear head can be asked, for every cell of the encoder's output grid,
which character has its centre there, to which field it belongs and the how-manieth of the value it is; and
the decoder's last cross-attention can be shown the cell of each character it is to say next. The model
then learns its letters, and to copy them, from a few thousand pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from PIL import ImageFont
from torch import Tensor, nn

from docleak.documents.page import Field, Page, Question, Word

FIRST, LAST = 33, 126  # printable ASCII without the space
CLASSES = LAST - FIRST + 2  # 0 is "no character here"
BACKGROUND_WEIGHT = 0.1
PLACES = 32  # places in a value that are told apart
IGNORED = -100


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


Place = tuple[str, float, float]


def value_places(page: Page, field: Field) -> list[Place] | None:
    """(character, x, y) of each character of a field's value, spaces between its words included.

    None where the words do not spell the value, so that nobody could point at it.
    """
    words = [page.words[i] for i in field.words]
    if " ".join(word.text for word in words) != field.value:
        return None
    places: list[Place] = []
    for word in words:
        if places:
            places.append((" ", word.box[0] - 1.0, (word.box[1] + word.box[3]) / 2))
        places += character_centres(word)
    return places


def _cell(x: float, y: float, page: Page, grid: tuple[int, int]) -> int:
    rows, columns = grid
    row, column = int(y * rows / page.height), int(x * columns / page.width)
    return min(max(row, 0), rows - 1) * columns + min(max(column, 0), columns - 1)


def answer_cells(page: Page, question: Question, grid: tuple[int, int]) -> list[int]:
    """The output cell of every UTF-8 byte of the answer, then of its end (just behind it); [] if unknown."""
    field = next((f for f in page.fields if f.key == question.key), None)
    places = value_places(page, field) if field and field.value in question.answers[:1] else None
    if not places:
        return []
    cells = [_cell(x, y, page, grid) for c, x, y in places for _ in c.encode()]
    return [*cells, _cell(places[-1][1] + page.width / grid[1], places[-1][2], page, grid)]


def field_labels(page: Page, grid: tuple[int, int], keys: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Per output cell the field (0: none, else 1 + index in ``keys``) and the place in its value (-100: none)."""
    owner = torch.zeros(grid[0] * grid[1], dtype=torch.long)
    place = torch.full_like(owner, IGNORED)
    for field in page.fields:
        for index, (_, x, y) in enumerate(value_places(page, field) or ()):
            cell = _cell(x, y, page, grid)
            owner[cell] = 1 + keys.index(field.key) if field.key in keys else 0
            place[cell] = min(index, PLACES - 1)
    return owner, place


class ReadingHead(nn.Module):
    """Linear layers over the encoder's cells; used in pretraining only and thrown away."""

    def __init__(self, width: int, keys: Sequence[str] = ()) -> None:
        super().__init__()
        self.keys = tuple(keys)
        self.linear = nn.Linear(width, CLASSES)
        self.owner = nn.Linear(width, 1 + len(keys))
        self.place = nn.Linear(width, PLACES)

    def loss(self, cells: Tensor, pages: Sequence[Page], grid: tuple[int, int]) -> Tensor:
        """Cross-entropies over cells (B, rows * columns, width), the background weighted down."""
        labels = torch.stack([cell_labels(page, grid) for page in pages]).to(cells.device)
        reading = _weighted(self.linear(cells), labels)
        if not self.keys:
            return reading
        pairs = [field_labels(page, grid, self.keys) for page in pages]
        owner, place = (torch.stack(column).to(cells.device) for column in zip(*pairs, strict=True))
        placing = F.cross_entropy(self.place(cells).transpose(1, 2), place, ignore_index=IGNORED)
        return reading + _weighted(self.owner(cells), owner) + placing


def _weighted(scores: Tensor, labels: Tensor) -> Tensor:
    weight = torch.ones(scores.shape[-1], device=scores.device)
    weight[0] = BACKGROUND_WEIGHT
    return F.cross_entropy(scores.transpose(1, 2), labels, weight=weight.to(scores.dtype))


def pointing_loss(attention: Tensor, labels: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
    """Mean -log of the attention that answer tokens give to their cell.

    ``attention`` (N, heads, T, cells) is averaged over heads; ``labels`` (N, T) is negative where no
    answer token is; ``paths`` are ``answer_cells`` (empty: that example does not count).
    """
    rows: list[int] = []
    steps: list[int] = []
    cells: list[int] = []
    for row, path in enumerate(paths):
        first = int((labels[row] >= 0).nonzero()[0])
        rows += [row] * len(path)
        steps += range(first, first + len(path))
        cells += path
    if not rows:
        return attention.new_zeros(())
    at = attention.float().mean(1)[rows, steps]  # (tokens, cells)
    wanted = torch.tensor(cells, device=at.device)
    return -at.gather(1, wanted[:, None]).clamp_min(1e-9).log().mean()
