"""What scores of independent trials prove, at thresholds that the scores themselves give.

Members' scores are independent and of one law, others' of another. A threshold at the j-th highest of k others has a
false positive rate of law Beta(j, k - j + 1), whatever the others' law is, and given it each of n members lies above it
by a coin of its own; so the chance of so many members above it is known for any trade-off curve, without an interval
of either rate. The same holds of the lowest members, with the two changing places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, betainccinv

#: Ranks that are looked at grow by this factor from 1.
STEP = 3
#: Chances of a rate above which it is looked at: evenly, and down to one at which it is taken to be anything.
ABOVE = np.concatenate([np.linspace(1, 0.02, 100)[1:], np.geomspace(0.02, 1e-9, 100)[1:], [0.0]])
#: The chance of a rate between two neighbours of them.
BETWEEN = -np.diff(ABOVE, prepend=1.0)


@dataclass(frozen=True)
class Ranks:
    """At the ``rank`` (P,)-th of ``of`` scores of one class lie ``beyond`` of ``trials`` scores of the other class."""

    rank: NDArray[np.int64]
    of: NDArray[np.int64]
    beyond: NDArray[np.int64]
    trials: NDArray[np.int64]

    @classmethod
    def of_scores(cls, inside: NDArray[np.float64], outside: NDArray[np.float64], rng: np.random.Generator) -> Ranks:
        """Others from the highest, members from the lowest; equal scores are ordered by ``rng``."""
        lowest_first = np.lexsort((rng.random(len(inside) + len(outside)), np.concatenate([inside, outside])))
        member = lowest_first < len(inside)
        rows = []
        for at, sizes in ((~member[::-1], (len(outside), len(inside))), (member, (len(inside), len(outside)))):
            places = np.flatnonzero(at)
            for rank in ranks(sizes[0]):
                rows.append((rank, sizes[0], int(places[rank - 1]) - rank + 1, sizes[1]))
        return cls(*np.array(rows).T)

    def p_value(self, inverse: Callable[[float], float]) -> float:
        """The chance, at most, that so many lie beyond one of the ranks, under a trade-off curve F and F of the mirror.

        ``inverse`` is that of F, so that F(x) = 1 - inverse(1 - x). A rate is replaced by the end of its neighbourhood
        in ABOVE that is better for the attack.
        """
        rates = np.stack([_rates(int(rank), int(of)) for rank, of in zip(self.rank, self.of, strict=True)])
        most = 1 - np.vectorize(inverse, otypes=[np.float64])(1 - rates)
        chance = bdtrc(self.beyond[:, None] - 1.0, self.trials[:, None], most.clip(0, 1))
        chance = np.where(self.beyond[:, None] > 0, chance, 1.0) @ BETWEEN
        return min(float(chance.min()) * len(chance), 1.0)


def ranks(many: int) -> list[int]:
    """1, STEP, STEP squared, ..., below or at ``many``."""
    powers = [1]
    while powers[-1] * STEP <= many:
        powers.append(powers[-1] * STEP)
    return powers


@lru_cache(maxsize=256)
def _rates(rank: int, of: int) -> NDArray[np.float64]:
    """The rates that Beta(rank, of - rank + 1) exceeds with the chances ABOVE."""
    return np.asarray(betainccinv(rank, of - rank + 1.0, ABOVE))
