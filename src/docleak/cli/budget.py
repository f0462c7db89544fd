"""``docleak budget``: plan a differentially private training before it is run."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from docleak.cli.output import emit
from docleak.cli.studies import typed
from docleak.errors import PrivacyError
from docleak.privacy.mechanism import Mechanism, Participation, Relation, Unit, choice, probability

#: What is planned where nothing is said: the centralised training of Tito et al. (2024).
EPSILON, ROUNDS, RATE = 8.0, 10, "1000/4149"


def budget(
    context: typer.Context,
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
    units: Annotated[int, typer.Option(help="How many there are, to judge delta; 0: judge 1/2 and above only.")] = 0,
    relation: Annotated[str, typer.Option(help="What neighbours differ in: add-or-remove-one, replace-one.")]
    = "add-or-remove-one",
    accountant: Annotated[str, typer.Option(help="pld (the reference), prv (as in the paper), rdp.")] = "pld",
    published: Annotated[bool, typer.Option("--published", help="Count drawn clients as the paper does: as if every "
                                            "provider were drawn on its own. No bound.")] = False,
    phases: Annotated[str | None, typer.Option(help="Plan several trainings of one model together: NAME:ROUNDS or "
                                        "NAME:ROUNDS:RATE, separated by commas.")] = None,
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
    from docleak.privacy.budget import beside, delta_warning
    from docleak.privacy.planning import answer, as_json, as_text, curves_of, together
    from docleak.privacy.second import Accountant

    _check_plot(plot)
    kind = choice(Unit, unit, what="unit")
    written = [name for name in ("rate", "accountant") if typed(context, name)]
    if published and probability(client_rate, what="client rate") == 1:
        raise PrivacyError(
            "--published counts clients that are drawn whole; give --client-rate below 1, or leave it out."
        )
    mechanism = Mechanism(
        noise_multiplier=1.0 if noise is None else noise,
        rounds=ROUNDS if rounds is None else rounds,
        unit_rate=1.0 if kind is Unit.CLIENT and "rate" not in written else probability(rate, what="rate"),
        client_rate=probability(client_rate, what="client rate"),
        unit=kind,
        relation=choice(Relation, relation, what="relation"),
        participation=Participation.HIDDEN if published else Participation.KNOWN,
    )
    warning = delta_warning(delta, units or 2, unit)  # of two, which no training has less of, also where nobody says
    if warning:
        print(f"Warning: {warning}", file=sys.stderr)
    if phases is not None:
        if not phases.strip():
            raise PrivacyError("--phases is empty; expected NAME:ROUNDS or NAME:ROUNDS:RATE, or no --phases.")
        if rounds is not None or plot is not None or written:
            raise PrivacyError("--phases says rounds and rate, and is counted by pld; leave out what it says.")
        plan, said = together(phases, mechanism, epsilon, noise, delta)
        emit({**plan, "warning": warning}, said, json_output=json_output)
        return
    asked = _asked(epsilon, noise, rounds)
    counted = choice(Accountant, accountant, what="accountant")
    claim = answer(asked, mechanism, EPSILON if epsilon is None else epsilon, delta, counted)
    if plot is not None:
        from docleak.files import reported, write_atomically
        from docleak.report.charts import budget_curves

        curves = {name: [(p.mechanism.rounds, p.epsilon) for p in points] for name, points in curves_of(claim).items()}
        target, label = (claim.mechanism.rounds, claim.epsilon), f"epsilon per {unit}, delta {claim.delta:.3g}"
        with reported(plot):
            write_atomically(plot, budget_curves(curves, target, label, claim.sentence()))
    others = beside(claim) if math.isfinite(claim.epsilon) else []
    emit(as_json(asked, claim, others, warning, plot), as_text(asked, claim, others, plot), json_output=json_output)


def _check_plot(plot: Path | None) -> None:
    if plot is not None and not plot.parent.is_dir():
        raise PrivacyError(f"the plot would be in {str(plot.parent)!r}, and there is no such folder. Make it first.")


def _asked(epsilon: float | None, noise: float | None, rounds: int | None) -> str:
    """Which of the three is wanted: the one that was not given; noise, if that leaves a choice."""
    if epsilon is not None and noise is not None and rounds is not None:
        raise PrivacyError("epsilon, noise and rounds are all given; leave out the one to be computed.")
    if noise is None:
        return "noise"
    return "epsilon" if epsilon is None else "rounds"
