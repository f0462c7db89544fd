"""The accountants beside the reference, and what a second one says of every epsilon that is printed.

PLD (dp-accounting, and the Gaussian mechanism in closed form) and PRV (Opacus) share no code. Where PRV cannot count a
mechanism itself it brackets it, or RDP bounds it; where nothing can, that is said.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from docleak.errors import MissingExtraError, PrivacyError
from docleak.privacy.distributions import bound_of, library
from docleak.privacy.mechanism import Mechanism, Participation, Relation
from docleak.privacy.prv import PRV_ERROR, epsilon_of_prv

#: Opacus' PRV accountant is asked only where its own tables have about so many numbers at most.
PRV_NUMBERS = 4_000_000
#: Two accountants agree within this share of epsilon, and this beside it. PRV is asked to err by half of either.
SHARE, BESIDE = 0.02, 0.01
#: What is said where they differ by more.
CONTRADICTED = "the two contradict each other"


class Accountant(StrEnum):
    """Who computes epsilon."""

    PLD = "pld"
    PRV = "prv"
    RDP = "rdp"


PACKAGES = {Accountant.PLD: "dp-accounting", Accountant.PRV: "opacus", Accountant.RDP: "dp-accounting"}


#: Who puts epsilon where: from the first number to the second, the same where it counts the mechanism itself.
Opinion = tuple[Accountant, float, float]


def second_opinion(parts: Sequence[Mechanism], delta: float, epsilon: float, first: Accountant = Accountant.PLD) -> str:
    """What stands behind a printed ``epsilon`` of mechanisms that see the same units: that a second accountant agrees,
    that it counts less than what is a bound and no tight count, or a warning; empty where there is no noise to count.
    ``first`` is whose ``epsilon`` is."""
    if not math.isfinite(epsilon) or any(not m.noise_multiplier for m in parts):
        return ""
    error = max(SHARE * epsilon, BESIDE) / 2
    opinion = opinion_on(tuple(parts), delta, error, first)
    if opinion is None:
        return f"{_loose(parts, delta, first)}, and no second accountant here counts it"
    accountant, low, high = opinion
    by = f"{accountant.upper()} accountant of {PACKAGES[accountant]} {version(PACKAGES[accountant])}"
    room = SHARE * epsilon + BESIDE + (PRV_ERROR if first is Accountant.PRV else 0.0)
    above = f", allowed an error of {error:.2g}" if accountant is Accountant.PRV else ""
    where = f"counts {high:.4g}{above}" if low == high else (
        f"counts {low:.4g} at least" if math.isinf(high) else
        f"counts {high:.4g} at most" if not low else
        f"puts it between {low:.4g} and {high:.4g}"
    )  # fmt: skip
    if low - room <= epsilon <= high + room:
        return f", and {by} {where}"
    if epsilon > high and (loose := _loose(parts, delta, first)):
        return f"{loose}, and {by} {where}"
    return (
        f". WARNING: the {by} {where}, more than {SHARE:.0%} + {BESIDE:g} away: {CONTRADICTED}. Rely on "
        "neither before the difference is explained"
    )


def doubts_of(claim: str, of_delta: str = "") -> tuple[str, ...]:
    """Why a low epsilon is no all-clear, in sentences: what a ``claim`` says of a second accountant, and ``of_delta``
    of a delta that is too large."""
    said = (f"Two accountants count it, and {CONTRADICTED}.",) if CONTRADICTED in claim else ()
    return (*said, f"{of_delta[0].upper()}{of_delta[1:]}") if of_delta else said


def _loose(parts: Sequence[Mechanism], delta: float, first: Accountant) -> str:
    tight = first is not Accountant.PLD or bound_of(parts, delta)[1]
    return "" if tight else ", here on a coarse grid or in closed form, which may be far above the truth"


@lru_cache(maxsize=1024)
def opinion_on(parts: tuple[Mechanism, ...], delta: float, error: float, first: Accountant) -> Opinion | None:
    """A second accountant's count of ``parts`` together, at most ``error`` above the truth; None if there is none.

    Whole clients that everybody sees are bracketed: they give more away than hidden ones, and less than all of them in
    every round do. Replacing one of all units is moving the sum twice as far.
    """
    if first is not Accountant.PLD:
        with quiet():
            epsilon, tight = bound_of(parts, delta)
        if first is Accountant.PRV:
            return Accountant.PLD, epsilon if tight else 0.0, epsilon
        return (Accountant.PLD, epsilon, math.inf) if tight else None
    plain = [_added_or_removed(m) for m in parts]
    if any(m is None for m in plain):
        return None
    known = [m for m in plain if m is not None]
    hidden = tuple(replace(m, participation=Participation.HIDDEN) for m in known)
    low = _counted(hidden, delta, error)
    if low is None or all(m.independent for m in known):
        return low
    high = _counted(tuple(m if m.independent else replace(m, client_rate=1.0) for m in known), delta, error)
    return None if high is None else (low[0], low[1], high[2])


def _added_or_removed(mechanism: Mechanism) -> Mechanism | None:
    if mechanism.relation is Relation.ADD_OR_REMOVE_ONE:
        return mechanism
    half = mechanism.noise_multiplier / 2
    return (
        replace(mechanism, relation=Relation.ADD_OR_REMOVE_ONE, noise_multiplier=half) if mechanism.rate == 1 else None
    )


def _counted(parts: tuple[Mechanism, ...], delta: float, error: float) -> Opinion | None:
    """By PRV; where it cannot, at most by RDP; None where neither can, or Opacus is not there."""
    with quiet():
        try:
            prv_fits(parts, delta, error)
            if math.isfinite(epsilon := epsilon_of_prv(parts, delta, error)):
                return Accountant.PRV, epsilon, epsilon
        except (PrivacyError, MissingExtraError, RuntimeError, ValueError, ArithmeticError, MemoryError):
            pass
        try:
            epsilon = epsilon_of_rdp(parts, delta)
        except (MissingExtraError, ValueError, ArithmeticError):
            return None
    return (Accountant.RDP, 0.0, epsilon) if math.isfinite(epsilon) else None


def by_rdp(mechanism: Mechanism, delta: float) -> float:
    """Of one mechanism, drawn on its own; PrivacyError for another relation than adding or removing one."""
    if mechanism.relation is not Relation.ADD_OR_REMOVE_ONE:
        raise PrivacyError("the RDP accountant counts add-or-remove-one only here; use pld for replace-one.")
    return epsilon_of_rdp((mechanism,), delta)


def epsilon_of_rdp(parts: Sequence[Mechanism], delta: float) -> float:
    """The upper bound of dp-accounting's RDP accountant on mechanisms of one unit, each drawn with its ``rate``."""
    return float(_rdp_accountant(tuple(parts)).get_epsilon(delta))


