"""What a mechanism costs: epsilon by three accountants, in a value that says everything it depends on.

PLD (dp-accounting) is the reference: an upper bound, tight to its grid. PRV is the accountant of Tito et al. (2024), by
Opacus here; RDP (dp-accounting) is the older, looser bound that much code prints. PRV and RDP only know Poisson
sampling of the units themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache
from importlib.metadata import version

import numpy as np

from docleak.errors import PrivacyError
from docleak.privacy.distributions import countable_delta, epsilon_of, epsilon_of_many, grid_of, library, power_of
from docleak.privacy.mechanism import Mechanism, Relation, Unit
from docleak.privacy.prv import PRV_ERROR
from docleak.privacy.second import PACKAGES, Accountant, by_prv, by_rdp, quiet, second_opinion

#: A group's losses are looked at in about so many places at most; a group of more units than these in closed form.
POINTS, LARGEST_GROUP = 30_000, 500


#: What one of each unit holds.
WHAT = {
    Unit.PROVIDER: "all documents of one provider",
    Unit.DOCUMENT: "one document",
    Unit.CLIENT: "all documents of one client",
    Unit.RECORD: "one question with its answer",
}


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta) of a mechanism, by an accountant of a version; never to be printed without ``sentence``, which
    asks a second accountant."""

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
            return f"no differential privacy per {m.unit}: no noise bounds the effect of {what} ({m.sentence()}; {by})."
        by += f", allowed an error of {PRV_ERROR:.2g}" if self.accountant is Accountant.PRV else ""
        claim = f"epsilon {rounded_up(self.epsilon)} at delta {rounded_up(self.delta)} per {m.unit} ({what} {change})"
        return f"{claim}; {m.sentence()}; {by}{second_opinion((m,), self.delta, self.epsilon, self.accountant)}."


def rounded_up(epsilon: float) -> str:
    """An epsilon, or the delta it holds at, to four digits, never below what it is."""
    if not 0 < epsilon < math.inf:
        return f"{epsilon:.4g}"
    return _to_four_digits(epsilon, ROUND_CEILING)


def rounded_down(epsilon: float) -> str:
    """A lower bound to four digits, never above what it is."""
    return _to_four_digits(epsilon, ROUND_FLOOR) if 0 < epsilon < math.inf else f"{epsilon:.4g}"


def claimed_in_words(epsilon: float | None, delta: float | None, unit: str) -> str:
    """ "7.999 at delta 0.001 per provider"; "" where nothing is claimed."""
    at = f" at delta {rounded_up(delta)}" if delta is not None else ""
    return f"{rounded_up(epsilon)}{at}{f' per {unit}' if unit else ''}" if epsilon is not None else ""


def _to_four_digits(number: float, rounding: str) -> str:
    exact = Decimal(repr(float(number)))
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 3), rounding=rounding)):.4g}"


@lru_cache(maxsize=256)  # a search asks for the same mechanism twice, and a report for what its training was planned by
def guarantee(mechanism: Mechanism, delta: float, accountant: Accountant = Accountant.PLD) -> Guarantee:
    """What ``mechanism`` guarantees at ``delta``.

    Raises PrivacyError for a delta outside (0, 1), and where the accountant cannot count the mechanism.
    """
    if not 0 < delta < 1:
        raise PrivacyError(f"delta is {delta}; expected a probability above 0 and below 1, such as 1e-5.")
    compute = {Accountant.PLD: _pld, Accountant.PRV: by_prv, Accountant.RDP: by_rdp}[accountant]
    if accountant is not Accountant.PLD and not mechanism.independent:
        instead = "" if mechanism.unit is Unit.CLIENT else f", or draw {mechanism.unit}s only (client rate 1)"
        raise PrivacyError(
            f"the {accountant.upper()} accountant cannot count clients drawn as a whole whose coins are known "
            f"(client rate {mechanism.client_rate:.4g}). Use pld{instead}."
        )
    with quiet():
        epsilon = math.inf if mechanism.noise_multiplier == 0 else compute(mechanism, delta)
    if mechanism.noise_multiplier and not math.isfinite(epsilon):
        raise PrivacyError(
            f"the {accountant.upper()} accountant finds no finite epsilon for noise multiplier "
            f"{mechanism.noise_multiplier:.4g} over {mechanism.rounds} rounds. "
            "Add noise, take a larger delta, or try another accountant."
        )
    return Guarantee(epsilon, delta, mechanism, accountant, version(PACKAGES[accountant]))


def _pld(mechanism: Mechanism, delta: float) -> float:
    return epsilon_of([mechanism], delta)


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
    delta = countable_delta(found.delta, m.rounds)
    if size > LARGEST_GROUP or delta <= 0 or size / m.noise_multiplier > 100:
        return epsilon_of_many(m, size, found.delta)
    from scipy.stats import binom  # takes half a second

    drawn = np.arange(size + 1)
    losses = size / m.noise_multiplier * (size / m.noise_multiplier + 20)  # the range of a round's, roughly
    grid = max(min(grid_of(m.noise_multiplier, m.rate) * size, 0.05), losses / POINTS)
    distribution = library("dp_accounting.pld.privacy_loss_distribution").from_mixture_gaussian_mechanism(
        m.noise_multiplier, drawn.astype(float).tolist(), binom.pmf(drawn, size, m.rate).tolist(),
        value_discretization_interval=grid,
    )  # fmt: skip
    together = float(power_of(distribution, m.rounds, grid).get_epsilon_for_delta(delta))
    return together if math.isfinite(together) else epsilon_of_many(m, size, found.delta)
