"""What ``docleak budget`` answers: noise, rounds or epsilon of one training or several, as words, JSON or curves; and
the plan that the settings of a training ask for."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from docleak.errors import PrivacyError
from docleak.privacy.accounting import WHAT, Guarantee, guarantee, rounded_up
from docleak.privacy.budget import curve, noise_for, rounds_for
from docleak.privacy.distributions import epsilon_of
from docleak.privacy.distributions import published as published_count
from docleak.privacy.mechanism import Mechanism, Participation, Relation, Unit, choice, probability
from docleak.privacy.phases import mechanisms, noise_for_phases, phases_of
from docleak.privacy.plan import DpPlan
from docleak.privacy.second import PACKAGES, Accountant, second_opinion
from docleak.spec import counted_words


def answer(asked: str, mechanism: Mechanism, epsilon: float, delta: float, accountant: Accountant) -> Guarantee:
    """The noise, the rounds or the epsilon that were ``asked`` for."""
    if asked == "noise":
        return noise_for(mechanism, epsilon, delta, accountant)
    if asked == "rounds":
        return rounds_for(mechanism, epsilon, delta, accountant)
    return guarantee(mechanism, delta, accountant)


def together(
    text: str, like: Mechanism, epsilon: float | None, noise: float | None, delta: float
) -> tuple[dict[str, object], str]:
    """Several trainings under one budget: for machines, and in words."""
    phases = phases_of(text)
    if (epsilon is None) == (noise is None):
        raise PrivacyError("with --phases give either --epsilon, for their noise, or --noise, for their epsilon.")
    multiplier = noise_for_phases(phases, like, epsilon, delta) if epsilon is not None else like.noise_multiplier
    parts = mechanisms(phases, replace(like, noise_multiplier=multiplier))
    alone = [guarantee(part, delta) for part in parts]
    total = epsilon_of(parts, delta) if multiplier else math.inf
    one = alone[0]
    if not math.isfinite(total):
        raise PrivacyError("without noise epsilon is infinite. Give --noise above 0, or --epsilon.")
    change = "replaced by another's" if like.relation is Relation.REPLACE_ONE else "added or removed"
    claim = (
        f"epsilon {rounded_up(total)} at delta {rounded_up(delta)} per {like.unit} ({WHAT[like.unit]} {change}) for "
        f"{counted_words(len(phases), 'phase')} together, on the same {like.unit}s; {one.accountant.upper()} "
        f"accountant of {PACKAGES[one.accountant]} {one.version}{second_opinion(parts, delta, total)}."
    )
    if any(published_count(part) for part in parts):
        claim += " Coins counted as hidden, which is no bound."
    lines = [f"Noise multiplier: {multiplier:.4f}, in every phase", "", claim, "", "Each phase by itself:"]
    lines += [f"  - {phase.name}: {bound.sentence()}" for phase, bound in zip(phases, alone, strict=True)]
    named = [{"phase": phase.name, **_row(bound)} for phase, bound in zip(phases, alone, strict=True)]
    return {"asked": "phases", "epsilon": total, "delta": delta, "noise_multiplier": multiplier, "statement": claim,
            "phases": named}, "\n".join(lines)  # fmt: skip


def curves_of(found: Guarantee) -> dict[str, list[Guarantee]]:
    """The reference's curve, and beside it the other count that is most often met: RDP, or the published one."""
    if not math.isfinite(found.epsilon):
        raise PrivacyError("there is no curve to draw: without noise epsilon is infinite. Leave out --plot.")
    longer = replace(found.mechanism, rounds=2 * found.mechanism.rounds)
    curves = {f"{found.accountant.upper()}, as asked": curve(longer, found.delta, found.accountant)}
    if longer.client_rate < 1:
        for view, name in ((Participation.KNOWN, "PLD, coins known"), (Participation.HIDDEN, "PLD, as published")):
            if view is not longer.participation:
                curves[name] = curve(replace(longer, participation=view), found.delta)
    elif found.accountant is not Accountant.RDP and longer.relation is Relation.ADD_OR_REMOVE_ONE:
        curves["RDP"] = curve(longer, found.delta, Accountant.RDP)
    return curves


