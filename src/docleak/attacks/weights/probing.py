"""The model calls of CDMI: what a masked language model proposes, and the target's loss for each candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.tokens import TokenBatch, TokenPage

#: Tokens of one mini-batch of candidates; larger ones leave a CPU's caches and cost a tenth more.
BATCH_TOKENS = 4096

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Candidates:
    """The N likeliest tokens at a position: ``ids`` and ``logits``, (N,) each, likeliest first."""

    ids: Tensor
    logits: Tensor


class Probe:
    """One model on one scrubbed page, with the field's first tokens filled in; equal calls are made once.

    What the picture gives is computed once: the patch stays while tokens are filled in (section 4.1).
    """

    def __init__(self, model: EncoderModel, page: TokenPage, positions: Sequence[int]) -> None:
        self.model = model
        self.positions = tuple(positions)
        labels = page.labels if model.task != "mlm" else {}
        self._batch = model.collate([replace(page, labels=labels)])
        with torch.inference_mode():
            self._seen = model.module.see(self._batch.images, self._batch.boxes)
        self._scores: dict[Prefix, Tensor] = {}
        self._fields: dict[tuple[int | None, ...], Tensor] = {}
        self._losses: dict[tuple[Prefix, Prefix], Tensor] = {}
        self.calls = 0

    def token_logits(self, prefix: Prefix) -> Tensor:
        """Logits over the vocabulary (V,) at the first position behind ``prefix``, of a masked language model."""
        if prefix not in self._scores:
            ids = self._filled(prefix)
            with torch.inference_mode():
                hidden = self.model.module(ids, self._batch.boxes, self._batch.mask, self._seen)
                self._scores[prefix] = self.model.token_scores(hidden[0, self.positions[len(prefix)], None])[0].cpu()
            self.calls += 1
        return self._scores[prefix]

    def field_logits(self, filled: Sequence[int | None]) -> Tensor:
        """Log-probabilities (T, V) at all positions of the field, of which those that are not None are filled in.

        Of a masked language model; special tokens have none.
        """
        key = tuple(filled)
        if key not in self._fields:
            ids = self._batch.ids.clone()
            places = [place for place, token in zip(self.positions, key, strict=True) if token is not None]
            ids[0, places] = torch.tensor([t for t in key if t is not None], dtype=ids.dtype, device=ids.device)
            with torch.inference_mode():
                hidden = self.model.module(ids, self._batch.boxes, self._batch.mask, self._seen)
                scores = self.model.token_scores(hidden[0, list(self.positions)]).cpu()
            logits = scores.double()
            logits[:, self.model.tokenizer.all_special_ids] = -torch.inf
            self._fields[key] = torch.log_softmax(logits, dim=1)
            self.calls += 1
        return self._fields[key]

    def propose(self, prefix: Prefix, count: int) -> Candidates:
        """The ``count`` likeliest tokens behind ``prefix``, without special ones."""
        logits = self.token_logits(prefix).clone()
        logits[self.model.tokenizer.all_special_ids] = -torch.inf
        top = logits.topk(min(count, int(logits.isfinite().sum())))
        return Candidates(top.indices, top.values)

    def losses(self, prefix: Prefix, candidates: Tensor) -> Tensor:
        """The training loss of the page with each candidate (N,) behind ``prefix``, (N,); none is averaged."""
        key = (prefix, tuple(candidates.tolist()))
        if key not in self._losses:
            rows = max(1, BATCH_TOKENS // self._batch.ids.shape[1])
            starts = range(0, len(candidates), rows)
            parts = [self._row_losses(prefix, candidates[start : start + rows]) for start in starts]
            self._losses[key] = torch.cat(parts).cpu()
            self.calls += len(candidates)
        return self._losses[key]

    def _row_losses(self, prefix: Prefix, candidates: Tensor) -> Tensor:
        count, batch = len(candidates), self._batch
        ids = self._filled(prefix).repeat(count, 1)
        ids[:, self.positions[len(prefix)]] = candidates.to(ids.device)
        rows = TokenBatch(
            ids=ids,
            boxes=batch.boxes.expand(count, -1, -1),
            mask=batch.mask.expand(count, -1),
            first=batch.first.expand(count, -1),
            labels={name: row.expand(count, -1) for name, row in batch.labels.items()},
        )
        seen = None if self._seen is None else self._seen.expand(count, -1, -1)
        with torch.inference_mode():
            hidden = self.model.module(rows.ids, rows.boxes, rows.mask, seen)
            return self.model.module.head.loss(hidden, rows)

    def _filled(self, prefix: Prefix) -> Tensor:
        ids = self._batch.ids.clone()
        ids[0, list(self.positions[: len(prefix)])] = torch.tensor(prefix, dtype=ids.dtype, device=ids.device)
        return ids
