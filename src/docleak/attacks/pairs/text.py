"""The loop behind every text attack: embeddings descend, and with LAMP's moves (Balunović et al., 2022) words change
places in between, scored in one batch by gradient and language."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from docleak.attacks.gradients.engine import inference_mode_of
from docleak.attacks.gradients.matching import Distance, dummy_of
from docleak.attacks.gradients.solvers import Adam
from docleak.attacks.gradients.view import GradientView
from docleak.attacks.pairs.sentence import Sentences
from docleak.attacks.protocol import require_evaluations
from docleak.errors import AttackError
from docleak.models.base import Encoded
from docleak.models.pair.language import LanguageModel

#: Bytes that the gradients of candidates scored in one pass may take: those of a large BERT are 1.2 GB each.
ROOM = 2 * 1024**3


@dataclass(frozen=True)
class Moves:
    """After every ``every`` steps ``candidates`` are scored: distance plus ``weight`` times the language's surprise.

    ``chunk`` of them at most in one pass, fewer where their gradients would not fit into ROOM.
    """

    every: int = 40
    candidates: int = 16
    weight: float = 0.1
    chunk: int = 16


@dataclass(frozen=True)
class TextFinding:
    """``embeddings`` (B, T, d) with the least matching distance, and their projection to tokens, one row per text;
    ``labels`` are the texts' classes, where the attack tells which has which."""

    embeddings: Tensor
    tokens: tuple[tuple[int, ...], ...]
    matching: float
    evaluations: int
    seconds: float
    labels: tuple[int, ...] = ()


@dataclass(frozen=True)
class TextAttack:
    """A composition: matching distance + solver + LAMP's prior on the size of embeddings + its moves.

    The best of ``starts`` random starts is taken (each costs an evaluation). ``size_prior`` weighs the squared
    difference of mean norms of the embeddings and of the table's. A candidate move costs an evaluation too.
    """

    name: str
    paper: str
    summary: str
    matching: Callable[[GradientView], Distance]
    solver: Adam
    size_prior: float = 0.0
    starts: int = 1
    moves: Moves | None = None

    def run(
        self,
        view: GradientView,
        inputs: Sequence[Encoded],
        sentences: Sentences,
        *,
        budget: int,
        generator: torch.Generator,
        language: LanguageModel | None = None,
        start_at: Tensor | None = None,
        progress: tuple[float, float] = (0.0, 1.0),
        guide: Callable[[Tensor], Tensor] | None = None,
    ) -> TextFinding:
        """Reconstruct with at most ``budget`` gradient evaluations, from ``start_at`` (B, T, d) or at random.

        ``progress`` is the part of the solver's course that this run takes; ``guide``, a function of embeddings, is
        added to what is descended. AttackError for a budget below 1 and for moves without a language model.
        """
        require_evaluations(budget)
        if self.moves is not None and self.moves.weight and language is None:
            raise AttackError(f"attack {self.name!r} scores moves by a language model; give it one.")
        began = time.perf_counter()
        with inference_mode_of(view):
            search = _Search(self, view, inputs, sentences, budget, generator, language, guide)
            embeddings = search.run(start_at, progress)
        rows = tuple(tuple(row) for row in sentences.tokens(embeddings))
        return TextFinding(embeddings, rows, search.best_loss, search.used, time.perf_counter() - began)


