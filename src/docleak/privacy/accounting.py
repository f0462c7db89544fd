"""What a mechanism costs: epsilon by three accountants, in a value that says everything it depends on.

PLD (dp-accounting) is the reference: an upper bound, tight to its grid. PRV (Opacus) is what Tito et al. (2024) used;
RDP (dp-accounting) is the older, looser bound that much code prints. PRV and RDP only know Poisson sampling of the
units themselves.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
from scipy.stats import binom

from docleak.errors import MissingExtraError, PrivacyError
from docleak.privacy.mechanism import Mechanism, Relation, Unit

#: The probability that is given away, of delta, to numbers of participations that are not looked at.
TAIL = 1e-4
#: Numbers of participations that are looked at one by one; beyond, several share the greatest of them.
EXACT = 32
#: The search for the epsilon of a mixture ends at this relative width, at its upper end.
WIDTH = 1e-6
MOST_EPSILON = 1e9
#: A group's losses are looked at in about so many places at most.
POINTS = 30_000


class Accountant(StrEnum):
    """Who computes epsilon."""

    PLD = "pld"
    PRV = "prv"
    RDP = "rdp"


#: What one of each unit holds.
WHAT = {
    Unit.PROVIDER: "all documents of one provider",
    Unit.DOCUMENT: "one document",
    Unit.CLIENT: "all documents of one client",
    Unit.RECORD: "one question with its answer",
}
PACKAGES = {Accountant.PLD: "dp-accounting", Accountant.PRV: "opacus", Accountant.RDP: "dp-accounting"}


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta) of a mechanism, by an accountant of a version; never to be printed without ``sentence``."""

    epsilon: float
    delta: float
    mechanism: Mechanism
    accountant: Accountant
    version: str

    def sentence(self, what: str = "") -> str:
        """The claim with its unit, relation, delta, sampling and accountant; ``what`` one unit holds, if not WHAT."""
        m = self.mechanism
        what = what or WHAT[m.unit]
        change = "replaced by another's" if m.relation is Relation.REPLACE_ONE else "added or removed"
        by = f"{self.accountant.upper()} accountant of {PACKAGES[self.accountant]} {self.version}"
        if math.isinf(self.epsilon):
            return f"no differential privacy per {m.unit}: no noise bounds what {what} changes ({m.sentence()}; {by})."
        claim = f"epsilon {self.epsilon:.4g} at delta {self.delta:.3g} per {m.unit} ({what} {change})"
        return f"{claim}; {m.sentence()}; {by}."


def guarantee(mechanism: Mechanism, delta: float, accountant: Accountant = Accountant.PLD) -> Guarantee:
    """What ``mechanism`` guarantees at ``delta``.

    Raises PrivacyError for a delta outside (0, 1), and where the accountant cannot count the mechanism.
    """
    if not 0 < delta < 1:
        raise PrivacyError(f"delta is {delta}; expected a probability above 0 and below 1, such as 1e-5.")
    compute = {Accountant.PLD: _pld, Accountant.PRV: _prv, Accountant.RDP: _rdp}[accountant]
    if accountant is not Accountant.PLD and not mechanism.independent:
        raise PrivacyError(
            f"the {accountant.upper()} accountant cannot count clients drawn as a whole whose coins are known "
            f"(client rate {mechanism.client_rate:.4g}). Use pld, or draw {mechanism.unit}s only (client rate 1)."
        )
    with _quiet():
        epsilon = math.inf if mechanism.noise_multiplier == 0 else compute(mechanism, delta)
    if mechanism.noise_multiplier and not math.isfinite(epsilon):
        raise PrivacyError(
            f"the {accountant.upper()} accountant finds no finite epsilon for noise multiplier "
            f"{mechanism.noise_multiplier:.4g} over {mechanism.rounds} rounds. "
            "Add noise, take a larger delta, or try another accountant."
        )
    return Guarantee(epsilon, delta, mechanism, accountant, version(PACKAGES[accountant]))


def _pld(mechanism: Mechanism, delta: float) -> float:
    if mechanism.independent:
        distribution = _round(mechanism, mechanism.rate).self_compose(mechanism.rounds)
        return float(distribution.get_epsilon_for_delta(delta))
    return _known_coins(mechanism, delta)


def _round(mechanism: Mechanism, rate: float) -> Any:
    """The privacy loss distribution of one round in which a unit takes part with probability ``rate``."""
    relation = library("dp_accounting").NeighboringRelation[mechanism.relation.name]
    return _distribution(mechanism.noise_multiplier, rate, relation)


@lru_cache(maxsize=8)
def _distribution(noise_multiplier: float, rate: float, relation: Any) -> Any:
    return library("dp_accounting.pld.privacy_loss_distribution").from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=rate,
        neighboring_relation=relation,
        value_discretization_interval=_grid(noise_multiplier, rate),
    )


