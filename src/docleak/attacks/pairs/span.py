"""Texts out of the spans of a network's first layers, after DAGER (Petrov et al., 2024).

The gradient of a linear layer's weight spans what the layer read (``gradients.algebra.subspace``). What the first
layers of a text network read at a place depends on the word there and on the place alone, so that each word of the
vocabulary is held against their span at each place. One text comes out whole. Of several the words of each place do;
which belong together say the next layers, which read all words of a text: what they read of a true one is in their
span, and words change places until it is (``gradients.algebra.sequences.arrange`` would try all).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docleak.attacks.gradients.algebra.subspace import Rows, Subspace, members
from docleak.attacks.gradients.engine import inference_mode_of
from docleak.attacks.gradients.matching import Distance
from docleak.attacks.gradients.view import GradientView
from docleak.attacks.hooks import reached, read_by
from docleak.attacks.pairs.matching import layer_cosine
from docleak.attacks.pairs.sentence import Sentences
from docleak.attacks.pairs.text import Moves, TextAttack, TextFinding, distances
from docleak.attacks.protocol import require_evaluations
from docleak.models.base import Encoded
from docleak.models.pair.language import LanguageModel

#: How alike what a layer reads at a place is, whatever stands at the others.
ALIKE = 1e-5
#: Words that are sent through the network at once, and choices of words whose gradients are.
CHUNK, AT_ONCE = 1024, 16
#: The mean squared share of what is read outside of the span below which a text is one of those that were sent, and the
#: places of one that is none that are drawn anew.
INSIDE, ANEW = 1e-8, 4
#: Groups of layers that are looked at, nearest to the words first: a layer of BERT has three, the next one the fourth.
DEEP = 4
#: Of the rank of the widest span, what that of a layer has at least that read all texts: the last ones read less.
WHOLE = 0.8
#: Texts whose first layers are computed in the search for one of them.
MOST = 8000
#: One minus the mean cosine of all tensors, below which a gradient is that of these texts.
SAME = 1e-6

#: A text of the batch and a place of it, and the words that may stand there, likeliest first.
Cell = tuple[int, int]
Choices = dict[Cell, list[int]]


@dataclass(frozen=True)
class SpanText:
    """Words and texts by spans, and by the ``matching`` distance where these leave a choice; where no layer tells
    anything, the attack ``otherwise``."""

    name: str
    paper: str
    summary: str
    otherwise: TextAttack
    matching: Callable[[GradientView], Distance] = layer_cosine

    @property
    def moves(self) -> Moves | None:
        """A language model is asked where no layer tells anything."""
        return self.otherwise.moves

    def run(
        self, view: GradientView, inputs: Sequence[Encoded], sentences: Sentences, *, budget: int,
        generator: torch.Generator, language: LanguageModel | None = None, start_at: Tensor | None = None,
        progress: tuple[float, float] = (0.0, 1.0), guide: Callable[[Tensor], Tensor] | None = None,
    ) -> TextFinding:  # fmt: skip
        """As ``TextAttack.run``. Where to start, and what else is to be descended, is of use to ``otherwise`` alone."""
        require_evaluations(budget)
        began = time.perf_counter()
        with inference_mode_of(view):
            choices = words_at(view, sentences)
            if choices is not None:
                words, undecided = texts_of(view, sentences, choices, generator)
                search = _Search(view, sentences, self.matching(view), budget, choices, undecided)
                best = search.run(_Guess(words, inputs))
        if choices is None:
            return self.otherwise.run(
                view, inputs, sentences, budget=budget, generator=generator, language=language, start_at=start_at,
                progress=progress, guide=guide,
            )  # fmt: skip
        embeddings = embedded(sentences, [best.words])[0]
        rows = tuple(tuple(row) for row in sentences.tokens(embeddings))
        labels = tuple(int(one.tensors["label"]) for one in best.inputs)
        return TextFinding(embeddings, rows, search.least, search.used, time.perf_counter() - began, labels)


def words_at(view: GradientView, sentences: Sentences) -> Choices | None:
    """For each text and each of its places the words that are in the span there, nearest first, and the nearest one
    where none is. Some that no text has are among them: of two words and two places that were read in three ways the
    fourth is in the span, too. None where no layer that reads words and places alone sent anything above the noise."""
    groups = [group for group in _groups(view, sentences) if group.alone]
    if not groups or (space := _space(view, group := max(groups, key=lambda one: len(one.layers)))) is None:
        return None
    choices = Choices()
    for place in range(sentences.free.shape[1]):
        texts = [int(text) for text in sentences.free[:, place].nonzero().flatten()]
        if not texts:
            continue
        read = _read_at(view, sentences, group.first, place)
        far = space.residual(read)
        inside = int((far <= space.tolerance(read)).sum()) or int(members(space, read).taken.sum())
        ids = sentences.words.cpu()[far.argsort()[: max(1, inside)]].tolist()
        choices |= {(text, place): ids for text in texts}
    return choices


def texts_of(
    view: GradientView, sentences: Sentences, choices: Choices, generator: torch.Generator
) -> tuple[dict[Cell, int], list[Cell]]:
    """A word for each cell, and the cells that stay open. Where there is a choice, of each text the words that are
    nearest to a span: that of the layers that first read whole texts, all of them, and whose span leaves out most."""
    words = {cell: ids[0] for cell, ids in choices.items()}
    undecided = [cell for cell, ids in choices.items() if len(ids) > 1]
    if not undecided:
        return words, []
    first = [group for group in _groups(view, sentences) if not group.alone][:DEEP]
    spaces = [(group.first, _space(view, group)) for group in first]
    there = [(layer, space) for layer, space in spaces if space is not None]
    most = max((space.rank for _, space in there), default=0)
    whole = [(layer, space) for layer, space in there if space.rank >= WHOLE * most]
    if not whole:
        return words, undecided
    layer, space = max(whole, key=lambda one: one[1].width - one[1].rank)
    texts: list[list[int]] = []
    for text in reversed(range(len(sentences.free))):  # the shortest first: what these hold, the longer ones need not
        near = _Nearness(view, sentences, space, layer, [cell for cell in choices if cell[0] == text], choices)
        least, row = near.text(texts, generator)
        texts.append(row)
        words |= dict(zip(near.cells, row, strict=True))
        undecided = [cell for cell in undecided if cell[0] != text or least > INSIDE]
    return words, undecided


@dataclass(eq=False)
class _Nearness:
    """The search for the text of words at ``cells`` of which what the layer reads is nearest to the span."""

    view: GradientView
    sentences: Sentences
    space: Subspace
    layer: nn.Module
    cells: Sequence[Cell]
    choices: Choices
    scored: int = 0

    def text(self, others: Sequence[list[int]], generator: torch.Generator) -> tuple[float, list[int]]:
        """One that none of the ``others`` is, if there is one: from the nearest words that no other has at its place,
        and then, as long as none is inside the span, from the best one with some places drawn anew."""
        everything = [self.choices[cell] for cell in self.cells]
        texts = self.sentences.free.sum(0).tolist()  # at a place there are no more words than texts
        nearest = [ids[: texts[place]] for ids, (_, place) in zip(everything, self.cells, strict=True)]

        def draw(number: int, ids: Sequence[int]) -> int:
            left = [word for word in ids if all(word != row[number] for row in others if number < len(row))] or ids
            return left[int(torch.randint(len(left), (1,), generator=generator))]

        best = self.nearest([draw(number, ids) for number, ids in enumerate(nearest)], everything)
        while (best[0] > INSIDE or best[1] in others) and self.scored < MOST:
            row = best[1].copy()
            for number in torch.randperm(len(row), generator=generator)[:ANEW].tolist():
                row[number] = draw(number, everything[number])
            tried = self.nearest(row, everything)
            best = min(best, tried, key=lambda one: (one[1] in others, one[0]))
        return best

    def nearest(self, row: list[int], choices: Sequence[Sequence[int]]) -> tuple[float, list[int]]:
        """Word after word, as long as one comes nearer."""
        least, since, number = float(self.far([row])[0]), 0, 0
        while since < len(row) and least > INSIDE and self.scored < MOST:
            many = list(_changed(row, choices, number))
            scores = self.far(many) if many else None
            since += 1
            if scores is not None and float(scores.min()) < least:
                least, row, since = float(scores.min()), many[int(scores.argmin())], 1
            number = (number + 1) % len(row)
        return least, row

    def far(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """(n,): mean squared share of what the layer reads of each text that is outside of the span."""
        self.scored += len(rows)
        text = self.cells[0][0]
        x = self.sentences.fixed[text, : int(self.sentences.mask[text].sum())].repeat(len(rows), 1, 1)
        words = torch.tensor(rows, device=x.device)
        x[:, [place for _, place in self.cells]] = F.embedding(words, self.sentences.table)
        read = reached(self.layer, lambda: _network(self.view)(inputs_embeds=x, attention_mask=None))
        return self.space.residual(read.flatten(0, 1)).view(len(rows), -1).square().mean(1)


def _changed(row: list[int], choices: Sequence[Sequence[int]], number: int) -> Iterator[list[int]]:
    """The row with each other word at a place, and with those exchanged that could stand in each other's."""
    for word in choices[number]:
        if word != row[number]:
            yield [*row[:number], word, *row[number + 1 :]]
    for other, there in enumerate(row):
        if there != row[number] and there in choices[number] and row[number] in choices[other]:
            exchanged = row.copy()
            exchanged[number], exchanged[other] = there, row[number]
            yield exchanged


