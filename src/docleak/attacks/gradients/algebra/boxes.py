"""The boxes of a LayoutLMv3 client's words from the gradients of its coordinate tables.

A token's input is word + position + (x0 | y0 | x1 | y1 | height | width), each part a row of a table, so the gradient
of row v of the x table is the sum, over the tokens whose left edge is v, of one slice of their gradient, and over those
whose right edge is v, of another. ``Cover`` says which tokens those are; that width = right - left, and height
alike, ties the tables together. Words, not tokens, are looked for: the tokens of a word share its box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.optimize import nnls

from docleak.attacks.gradients.algebra.likeliest import Spans
from docleak.attacks.gradients.algebra.subset_sums import (
    MOST_STEPS,
    Cover,
    Floats,
    Indices,
    Mask,
    Precision,
    rows_in_use,
)

#: Largest number of (word, first, last) that are weighed in one system: a page of 200 words in two dozen columns has
#: 4,000, which take some seconds.
MOST_CHOICES = 5_000
#: Positions of the tokens that share a box.
Group = Sequence[int]


@dataclass(frozen=True)
class Tables:
    """Gradients of the four coordinate tables: x and y (V, c), heights and widths (V, s)."""

    x: Floats
    y: Floats
    height: Floats
    width: Floats

    def slices(self) -> tuple[slice, ...]:
        """Where x0, y0, x1, y1, height and width lie in a token's gradient (transformers' order)."""
        c, s = self.x.shape[1], self.height.shape[1]
        edges = np.cumsum([0, c, c, c, c, s, s]).tolist()
        return tuple(slice(a, b) for a, b in pairwise(edges))


@dataclass(frozen=True)
class Boxes:
    """``boxes`` (N, 4) as x0, y0, x1, y1 in 0..1000; ``proved``: every row of every table is explained by them."""

    boxes: Indices
    proved: bool


def recover_boxes(
    gradients: Floats, words: Sequence[Group], zero: Group, tables: Tables, precision: Precision
) -> Boxes:
    """The box of each word from the input's gradients (T, h); ``zero`` are the tokens whose box is all zeros."""
    x0, y0, x1, y1, height, width = tables.slices()
    boxes = np.zeros((len(words), 4), dtype=np.intp)
    proved = True
    for low, high, size, edges, sizes, at in (
        (x0, x1, width, tables.x, tables.width, 0),
        (y0, y1, height, tables.y, tables.height, 1),
    ):
        first, last, extent = (_Part(gradients[:, part], words, zero) for part in (low, high, size))
        axis = Axis(first, last, extent, edges, sizes, precision)
        boxes[:, at], boxes[:, at + 2] = axis.solve()
        proved &= axis.proved
    return Boxes(boxes, proved)


def spans_of(gradients: Floats, words: Sequence[Group], zero: Group, tables: Tables, noise: float) -> list[Spans]:
    """What tells where each word begins and ends, across and down; empty where no coordinate is in use."""
    x0, y0, x1, y1, height, width = tables.slices()
    axes = []
    for low, high, size, edges, sizes in (
        (x0, x1, width, tables.x, tables.width),
        (y0, y1, height, tables.y, tables.height),
    ):
        first, last, extent = (_Part(gradients[:, part], words, zero) for part in (low, high, size))
        edge_sums, size_sums = edges.copy(), sizes.copy()
        edge_sums[0] -= first.known + last.known
        size_sums[0] -= extent.known
        at, of = rows_in_use(edges, noise), rows_in_use(sizes, noise)
        if not len(at) or not len(of):
            return []
        parts = first.vectors, last.vectors, extent.vectors
        axes.append(Spans(*parts, edge_sums[at], size_sums[of], at, of))
    return axes


class _Part:
    """One slice of the gradients, (T, c): ``vectors`` (N, c) per word, with their tokens' norms and numbers."""

    def __init__(self, gradients: Floats, words: Sequence[Group], zero: Group) -> None:
        norms = np.linalg.norm(gradients, axis=1)
        self.vectors = np.array([gradients[list(word)].sum(axis=0) for word in words]).reshape(-1, gradients.shape[1])
        self.weights = np.array([norms[list(word)].sum() for word in words])
        self.terms = np.array([len(word) for word in words], dtype=np.intp)
        self.known = gradients[list(zero)].sum(axis=0)
        self.known_weight, self.known_terms = float(norms[list(zero)].sum()), len(zero)


