"""Which vectors add up to which sums, when every vector belongs to exactly one sum.

The gradient of an embedding row is the sum of the gradients at the places that looked it up. With d numbers per row
and 24 bits a number, a sum of a few dozen of a few hundred vectors has, in practice, one explanation; non-negative
least squares finds it, and the sum itself proves it, so that a wrong explanation is refused rather than returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import chdtri

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]

#: Rounding of float32, the least that any sum is off.
FLOAT32 = 2.0**-23
#: A sum of a few hundred roundings is off by a few roundings of its largest partial sum, hardly by this many.
SLACK = 8.0
#: Steps after which non-negative least squares counts as not converging.
MOST_STEPS = 10_000
#: Chance that pure noise is taken for a row that was looked up, over all rows of a table.
FALSE_ROWS = 1e-3
#: Chance that a true sum is refused because of noise.
FALSE_REFUSAL = 1e-4


@dataclass(frozen=True)
class Precision:
    """How far sums may be off: ``rounding`` relative to what was added, ``noise`` absolute, per number and row."""

    rounding: float = FLOAT32
    noise: float = 0.0

    def tolerance(self, weight: float, terms: int, width: int) -> float:
        """Largest norm of sum minus terms: ``weight`` the terms' norms added, ``terms`` their number, d = ``width``."""
        spread = self.noise * float(np.sqrt((1 + terms) * _quantile(FALSE_REFUSAL, width))) if self.noise else 0.0
        return SLACK * self.rounding * weight + spread


@lru_cache
def _quantile(chance: float, width: int) -> float:
    """What the square of a vector of ``width`` standard normal numbers exceeds with that chance."""
    return float(chdtri(width, chance))


def noise_of(table: Floats) -> float:
    """Standard deviation of noise on a table most of whose rows nothing looked up; 0 where they are exactly 0."""
    return float(np.median(np.abs(table)) / 0.6745)


def rows_in_use(table: Floats, noise: float) -> Indices:
    """The rows (R, d) that something looked up: not zero, or larger than noise can explain."""
    count, width = table.shape
    floor = noise**2 * _quantile(FALSE_ROWS / count, width) if noise else 0.0
    return np.flatnonzero(np.square(table).sum(axis=1) > floor)


def rounding_of(vectors: Floats, sums: Floats) -> float:
    """Relative rounding, from the identity that all ``vectors`` (N, d) together are all ``sums`` (R, d) together."""
    gap = np.linalg.norm(vectors.sum(axis=0) - sums.sum(axis=0))
    size = np.sqrt(np.square(vectors).sum() + np.square(sums).sum())
    return max(FLOAT32, float(gap / max(size, np.finfo(np.float64).tiny)))