@dataclass(frozen=True)
class _Group:
    """Linear layers of one input, in the order of the network; ``alone``: it depends on word and place alone."""

    layers: dict[nn.Module, str]
    alone: bool

    @property
    def first(self) -> nn.Module:
        return next(iter(self.layers))


def _network(view: GradientView) -> Any:
    return view.model.module.text["net"]  # type: ignore[index]


def _run(view: GradientView, sentences: Sentences, rows: Tensor) -> object:
    embeddings = F.embedding(rows.to(sentences.table.device), sentences.table)
    return _network(view)(inputs_embeds=embeddings, attention_mask=None)


def _space(view: GradientView, group: _Group) -> Subspace | None:
    """What the group's layers read; None where it is nothing, or everything."""
    space = Subspace.of([Rows(view.gradient[f"{name}.weight"], view.noise) for name in group.layers.values()])
    return space if 0 < space.rank < space.width else None


def _groups(view: GradientView, sentences: Sentences) -> list[_Group]:
    """The linear layers that read each place of a text, and that sent something."""
    named: dict[nn.Module, str] = {
        module: name for name, module in view.model.module.named_modules() if isinstance(module, nn.Linear)
    }
    one, *others = sentences.words.cpu()[torch.linspace(0, len(sentences.words) - 1, 3).long()]
    rows = one.repeat(2, sentences.free.shape[1])
    rows[0, 1:], rows[1, 1:] = others  # two texts that begin alike
    inside = [module for module in _network(view).modules() if module in named]
    with read_by(inside) as seen, torch.no_grad():
        _run(view, sentences, rows)
    groups: list[tuple[Tensor, dict[nn.Module, str]]] = []
    for layer, value in seen:
        sent = view.gradient.get(f"{named[layer]}.weight")
        if value.shape[:2] != rows.shape or sent is None or not bool(sent.any()):
            continue
        same = (layers for other, layers in groups if other.shape == value.shape and torch.equal(other, value))
        if (layers := next(same, None)) is None:
            groups.append((value, layers := {}))
        layers[layer] = named[layer]
    return [
        _Group(layers, float((value[0, 0] - value[1, 0]).norm()) <= ALIKE * float(value[0, 0].norm()))
        for value, layers in groups
    ]


