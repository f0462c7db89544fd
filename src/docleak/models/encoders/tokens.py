"""Pages as a token encoder reads them: word pieces, their boxes, the picture, and labels; and batches of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image as PILImage
from torch import Tensor

from docleak.documents.page import Page
from docleak.errors import ModelError
from docleak.models.base import IGNORED, pad

#: Width and height that every page's coordinates are scaled to.
BOX_SCALE = 1000


@dataclass(frozen=True, eq=False)
class Asked:
    """A question of a page: its pieces and [SEP], ``ids`` (Q,), and the first and last position of its answer there."""

    ids: Tensor
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class TokenPage:
    """One page in word pieces: [CLS], the pieces of its words, [SEP]; no padding.

    ``ids`` (T,) and ``boxes`` (T, 4), x0, y0, x1, y1 in 0..1000, are int64. ``words`` (T,) is the page's word that a
    piece belongs to, -1 for special tokens. ``image`` is the picture at the model's size, (3, H, W) uint8, or None for
    a model without eyes. ``labels`` maps the names of a task's label rows to (T,) int64, IGNORED where there is none.
    ``cut`` counts the words beyond the model's length, which are not there. ``questions`` are those of a model for
    question answering, which reads one at a time behind the page: see ``encoders.questions``.
    """

    name: str
    document: str
    ids: Tensor
    boxes: Tensor
    words: Tensor
    image: Tensor | None = None
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    cut: int = 0
    questions: tuple[Asked, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def first(self) -> Tensor:
        """True on the first piece of each word, (T,)."""
        before = torch.cat([torch.tensor([-1]), self.words[:-1]])
        return (self.words >= 0) & (self.words != before)


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Pages padded on the right to the longest: ``ids`` (B, T), ``boxes`` (B, T, 4), ``mask`` (B, T) True on tokens.

    ``first`` (B, T) is True on the first piece of a word; ``labels`` are (B, T). ``images`` is (B, 3, H, W) uint8.
    """

    ids: Tensor
    boxes: Tensor
    mask: Tensor
    first: Tensor
    labels: Mapping[str, Tensor]
    images: Tensor | None = None


def encode_page(page: Page, tokenizer: Any, *, max_tokens: int, image_size: tuple[int, int] | None = None) -> TokenPage:
    """Pieces of the page's words in reading order, cut at ``max_tokens`` with the two special ones, without labels.

    ``image_size`` (width, height) stretches the picture to what the model sees. Raises ModelError for a page without
    words: there is nothing to read or to hide.
    """
    if not page.words:
        raise ModelError(f"page {page.name!r} has no words; a token encoder needs OCR words with boxes.")
    split = tokenizer([word.text for word in page.words], is_split_into_words=True, add_special_tokens=False)
    owners = torch.tensor([-1, *split.word_ids()[: max_tokens - 2], -1])
    ids = [tokenizer.cls_token_id, *split["input_ids"][: max_tokens - 2], tokenizer.sep_token_id]
    scale = np.array([BOX_SCALE / page.width, BOX_SCALE / page.height] * 2)
    places = np.array([word.box for word in page.words]) * scale
    boxes = torch.from_numpy(places.round().clip(0, BOX_SCALE).astype(np.int64))[owners.clamp(min=0)]
    boxes[0], boxes[-1] = 0, BOX_SCALE
    image = None
    if image_size is not None:
        pixels = np.asarray(PILImage.fromarray(page.image).resize(image_size, PILImage.Resampling.BILINEAR))
        image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    whole = {word for word in split.word_ids() if word is not None}
    seen = set(owners.tolist())
    return TokenPage(
        name=page.name,
        document=page.document or page.name,
        ids=torch.tensor(ids),
        boxes=boxes,
        words=owners,
        image=image,
        cut=len(whole - seen),
    )


def collate(pages: Sequence[TokenPage], *, pad_id: int, device: torch.device | str = "cpu") -> TokenBatch:
    """One batch of pages, which carry the same kinds of label."""
    where = torch.device(device)
    images = [page.image for page in pages if page.image is not None]
    return TokenBatch(
        ids=pad([page.ids for page in pages], pad_id, where),
        boxes=pad([page.boxes for page in pages], 0, where),
        mask=pad([torch.ones_like(page.ids) for page in pages], 0, where).bool(),
        first=pad([page.first.long() for page in pages], 0, where).bool(),
        labels={name: pad([page.labels[name] for page in pages], IGNORED, where) for name in pages[0].labels},
        images=torch.stack(images).to(where) if images else None,
    )
