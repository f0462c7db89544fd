"""Before a training: ``docleak plan``, which of its channels are open to its server, and ``docleak guard``, whether the
model that one is asked to train may be one that is made to leak."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer
from click.core import ParameterSource

from docleak.cli.output import emit
from docleak.errors import PrivacyError
from docleak.options import said_idle
from docleak.privacy.channels import ASSUMES, HOLDS_FOR, Shape, as_text
from docleak.privacy.channels import plan as planned

DEFAULT = Shape()


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
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
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
                if not _said(context, name)}  # fmt: skip
        shape = replace(shape, **read)
    _refuse_idle(context, shape)
    channels = planned(shape)
    value = {"holds_for": HOLDS_FOR, "assumes": ASSUMES, "shape": asdict(shape),
             "channels": [asdict(channel) for channel in channels]}  # fmt: skip
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in read.items())
    text = f"Read from {model}: {said}.\n{as_text(channels)}" if read else as_text(channels)
    emit(value, text, json_output=json_output)


def _said(context: typer.Context, name: str) -> bool:
    """Whether the option was written in the command."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _refuse_idle(context: typer.Context, shape: Shape) -> None:
    """PrivacyError for options that change nothing in this plan."""
    needs = {
        "adapters (--rank and --adapted above 0)": (("frozen_a",), shape.rank and shape.adapted),
        "a trained tower (--tower-width above 0)": (("tower_patches", "tiles"), shape.tower_width),
        "--aggregation secure": (("clients",), shape.aggregation == "secure"),
    }
    for what, (names, met) in needs.items():
        idle = [f"--{name.replace('_', '-')}" for name in names if _said(context, name)]
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
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
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
    emit(opinion.to_json(), "\n".join([said, "", *lines]), json_output=json_output)
    if json_output and opinion.refused:  # the object is printed: a second one with the error would make it unreadable
        raise typer.Exit(1)
    opinion.require()