def _read_at(view: GradientView, sentences: Sentences, layer: nn.Module, place: int) -> Tensor:
    """(n, width): what the layer reads of each word at the place."""
    chunks = torch.split(sentences.words.cpu(), CHUNK)
    rows = (chunk[:, None].expand(-1, place + 1) for chunk in chunks)
    return torch.cat([reached(layer, partial(_run, view, sentences, row))[:, place] for row in rows])


@dataclass(frozen=True, eq=False)
class _Guess:
    """A word for each cell, and the texts' inputs, in which their classes are."""

    words: dict[Cell, int]
    inputs: Sequence[Encoded]

    def exchanged(self, one: int, other: int, *, fused: bool) -> list[_Guess]:
        """Two texts' classes in each other's place. Where a pair has one class the picture holds it: there the texts
        change places, if they are of one length."""
        if not fused:
            inputs = list(self.inputs)
            for to, taken in ((one, other), (other, one)):
                label = {"label": self.inputs[taken].tensors["label"]}
                inputs[to] = replace(self.inputs[to], tensors=self.inputs[to].tensors | label)
            return [_Guess(self.words, inputs)]
        texts = [[cell for cell in self.words if cell[0] == text] for text in (one, other)]
        if len(texts[0]) != len(texts[1]):
            return []
        pairs = [*zip(*texts, strict=True), *zip(*reversed(texts), strict=True)]
        return [_Guess(self.words | {to: self.words[taken] for to, taken in pairs}, self.inputs)]