@lru_cache(maxsize=64)
def _rdp_accountant(parts: tuple[Mechanism, ...]) -> Any:
    """With ``parts`` composed, which takes the time; it is asked at several deltas."""
    dp = library("dp_accounting")
    accountant = dp.rdp.RdpAccountant()
    for m in parts:
        one = dp.PoissonSampledDpEvent(m.rate, dp.GaussianDpEvent(m.noise_multiplier))
        accountant.compose(dp.SelfComposedDpEvent(one, m.rounds))
    return accountant


def prv_fits(parts: Sequence[Mechanism], delta: float, error: float = 0.01) -> None:
    """PrivacyError where Opacus' PRV accountant would need too many numbers: they grow with epsilon and rounds."""
    rounds = sum(m.rounds for m in parts)
    mesh = error / math.sqrt(rounds / 2 * (math.log(12_000) - math.log(delta)))
    noise = min(m.noise_multiplier for m in parts)
    few = noise >= 0.05 and delta > 1e-300
    if not few or (2 * epsilon_of_rdp(parts, delta / 4000) + 6) / mesh > PRV_NUMBERS:
        raise PrivacyError(
            f"Opacus' PRV accountant would need more than {PRV_NUMBERS} numbers for noise multiplier "
            f"{noise:.4g} over {rounds} rounds at delta {delta:.3g}. Use pld."
        )


def by_prv(mechanism: Mechanism, delta: float) -> float:
    """Of one mechanism, drawn on its own; PrivacyError where Opacus cannot count it."""
    if mechanism.relation is not Relation.ADD_OR_REMOVE_ONE:
        raise PrivacyError("the PRV accountant of Opacus knows add-or-remove-one only; use pld for replace-one.")
    prv_fits([mechanism], delta)
    try:
        return epsilon_of_prv([mechanism], delta)
    except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
        raise PrivacyError(f"Opacus' PRV accountant cannot count this mechanism ({error}). Use pld.") from error


@contextmanager
def quiet() -> Iterator[None]:
    """dp-accounting's RDP logs every order it leaves out, which only makes its bound looser."""
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        absl.setLevel(level)