@dataclass(eq=False)
class _Search:
    """State of one run: evaluations used, and the best unknowns by the attack's own matching distance."""

    attack: TextAttack
    view: GradientView
    inputs: Sequence[Encoded]
    sentences: Sentences
    budget: int
    generator: torch.Generator
    language: LanguageModel | None
    guide: Callable[[Tensor], Tensor] | None
    used: int = 0
    best_loss: float = float("inf")
    best: Tensor | None = None

    def __post_init__(self) -> None:
        self.distance = self.attack.matching(self.view)
        self.usual = float(self.sentences.table[self.sentences.words].norm(dim=1).mean())

    def run(self, start_at: Tensor | None, progress: tuple[float, float]) -> Tensor:
        unknowns = self._begin() if start_at is None else self.sentences.unknowns(start_at)
        moves = self.attack.moves
        while self.used < self.budget:
            left = self.budget - self.used
            share = progress[0] + (progress[1] - progress[0]) * self.used / self.budget
            steps = left if moves is None else min(moves.every, left)
            unknowns = self._solver(share, progress, steps).minimise(self.objective, unknowns, budget=steps)
            if moves is not None and self.used < self.budget - 1:
                unknowns = self._move(moves, unknowns)
        assert self.best is not None
        return self.sentences.embeddings(self.best).detach()

    def _solver(self, share: float, progress: tuple[float, float], steps: int) -> Adam:
        """The attack's solver for a part of its course: the step begins and ends where the whole course has it."""
        whole = self.attack.solver
        part = (progress[1] - progress[0]) * steps / self.budget
        rate = whole.learning_rate * whole.final_factor**share
        return replace(whole, learning_rate=rate, final_factor=whole.final_factor**part)

    def _begin(self) -> Tensor:
        count = min(self.attack.starts, max(1, self.budget - 1))
        starts = self.sentences.start(self.generator, count)
        if count == 1:
            return starts[0]
        batches = torch.stack([self.sentences.embeddings(s) for s in starts])
        self.used += count
        return starts[int(torch.tensor(self._distances(batches)).argmin())]

    def _distances(self, batches: Tensor) -> list[float]:
        chunk = self.attack.moves.chunk if self.attack.moves else 16
        return distances(self.view, self.inputs, self.distance, batches, chunk=chunk)

    def objective(self, unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
        """One gradient evaluation: matching distance plus the prior on sizes, and its gradient."""
        free = unknowns.detach().requires_grad_(True)
        x = self.sentences.embeddings(free)
        dummy = dummy_of(self.view, x, self.inputs, create_graph=True)
        matching = self.distance(self.view.as_sent(dummy))
        size = x[self.sentences.free].norm(dim=-1).mean()
        total = matching + self.attack.size_prior * (size - self.usual).square()
        if self.guide is not None:
            total = total + self.guide(x)
        (gradient,) = torch.autograd.grad(total, free)
        self.used += 1
        if float(matching.detach()) < self.best_loss:
            self.best_loss, self.best = float(matching.detach()), unknowns.detach().clone()
        return float(total.detach()), gradient

    def _move(self, moves: Moves, unknowns: Tensor) -> Tensor:
        embeddings = self.sentences.embeddings(unknowns).detach()
        count = min(moves.candidates, self.budget - self.used - 1)
        many = candidates_of(self.sentences, embeddings, count, self.generator)  # the first one is as it is
        scores = torch.tensor(self._distances(many))
        self.used += len(many)
        if self.language is not None and moves.weight:
            scores = scores + moves.weight * torch.tensor([self._surprise(x) for x in many])
        return self.sentences.unknowns(many[int(scores.argmin())])

    def _surprise(self, embeddings: Tensor) -> float:
        assert self.language is not None
        values = self.language.surprise(self.sentences.tokens(embeddings))
        return sum(values) / len(values)


def rearranged(order: Tensor, generator: torch.Generator) -> Tensor:
    """One of LAMP's four moves on (L,): swap two words, move one, move a run of words, move a beginning to the end."""
    length = len(order)
    if length < 2:
        return order

    def draw(high: int) -> int:
        return int(torch.randint(high, (1,), generator=generator))

    kind, row = draw(4), [int(i) for i in order]
    if kind == 0:
        i, j = draw(length), draw(length)
        row[i], row[j] = row[j], row[i]
    elif kind == 1:
        word = row.pop(draw(length))
        row.insert(draw(length), word)
    elif kind == 2:
        first = draw(length)
        last = first + 1 + draw(length - first)
        run, rest = row[first:last], row[:first] + row[last:]
        at = draw(len(rest) + 1)
        row = rest[:at] + run + rest[at:]
    else:
        cut = draw(length)
        row = row[cut:] + row[:cut]
    return torch.tensor(row, device=order.device)


def candidates_of(sentences: Sentences, embeddings: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count + 1, B, T, d): as it is, and ``count`` rearrangements, each of one text of the batch."""
    candidates = [embeddings]
    for _ in range(count):
        text = int(torch.randint(len(embeddings), (1,), generator=generator))
        places = sentences.free[text].nonzero().flatten()
        moved = embeddings.clone()
        moved[text, places] = embeddings[text, rearranged(places, generator)]
        candidates.append(moved)
    return torch.stack(candidates)


class _Logits(nn.Module):
    """A side's logits with its parameters under one roof, as torch.func wants them."""

    def __init__(self, side: Any, inputs: Sequence[Encoded]) -> None:
        super().__init__()
        self.network, self.side, self.inputs = side.module, side, inputs

    def forward(self, x: Tensor) -> Tensor:
        losses: Tensor = self.side.loss(x, self.inputs)
        return losses.mean()


def distances(
    view: GradientView, inputs: Sequence[Encoded], distance: Distance, batches: Tensor, *, chunk: int
) -> list[float]:
    """The matching distance of each of ``batches`` (C, B, T, d), at most ``chunk`` at a time in one vectorised pass."""
    roof = _Logits(view.model, inputs)
    chosen = {f"network.{name}": dict(view.model.module.named_parameters())[name].detach() for name in view.names}

    def gradient(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(roof, parameters, (x,))
        return result

    vectorised = torch.func.vmap(torch.func.grad(gradient), in_dims=(None, 0))
    chunk = max(1, min(chunk, ROOM // sum(p.numel() * p.element_size() for p in chosen.values())))
    losses: list[float] = []
    for first in range(0, len(batches), chunk):
        part = batches[first : first + chunk]
        many = vectorised(chosen, part)
        for number in range(len(part)):
            dummy = {name: many[f"network.{name}"][number] for name in view.names}
            losses.append(float(distance(view.as_sent(dummy)).detach()))
    return losses