@dataclass(eq=False)
class _Search:
    """The guess that matches the gradient best, and its distance; words of ``undecided`` cells are open, and which text
    has which class."""

    view: GradientView
    sentences: Sentences
    distance: Distance
    budget: int
    choices: Choices
    undecided: Sequence[Cell]
    used: int = 0
    least: float = field(default=float("inf"))

    def run(self, best: _Guess) -> _Guess:
        """Texts exchange their classes, and then cells their words, as long as something matches better and the budget
        lasts."""
        (self.least,) = self._scored([best])
        pairs, fused = list(combinations(range(len(best.inputs)), 2)), bool(self.view.model.module.fused)
        best = self._best_of(best, len(pairs), lambda guess, number: guess.exchanged(*pairs[number], fused=fused))
        return self._best_of(best, len(self.undecided), self._changes)

    def _best_of(self, best: _Guess, count: int, changes: Callable[[_Guess, int], list[_Guess]]) -> _Guess:
        since, number = 0, 0
        while since < count and self.least > SAME and self.used < self.budget:
            others = changes(best, number)[: self.budget - self.used]
            scores = self._scored(others) if others else [self.least]
            since, number = since + 1, (number + 1) % count
            if min(scores) < self.least:
                self.least, since = min(scores), 0
                best = others[scores.index(self.least)]
        return best

    def _changes(self, guess: _Guess, number: int) -> list[_Guess]:
        """Each other word at the cell: put there, or taken from a cell that could have this one's."""
        cell, words = self.undecided[number], guess.words
        many = []
        for word in self.choices[cell]:
            if word != words[cell]:
                many.append(words | {cell: word})
                many += [
                    words | {cell: word, other: words[cell]}
                    for other in self.undecided
                    if words[other] == word and words[cell] in self.choices[other]
                ]
        return [_Guess(changed, guess.inputs) for changed in many]

    def _scored(self, many: Sequence[_Guess]) -> list[float]:
        """The distance of each; all are of the same inputs."""
        self.used += len(many)
        x = embedded(self.sentences, [guess.words for guess in many])
        return distances(self.view, many[0].inputs, self.distance, x, chunk=AT_ONCE)


def embedded(sentences: Sentences, many: Sequence[dict[Cell, int]]) -> Tensor:
    """(n, B, T, d): the embeddings of each choice of words."""
    x = sentences.fixed.repeat(len(many), 1, 1, 1)
    for number, words in enumerate(many):
        for (text, place), word in words.items():
            x[number, text, place] = sentences.table[word]
    return x
