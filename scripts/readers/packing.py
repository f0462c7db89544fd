"""Several questions about a page in one row: the picture is read once, and questions do not see each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from docleak.documents.page import Page, Question
from docleak.models.base import IGNORED, pad
from docleak.models.vlm.model import VisionLanguage
from docleak.models.vlm.processor import blank
from docleak.training.reading import answer_cells
from scripts.readers.start import FAMILIES, STRIDE

OUTSIDE = -1  # the segment of padding; 0 is the picture, then come the questions


@dataclass(frozen=True)
class Packed:
    """A batch: ``ids``, ``labels``, ``positions`` (B, T), ``sees`` (B, 1, T, T), and for each token of an answer the
    row and place that say it, and the place of the picture's cell where it stands."""

    ids: Tensor
    labels: Tensor
    positions: Tensor
    sees: Tensor
    pointing: Tensor  # (answer tokens, 3)


class Packer:
    """Packs questions about pages for one model."""

    def __init__(self, model: VisionLanguage) -> None:
        self.model = model
        family = FAMILIES[model.architecture]
        ids = model.processor.read(blank(model.image_size), "?")["input_ids"][0]
        places = (ids == model.module.config.image_token_id).nonzero()[:, 0]
        self.picture = ids[: int(places[-1]) + 1 + family.after]
        width, height = model.image_size
        self.grid = height // STRIDE, width // STRIDE
        rows, columns = family.tiles
        high, wide = self.grid[0] // rows, self.grid[1] // columns
        of_tiles = torch.arange(self.grid[0] * self.grid[1]).view(rows, high, columns, wide).transpose(1, 2).flatten()
        #: Of each cell of the page, row by row: which output of the tower it is, and which token.
        self.order = of_tiles.argsort()
        self.places = places[self.order]

    def question(self, question: Question) -> tuple[Tensor, int]:
        """What follows the picture, answer and all, and where in it the answer begins."""
        turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question.text}]}]
        prompt = self.model.processor.inner.apply_chat_template(turns, add_generation_prompt=True)
        asked = self.model.tokenizer(prompt.partition("<image>")[2], add_special_tokens=False)["input_ids"]
        said = self.model.processor.answer_ids(question.text, question.answers[0])
        return torch.tensor([*asked, *said]), len(asked)

    def pack(self, pages: Sequence[Page], asked: Sequence[Sequence[Question]]) -> Packed:
        """One row a page; ``asked`` are its questions."""
        rows = [self._row(number, *both) for number, both in enumerate(zip(pages, asked, strict=True))]
        device = torch.device("cpu")
        padding = int(self.model.tokenizer.pad_token_id)
        ids, labels, positions, segments = (
            pad([row.columns[k] for row in rows], value, device)
            for k, value in enumerate((padding, IGNORED, 0, OUTSIDE))
        )
        length = ids.shape[1]
        sees = (segments[:, :, None] == segments[:, None]) | (segments[:, None] == 0)
        sees &= torch.ones(length, length, dtype=torch.bool).tril()
        sees |= torch.eye(length, dtype=torch.bool)
        pointing = torch.tensor([place for row in rows for place in row.pointing], dtype=torch.long).view(-1, 3)
        return Packed(ids, labels, positions, sees[:, None], pointing)

    def run(self, pixels: Tensor, packed: Packed, *, frozen: bool = False) -> tuple[Tensor, Any]:
        """The tower's cells, (pictures, cells, width) as it orders them, and what the language model returns; its
        attention must be that of ``attend``. ``frozen``: the tower gets no gradient."""
        network = self.model.module
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            shown = self.model.picture(pixels)["pixel_values"]
            cells = network.model.vision_tower(shown, output_hidden_states=True).hidden_states[-1]
        told = network.model.multi_modal_projector(cells)
        embedded = network.get_input_embeddings()(packed.ids)
        image = (packed.ids == network.config.image_token_id)[..., None].expand_as(embedded)
        embedded = embedded.masked_scatter(image, told.to(embedded.dtype))
        out = network.model.language_model(
            inputs_embeds=embedded, attention_mask=packed.sees, position_ids=packed.positions,
            output_hidden_states=True, use_cache=False,
        )  # fmt: skip
        return cells, out

    def _row(self, number: int, page: Page, questions: Sequence[Question]) -> _Row:
        start = len(self.picture)
        row = _Row([self.picture, torch.full((start,), IGNORED), torch.arange(start), torch.zeros(start).long()])
        for segment, question in enumerate(questions, start=1):
            ids, first = self.question(question)
            length, before = len(ids), len(row.columns[0])
            labels = torch.where(torch.arange(length) < first, IGNORED, ids)
            more = (ids, labels, torch.arange(start, start + length), torch.full((length,), segment))
            row.columns = [torch.cat(pair) for pair in zip(row.columns, more, strict=True)]
            cells = answer_cells(page, question, self.grid)
            if len(cells) == length - first - 1:  # an answer begins with a space, which stands nowhere
                row.pointing += [(number, before + first + k, int(self.places[c])) for k, c in enumerate(cells)]
        return row


@dataclass
class _Row:
    columns: list[Tensor]
    pointing: list[tuple[int, int, int]] = field(default_factory=list)


def attend(module: Any, picture: int, kept: dict[str, Tensor]) -> Any:
    """An attention for ``transformers`` that takes ``Packed.sees``; what the last layer attends to goes to ``kept``.

    In the last layer nothing is read off the ``picture``'s own places, so nothing is computed there: (B, heads, T -
    picture, T) is kept.
    """
    last = len(module.layers) - 1

    def mixed(query: Tensor, key: Tensor, value: Tensor, sees: Tensor) -> Tensor:
        hidden = torch.zeros((), dtype=query.dtype).where(sees, -1e4)  # of all heads: added is faster than filled in
        return (query @ key.transpose(2, 3) + hidden).softmax(-1) @ value

    def forward(
        layer: Any, query: Tensor, key: Tensor, value: Tensor, sees: Tensor, *, scaling: float, **_: Any
    ) -> Any:
        key, value, query = key.to(query.dtype), value.to(query.dtype), query * scaling
        head, tail = query[:, :, :picture], query[:, :, picture:]
        if layer.layer_idx < last:
            at_picture = mixed(head, key[:, :, :picture], value[:, :, :picture], sees[:1, :, :picture, :picture])
            out = torch.cat([at_picture, mixed(tail, key, value, sees[:, :, picture:])], 2)
        else:
            scores = (tail @ key.transpose(2, 3)).float()
            kept["last"] = scores.masked_fill(~sees[:, :, picture:], -1e9).softmax(-1)
            out = F.pad(kept["last"].to(value.dtype) @ value, (0, 0, picture, 0))
        return out.transpose(1, 2).contiguous(), None

    return forward