class Cover:
    """Vectors (N, d) that wait to be told which of the sums (R, d) they belong to.

    A vector may itself be a sum of ``terms`` (N,) gradients whose norms add up to ``weights`` (N,). ``allowed`` (N, R)
    is what is still possible and may be narrowed from outside; ``owner`` (N,) is the sum's number, or -1.
    """

    def __init__(self, vectors: Floats, weights: Floats, terms: Indices, sums: Floats, precision: Precision) -> None:
        self.vectors, self.weights, self.terms, self.precision = vectors, weights, terms, precision
        self.rest = sums.copy()  # what the vectors settled so far leave of each sum
        self.spent = np.zeros(len(sums))
        self.spent_terms = np.zeros(len(sums), dtype=np.intp)
        self.allowed: Mask = np.ones((len(vectors), len(sums)), dtype=np.bool_)
        self.owner: Indices = np.full(len(vectors), -1)
        self._tried: dict[int, tuple[bytes, int]] = {}

    @property
    def waiting(self) -> Indices:
        """Vectors without an owner."""
        return np.flatnonzero(self.owner < 0)

    @property
    def open(self) -> Indices:
        """Sums that are not yet explained."""
        left = np.linalg.norm(self.rest, axis=1)
        return np.flatnonzero([size > self._tolerance(row) for row, size in enumerate(left)])

    @property
    def solved(self) -> bool:
        """Every vector has an owner, every sum is explained, and no vector is too small for its sum to tell."""
        if len(self.waiting) or len(self.open):
            return False
        sizes = np.linalg.norm(self.vectors, axis=1)
        return all(size > self._tolerance(row) for size, row in zip(sizes, self.owner, strict=True))

    def settle(self, vector: int, row: int) -> None:
        """Give a vector to a sum; a sum that is then explained takes no more."""
        self.owner[vector] = row
        self.rest[row] -= self.vectors[vector]
        self.spent[row] += self.weights[vector]
        self.spent_terms[row] += self.terms[vector]
        self.allowed[vector] = False
        self.allowed[vector, row] = True
        if np.linalg.norm(self.rest[row]) <= self._tolerance(row):
            self.allowed[self.owner != row, row] = False

    def explain(self) -> bool:
        """Explain what can be proved by its sum; True if anything was."""
        if not len(self.vectors) or not len(self.rest):
            return False
        changed = self._alone()
        for row in self.open:
            changed |= self._one(int(row))
        for vector in self.waiting:
            choices = np.flatnonzero(self.allowed[vector])
            if len(choices) == 1:
                self.settle(int(vector), int(choices[0]))
                changed = True
        return changed

    def shares(self) -> Floats:
        """(N, R): how much of each waiting vector each open sum seems to hold, where nothing can be proved."""
        shares = np.zeros(self.allowed.shape)
        for row in self.open:
            candidates = np.flatnonzero(self.allowed[:, row] & (self.owner < 0))
            if len(candidates):
                shares[candidates, row] = self._fit(int(row), candidates)
        return shares

    def guess(self) -> None:
        """Give every waiting vector to the sum that seems to hold most of it; ``solved`` then says if that is right."""
        if not len(self.waiting) or not len(self.rest):
            return
        shares = self.shares() + 1e-9 * self.allowed  # among those still possible, if none seems to hold it
        for vector in self.waiting:
            self.settle(int(vector), int(shares[vector].argmax()))

    def _tolerance(self, row: int, members: Indices | None = None) -> float:
        weight, terms = self.spent[row], self.spent_terms[row]
        if members is not None:
            weight, terms = weight + self.weights[members].sum(), terms + self.terms[members].sum()
        return self.precision.tolerance(float(weight), int(terms), self.rest.shape[1])

    def _fits(self, row: int, members: Indices) -> bool:
        left = self.rest[row] - self.vectors[members].sum(axis=0)
        return bool(np.linalg.norm(left) <= self._tolerance(row, members))

    def _take(self, row: int, members: Indices) -> bool:
        """Settle the members if the sum proves them."""
        if not len(members) or not self.allowed[members, row].all() or not self._fits(row, members):
            return False
        for vector in members:
            self.settle(int(vector), row)
        return True

    def _alone(self) -> bool:
        """Sums of one vector, by the nearest pairs: least squares would find them too, in twice the time."""
        waiting, rows = self.waiting, self.open
        if not len(waiting) or not len(rows):
            return False
        vectors, sums = self.vectors[waiting], self.rest[rows]
        squares = np.square(vectors).sum(1)[:, None] + np.square(sums).sum(1) - 2 * vectors @ sums.T
        squares = np.where(self.allowed[np.ix_(waiting, rows)], squares, np.inf)
        return sum(self._take(int(r), waiting[[n]]) for r, n in zip(rows, squares.argmin(axis=0), strict=True)) > 0

    def _one(self, row: int) -> bool:
        candidates = np.flatnonzero(self.allowed[:, row] & (self.owner < 0))
        state = (candidates.tobytes(), int(self.spent_terms[row]))
        if not len(candidates) or self._tried.get(row) == state:
            return False
        self._tried[row] = state
        return self._take(row, candidates[self._fit(row, candidates) > 0.5])

    def _fit(self, row: int, candidates: Indices) -> Floats:
        """Non-negative shares of the candidates in what is left of a sum."""
        size = np.linalg.norm(self.rest[row])
        try:
            return np.asarray(nnls(self.vectors[candidates].T / size, self.rest[row] / size, maxiter=MOST_STEPS)[0])
        except RuntimeError:  # no convergence: no statement
            return np.zeros(len(candidates))
