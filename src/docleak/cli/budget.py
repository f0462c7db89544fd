"""``docleak budget``: plan a differentially private training before it is run."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from docleak.cli.output import emit
from docleak.errors import PrivacyError
from docleak.privacy.accounting import PACKAGES, WHAT, Accountant, Guarantee, guarantee, rounded_up
from docleak.privacy.budget import beside, curve, delta_warning, noise_for, rounds_for
from docleak.privacy.distributions import epsilon_of
from docleak.privacy.distributions import published as published_count
from docleak.privacy.mechanism import Mechanism, Participation, Relation, Unit, choice
from docleak.privacy.phases import mechanisms, noise_for_phases, parse_phases

#: What is planned where nothing is said: the centralised training of Tito et al. (2024).
EPSILON, ROUNDS, RATE = 8.0, 10, "1000/4149"


def budget(
    epsilon: Annotated[float | None, typer.Option(help="The budget: how much one provider may be given away.")] = None,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier: noise over clip norm, in the sum.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    delta: Annotated[float, typer.Option(help="Probability that epsilon does not hold; far below 1/providers.")] = 1e-5,
    rate: Annotated[str, typer.Option(help="Probability that a provider is drawn in a round, such as 0.2 or 50/340; "
                                      "within its client, where clients are drawn.")] = RATE,
    client_rate: Annotated[str, typer.Option(help="Probability that a client is drawn in a round; 1: all take part.")]
    = "1",
    unit: Annotated[str, typer.Option(help="Whose presence is hidden: provider, document, client, record.")]
    = "provider",
    units: Annotated[int, typer.Option(help="How many of them there are, to judge delta; 0: do not judge.")] = 0,
    relation: Annotated[str, typer.Option(help="What neighbours differ in: add-or-remove-one, replace-one.")]
    = "add-or-remove-one",
    accountant: Annotated[str, typer.Option(help="pld (the reference), prv (as in the paper), rdp.")] = "pld",
    published: Annotated[bool, typer.Option("--published", help="Count drawn clients as the paper does: as if every "
                                            "provider were drawn on its own. No bound.")] = False,
    phases: Annotated[str, typer.Option(help="Plan several trainings of one model together: NAME:ROUNDS or "
                                        "NAME:ROUNDS:RATE, separated by commas.")] = "",
    plot: Annotated[Path | None, typer.Option(help="Draw epsilon over the rounds into this PNG.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:  # fmt: skip
    """Plan a private training: give two of --epsilon, --noise and --rounds, and get the third.

    Without any of them: the noise for epsilon 8 over 10 rounds, as in the paper's centralised training.

    What noise for epsilon 4?   docleak budget --epsilon 4 --rounds 10 --rate 0.2

    What epsilon?               docleak budget --noise 0.9 --rounds 10 --rate 0.2

    How many rounds?            docleak budget --noise 0.9 --epsilon 8 --rate 0.2

    Two trainings in one?       docleak budget --epsilon 8 --phases pretraining:5,finetuning:10:0.5
    """
    _check_plot(plot)
    kind = choice(Unit, unit, what="unit")
    if published and parse_probability(client_rate, what="client rate") == 1:
        raise PrivacyError(
            "--published counts clients that are drawn whole; give --client-rate below 1, or leave it out."
        )
    mechanism = Mechanism(
        noise_multiplier=1.0 if noise is None else noise,
        rounds=ROUNDS if rounds is None else rounds,
        unit_rate=1.0 if kind is Unit.CLIENT and rate == RATE else parse_probability(rate, what="rate"),
        client_rate=parse_probability(client_rate, what="client rate"),
        unit=kind,
        relation=choice(Relation, relation, what="relation"),
        participation=Participation.HIDDEN if published else Participation.KNOWN,
    )
    if phases:
        if rounds is not None or plot is not None or rate != RATE or accountant != "pld":
            raise PrivacyError("--phases says rounds and rate, and is counted by pld; leave out what it says.")
        plan, said = _together(phases, mechanism, epsilon, noise, delta)
        emit(plan, said, json_output=json_output)
        return
    asked = _asked(epsilon, noise, rounds)
    counted = choice(Accountant, accountant, what="accountant")
    found = _answer(asked, mechanism, EPSILON if epsilon is None else epsilon, delta, counted)
    warning = delta_warning(delta, units, unit) if units else ""
    if warning:
        print(f"Warning: {warning}", file=sys.stderr)
    if plot is not None:
        _draw(found, plot)
    others = beside(found) if math.isfinite(found.epsilon) else []
    emit(_as_json(asked, found, others, warning, plot), _as_text(asked, found, others, plot), json_output=json_output)


def parse_probability(text: str, *, what: str) -> float:
    """``0.2`` or ``50/340``; PrivacyError for what is no number (its range is the mechanism's to judge)."""
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise PrivacyError(f"{what} is {text!r}; expected a probability such as 0.2 or 50/340.") from error


def _check_plot(plot: Path | None) -> None:
    if plot is not None and plot.suffix.lower() != ".png":
        raise PrivacyError(f"the plot would be {plot.name!r}; expected a name that ends in .png.")
    if plot is not None and not plot.parent.is_dir():
        raise PrivacyError(f"the plot would be in {str(plot.parent)!r}, and there is no such folder. Make it first.")


def _asked(epsilon: float | None, noise: float | None, rounds: int | None) -> str:
    """Which of the three is wanted: the one that was not given; noise, if that leaves a choice."""
    if epsilon is not None and noise is not None and rounds is not None:
        raise PrivacyError("epsilon, noise and rounds are all given; leave out the one to be computed.")
    if noise is None:
        return "noise"
    return "epsilon" if epsilon is None else "rounds"


def _answer(asked: str, mechanism: Mechanism, epsilon: float, delta: float, accountant: Accountant) -> Guarantee:
    if asked == "noise":
        return noise_for(mechanism, epsilon, delta, accountant)
    if asked == "rounds":
        return rounds_for(mechanism, epsilon, delta, accountant)
    return guarantee(mechanism, delta, accountant)


def _together(
    text: str, like: Mechanism, epsilon: float | None, noise: float | None, delta: float
) -> tuple[dict[str, object], str]:
    """Several trainings under one budget: for machines, and in words."""
    phases = parse_phases(text)
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
        f"epsilon {rounded_up(total)} at delta {delta:.3g} per {like.unit} ({WHAT[like.unit]} {change}) for all "
        f"{len(phases)} phases together, on the same {like.unit}s; {one.accountant.upper()} accountant of "
        f"{PACKAGES[one.accountant]} {one.version}."
    )
    if any(published_count(part) for part in parts):
        claim += " Coins counted as hidden, which is no bound."
    lines = [f"Noise multiplier: {multiplier:.4f}, in every phase", "", claim, "", "Each phase by itself:"]
    lines += [f"  - {phase.name}: {found.sentence()}" for phase, found in zip(phases, alone, strict=True)]
    named = [{"phase": phase.name, **_row(found)} for phase, found in zip(phases, alone, strict=True)]
    return {"asked": "phases", "epsilon": total, "delta": delta, "noise_multiplier": multiplier, "statement": claim,
            "phases": named}, "\n".join(lines)  # fmt: skip


def _draw(found: Guarantee, plot: Path) -> None:
    """The reference, and beside it the other count that is most often met: RDP, or the published one."""
    from docleak.documents.storage import write_png
    from docleak.privacy.figure import budget_picture

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
    write_png(plot, budget_picture(curves, found))


def _as_text(asked: str, found: Guarantee, others: list[Guarantee | PrivacyError], plot: Path | None) -> str:
    m = found.mechanism
    answer = {
        "noise": f"Noise multiplier: {m.noise_multiplier:.4f}",
        "rounds": f"Rounds: {m.rounds}",
        "epsilon": f"Epsilon: {rounded_up(found.epsilon)}",
    }[asked]
    lines = [answer, "", found.sentence()]
    if others:
        lines += ["", "The same training, counted otherwise:"]
        lines += [f"  - {other.sentence() if isinstance(other, Guarantee) else other}" for other in others]
    return "\n".join([*lines, *(["", f"Curve: {plot}"] if plot else [])])


def _as_json(
    asked: str, found: Guarantee, others: list[Guarantee | PrivacyError], warning: str, plot: Path | None
) -> dict[str, object]:
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
