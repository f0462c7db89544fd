"""Texts in the making: word embeddings of known lengths between known marks, and their projection to tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from docleak.errors import AttackError
from docleak.models.pair.model import PairModel


@dataclass(frozen=True, eq=False)
class Sentences:
    """Maps a flat vector of unknowns to embeddings (B, T, d): beginning mark, unknown words, end mark, padding.

    ``free`` (B, T) marks the words, ``mask`` (B, T) everything but padding. ``words`` (n,) are ids that may occur, of a
    tokenizer's ``vocabulary``; the table may have more rows than that.
    """

    fixed: Tensor  # (B, T, d)
    free: Tensor
    mask: Tensor
    table: Tensor  # (V, d)
    words: Tensor
    vocabulary: int

    @classmethod
    def of(cls, model: PairModel, lengths: tuple[int, ...], words: Tensor | None = None) -> Sentences:
        """For texts of ``lengths`` words. AttackError if the tokenizer puts other marks around a text than one each."""
        tokenizer = model.tokenizer
        begin, end, padding = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
        if tokenizer("a")["input_ids"][0] != begin or tokenizer("a")["input_ids"][-1] != end or padding is None:
            raise AttackError(
                f"the tokenizer of {model.name} does not write [CLS] words [SEP]; expected a BERT-like one."
            )
        longest = max(lengths)
        ids = torch.full((len(lengths), longest + 2), padding, device=model.device)
        places = torch.arange(longest + 2, device=model.device)[None]
        size = torch.tensor(lengths, device=model.device)[:, None]
        ids[:, 0] = begin
        ids[places == size + 1] = end
        free, mask = (places >= 1) & (places <= size), places <= size + 1
        chosen = model.plain_ids() if words is None else words
        if not len(chosen):
            raise AttackError("no word may occur in the text; expected at least one token id.")
        table = model.table.detach()
        return cls(F.embedding(ids, table), free, mask, table, chosen, len(tokenizer))

    @property
    def width(self) -> int:
        return int(self.fixed.shape[2])

    def start(self, generator: torch.Generator, count: int = 1) -> Tensor:
        """(count, n) standard-normal unknowns of the size of the table's entries."""
        shape = (count, int(self.free.sum()) * self.width)
        return torch.randn(shape, generator=generator).to(self.table) * self.table.std()

    def embeddings(self, unknowns: Tensor) -> Tensor:
        """(n,) to (B, T, d), differentiable."""
        return self.fixed.masked_scatter(self.free[..., None], unknowns)

    def unknowns(self, embeddings: Tensor) -> Tensor:
        """(B, T, d) to (n,): the inverse of ``embeddings``."""
        return embeddings[self.free].flatten()

    def similarity(self, embeddings: Tensor) -> Tensor:
        """(B, T, n): cosine of each place with each of ``words``."""
        return F.normalize(embeddings, dim=-1) @ F.normalize(self.table[self.words], dim=1).T

    def tokens(self, embeddings: Tensor) -> list[list[int]]:
        """The projection: at each place the word whose embedding has the largest cosine (LAMP); one row per text."""
        nearest = self.words[self.similarity(embeddings).argmax(-1)]
        return [[int(i) for i in row[there]] for row, there in zip(nearest, self.free, strict=True)]

    def weights(self, embeddings: Tensor, temperature: float) -> Tensor:
        """(B, T, V) weights over tokens, softmax of cosines over ``temperature``: the differentiable projection."""
        near = torch.softmax(self.similarity(embeddings) / temperature, dim=-1)
        blank = near.new_zeros(*near.shape[:2], self.vocabulary)
        return blank.index_copy(2, self.words, near)
