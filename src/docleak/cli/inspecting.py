"""``docleak guard``: a model that one is asked to train, inspected before it is."""

from __future__ import annotations

from typing import Annotated

import typer

from docleak.cli.output import emit


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