class Axis:
    """One direction: where each word begins, where it ends, and how large it is."""

    def __init__(
        self, low: _Part, high: _Part, size: _Part, edges: Floats, sizes: Floats, precision: Precision
    ) -> None:
        self.count = len(low.terms)
        self.edges, self.ends = _cover(edges, (low, high), precision)
        self.sizes, self.spans = _cover(sizes, (size,), precision)
        self.size_between = _lookup(self.edges, self.sizes)  # (E, E) -> number of the size, or -1

    @property
    def proved(self) -> bool:
        return self.ends.solved and self.spans.solved

    def solve(self) -> tuple[Indices, Indices]:
        """First and last coordinate of every word, (N,) each."""
        self._explain()
        if not self.proved:
            self._guess()
        return self._coordinate(self.ends.owner[: self.count]), self._coordinate(self.ends.owner[self.count :])

    def _explain(self) -> None:
        changed = True
        while changed:
            changed = self.ends.explain()
            changed |= self.spans.explain()
            for word in range(self.count):
                changed |= self._tie(word)

    def _places(self, word: int) -> tuple[tuple[Cover, int], tuple[Cover, int], tuple[Cover, int]]:
        return (self.ends, word), (self.ends, self.count + word), (self.spans, word)

    def _possible(self, word: int) -> Mask:
        """(E, E): pairs of first and last coordinate that are still possible."""
        first, last = self.ends.allowed[word], self.ends.allowed[self.count + word]
        ends: Mask = first[:, None] & last & (self.size_between >= 0)
        ends[ends] = self.spans.allowed[word][self.size_between[ends]]
        return ends

    def _tie(self, word: int) -> bool:
        """Last minus first is the size: what two of them allow narrows the third."""
        places = self._places(word)
        if all(cover.owner[index] >= 0 for cover, index in places) or not len(self.sizes):
            return False
        possible = self._possible(word)
        sizes = np.zeros(len(self.sizes), dtype=np.bool_)
        sizes[self.size_between[possible]] = True
        changed = False
        for (cover, index), left in zip(places, (possible.any(1), possible.any(0), sizes), strict=True):
            if cover.owner[index] < 0 and left.any():
                cover.allowed[index] &= left
                if left.sum() == 1:
                    cover.settle(index, int(left.argmax()))
                    changed = True
        return changed

    def _guess(self) -> None:
        """Unproved words get the pair (first, last) that the tables' sums, taken together, hold most of."""
        words = [w for w in range(self.count) if any(cover.owner[i] < 0 for cover, i in self._places(w))]
        choices = [np.argwhere(self._possible(word)) for word in words]
        weighed = 0 < sum(map(len, choices)) <= MOST_CHOICES
        shares = (self._together if weighed else self._separate)(words, choices)
        for word, pairs, share in zip(words, choices, shares, strict=True):
            if len(pairs):
                first, last = pairs[share.argmax()]
                chosen = (first, last, self.size_between[first, last])
                for (cover, index), row in zip(self._places(word), chosen, strict=True):
                    if cover.owner[index] < 0:
                        cover.settle(index, int(row))
        self.ends.guess()
        self.spans.guess()

    def _separate(self, words: Sequence[int], choices: Sequence[Indices]) -> list[Floats]:
        """How much of each choice the sums hold, each sum by itself."""
        ends, spans = self.ends.shares(), self.spans.shares()
        shares = []
        for word, pairs in zip(words, choices, strict=True):
            first, last = pairs.T
            size = self.size_between[first, last]
            shares.append(ends[word][first] + ends[self.count + word][last] + spans[word][size])
        return shares

    def _together(self, words: Sequence[int], choices: Sequence[Indices]) -> list[Floats]:
        """How much of each choice the sums hold, all sums in one system: ends and sizes of a word go together."""
        total = sum(map(len, choices))
        ends = np.zeros((len(self.edges), self.ends.rest.shape[1], total))
        spans = np.zeros((len(self.sizes), self.spans.rest.shape[1], total))
        once = np.zeros((len(words), total))  # each word has one pair
        column = 0
        for number, (word, pairs) in enumerate(zip(words, choices, strict=True)):
            for first, last in pairs:
                chosen = (first, last, self.size_between[first, last])
                for (cover, index), row in zip(self._places(word), chosen, strict=True):
                    if cover.owner[index] < 0:
                        (spans if cover is self.spans else ends)[row, :, column] += cover.vectors[index]
                once[number, column] = 1.0
                column += 1
        scale = max(float(np.abs(ends).max(initial=0)), float(np.abs(spans).max(initial=0)), 1e-300)
        system = np.concatenate([ends.reshape(-1, total) / scale, spans.reshape(-1, total) / scale, once])
        goal = np.concatenate([self.ends.rest.ravel() / scale, self.spans.rest.ravel() / scale, np.ones(len(words))])
        try:
            share = nnls(system, goal, maxiter=MOST_STEPS)[0]
        except RuntimeError:  # no convergence
            return self._separate(words, choices)
        return np.split(share, np.cumsum([len(pairs) for pairs in choices])[:-1])

    def _coordinate(self, owner: Indices) -> Indices:
        return np.where(owner >= 0, self.edges[owner], 0) if len(self.edges) else np.zeros_like(owner)


def _cover(table: Floats, parts: Sequence[_Part], precision: Precision) -> tuple[Indices, Cover]:
    """Coordinates that words looked up, and their sums without the tokens whose box is all zeros: the row of 0 without
    them is still as inexact as with them."""
    sums = table.copy()
    sums[0] -= np.sum([part.known for part in parts], axis=0)
    used = rows_in_use(table, precision.noise)
    weight, terms = sum(part.known_weight for part in parts), sum(part.known_terms for part in parts)
    if np.linalg.norm(sums[0]) <= precision.tolerance(weight, terms, table.shape[1]):
        used = used[used != 0]
    words = [np.concatenate(arrays) for arrays in zip(*((p.vectors, p.weights, p.terms) for p in parts), strict=True)]
    cover = Cover(words[0], words[1], words[2], sums[used], precision)
    cover.spent[used == 0], cover.spent_terms[used == 0] = weight, terms
    return used, cover


def _lookup(edges: Indices, sizes: Indices) -> Indices:
    between = edges[None, :] - edges[:, None]
    where = np.full(max(int(sizes.max(initial=0)), int(edges.max(initial=0))) + 1, -1)
    where[sizes] = np.arange(len(sizes))
    return np.where(between >= 0, where[between.clip(0)], -1)
