"""Which of several sums each vector most likely went into, where the sums also hold what nobody knows.

``Cover`` proves sums that hold nothing else. Here every sum S_r holds, beside its vectors, an unknown rest of unknown
size: other pages' share. Taken as normal with a variance of its own, the rest of d numbers has the log-likelihood
-d/2 log|S_r - vectors|^2, whose variance is already at its best. So a vector belongs where taking it off shortens the
rest by the largest factor, which needs no idea of how large the rest is; the second best tells how sure that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from docleak.attacks.gradients.algebra.subset_sums import FLOAT32, Floats, Indices

#: Rests shorter than this share of the largest vector are rounding.
ROUNDED = 2 * FLOAT32
#: Sweeps over all vectors after which the search ends, settled or not.
SWEEPS = 30


@dataclass(frozen=True)
class Likeliest:
    """``owner`` (N,) is the sum of each vector, or its pair (N, 2); ``odds`` (N,) are the nats by which it beats the
    next best; ``likelihood`` is that of all rests together, up to a constant."""

    owner: Indices
    odds: Floats
    likelihood: float


def owners(vectors: Floats, sums: Floats, start: Indices | None = None) -> Likeliest:
    """Owners of ``vectors`` (N, d) among ``sums`` (R, d), the longest first, each again until none moves.

    ``start`` (N,) is a first guess, -1 for none. The search may end in a local optimum; its likelihood tells it from
    others.
    """
    owner = np.full(len(vectors), -1, dtype=np.intp) if start is None else start.copy()
    given = owner >= 0
    rest = sums.copy()
    np.subtract.at(rest, owner[given], vectors[given])
    sizes = np.square(vectors).sum(axis=1)
    floor = ROUNDED**2 * float(sizes.max(initial=0))
    order = np.argsort(-sizes)
    for _ in range(SWEEPS):
        moved = False
        for n in order:
            if owner[n] >= 0:
                rest[owner[n]] += vectors[n]
            best = int(_gains(rest, vectors[n], floor).argmax())
            moved |= best != owner[n]
            owner[n] = best
            rest[best] -= vectors[n]
        if not moved:
            break
    odds = np.zeros(len(vectors))
    for n, row in enumerate(owner):
        rest[row] += vectors[n]
        odds[n] = _lead(_gains(rest, vectors[n], floor))
        rest[row] -= vectors[n]
    likelihood = -vectors.shape[1] / 2 * float(np.log(np.square(rest).sum(axis=1) + floor).sum())
    return Likeliest(owner, odds, likelihood)


@dataclass(frozen=True)
class Spans:
    """Words along one axis: slices of their gradients where they begin (N, c), end (N, c), and of their extent (N, s);
    the sums of the coordinates (E, c) and sizes (S, s) in use, and what these are."""

    begin: Floats
    end: Floats
    extent: Floats
    edge_sums: Floats
    size_sums: Floats
    edges: Indices
    sizes: Indices

    def likeliest(self) -> Likeliest:
        """First and last coordinate of each word, ``owner`` (N, 2), among pairs whose distance is a size in use."""
        search = _Search(self)
        order = np.argsort(-np.square(self.begin).sum(axis=1) - np.square(self.end).sum(axis=1))
        for _ in range(SWEEPS):
            if not sum(search.renew(int(word)) for word in order):
                break
        odds = np.array([search.lead(word) for word in range(len(self.begin))])
        return Likeliest(self.edges[search.pairs], odds, 0.0)


class _Search:
    """What is left of each sum while the words' pairs (N, 2), numbers of edges, are renewed one by one."""

    def __init__(self, spans: Spans) -> None:
        self.spans = spans
        self.ends, self.extents = spans.edge_sums.copy(), spans.size_sums.copy()
        self.pairs = np.full((len(spans.begin), 2), -1, dtype=np.intp)
        number = {int(size): index for index, size in enumerate(spans.sizes)}
        gaps: Sequence[Sequence[int]] = (spans.edges - spans.edges[:, None]).tolist()
        self.size = np.array([[number.get(gap, -1) for gap in row] for row in gaps], dtype=np.intp)
        largest = max(float(np.square(part).sum(axis=1).max(initial=0)) for part in (spans.begin, spans.end))
        self.floor = ROUNDED**2 * largest

    def renew(self, word: int) -> bool:
        """Give a word its best pair; True if it is another."""
        before = tuple(self.pairs[word])
        self._put(word, -1)
        self.pairs[word] = divmod(int(self._scores(word).argmax()), len(self.spans.edges))
        self._put(word, 1)
        return tuple(self.pairs[word]) != before

    def lead(self, word: int) -> float:
        """Nats by which a word's pair beats the next best."""
        self._put(word, -1)
        lead = _lead(self._scores(word).ravel())
        self._put(word, 1)
        return lead

    def _put(self, word: int, sign: int) -> None:
        first, last = self.pairs[word]
        if first >= 0:
            self.ends[first] -= sign * self.spans.begin[word]
            self.ends[last] -= sign * self.spans.end[word]
            if self.size[first, last] >= 0:
                self.extents[self.size[first, last]] -= sign * self.spans.extent[word]

    def _scores(self, word: int) -> Floats:
        """Nats (E, E) gained with each pair of first and last edge; minus infinity where their distance is no size."""
        begin, end, extent = (part[word] for part in (self.spans.begin, self.spans.end, self.spans.extent))
        sizes = np.append(_gains(self.extents, extent, self.floor), -np.inf)[self.size]
        scores = _gains(self.ends, begin, self.floor)[:, None] + _gains(self.ends, end, self.floor)
        np.fill_diagonal(scores, _gains(self.ends, begin + end, self.floor))
        return np.asarray(scores + sizes)


def _gains(rows: Floats, vector: Floats, floor: float) -> Floats:
    """Nats (R,) by which each row's likelihood grows where the vector is taken off it."""
    before = np.square(rows).sum(axis=1)
    after = before - 2 * rows @ vector + vector @ vector
    gain = np.log(np.maximum(before, 0) + floor) - np.log(np.maximum(after, 0) + floor)
    return np.asarray(rows.shape[1] / 2 * gain)


def _lead(scores: Floats) -> float:
    """How far the best of the scores is ahead of the next one; infinitely where there is but one."""
    if len(scores) < 2:
        return float("inf")
    second, best = np.partition(scores, -2)[-2:]
    return float(best - second) if np.isfinite(second) else float("inf")
