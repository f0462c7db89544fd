"""The tasks' heads: from a token's vector to what its task asks, the loss per page, and what was predicted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docleak.models.base import IGNORED
from docleak.models.encoders.tasks import NOTHING, Task
from docleak.models.encoders.tokens import TokenBatch

#: Label rows that name a token's position.
POINTING = ("predecessor", "source")
#: Score of what cannot be pointed at.
NEVER = -1e4


class Head(nn.Module):
    """What all heads offer. ``hidden`` is (B, T, width)."""

    @abstractmethod
    def loss(self, hidden: Tensor, batch: TokenBatch) -> Tensor:
        """Mean cross-entropy over each page's labelled tokens, (B,); the sum of two for a head of two parts."""

    @abstractmethod
    def predict(self, hidden: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        """For each label row its most probable labels, (B, T)."""


class MaskedLanguageHead(Head):
    """BERT's: a layer, a norm, and the word embeddings transposed; scored only where something is to be guessed."""

    def __init__(self, embeddings: nn.Embedding) -> None:
        super().__init__()
        width = embeddings.embedding_dim
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(embeddings.num_embeddings))
        self._tied = (embeddings,)  # a tuple hides it from nn.Module, so that the tied weight is counted once

    def scores(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary: (N, width) to (N, V)."""
        return F.linear(self.norm(F.gelu(self.dense(hidden))), self._tied[0].weight, self.bias)

    def loss(self, hidden: Tensor, batch: TokenBatch) -> Tensor:
        asked = batch.labels["token"] != IGNORED
        losses = F.cross_entropy(self.scores(hidden[asked]), batch.labels["token"][asked], reduction="none")
        total = hidden.new_zeros(len(hidden)).index_add(0, asked.nonzero()[:, 0], losses)
        return total / asked.sum(1).clamp(min=1)

    def predict(self, hidden: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        asked = batch.labels["token"] != IGNORED
        out = torch.full_like(batch.ids, IGNORED)
        out[asked] = self.scores(hidden[asked]).argmax(-1)
        return {"token": out}


class RowHead(Head):
    """A head that scores all tokens for each of its label rows."""

    @abstractmethod
    def scores(self, hidden: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        """For each label row its logits, (B, T, K); a row that points at tokens has K = T + 1, the last for nothing."""

    def loss(self, hidden: Tensor, batch: TokenBatch) -> Tensor:
        parts = [mean_loss(scores, _columns(batch.labels[row])) for row, scores in self.scores(hidden, batch).items()]
        return torch.stack(parts).sum(0)

    def predict(self, hidden: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        best = {row: scores.argmax(-1) for row, scores in self.scores(hidden, batch).items()}
        nothing = hidden.shape[1]
        return {row: torch.where(label == nothing, NOTHING, label) if row in POINTING else label
                for row, label in best.items()}  # fmt: skip


class TagHead(RowHead):
    """EE-BIO: one tag per token, of O and two per class."""

    def __init__(self, width: int, classes: int, *, deep: bool = False) -> None:
        super().__init__()
        self.tags = _scorer(width, 1 + 2 * classes, deep=deep)

    def scores(self, hidden: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        return {"tag": self.tags(hidden)}


class Pointer(nn.Module):
    """SPADE's relation, (B, T, width) to (B, T, T + 1): how well token i points at token j, or (last) at nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.nothing = nn.Parameter(torch.zeros(width))

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Only ``targets`` (B, T), True where a token may be pointed at, and never the token itself."""
        keys = torch.cat([hidden, self.nothing.expand(len(hidden), 1, -1)], dim=1)
        scores: Tensor = self.query(hidden) @ self.key(keys).transpose(1, 2)
        tokens = hidden.shape[1]
        never = ~targets[:, None, :] | torch.eye(tokens, dtype=torch.bool, device=hidden.device)
        return scores.masked_fill(F.pad(never, (0, 1)), NEVER)


class SpadeHead(RowHead):
    """EE-SPADE: the class of each entity's first token, and every token's predecessor in its entity."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.initial = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1 + classes))
        self.pointer = Pointer(width)

    def scores(self, hidden: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        words = batch.labels["predecessor"] != IGNORED  # neither padding nor special tokens
        return {"initial": self.initial(hidden), "predecessor": self.pointer(hidden, words)}


class LinkHead(RowHead):
    """EL: for the first token of an entity, the first token of the one that it belongs to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pointer = Pointer(width)

    def scores(self, hidden: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        return {"source": self.pointer(hidden, batch.first)}


class SpanHead(Head):
    """Question answering: how well each of the page's tokens begins the answer, and ends it (Devlin et al., 2019).

    ``whole``: every token competes for both, also those of the question and patches behind them, as in transformers.
    """

    def __init__(self, width: int, *, deep: bool = False, whole: bool = False) -> None:
        super().__init__()
        self.span, self.whole = _scorer(width, 2, deep=deep), whole

    def scores(self, hidden: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        """Logits of "start" and "end", (B, T) each, (B, T + patches) if ``whole``; NEVER for what does not compete."""
        start, end = self.span(hidden).unbind(-1)
        return {
            name: row.masked_fill(_widened(~batch.mask, row) if self.whole else batch.labels[name] == IGNORED, NEVER)
            for name, row in (("start", start), ("end", end))
        }

    def loss(self, hidden: Tensor, batch: TokenBatch) -> Tensor:
        scores = self.scores(hidden, batch)
        right = {name: _widened(batch.labels[name] == 1, row) for name, row in scores.items()}
        return torch.stack([-(row.log_softmax(1) * right[name]).sum(1) for name, row in scores.items()]).sum(0)

    def predict(self, hidden: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        """1 at the start and at the end of the best span, the end never before the start."""
        tokens = batch.ids.shape[1]
        scores = {name: row[:, :tokens].masked_fill(batch.labels[name] == IGNORED, NEVER)
                  for name, row in self.scores(hidden, batch).items()}  # fmt: skip
        pairs = scores["start"][:, :, None] + scores["end"][:, None, :]  # (B, T, T)
        backward = torch.ones(tokens, tokens, dtype=torch.bool, device=hidden.device).tril(-1)
        best = pairs.masked_fill(backward, -torch.inf).flatten(1).argmax(1)
        return {"start": F.one_hot(best // tokens, tokens), "end": F.one_hot(best % tokens, tokens)}


class ClassHead(Head):
    """Classification: the page's class, at [CLS], where alone it is asked."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.classes = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, classes))

    def scores(self, hidden: Tensor) -> Tensor:
        """Logits of the page's class, (B, K)."""
        logits: Tensor = self.classes(hidden[:, 0])
        return logits

    def loss(self, hidden: Tensor, batch: TokenBatch) -> Tensor:
        """Cross-entropy, as the softplus of how far the other classes are behind: a small one is not rounded to 0."""
        scores, true = self.scores(hidden), batch.labels["class"][:, :1]
        others = scores.scatter(1, true, -torch.inf).logsumexp(1)
        return F.softplus(others - scores.gather(1, true)[:, 0])

    def predict(self, hidden: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        out = torch.full_like(batch.ids, IGNORED)
        out[:, 0] = self.scores(hidden).argmax(1)
        return {"class": out}


def make_head(
    task: Task, embeddings: nn.Embedding, classes: int, *, deep: bool = False, whole: bool = False
) -> Head:  # fmt: skip
    """The head of ``task`` in the width of the backbone's word ``embeddings``; ``deep``: its tags or spans are scored
    behind a layer of their own; ``whole`` as of ``SpanHead``."""
    width = embeddings.embedding_dim
    if task == "mlm":
        return MaskedLanguageHead(embeddings)
    if task == "ee-bio":
        return TagHead(width, classes, deep=deep)
    if task == "qa":
        return SpanHead(width, deep=deep, whole=whole)
    if task == "classify":
        return ClassHead(width, classes)
    return SpadeHead(width, classes) if task == "ee-spade" else LinkHead(width)


def _widened(marks: Tensor, row: Tensor) -> Tensor:
    """Marks of tokens (B, T), False for what the scores of ``row`` have behind them."""
    return F.pad(marks, (0, row.shape[1] - marks.shape[1]))


def _scorer(width: int, outputs: int, *, deep: bool) -> nn.Module:
    last = nn.Linear(width, outputs)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), last) if deep else last


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over each page's labelled tokens, (B, T, K) and (B, T) to (B,); 0 where none is labelled."""
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(labels.shape).sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def _columns(rows: Tensor) -> Tensor:
    """Labels as columns of the scores: NOTHING, which only pointing rows have, is the last one, T."""
    return torch.where(rows == NOTHING, rows.shape[1], rows)