def _grid(noise_multiplier: float, rate: float) -> float:
    """A thirtieth of the typical loss of a round: on a coarser grid, many rounds add up what was rounded up."""
    loss = noise_multiplier**-2
    typical = math.sqrt(math.log1p(rate**2 * math.expm1(loss)) if loss < 700 else loss + 2 * math.log(rate))
    return max(min(typical / 30, max(typical, 1.0) / 100), 1e-6)


def epsilon_of_group(found: Guarantee, size: int) -> float:
    """The epsilon, at the delta of ``found``, of ``size`` units that are added or removed together.

    The group's part of a round is a number of its units, Binomial(size, rate), times C at most: a mixture of Gaussians,
    whose privacy loss is tight for Poisson sampling (Ganesh, 2024). It grows faster than ``size`` times epsilon.
    Raises PrivacyError for clients drawn as a whole, replace-one, and a size below 1.
    """
    m = found.mechanism
    if m.client_rate != 1 or m.relation is not Relation.ADD_OR_REMOVE_ONE or size < 1:
        raise PrivacyError(
            f"a group of {size} {m.unit}s, client rate {m.client_rate:.4g}, {m.relation}; expected at least one unit, "
            "each drawn by its own coin (client rate 1), and add-or-remove-one."
        )
    if m.noise_multiplier == 0:
        return math.inf
    if m.rate == 1:
        return guarantee(replace(m, noise_multiplier=m.noise_multiplier / size), found.delta).epsilon
    drawn = np.arange(size + 1)
    losses = size / m.noise_multiplier * (size / m.noise_multiplier + 20)  # the range of a round's, roughly
    distribution = library("dp_accounting.pld.privacy_loss_distribution").from_mixture_gaussian_mechanism(
        m.noise_multiplier, drawn.astype(float).tolist(), binom.pmf(drawn, size, m.rate).tolist(),
        value_discretization_interval=max(min(_grid(m.noise_multiplier, m.rate) * size, 0.05), losses / POINTS),
    )  # fmt: skip
    return float(distribution.self_compose(m.rounds).get_epsilon_for_delta(found.delta))


def _known_coins(mechanism: Mechanism, delta: float) -> float:
    """Epsilon where everybody knows in which rounds a client took part.

    It did so in B ~ Binomial(rounds, client_rate) of them; given B, it is Poisson sampling of its units over B rounds.
    The hockey-stick divergence is convex, so delta(epsilon) <= sum_b P(B = b) delta_b(epsilon), with equality where
    the outputs show the coins. Numbers of participations too many to be likely count as lost.
    """
    rounds, rate = mechanism.rounds, mechanism.client_rate
    most = min(rounds, int(binom.isf(TAIL * delta, rounds, rate)))
    least = int(binom.ppf(TAIL * delta, rounds, rate))
    ends = np.unique(np.linspace(least, most, min(most - least + 1, EXACT)).round().astype(int))
    weights = np.diff(binom.cdf(ends, rounds, rate), prepend=0.0)  # delta_b grows with b: each b counts as its end
    lost = float(binom.sf(most, rounds, rate))
    one = _round(mechanism, mechanism.unit_rate)
    parts = [(w, one.self_compose(int(b))) for b, w in zip(ends, weights, strict=True) if b > 0]

    def delta_at(epsilon: float) -> float:
        return lost + sum(float(w) * float(part.get_delta_for_epsilon(epsilon)) for w, part in parts)

    if delta_at(0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_at(high) > delta:
        high *= 2
        if high > MOST_EPSILON:
            return math.inf
    low = 0.0
    while high - low > WIDTH * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def _rdp(mechanism: Mechanism, delta: float) -> float:
    dp = library("dp_accounting")
    if mechanism.relation is not Relation.ADD_OR_REMOVE_ONE:
        raise PrivacyError("the RDP accountant counts add-or-remove-one only here; use pld for replace-one.")
    one = dp.PoissonSampledDpEvent(mechanism.rate, dp.GaussianDpEvent(mechanism.noise_multiplier))
    event = dp.SelfComposedDpEvent(one, mechanism.rounds)
    return float(dp.rdp.RdpAccountant().compose(event).get_epsilon(delta))


def _prv(mechanism: Mechanism, delta: float) -> float:
    if mechanism.relation is not Relation.ADD_OR_REMOVE_ONE:
        raise PrivacyError("the PRV accountant of Opacus knows add-or-remove-one only; use pld for replace-one.")
    accountant = library("opacus.accountants").create_accountant(mechanism="prv")
    accountant.history = [(mechanism.noise_multiplier, mechanism.rate, mechanism.rounds)]
    try:
        return float(accountant.get_epsilon(delta))
    except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
        raise PrivacyError(f"Opacus' PRV accountant cannot count this mechanism ({error}). Use pld.") from error


def library(name: str) -> Any:
    """An accounting library, imported when it is needed: Opacus brings torch."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"privacy accounting needs {name}: pip install 'docleak[privacy]'.") from error


@contextmanager
def _quiet() -> Iterator[None]:
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
