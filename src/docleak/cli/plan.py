"""Before a training: ``docleak budget``, what privacy costs, ``docleak plan``, which channels are open to its server,
and ``docleak guard``, whether the model that one is asked to train may be one that is made to leak."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import typer

from docleak.cli.command import DRAWN, Said
from docleak.cli.output import as_json, emit
from docleak.documents.ranges import COUNT, DELTA, EPSILON, NOISE, SEED, SOME, Range
from docleak.errors import PrivacyError
from docleak.options import Need, Option, only, option, required, said_idle
from docleak.privacy.channels import ASSUMES, HOLDS_FOR, Shape, as_text
from docleak.privacy.channels import plan as planned
from docleak.privacy.mechanism import Mechanism, Participation, Relation, Unit, choice, probability
from docleak.spec import counted_words

#: What is planned where nothing is said: the centralised training of Tito et al. (2024).
USUAL_EPSILON, ROUNDS, RATE = 8.0, 10, "1000/4149"
#: What is planned of which channels are open.
SHAPE: Any = field(default=Shape(), metadata=only(
    width=Option("Width of the language model.", range=Range(8, 1_000_000)),
    vocabulary=Option("Its tokens.", range=Range(2, 10_000_000)),
    words=Option("Different words a page, prompt and answer included.", range=SOME),
    patches=Option("Picture vectors a page that the language model reads.", range=COUNT),
    rank=Option("LoRA's rank; 0 trains whole weights, of which no channel but a tower's is closed.", range=COUNT),
    adapted=Option("How many of the first layer's query, key, value are trained.", range=Range(0, 3)),
    frozen_a=Option("LoRA's A stays as drawn."),
    begun=Option("LoRA's B is not zero at the start: it was trained before, or drawn."),
    table=Option("The token table is trained, and not tied to the output."),
    tower_width=Option("Of a trained tower with a table of positions; 0: there is none.", range=COUNT),
    tower_patches=Option("Patches a picture in that tower.", range=SOME),
    tiles=Option("Pictures that a page is cut into.", range=SOME),
    pages=Option("Pages behind one update.", range=SOME),
    local_steps=Option("Steps before an update is sent.", range=SOME),
    rounds=Option("Rounds in which the same pages are trained on.", range=SOME),
    clients=Option("Clients of a secure aggregation.", range=SOME),
    optimiser=Option("sgd or adamw."),
    precision=Option("What updates are sent in: float32 or bfloat16."),
    aggregation=Option("plain, secure or dp."),
))  # fmt: skip


def budget(
    said: Said,
    epsilon: float | None = option(
        None, "The budget: how much one provider may be given away.", range=EPSILON
    ),
    noise: float | None = option(None, "Noise multiplier: noise over clip norm, in the sum.", range=NOISE),
    rounds: int | None = option(None, "Rounds of training.", range=SOME),
    delta: float = option(
        1e-5, "What a chance may grow by beside e^epsilon times itself; far below 1/providers.", range=DELTA
    ),
    rate: str = option(RATE, "Probability that a provider is drawn in a round, such as 0.2 or 50/340; within its "
                       "client, where clients are drawn."),
    client_rate: str = option("1", "Probability that a client is drawn in a round; 1: all take part."),
    unit: str = option("provider", "Whose presence is hidden: provider, document, client, record."),
    units: int = option(
        0, "How many there are, to judge delta; 0: judge 1/2 and above only.", range=Range(0, 10**12)
    ),
    relation: str = option("add-or-remove-one", "What neighbours differ in: add-or-remove-one, replace-one."),
    accountant: str = option("pld", "pld (the reference), prv (as Tito et al., 2024), rdp."),
    published: bool = option(
        False, "Count drawn clients as Tito et al. (2024) do: every provider as if drawn on its own. No bound.",
        need=Need(lambda given: given.client_rate != "1", "--client-rate below 1"),
    ),
    phases: str | None = option(None, "Plan several trainings of one model together: NAME:ROUNDS or NAME:ROUNDS:RATE, "
                                "separated by commas."),
    plot: Path | None = option(None, "Draw epsilon over the rounds into this PNG."),
) -> None:  # fmt: skip
    """Plan a private training: give two of --epsilon, --noise and --rounds, and get the third.

    Without any of them: the noise for epsilon 8 over 10 rounds, as in the centralised training of Tito et al. (2024).

    What noise for epsilon 4?   docleak budget --epsilon 4 --rounds 10 --rate 0.2

    What epsilon?               docleak budget --noise 0.9 --rounds 10 --rate 0.2

    How many rounds?            docleak budget --noise 0.9 --epsilon 8 --rate 0.2

    Two trainings in one?       docleak budget --epsilon 8 --phases pretraining:5,finetuning:10:0.5
    """
    from docleak.privacy.budget import beside, delta_warning
    from docleak.privacy.planning import answer, as_text, curves_of, together
    from docleak.privacy.planning import as_json as facts_of
    from docleak.privacy.second import Accountant

    if plot is not None and not plot.parent.is_dir():
        raise PrivacyError(f"the plot would be in {str(plot.parent)!r}, and there is no such folder. Make it first.")
    kind = choice(Unit, unit, what="unit")
    written = [name for name in ("rate", "accountant") if name in said]
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
    before = f"Warning: {warning}\n\n" if warning else ""  # beside the number, wherever that is copied to
    if before and as_json():
        print(before.strip(), file=sys.stderr)
    if phases is not None:
        if not phases.strip():
            raise PrivacyError("--phases is empty; expected NAME:ROUNDS or NAME:ROUNDS:RATE, or no --phases.")
        if rounds is not None or plot is not None or written:
            raise PrivacyError("--phases says rounds and rate, and is counted by pld; leave out what it says.")
        plan, text = together(phases, mechanism, epsilon, noise, delta)
        unsaid = _left({"client_rate": client_rate, "delta": delta, "unit": unit, "relation": relation}, said)
        emit(
            {**plan, "warning": warning, "not_said": unsaid}, "\n".join(filter(None, [before + text, _unsaid(unsaid)]))
        )
        return
    asked = _asked(epsilon, noise, rounds)
    taken = {"epsilon": USUAL_EPSILON, "rounds": ROUNDS, "rate": rate, "client_rate": client_rate, "delta": delta,
             "unit": unit, "relation": relation}  # fmt: skip
    unsaid = _left(taken, [*said, asked, *(["rate"] if kind is Unit.CLIENT else [])])
    counted = choice(Accountant, accountant, what="accountant")
    claim = answer(asked, mechanism, USUAL_EPSILON if epsilon is None else epsilon, delta, counted)
    if plot is not None:
        from docleak.files import reported, write_atomically
        from docleak.report.pictures import budget_curves

        curves = {name: [(p.mechanism.rounds, p.epsilon) for p in points] for name, points in curves_of(claim).items()}
        target, label = (claim.mechanism.rounds, claim.epsilon), f"epsilon per {unit}, delta {claim.delta:.3g}"
        with reported(plot):
            write_atomically(plot, budget_curves(curves, target, label, " ".join([claim.sentence(), warning]).strip()))
    others = beside(claim) if math.isfinite(claim.epsilon) else []
    text = before + as_text(asked, claim, others, plot, _unsaid(unsaid))
    emit({**facts_of(asked, claim, others, warning, plot), "not_said": unsaid}, text)


def _asked(epsilon: float | None, noise: float | None, rounds: int | None) -> str:
    """Which of the three is wanted: the one that was not given; noise, if that leaves a choice."""
    if epsilon is not None and noise is not None and rounds is not None:
        raise PrivacyError("epsilon, noise and rounds are all given; leave out the one to be computed.")
    if noise is None:
        return "noise"
    return "epsilon" if epsilon is None else "rounds"


def plan(
    said: Said,
    model: str = option("", "Read width, words, rank, modules and tower from this model's, or its adapters', "
                        "configuration; what is said beside it counts."),
    shape: Shape = SHAPE,
) -> None:  # fmt: skip
    """Say before a training which channels are open to its server: words, pages, pictures.

    Of adapters (LoRA) of decoders of pictures and words; of an encoder, or an encoder-decoder, it says nothing.

    Open or closed is about the exact attacks of docleak: what is closed to them may be open to others.
    """
    read = {}
    if model:
        from docleak.models.vlm.shape import shape_of

        read = {name: value for name, value in shape_of(model).items() if name not in said}
        shape = replace(shape, **read)
    _refuse_idle(said, shape)
    channels = planned(shape)
    idle = [name for names, met in _needs(shape).values() if not met for name in names]
    unsaid = {name: value for name, value in asdict(shape).items()
              if name not in (*read, *idle, *said)}  # fmt: skip
    value = {"holds_for": HOLDS_FOR, "assumes": ASSUMES, "shape": asdict(shape), "not_said": unsaid,
             "channels": [asdict(channel) for channel in channels]}  # fmt: skip
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in read.items())
    text = f"Read from {model}: {told}.\n" if read else ""
    emit(value, text + as_text(channels, _unsaid(unsaid)))


def _left(values: Mapping[str, object], said: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in values.items() if name not in said}


def _unsaid(values: Mapping[str, object]) -> str:
    """A line with what decides and was not said; "" where all was."""
    flags = [f"no --{name.replace('_', '-')}" if value is False else f"--{name.replace('_', '-')} {value}"
             for name, value in values.items()]  # fmt: skip
    return f"Not said, so taken to be: {', '.join(flags)}." if flags else ""


def _needs(shape: Shape) -> dict[str, tuple[tuple[str, ...], object]]:
    """What options belong to, by what that is called, and whether it is there."""
    return {
        "adapters (--rank and --adapted above 0)": (("frozen_a", "begun"), shape.rank and shape.adapted),
        "a trained tower (--tower-width above 0)": (("tower_patches", "tiles"), shape.tower_width),
        "--aggregation secure": (("clients",), shape.aggregation == "secure"),
    }


def _refuse_idle(said: Said, shape: Shape) -> None:
    """PrivacyError for options that change nothing in this plan."""
    for what, (names, met) in _needs(shape).items():
        idle = [said[name] for name in names if name in said]
        if idle and not met:
            raise PrivacyError(said_idle(idle, what))


def guard(
    model: str = required(
        "The model that the silo is asked to train: shipped name, directory or hub name.", argument=True
    ),
    last: str = option("", "The model before it, which the silo trained last, or knows."),
    documents: str = option(
        "synthetic", "Pages of the silo's own, to see what a gradient shows: synthetic, a folder, or FORMAT:PATH."
    ),
    pages: int = option(4, "How many of them to try, all in one batch.", range=Range(1, 100)),
    seed: int = option(0, "Seed of synthetic pages.", range=SEED, need=DRAWN),
) -> None:
    """Inspect a model before training it for somebody else: may it be one that is made to leak?

    Exit code 1 where it is refused, with the reasons. What passes is not proven harmless: see docs/guard.md.

    Before the first round   docleak guard sent-by-server --documents my-pages

    Later                    docleak guard round-7 --last round-6 --documents my-pages
    """
    from docleak.documents.loaders import load_pages
    from docleak.training.guard.checkpoint import opinion_on

    client = load_pages(documents, count=pages, seed=seed)
    opinion = opinion_on(model, client, last=last, examples=pages)
    lines = [f"{sign.name:9} {sign.value:10.4g}  {sign.where}" for sign in opinion.signs]
    said = "Guard: refused." if opinion.refused else "Guard: nothing speaks against it that is looked for."
    tried = counted_words(min(pages, sum(any(one.answers for one in page.questions) for page in client)), "page")
    lines += ["", f"bare is of {tried} of {documents}, and says nothing of others."]
    lines += [] if last else ["No last model is given (--last): no leap, nor change of settings or tensors, is seen."]
    emit(opinion.to_json(), "\n".join([said, "", *lines]))
    if as_json() and opinion.refused:  # the object is printed: a second one with the error would make it unreadable
        raise typer.Exit(1)
    opinion.require()
