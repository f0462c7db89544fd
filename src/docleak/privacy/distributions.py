"""Privacy loss distributions of bounded size, and closed forms for what needs none or is too large for one.

Every function returns a bound that is valid, however coarse its grid: distributions are rounded to the side that costs
more (Doroshenko et al., 2022), what the Fourier transform loses is taken off delta, and the closed form gives
amplification by sampling away where it must. Without sampling the value is that of the Gaussian mechanism itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, ndtri, xlog1py

from docleak.errors import MissingExtraError, PrivacyError
from docleak.privacy import gaussian
from docleak.privacy.mechanism import Mechanism, Participation, Relation

#: Places at which the losses of a round, and of all together, are looked at, fewer where there are more than AT_ONCE
#: rounds; beyond, the grid is coarser.
ROUND_POINTS, ALL_POINTS, FEW_POINTS = 1 << 18, 1 << 18, 1 << 16
#: More rounds than these are composed step by step: the library's bounds on their sum grow with their number.
AT_ONCE, STEP = 100_000, 1 << 10
#: A sum of rounds is within so many of its standard deviations, but for a probability far below any delta.
SPREAD = 17.0
#: Largest loss of a round, (distance of the means / noise)^2, of which a distribution is made. 0.01 is its noise.
LARGEST_LOSS = 1e4
#: No grid is finer; where it should be, the closed form may be tighter.
FINEST = 1e-6
#: What the rounding errors of the Fourier transform may hide of delta per round, and how many times that delta must be.
LOST_PER_ROUND, LEAST_TIMES = 1e-14, 10
#: Whole orders of Rényi divergences that are tried, and how far rounding may put the logarithm of a moment.
ORDERS, ROUNDED = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 4096), 1e-10
#: Between these distances over noise the Gaussian mechanism's own delta is exact in floating point, and so much above
#: its root is on the safe side of it; so for a delta that is no rounding error itself.
NEAREST, FARTHEST, ABOVE, LEAST_EXACT_DELTA = 1e-6, 1e4, 1 + 1e-7, 1e-290


def epsilon_of(parts: Sequence[Mechanism], delta: float) -> float:
    """An upper bound on epsilon at ``delta`` of mechanisms that all see the same units, one after the other.

    Tight to its grid wherever the grid can be fine enough. All have noise. Raises PrivacyError for mechanisms of
    different units or relations.
    """
    return bound_of(parts, delta)[0]


def bound_of(parts: Sequence[Mechanism], delta: float) -> tuple[float, bool]:
    """``epsilon_of``, and whether it is tight to a grid that is fine enough: a coarse one, or the closed form, may be
    many times the truth."""
    _check(parts)
    counted = countable_delta(delta, sum(m.rounds for m in parts))
    distance = math.sqrt(sum(m.rounds * _cost(m) for m in parts))
    if all(m.rate == 1 for m in parts) and NEAREST <= distance <= FARTHEST and delta >= LEAST_EXACT_DELTA:
        return min(gaussian.epsilon_of(distance, delta) * ABOVE, _closed_form(parts, delta)), True
    if counted <= 0 or any(_cost(m) > LARGEST_LOSS for m in parts):
        return _closed_form(parts, delta), False
    wanted = min(grid_of(m.noise_multiplier, m.rate if m.independent else m.unit_rate) for m in parts)
    points = ALL_POINTS if max(m.rounds for m in parts) <= AT_ONCE else FEW_POINTS
    grid = max(wanted, *(_width_of_round(m) / min(ROUND_POINTS, points) for m in parts), _width_of_all(parts) / points)
    try:
        total = power_of(_round(parts[0], grid), parts[0].rounds, grid)
        for part in parts[1:]:
            total = total.compose(power_of(_round(part, grid), part.rounds, grid))
        epsilon = float(total.get_epsilon_for_delta(counted))
    except (OverflowError, ZeroDivisionError, FloatingPointError, ValueError):
        return _closed_form(parts, delta), False
    coarse = grid > wanted or wanted <= FINEST or not math.isfinite(epsilon)
    return (min(epsilon, _closed_form(parts, delta)), False) if coarse else (epsilon, True)


def countable_delta(delta: float, rounds: int) -> float:
    """What is left of ``delta`` when the rounding errors of so many composed rounds are taken off.

    0 where they are no longer small beside it: no distribution says anything then.
    """
    lost = LOST_PER_ROUND * rounds
    return delta - lost if delta > LEAST_TIMES * lost else 0.0


def _check(parts: Sequence[Mechanism]) -> None:
    kinds = {(m.unit, m.relation) for m in parts}
    if len(kinds) > 1:
        said = " and ".join(sorted(f"per {unit} ({relation})" for unit, relation in kinds))
        raise PrivacyError(f"what is guaranteed {said} does not add up to one epsilon. Plan for one unit and relation.")


def _closed_form(parts: Sequence[Mechanism], delta: float) -> float:
    """Of Gaussian noise alone: with half of delta for more participations than are likely, or no coins at all; or
    ``_by_orders``.

    Sampled rounds are dominated by those in which the coins are public, and those by as many rounds with everybody.
    delta(epsilon) <= Phi(mu / 2 - epsilon / mu) of N(0, 1) against N(mu, 1) gives epsilon (Balle and Wang, 2018).
    """
    from scipy.stats import binom  # takes half a second

    everybody = _gaussian(math.sqrt(sum(m.rounds * _cost(m) for m in parts)), delta)
    drawn = [binom.isf(delta / 2 / len(parts), m.rounds, m.rate) if m.rate < 1 else m.rounds for m in parts]
    if not all(math.isfinite(times) for times in drawn):
        return everybody
    likely = math.sqrt(sum(max(times, 0) * _cost(m) for times, m in zip(drawn, parts, strict=True)))
    return min(everybody, _gaussian(likely, delta / 2) if likely else 0.0, _by_orders(parts, delta))


def _by_orders(parts: Sequence[Mechanism], delta: float) -> float:
    """By Rényi divergences of whole orders, which are sums of binomials for Poisson sampling (Mironov, Talwar & Zhang,
    2019), turned into epsilon after Canonne, Kamath & Steinke (2020); coins of clients that count as known are public.
    Infinite for replace-one, of which that sum says nothing.

    Its logarithms need no Fourier transform, so that it is what is left of amplification at the least deltas.
    """
    if all(m.rate == 1 for m in parts) or any(m.relation is Relation.REPLACE_ONE for m in parts):
        return math.inf
    best = math.inf
    for order in ORDERS:
        times = np.arange(order + 1.0)
        ways = gammaln(order + 1) - gammaln(times + 1) - gammaln(order - times + 1)
        total = 0.0
        for m in parts:
            rate, clients = (m.rate, 1.0) if m.independent else (m.unit_rate, m.client_rate)
            likely = ways + times * math.log(rate) + xlog1py(order - times, -rate)
            moment = logsumexp(likely + times * (times - 1) / 2 * _cost(m))
            total += m.rounds * (float(logsumexp([moment, 0.0], b=[clients, 1 - clients])) + ROUNDED)
        lost = math.log(delta) + math.log(order)
        best = min(best, (total - lost) / (order - 1) + math.log1p(-1 / order))
    return max(best, 0.0)


def epsilon_of_many(mechanism: Mechanism, size: int, delta: float) -> float:
    """An upper bound, in closed form, for ``size`` units together, each drawn by its own coin.

    In every round at most as many of them are drawn as is likely at half of delta; with public coins the sum then moves
    by that number times C at most.
    """
    from scipy.stats import binom  # takes half a second

    most = binom.isf(delta / 2 / mechanism.rounds, size, mechanism.rate)
    drawn = size if not math.isfinite(most) else min(int(most), size)
    mu = math.sqrt(mechanism.rounds) * drawn * _distance(mechanism) / mechanism.noise_multiplier
    return _gaussian(mu, delta / 2)


def _gaussian(mu: float, delta: float) -> float:
    return max(mu * mu / 2 + mu * float(-ndtri(delta)), 0.0)


def _cost(mechanism: Mechanism) -> float:
    ratio = _distance(mechanism) / mechanism.noise_multiplier
    return ratio * ratio  # a power would raise where this is infinite


def _distance(mechanism: Mechanism) -> float:
    """How far apart neighbouring sums are, in C."""
    return 2.0 if mechanism.relation is Relation.REPLACE_ONE else 1.0


def _round(mechanism: Mechanism, grid: float) -> Any:
    """Of one round. Coins of clients that count as known are part of what is seen: a mixture with nothing at all."""
    relation = library("dp_accounting").NeighboringRelation[mechanism.relation.name]
    rate = mechanism.rate if mechanism.independent else mechanism.unit_rate
    one = _distribution(mechanism.noise_multiplier, rate, relation, grid)
    if mechanism.independent:
        return one
    nothing = library("dp_accounting.pld.privacy_loss_distribution").identity(grid)
    return one.compute_mixture(nothing, mechanism.client_rate)


@lru_cache(maxsize=8)
def _distribution(noise_multiplier: float, rate: float, relation: Any, grid: float) -> Any:
    return library("dp_accounting.pld.privacy_loss_distribution").from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, neighboring_relation=relation, value_discretization_interval=grid
    )


def power_of(one: Any, times: int, grid: float) -> Any:
    """A distribution composed with itself; step by step where it is often, each step cutting off what is too unlikely.

    The library cuts tails off in ``compose`` only, so each step is composed with nothing.
    """
    if times <= AT_ONCE:
        return one.self_compose(times)
    whole, left = divmod(times, STEP)
    nothing = library("dp_accounting.pld.privacy_loss_distribution").identity(grid)
    total = power_of(one.self_compose(STEP).compose(nothing), whole, grid)
    return total.compose(one.self_compose(left)) if left else total


def grid_of(noise_multiplier: float, rate: float) -> float:
    """A thirtieth of the typical loss of a round: on a coarser grid, many rounds add up what was rounded up."""
    typical = _typical(noise_multiplier, rate)
    return max(min(typical / 30, max(typical, 1.0) / 100), FINEST)


def _typical(noise_multiplier: float, rate: float) -> float:
    loss = noise_multiplier**-2
    square = math.log1p(rate**2 * math.expm1(loss)) if loss < 700 else loss + 2 * math.log(rate)
    return math.sqrt(max(square, 0.0))


def _width_of_round(mechanism: Mechanism) -> float:
    """About the range of one round's losses: noise is looked at up to ten of its standard deviations."""
    rate = mechanism.rate if mechanism.independent else mechanism.unit_rate
    ratio = _distance(mechanism) / mechanism.noise_multiplier
    most = 10 * ratio + ratio**2 / 2
    high = math.log1p(rate * math.expm1(most)) if most < 700 else max(most + math.log(rate), 0.0)
    return high + (min(most, -math.log1p(-rate)) if rate < 1 else most)


def _width_of_all(parts: Sequence[Mechanism]) -> float:
    squares = 0.0
    for m in parts:
        typical = _typical(m.noise_multiplier / _distance(m), m.rate if m.independent else m.unit_rate)
        squares += m.rounds * typical**2
    return SPREAD * math.sqrt(squares) + max(_width_of_round(m) for m in parts)


def published(mechanism: Mechanism) -> bool:
    """Whether it is counted as the paper counts clients that are drawn whole, which is no bound."""
    return mechanism.participation is Participation.HIDDEN and mechanism.client_rate < 1


def library(name: str) -> Any:
    """An accounting library, imported when it is needed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"privacy accounting needs {name}: pip install 'docleak[privacy]'.") from error


def privacy_profile(mechanism: Mechanism, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """An upper bound on delta at each of ``epsilons`` (rising), for add-or-remove-one and units drawn on their own."""
    grid = max(grid_of(mechanism.noise_multiplier, mechanism.rate), _width_of_all([mechanism]) / FEW_POINTS)
    total = power_of(_round(mechanism, grid), mechanism.rounds, grid)
    return np.asarray(total.get_delta_for_epsilon(epsilons)) + LOST_PER_ROUND * mechanism.rounds
