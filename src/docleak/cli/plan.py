"""Before a training: ``docleak budget``, what privacy costs, ``docleak plan``, which channels are open to its server,
and ``docleak guard``, whether the model that one is asked to train may be one that is made to leak."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from docleak.cli.guard import typed
from docleak.cli.output import Json, emit
from docleak.errors import PrivacyError
from docleak.options import said_idle
from docleak.privacy.channels import ASSUMES, HOLDS_FOR, Shape, as_text
from docleak.privacy.channels import plan as planned
from docleak.privacy.mechanism import Mechanism, Participation, Relation, Unit, choice, probability
from docleak.spec import counted_words

#: What is planned where nothing is said: the centralised training of Tito et al. (2024).
EPSILON, ROUNDS, RATE = 8.0, 10, "1000/4149"
DEFAULT = Shape()


def budget(
    context: typer.Context,
    epsilon: Annotated[float | None, typer.Option(help="The budget: how much one provider may be given away.")] = None,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier: noise over clip norm, in the sum.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    delta: Annotated[float, typer.Option(help="What a chance may grow by beside e^epsilon times itself; far below "
                                         "1/providers.")] = 1e-5,
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
    json_output: Json = False,
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
    before = f"Warning: {warning}\n\n" if warning else ""  # beside the number, wherever that is copied to
    if before and json_output:
        print(before.strip(), file=sys.stderr)
    if phases is not None:
        if not phases.strip():
            raise PrivacyError("--phases is empty; expected NAME:ROUNDS or NAME:ROUNDS:RATE, or no --phases.")
        if rounds is not None or plot is not None or written:
            raise PrivacyError("--phases says rounds and rate, and is counted by pld; leave out what it says.")
        plan, said = together(phases, mechanism, epsilon, noise, delta)
        emit({**plan, "warning": warning}, before + said, json_output=json_output)
        return
    asked = _asked(epsilon, noise, rounds)
    taken = {"epsilon": EPSILON, "rounds": ROUNDS, "rate": rate, "delta": delta}
    unsaid = {name: value for name, value in taken.items()
              if not typed(context, name) and name != asked and (name, kind) != ("rate", Unit.CLIENT)}  # fmt: skip
    counted = choice(Accountant, accountant, what="accountant")
    claim = answer(asked, mechanism, EPSILON if epsilon is None else epsilon, delta, counted)
    if plot is not None:
        from docleak.files import reported, write_atomically
        from docleak.report.pictures import budget_curves

        curves = {name: [(p.mechanism.rounds, p.epsilon) for p in points] for name, points in curves_of(claim).items()}
        target, label = (claim.mechanism.rounds, claim.epsilon), f"epsilon per {unit}, delta {claim.delta:.3g}"
        with reported(plot):
            write_atomically(plot, budget_curves(curves, target, label, " ".join([claim.sentence(), warning]).strip()))
    others = beside(claim) if math.isfinite(claim.epsilon) else []
    text = before + as_text(asked, claim, others, plot, _unsaid(unsaid))
    emit({**as_json(asked, claim, others, warning, plot), "not_said": unsaid}, text, json_output=json_output)


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


def plan(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Read width, words, rank, modules and tower from this model's, or its "
                                       "adapters', configuration; what is said beside it counts.")] = "",
    width: Annotated[int, typer.Option(help="Width of the language model.")] = DEFAULT.width,
    vocabulary: Annotated[int, typer.Option(help="Its tokens.")] = DEFAULT.vocabulary,
    words: Annotated[int, typer.Option(help="Different words a page, prompt and answer included.")] = DEFAULT.words,
    patches: Annotated[int, typer.Option(help="Picture vectors a page that the language model reads.")]
    = DEFAULT.patches,
    rank: Annotated[int, typer.Option(help="LoRA's rank; 0 trains whole weights, of which no channel but "
                                 "a tower's is closed.")] = DEFAULT.rank,
    adapted: Annotated[int, typer.Option(help="How many of the first layer's query, key, value are trained.")]
    = DEFAULT.adapted,
    frozen_a: Annotated[bool, typer.Option("--frozen-a", help="LoRA's A stays as drawn.")] = False,
    table: Annotated[bool, typer.Option("--table", help="The token table is trained, and not tied to the output.")]
    = False,
    tower_width: Annotated[int, typer.Option(help="Of a trained tower with a table of positions; 0: there is none.")]
    = DEFAULT.tower_width,
    tower_patches: Annotated[int, typer.Option(help="Patches a picture in that tower.")] = DEFAULT.tower_patches,
    tiles: Annotated[int, typer.Option(help="Pictures that a page is cut into.")] = DEFAULT.tiles,
    pages: Annotated[int, typer.Option(help="Pages behind one update.")] = DEFAULT.pages,
    local_steps: Annotated[int, typer.Option(help="Steps before an update is sent.")] = DEFAULT.local_steps,
    rounds: Annotated[int, typer.Option(help="Rounds in which the same pages are trained on.")] = DEFAULT.rounds,
    clients: Annotated[int, typer.Option(help="Clients of a secure aggregation.")] = DEFAULT.clients,
    optimiser: Annotated[str, typer.Option(help="sgd or adamw.")] = DEFAULT.optimiser,
    precision: Annotated[str, typer.Option(help="What updates are sent in: float32 or bfloat16.")] = DEFAULT.precision,
    aggregation: Annotated[str, typer.Option(help="plain, secure or dp.")] = DEFAULT.aggregation,
    json_output: Json = False,
) -> None:  # fmt: skip
    """Say before a training which channels are open to its server: words, pages, pictures.

    Of adapters (LoRA) of decoders of pictures and words; of an encoder, or an encoder-decoder, it says nothing.

    Open or closed is about the exact attacks of docleak: what is closed to them may be open to others.
    """
    shape = Shape(
        width, vocabulary, words, patches, rank, adapted, frozen_a, table, tower_width, tower_patches, tiles, pages,
        local_steps, rounds, clients, optimiser, precision, aggregation,
    )  # fmt: skip
    read = {}
    if model:
        from docleak.models.vlm.shape import shape_of

        read = {name: value for name, value in shape_of(model).items()
                if not typed(context, name)}  # fmt: skip
        shape = replace(shape, **read)
    _refuse_idle(context, shape)
    channels = planned(shape)
    idle = [name for names, met in _needs(shape).values() if not met for name in names]
    unsaid = {name: value for name, value in asdict(shape).items()
              if name not in (*read, *idle) and not typed(context, name)}  # fmt: skip
    value = {"holds_for": HOLDS_FOR, "assumes": ASSUMES, "shape": asdict(shape), "not_said": unsaid,
             "channels": [asdict(channel) for channel in channels]}  # fmt: skip
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in read.items())
    text = f"Read from {model}: {said}.\n" if read else ""
    emit(value, text + as_text(channels, _unsaid(unsaid)), json_output=json_output)


def _unsaid(values: Mapping[str, object]) -> str:
    """A line with what decides and was not said; "" where all was."""
    flags = [f"no --{name.replace('_', '-')}" if value is False else f"--{name.replace('_', '-')} {value}"
             for name, value in values.items()]  # fmt: skip
    return f"Not said, so taken to be: {', '.join(flags)}. The answer rests on these." if flags else ""


def _needs(shape: Shape) -> dict[str, tuple[tuple[str, ...], object]]:
    """What options belong to, by what that is called, and whether it is there."""
    return {
        "adapters (--rank and --adapted above 0)": (("frozen_a",), shape.rank and shape.adapted),
        "a trained tower (--tower-width above 0)": (("tower_patches", "tiles"), shape.tower_width),
        "--aggregation secure": (("clients",), shape.aggregation == "secure"),
    }


def _refuse_idle(context: typer.Context, shape: Shape) -> None:
    """PrivacyError for options that change nothing in this plan."""
    for what, (names, met) in _needs(shape).items():
        idle = [f"--{name.replace('_', '-')}" for name in names if typed(context, name)]
        if idle and not met:
            raise PrivacyError(said_idle(idle, what))


def guard(
    model: Annotated[str, typer.Argument(help="The model that the silo is asked to train: shipped name, directory or "
                                         "hub name.", show_default=False)],
    last: Annotated[str, typer.Option(help="The model before it, which the silo trained last, or knows.")] = "",
    documents: Annotated[str, typer.Option(help="Pages of the silo's own, to see what a gradient shows: synthetic, "
                                           "a folder, or FORMAT:PATH.")] = "synthetic",
    pages: Annotated[int, typer.Option(help="How many of them to try.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of synthetic pages.")] = 0,
    json_output: Json = False,
) -> None:  # fmt: skip
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
    tried = counted_words(sum(any(one.answers for one in page.questions) for page in client), "page")
    lines += ["", f"bare is of {tried} of {documents}, and says nothing of others."]
    lines += [] if last else ["No last model is given (--last): no leap, nor change of settings or tensors, is seen."]
    emit(opinion.to_json(), "\n".join([said, "", *lines]), json_output=json_output)
    if json_output and opinion.refused:  # the object is printed: a second one with the error would make it unreadable
        raise typer.Exit(1)
    opinion.require()