def as_text(
    asked: str, found: Guarantee, others: list[Guarantee | PrivacyError], plot: Path | None, unsaid: str = ""
) -> str:
    """The answer for people; ``unsaid`` is a line with what was taken for granted."""
    m = found.mechanism
    answer = {
        "noise": f"Noise multiplier: {m.noise_multiplier:.4f}",
        "rounds": f"Rounds: {m.rounds}",
        "epsilon": f"Epsilon: {rounded_up(found.epsilon)}",
    }[asked]
    lines = [answer, "", found.sentence(), *filter(None, [unsaid])]
    if others:
        lines += ["", "The same training, counted otherwise:"]
        lines += [f"  - {other.sentence() if isinstance(other, Guarantee) else other}" for other in others]
    return "\n".join([*lines, *(["", f"Curve: {plot}"] if plot else [])])


def as_json(
    asked: str, found: Guarantee, others: list[Guarantee | PrivacyError], warning: str, plot: Path | None
) -> dict[str, object]:
    """The answer for machines."""
    counted = [_row(other) if isinstance(other, Guarantee) else {"error": str(other)} for other in others]
    return {"asked": asked, **_row(found), "otherwise": counted, "warning": warning, "plot": plot}


def _row(found: Guarantee) -> dict[str, object]:
    m = found.mechanism
    return {
        "epsilon": found.epsilon if math.isfinite(found.epsilon) else None,
        "delta": found.delta, "noise_multiplier": m.noise_multiplier, "rounds": m.rounds, "unit": m.unit,
        "unit_rate": m.unit_rate, "client_rate": m.client_rate, "relation": m.relation,
        "participation": m.participation, "sampler": m.sampler, "accountant": found.accountant,
        "version": found.version, "statement": found.sentence(),
    }  # fmt: skip


def plan_of(
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
    idle: Collection[str] = (),
) -> DpPlan | None:
    """The plan that a training's settings ask for, its noise found for ``epsilon``; None where neither is given.

    ``idle`` are the settings of a private training that were given, as they are written: PrivacyError for them without
    epsilon and noise, since it would train without privacy.
    """
    if epsilon is None and noise is None:
        if idle:
            raise PrivacyError(
                f"{', '.join(idle)}: of a private training, and none is asked for. Give epsilon or noise, too, or "
                "leave it out to train without privacy."
            )
        return None
    if epsilon is not None and noise is not None:
        raise PrivacyError("epsilon and noise are both given; give one, and docleak finds the other.")
    if denominator < 1:
        raise PrivacyError(
            f"a private training divides by a public constant M, and the denominator is {denominator}. Give about the "
            f"number of {unit}s that a silo is known to have, times the unit rate if that is below 1."
        )
    rate, kind = probability(unit_rate, what="unit rate"), choice(Unit, unit, what="unit")
    if published_counting and (client_rate == 1 or kind is Unit.CLIENT):
        raise PrivacyError(
            f"published counting is the paper's counting of clients that are drawn whole, for {Unit.PROVIDER}s or "
            f"{Unit.DOCUMENT}s in them; here the unit is {kind} and participation {client_rate:g}. Leave it out."
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


def pages_under(plan: DpPlan | None, documents: str, pages: int, *, asked: str = "") -> int:
    """How many pages to take: under a privacy plan all of a data set, since who is among the first depends on others.

    PrivacyError for a number that was ``asked`` for, in these words.
    """
    if plan is None or documents == "synthetic":
        return pages
    if asked and pages:
        raise PrivacyError(
            f"{asked}: with the first pages of a list, each provider's place in it decides whether others are trained "
            "on, which no plan counts. Leave it out under epsilon or noise, or give fewer documents."
        )
    return 0
