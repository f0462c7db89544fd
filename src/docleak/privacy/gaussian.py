"""The Gaussian mechanism without sampling, exactly (Balle & Wang, 2018, Theorem 8)."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

from docleak.errors import PrivacyError

#: Distances over noise, as logarithms, between which the answer is looked for.
LOWEST, HIGHEST = -30.0, 10.0


def delta_of(distance: float, epsilon: float) -> float:
    """Delta at ``epsilon`` of a vector that neighbours move by ``distance`` standard deviations of its noise at most.

    Several releases of distances d_i count as one of sqrt(sum d_i^2), also where each depends on those before.
    """
    if distance == 0:
        return 0.0
    near = log_ndtr(distance / 2 - epsilon / distance)
    far = epsilon + log_ndtr(-distance / 2 - epsilon / distance)
    return float(math.exp(near) - math.exp(min(far, near)))


def epsilon_of(distance: float, delta: float) -> float:
    """The least epsilon of such a release at ``delta``; infinite without noise."""
    if delta_of(distance, 0.0) <= delta:
        return 0.0
    if math.isinf(distance):
        return math.inf
    high = 1.0
    while delta_of(distance, high) > delta:
        high *= 2
    return float(brentq(lambda epsilon: delta_of(distance, epsilon) - delta, 0.0, high, xtol=1e-12, rtol=1e-12))


def multiplier_for(epsilon: float, delta: float, releases: int) -> float:
    """The noise over sensitivity with which so many releases keep to ``epsilon`` together; 0 for an infinite one."""
    if math.isinf(epsilon):
        return 0.0
    if not (epsilon >= 0 and 0 < delta < 1 and releases >= 1):
        raise PrivacyError(f"{releases} releases at epsilon {epsilon} and delta {delta}; expected 1, 0 and above 0.")
    if delta_of(math.exp(HIGHEST), epsilon) <= delta:
        distance = math.exp(HIGHEST)
    else:
        root = brentq(lambda log: delta_of(math.exp(log), epsilon) - delta, LOWEST, HIGHEST, xtol=1e-13)
        distance = math.exp(root) * (1 - 1e-9)  # on the safe side of the root
    return math.sqrt(releases) / distance
