"""Intervals of a mean that hold however long one looks: for tables that stop once they can decide."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

#: Points of [0, 1] that are tried as the mean.
GRID = 2001
#: Of what could be lost at once, the share that is bet at most.
BOLDEST = 0.9


def mean_over_time(
    values: Sequence[float], *, planned: int | Sequence[int], level: float = 0.95
) -> tuple[float, float]:
    """The interval that a confidence sequence for the mean of ``values`` in [0, 1] has come to.

    A mean m is left out once a gambler who bets on values above m, or on values below it, has turned 1 into 2 /
    (1 - ``level``): where m is true that happens at any time with a probability of at most 1 - ``level`` (Ville), for
    any values in [0, 1] whose mean given the earlier ones is m, at any n, and whatever decides when to stop
    (Waudby-Smith and Ramdas, 2024, section 4: hedged bets with predictable plug-in). ``planned`` is the number of
    values for which bets are laid out: it makes the interval narrow there, and is no condition. Where more were asked
    for after a look, it is each such number, the first first: bets that were laid are not laid anew, or each look would
    have a chance of its own to be wrong.

    ValueError for values outside [0, 1].
    """
    if any(not 0 <= value <= 1 for value in values):
        raise ValueError(f"values from {min(values)} to {max(values)}; expected all in [0, 1].")
    wanted = math.log(2 / (1 - level))
    plans = [planned] if isinstance(planned, int) else planned
    means = np.linspace(0, 1, GRID)
    with np.errstate(divide="ignore"):
        most = BOLDEST / means, BOLDEST / (1 - means)
    capital, richest = np.zeros((2, GRID)), np.full((2, GRID), -np.inf)
    total, squares = 0.5, 0.25
    for number, value in enumerate(values, 1):
        deviation = squares / number  # of the values before this one, a value of a half and a spread of a half first
        plan = next((plan for plan in plans if plan >= number), plans[-1])
        bet = math.sqrt(2 * wanted / (deviation * max(plan, 1)))
        capital[0] += np.log1p(np.minimum(bet, most[0]) * (value - means))
        capital[1] += np.log1p(np.minimum(bet, most[1]) * (means - value))
        np.maximum(richest, capital, out=richest)
        total += value
        squares += (value - total / (number + 1)) ** 2
    held = means[(richest < wanted).all(axis=0)]
    if not held.size:  # all of the grid is left out: what little lies between two of its points is not
        centre = float(np.mean(values))
        return max(0.0, centre - 1 / GRID), min(1.0, centre + 1 / GRID)
    return max(0.0, float(held[0]) - 1 / GRID), min(1.0, float(held[-1]) + 1 / GRID)
