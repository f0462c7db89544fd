"""``docleak defend``: what each defence leaves of the leak, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from docleak.cli.output import list_all
from docleak.cli.settings import pick_device
from docleak.cli.studies import run_and_report
from docleak.defenses.registry import DEFENSES


def defend(
    defenses: Annotated[
        list[str] | None,
        typer.Argument(help="Defences such as noise:sigma=1e-4 or safe-template:epsilon=8/255. Empty: one of each."),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the defences and stop.")] = False,
    model: Annotated[str, typer.Option(help="Shipped name, directory or hub name.")] = "layoutlmv3-start",
    documents: Annotated[str, typer.Option(help="synthetic, a folder, or FORMAT:PATH.")] = "synthetic",
    attack: Annotated[str, typer.Option(help="The attack that measures them.")] = "gi-dqa",
    pages: Annotated[int, typer.Option(help="Documents per defence.")] = 2,
    budget: Annotated[int, typer.Option(help="Gradient evaluations per document.")] = 100,
    utility_steps: Annotated[int, typer.Option(help="Training steps under each defence; 0 measures no utility.")] = 400,
    seed: Annotated[int, typer.Option(help="Seed of pages, starts, noise and training.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder; an interrupted comparison in it is continued.")] = Path(
        "docleak-defend"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    workers: Annotated[int, typer.Option(help="Worker processes, one thread each; 0 means one per core.")] = 0,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pickled .npy files (they can run code: only files you trust).")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object; no progress bar.")] = False,
) -> None:
    """Compare defences: the same attack under each, and the model trained under each.

    Safe Template also writes the templates to publish, each beside the clean one.
    """
    if show_list:
        list_all(DEFENSES.summaries(), json_output)
        return
    from docleak.studies.gradient.config import GradientConfig
    from docleak.studies.gradient.defences import DEFAULT, DefenceConfig, DefenceStudy

    audit = GradientConfig(
        models=(model,), attacks=(attack,), documents=documents, pages=pages, budget=budget, seed=seed,
        allow_pickle=allow_pickle,
    )  # fmt: skip
    config = DefenceConfig(audit, tuple(defenses or DEFAULT), utility_steps)
    run_and_report(DefenceStudy(config, device=pick_device(device)), out, workers, json_output)
