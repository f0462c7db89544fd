"""The model calls of CDMI: what a masked language model proposes, and the target's loss for each candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from docleak.attacks.weights.view import WeightsView
from docleak.models.base import IGNORED
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import asked
from docleak.models.encoders.tokens import TokenBatch, TokenPage

#: Tokens of one mini-batch of candidates; larger ones leave a CPU's caches and cost a tenth more.
BATCH_TOKENS = 4096

Prefix = tuple[int, ...]
#: The page as it passes through the model, with one of its questions where it has any, and what its picture gives.
Pass = tuple[TokenBatch, Tensor | None]


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
        if model.task == "mlm":
            page = replace(page, labels={}, questions=())
        batches = [model.collate([one]) for one in asked(page)]
        with torch.inference_mode():
            self._passes = [(batch, model.module.see(batch.images, batch.boxes)) for batch in batches]
        self._batch, self._seen = self._passes[0]
        self._scores: dict[Prefix, Tensor] = {}
        self._fields: dict[tuple[int | None, ...], Tensor] = {}
        self._losses: dict[tuple[Prefix, Prefix], Tensor] = {}
        self.calls = 0

    def token_logits(self, prefix: Prefix) -> Tensor:
        """Logits over the vocabulary (V,) at the first position behind ``prefix``, of a masked language model."""
        if prefix not in self._scores:
            ids = self._filled(prefix, self._batch)
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
        """The training loss of the page with each candidate (N,) behind ``prefix``, (N,): the mean over its questions,
        where it has any; candidates are not averaged."""
        key = (prefix, tuple(candidates.tolist()))
        if key not in self._losses:
            losses = [self._pass_losses(one, prefix, candidates) for one in self._passes]
            self._losses[key] = torch.stack(losses).mean(0).cpu()
            self.calls += len(candidates) * len(self._passes)
        return self._losses[key]

    def _pass_losses(self, one: Pass, prefix: Prefix, candidates: Tensor) -> Tensor:
        rows = max(1, BATCH_TOKENS // one[0].ids.shape[1])
        starts = range(0, len(candidates), rows)
        return torch.cat([self._row_losses(one, prefix, candidates[start : start + rows]) for start in starts])

    def _row_losses(self, one: Pass, prefix: Prefix, candidates: Tensor) -> Tensor:
        count, (batch, its) = len(candidates), one
        ids = self._filled(prefix, batch).repeat(count, 1)
        ids[:, self.positions[len(prefix)]] = candidates.to(ids.device)
        rows = TokenBatch(
            ids=ids,
            boxes=batch.boxes.expand(count, -1, -1),
            mask=batch.mask.expand(count, -1),
            first=batch.first.expand(count, -1),
            labels={name: row.expand(count, -1) for name, row in batch.labels.items()},
        )
        seen = None if its is None else its.expand(count, *its.shape[1:])
        with torch.inference_mode():
            return self._loss(self.model.module(rows.ids, rows.boxes, rows.mask, seen), rows)

    def _loss(self, hidden: Tensor, rows: TokenBatch) -> Tensor:
        return self.model.module.head.loss(hidden, rows)

    def _filled(self, prefix: Prefix, batch: TokenBatch) -> Tensor:
        ids = batch.ids.clone()
        ids[0, list(self.positions[: len(prefix)])] = torch.tensor(prefix, dtype=ids.dtype, device=ids.device)
        return ids


class AnswersProbe(Probe):
    """A target that tells its likeliest answer of each call, and no confidence (``WeightsView.answers_only``).

    Where it guesses tokens, the likeliest that is no special one has a log-probability of 0, and all others have none.
    Where it labels the page, a candidate's loss is the share of the page's labels that are answered wrongly.
    """

    def token_logits(self, prefix: Prefix) -> Tensor:
        """0 for the likeliest token, minus infinity for all others, (V,)."""
        return self._likeliest(super().token_logits(prefix)[None])[0]

    def field_logits(self, filled: Sequence[int | None]) -> Tensor:
        """The same at all positions of the field, (T, V)."""
        return self._likeliest(super().field_logits(filled))

    def _likeliest(self, logits: Tensor) -> Tensor:
        plain = logits.clone()
        plain[:, self.model.tokenizer.all_special_ids] = -torch.inf
        return torch.full_like(logits, -torch.inf).scatter(1, plain.argmax(1, keepdim=True), 0.0)

    def _loss(self, hidden: Tensor, rows: TokenBatch) -> Tensor:
        wrong, labelled = hidden.new_zeros(len(hidden)), hidden.new_zeros(len(hidden))
        for name, answer in self.model.module.head.predict(hidden, rows).items():
            there = rows.labels[name] != IGNORED
            wrong += ((answer != rows.labels[name]) & there).sum(1)
            labelled += there.sum(1)
        return wrong / labelled.clamp(min=1)


def target_probe(view: WeightsView, page: TokenPage | None = None) -> Probe:
    """What the adversary of ``view`` may ask its target, about ``page`` instead of the view's where one is given."""
    kind = AnswersProbe if view.answers_only else Probe
    return kind(view.target, view.page if page is None else page, view.positions)
