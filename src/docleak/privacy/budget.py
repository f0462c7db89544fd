"""Calibration: the noise for an epsilon, the rounds until it is spent, and the curve between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from docleak.errors import PrivacyError
from docleak.privacy.accounting import Guarantee, guarantee, rounded_down
from docleak.privacy.distributions import bound_of
from docleak.privacy.mechanism import Mechanism, Participation, Relation
from docleak.privacy.second import BESIDE, SHARE, Accountant

#: Noise multipliers are found, and rounded up, to this many decimals; to fewer from 100 on.
DECIMALS = 4
MOST_NOISE = 1e5
#: An epsilon of 0, where delta pays for everything, as the search's logarithm takes it.
LEAST_COST = 1e-300
MOST_ROUNDS = 100_000
#: Opacus' bisection ends once epsilon is this close below the target. All four noise multipliers of Tito et al. (2024),
#: Table 12, come out to their last digit with 0.011 and 0.012; with the library's 0.01, that of epsilon 8 is 0.8319.
PRV_TOLERANCE = 0.011


@lru_cache(maxsize=64)
def noise_for(mechanism: Mechanism, epsilon: float, delta: float, accountant: Accountant = Accountant.PLD) -> Guarantee:
    """The least noise multiplier, to ``DECIMALS``, with which ``mechanism`` keeps to ``epsilon``; its own is ignored.

    With the PRV accountant it is Opacus' own search, so that published values come out digit by digit. Raises
    PrivacyError where no noise up to ``MOST_NOISE`` is enough.
    """
    _check(epsilon)
    if accountant is Accountant.PRV:
        return _noise_by_opacus(mechanism, epsilon, delta)

    def cost(noise_multiplier: float) -> float:
        return guarantee(replace(mechanism, noise_multiplier=noise_multiplier), delta, accountant).epsilon

    noise = least_noise(cost, epsilon, _guess(mechanism, epsilon, delta), f"{mechanism.rounds} rounds")
    return guarantee(replace(mechanism, noise_multiplier=noise), delta, accountant)


def least_noise(cost: Callable[[float], float], epsilon: float, guess: float, what: str) -> float:
    """The least noise multiplier, to ``DECIMALS``, whose ``cost`` is at most ``epsilon``; ``what`` is to keep to it.

    PrivacyError where no noise up to ``MOST_NOISE`` is enough.
    """
    step = 10.0**-DECIMALS
    high = max(2.0 ** math.ceil(math.log2(guess)), step)
    while cost(high) > epsilon:
        high *= 2
        if high > MOST_NOISE:
            raise PrivacyError(
                f"no noise multiplier up to {MOST_NOISE:.0f} keeps {what} within epsilon {epsilon}. Ask for a larger "
                "epsilon, fewer rounds or a lower rate."
            )
    low = high / 2
    while low > step and cost(low) <= epsilon:
        low, high = low / 2, low
    low = max(low, step)
    noise, digits = low, DECIMALS - max(math.floor(math.log10(high)) - 1, 0)
    if cost(low) > epsilon:
        step = 10.0**-digits
        root = brentq(
            lambda log: math.log(max(cost(math.exp(log)), LEAST_COST) / epsilon), math.log(low), math.log(high),
            xtol=step / 10 / max(high, 1.0),
        )  # fmt: skip
        noise = round(math.ceil(math.exp(root) / step) * step, digits)
    while cost(noise) > epsilon:
        noise = round(noise + step, digits)
    return noise


def _guess(mechanism: Mechanism, epsilon: float, delta: float) -> float:
    """About the noise that many rounds need, as if their sum were Gaussian, within what is searched."""
    z = float(-ndtri(delta))
    mu = math.sqrt(z * z + 2 * epsilon) - z
    drift = mu * mu / mechanism.rounds / mechanism.rate**2 if mechanism.rate > 1e-100 else math.inf
    return min(max(1 / math.sqrt(math.log1p(drift)) if 0 < drift < math.inf else 1.0, 1e-4), MOST_NOISE / 2)


def _noise_by_opacus(mechanism: Mechanism, epsilon: float, delta: float) -> Guarantee:
    """Opacus' bisection step by step. Its accountant, which takes half a second for little noise, is asked only where
    the reference, which counts the same within SHARE and BESIDE where it is tight, does not tell on which side of
    ``epsilon`` it is."""

    def spent(noise_multiplier: float) -> float:
        return guarantee(replace(mechanism, noise_multiplier=noise_multiplier), delta, Accountant.PRV).epsilon

    def cost(noise_multiplier: float) -> float:
        about, tight = bound_of([replace(mechanism, noise_multiplier=noise_multiplier)], delta)
        clear = tight and abs(about - epsilon) > SHARE * max(about, epsilon) + 4 * BESIDE
        return about if clear else spent(noise_multiplier)

    spent(noise_for(mechanism, epsilon, delta).mechanism.noise_multiplier)  # refuses what it cannot count
    low, high, left = 0.0, 10.0, math.inf
    while left > epsilon:
        high *= 2
        if high > MOST_NOISE:
            raise PrivacyError(f"Opacus finds no noise multiplier for epsilon {epsilon}. Use pld.")
        left = cost(high)
    while epsilon - left > PRV_TOLERANCE:
        middle = (low + high) / 2
        if (now := cost(middle)) < epsilon:
            high, left = middle, now
        else:
            low = middle
    return guarantee(replace(mechanism, noise_multiplier=high), delta, Accountant.PRV)


def rounds_for(
    mechanism: Mechanism, epsilon: float, delta: float, accountant: Accountant = Accountant.PLD
) -> Guarantee:
    """The most rounds with which ``mechanism`` keeps to ``epsilon``; its own number is ignored.

    Raises PrivacyError if there is no noise, if one round costs more already, and beyond ``MOST_ROUNDS``.
    """
    _check(epsilon)
    if mechanism.noise_multiplier == 0:
        raise PrivacyError(f"noise multiplier is 0, which spends any epsilon at once; epsilon {epsilon} needs noise.")

    def after(rounds: int) -> Guarantee:
        return guarantee(replace(mechanism, rounds=rounds), delta, accountant)

    first = after(1)
    if first.epsilon > epsilon:
        raise PrivacyError(
            f"one round costs epsilon {first.epsilon:.4g}, more than {epsilon}. Add noise, or draw fewer."
        )
    low, high = first, after(2)
    while high.epsilon <= epsilon:
        if high.mechanism.rounds > MOST_ROUNDS:
            raise PrivacyError(f"epsilon {epsilon} lasts for more than {MOST_ROUNDS} rounds; plan with less noise.")
        low, high = high, after(4 * high.mechanism.rounds)
    while (gap := high.mechanism.rounds - low.mechanism.rounds) > 1:
        slope = gap / (high.epsilon - low.epsilon)  # epsilon is nearly linear in so short a stretch, in the end
        step = min(max(round(slope * (epsilon - low.epsilon)), gap // 8, 1), gap - max(gap // 8, 1))
        middle = after(low.mechanism.rounds + step)
        low, high = (middle, high) if middle.epsilon <= epsilon else (low, middle)
    return low


def curve(
    mechanism: Mechanism, delta: float, accountant: Accountant = Accountant.PLD, *, points: int = 16
) -> list[Guarantee]:
    """What 1, ..., ``mechanism.rounds`` rounds cost, at about so many numbers of rounds."""
    chosen = np.unique(np.geomspace(1, mechanism.rounds, points).round().astype(int))
    return [guarantee(replace(mechanism, rounds=int(rounds)), delta, accountant) for rounds in chosen]


def beside(found: Guarantee) -> list[Guarantee | PrivacyError]:
    """The same mechanism counted otherwise, or why it cannot be.

    By the other accountants, under the other relation, and, where clients are drawn, with the other view of coins.
    """
    m, pld = found.mechanism, Accountant.PLD
    others = [(m, accountant) for accountant in Accountant if accountant is not found.accountant]
    others += [(replace(m, relation=relation), pld) for relation in Relation if relation is not m.relation]
    if m.client_rate < 1:
        others += [(replace(m, participation=view), pld) for view in Participation if view is not m.participation]
    results: list[Guarantee | PrivacyError] = []
    for mechanism, accountant in others:
        try:
            results.append(guarantee(mechanism, found.delta, accountant))
        except PrivacyError as error:
            results.append(error)
    return results


def delta_warning(delta: float, units: int, unit: str) -> str:
    """Why ``delta`` is too large for so many units; empty where it is not."""
    if not units or delta < 1 / units:
        return ""
    return (
        f"delta {delta:.3g} is not below 1/{units}: publishing everything of one {unit} in {units}, drawn at random, "
        f"would satisfy it. Take less than {rounded_down(1 / units)}, a tenth of that if you can."
    )


def _check(epsilon: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise PrivacyError(f"epsilon is {epsilon}; expected a finite number above 0.")
