"""The options of a private training: what they mean together, and which of them would mean nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from docleak.errors import PrivacyError

if TYPE_CHECKING:
    from docleak.privacy.plan import DpPlan

#: Options that say nothing where neither --epsilon nor --noise asks for privacy.
OF_A_TARGET = ("delta", "clip_norm", "unit", "unit_rate", "denominator", "published_counting")
SYNTHETIC = "synthetic"


def given(*names: str) -> list[str]:
    """Which of the present command's options stand on its command line, as they are written there."""
    context = click.get_current_context(silent=True)
    if context is None:
        return []
    said = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    return [f"--{name.replace('_', '-')}" for name in said]


def privacy_plan(
    epsilon: float | None,
    noise: float | None,
    rounds: int,
    *,
    delta: float,
    clip_norm: float,
    unit: str,
    unit_rate: str,
    client_rate: float,
    denominator: int,
    published_counting: bool = False,
) -> DpPlan | None:
    """The plan that the options ask for, its noise found for ``epsilon``; None where neither is given.

    PrivacyError for an option of a private training without one of both: it would train without privacy.
    """
    from docleak.privacy.accounting import Accountant
    from docleak.privacy.budget import noise_for
    from docleak.privacy.mechanism import Mechanism, Participation, Unit, choice, probability
    from docleak.privacy.plan import DpPlan

    if epsilon is None and noise is None:
        if idle := given(*OF_A_TARGET):
            raise PrivacyError(
                f"{', '.join(idle)}: of a private training, and none is asked for. Give --epsilon or --noise, too, or "
                "leave it out to train without privacy."
            )
        return None
    if epsilon is not None and noise is not None:
        raise PrivacyError("epsilon and noise are both given; give one, and docleak finds the other.")
    if denominator < 1:
        raise PrivacyError(
            f"a private training divides by a public constant M, and --denominator is {denominator}. Give about the "
            f"number of {unit}s that a silo is known to have, times the unit rate if that is below 1."
        )
    rate, kind = probability(unit_rate, what="unit rate"), choice(Unit, unit, what="unit")
    if published_counting and (client_rate == 1 or kind is Unit.CLIENT):
        raise PrivacyError(
            f"--published-counting is the paper's counting of clients that are drawn whole, for {Unit.PROVIDER}s or "
            f"{Unit.DOCUMENT}s in them; here the unit is {kind} and --participation {client_rate:g}. Leave it out."
        )
    view = Participation.HIDDEN if published_counting else Participation.KNOWN
    accountant = Accountant.PRV if published_counting else Accountant.PLD
    mechanism = Mechanism(noise or 0.0, rounds, rate, client_rate, kind, participation=view)
    if epsilon is not None:
        mechanism = noise_for(mechanism, epsilon, delta, accountant).mechanism
    return DpPlan(mechanism, clip_norm, denominator, delta, published_counting)


def evaluations_of(plan: DpPlan | None, rounds: int, every: int) -> int:
    """How many evaluations a private training asks for, which its scores get noise for; 0 without one."""
    if plan is None or not every:
        return 0
    return sum(number % every == 0 or number == rounds for number in range(rounds + 1))


def pages_under(plan: DpPlan | None, documents: str, pages: int) -> int:
    """How many pages to take: under a privacy plan all of a data set, since who is among the first depends on others.

    PrivacyError for a number that was asked for.
    """
    if plan is None or documents == SYNTHETIC:
        return pages
    if given("pages") and pages:
        raise PrivacyError(
            f"--pages {pages}: with the first pages of a list, each provider's place in it decides whether others are "
            "trained on, which no plan counts. Leave it out under --epsilon or --noise, or give fewer documents."
        )
    return 0
