"""What the adversary knows of the language: word-piece trigrams of public texts, or any causal model by path."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from docleak.errors import ModelError
from docleak.models.files import pretrained_but, tokenizer_of
from docleak.models.loading import loadable, short_name, split_revision


@dataclass(frozen=True, eq=False)
class TrigramModel:
    """Trigram, bigram and unigram frequencies, mixed with fixed weights, over a floor of 1/V (Jelinek-Mercer)."""

    name: str
    vocabulary: int
    counts: tuple[Counter[tuple[int, ...]], ...]  # of n-grams, n = 0 to 3; contexts are n-grams too
    contexts: tuple[Counter[tuple[int, ...]], ...]
    mixture: tuple[float, ...] = (0.05, 0.15, 0.3, 0.5)

    def surprise(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Mean negative log-probability per token, in nats, of token rows of the attacked model (no special ones)."""
        return [self._surprise(row) for row in rows]

    def probability(self, token: int, before: Sequence[int]) -> float:
        """Of ``token`` after ``before``; the weights of contexts never seen go to the shorter ones."""
        context = (START, START, *before)
        total, left = 0.0, 0.0
        for n in (3, 2, 1):
            key = tuple(context[len(context) - n + 1 :])
            seen, weight = self.contexts[n][key], self.mixture[n] + left
            if seen:
                total, left = total + weight * self.counts[n][(*key, token)] / seen, 0.0
            else:
                left = weight
        return total + (self.mixture[0] + left) / self.vocabulary

    def _surprise(self, row: Sequence[int]) -> float:
        if not row:
            return 0.0
        return -sum(math.log(self.probability(t, row[:i])) for i, t in enumerate(row)) / len(row)


#: Stands before the first token of a text.
START = -1


def fit_trigrams(texts: Iterable[str], tokenizer: Any, *, name: str) -> TrigramModel:
    """Count the word pieces of public texts. ModelError if there are none."""
    counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(4)]
    contexts: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(4)]
    for text in texts:
        row = tokenizer(text, add_special_tokens=False)["input_ids"]
        padded = [START, START, *row]
        for i in range(2, len(padded)):
            for n in (1, 2, 3):
                gram = tuple(padded[i - n + 1 : i + 1])
                counts[n][gram] += 1
                contexts[n][gram[:-1]] += 1
    if not counts[1]:
        raise ModelError("no public text was given to learn a language model of; expected at least one sentence.")
    return TrigramModel(name, len(tokenizer), tuple(counts), tuple(contexts))


@dataclass(frozen=True, eq=False)
class CausalModel:
    """A causal model of transformers. Its tokenizer may be another: rows are mapped by their text."""

    name: str
    module: Any
    own: Any
    tokenizer: Any
    batch: int = 32

    @torch.no_grad()
    def surprise(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Likewise, per token of the causal model's own."""
        texts = [self.tokenizer.decode(list(row)) for row in rows]
        surprises: list[float] = []
        for first in range(0, len(texts), self.batch):
            surprises += self._batch(texts[first : first + self.batch])
        return surprises

    def _batch(self, texts: Sequence[str]) -> list[float]:
        begin = self.own.bos_token_id if self.own.bos_token_id is not None else self.own.eos_token_id
        ids = [[begin, *self.own(text, add_special_tokens=False)["input_ids"]] for text in texts]
        longest = max(map(len, ids))
        device = next(self.module.parameters()).device
        rows = torch.tensor([row + [begin] * (longest - len(row)) for row in ids], device=device)
        there = torch.tensor([[i < len(row) for i in range(1, longest)] for row in ids], device=device)
        if longest < 2:
            return [0.0] * len(ids)
        logits = self.module(input_ids=rows, use_cache=False).logits[:, :-1].log_softmax(-1)
        picked = logits.gather(-1, rows[:, 1:, None])[..., 0]
        total = (-(picked * there).sum(1) / there.sum(1).clamp_min(1)).tolist()
        return [float(value) for value in total]


#: Says how likely a text is.
LanguageModel: TypeAlias = TrigramModel | CausalModel


def load_causal(source: str, tokenizer: Any, *, device: str | torch.device = "cpu") -> CausalModel:
    """A causal language model from a directory or hub name. ModelError if there is none, or it has no mark to begin."""
    import transformers

    where, revision = split_revision(source)
    expected = "a directory that save_pretrained wrote, with its tokenizer, or a hub name that can be reached"
    with loadable(f"causal language model {source!r}", expected=expected):
        kind = transformers.AutoModelForCausalLM
        module, _ = pretrained_but(kind, where, head="", allow_pickle=True, revision=revision)
        causal_tokenizer = tokenizer_of(where, revision=revision)
    if causal_tokenizer.bos_token_id is None and causal_tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {source!r} has neither a beginning nor an end token; expected one of them.")
    same = causal_tokenizer.get_vocab() == tokenizer.get_vocab()
    name = short_name(source) + ("" if same else ", asked in plain text: its tokens are others")
    return CausalModel(name, module.eval().to(device), causal_tokenizer, tokenizer)
