"""``docleak reproduce``: the papers' tables and figures, and experiments of one's own."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from docleak.cli.output import counter, emit, resumable
from docleak.cli.settings import default_workers, parse_size, pick_device

if TYPE_CHECKING:
    from docleak.recipes.recipe import Recipe
    from docleak.recipes.runner import Experiment


def reproduce(
    name: Annotated[str, typer.Argument(help="A recipe such as gi-dqa/table1, or a .toml file of your own.")] = "",
    show_list: Annotated[bool, typer.Option("--list", help="List the recipes and stop.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the units and an estimate, compute nothing.")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="tiny (a laptop) or paper (the papers' models, data and budgets).")
    ] = "tiny",
    out: Annotated[Path | None, typer.Option(help="Folder; an interrupted experiment is continued.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Another checkpoint: donut=DIR or layoutlmv3=HUB/NAME; may be repeated.")
    ] = None,
    documents: Annotated[str, typer.Option(help="Other pages: synthetic, a folder, or FORMAT:PATH.")] = "",
    pages: Annotated[int, typer.Option(help="Documents per row; 0 means the recipe's.")] = 0,
    budget: Annotated[int, typer.Option(help="Gradient evaluations per document; 0 means the recipe's.")] = 0,
    image_size: Annotated[
        list[str] | None, typer.Option(help="Pages of another size in pixels: donut=320x640; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed; -1 means the recipe's.")] = -1,
    rows: Annotated[str, typer.Option(help="Only rows whose name contains this.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    workers: Annotated[int, typer.Option(help="Worker processes, one thread each; 0 means one per core.")] = 0,
    cluster: Annotated[str, typer.Option(help="Address of a Dask scheduler that shares this file system.")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object; no progress bar.")] = False,
) -> None:
    """Run a paper's table: ours beside the printed values, with intervals; run again to continue."""
    from docleak.errors import RecipeError
    from docleak.recipes import find_recipe, list_recipes
    from docleak.recipes.runner import experiments, failures, jobs_of
    from docleak.recipes.runner import reproduce as run_recipe
    from docleak.recipes.table import write_table

    if show_list or not name:
        known = list_recipes()
        lines = [f"{key:18} {recipe.title} ({recipe.paper})" for key, recipe in known.items()]
        emit({key: recipe.title for key, recipe in known.items()}, "\n".join(lines), json_output=json_output)
        return
    recipe = find_recipe(name)
    folder = out or Path(f"docleak-{recipe.name.replace('/', '-')}-{scale}")
    chosen = _changes(recipe, model or [], image_size or [], documents, pages, budget, seed)
    planned = [e for e in experiments(recipe, scale, folder, chosen) if rows in e.row.name]
    if not planned:
        raise RecipeError(f"recipe {name!r} has no row with {rows!r} in its name.")
    if dry_run:
        _show_plan(planned, default_workers() if workers == 0 else workers, json_output)
        return
    command, where = "docleak " + shlex.join(sys.argv[1:]), pick_device(device)
    began = time.perf_counter()
    with counter(quiet=json_output) as on_unit, resumable(folder):
        run_recipe(
            recipe, planned, folder, scale=scale, device=where, workers=workers or default_workers(),
            cluster=cluster, command=command, on_unit=on_unit,
        )  # fmt: skip
    facts = _facts(planned, command, time.perf_counter() - began)
    page = write_table(recipe, scale, planned, folder, facts)
    lost = {f"{e.row.name}, {e.model}: {unit}": why for e in planned for unit, why in failures(e.folder).items()}
    text = (folder / "table.md").read_text()
    emit({"table": str(page), "units": len(jobs_of(planned, where)), "failed": lost}, text, json_output=json_output)
    if lost:
        print(f"docleak: {len(lost)} units failed twice: {next(iter(lost.items()))}", file=sys.stderr)
        raise typer.Exit(1)


def _changes(
    recipe: Recipe, models: list[str], sizes: list[str], documents: str, pages: int, budget: int, seed: int
) -> dict[str, Any]:
    """What the command line puts in place of the recipe's settings."""
    chosen: dict[str, Any] = {"models": _named(recipe, "--model", models, "donut=./my-donut")}
    chosen["image_sizes"] = {
        model: parse_size(size) for model, size in _named(recipe, "--image-size", sizes, "donut=320x640").items()
    }
    given = {"documents": documents or None, "pages": pages or None, "budget": budget or None}
    settings: dict[str, Any] = {**given, "seed": None if seed < 0 else seed}
    return chosen | {key: value for key, value in settings.items() if value is not None}


def _named(recipe: Recipe, option: str, texts: list[str], example: str) -> dict[str, str]:
    """NAME=VALUE per model of the recipe."""
    from docleak.errors import RecipeError

    known = sorted({model for row in recipe.rows for model in row.models})
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise RecipeError(
                f"{option} {text!r}: expected NAME=VALUE, for instance {example}, where NAME is one of the recipe's "
                f"models ({', '.join(known)})."
            )
        found[name] = value
    return found


def _show_plan(planned: list[Experiment], workers: int, json_output: bool) -> None:
    """Units, gradient evaluations and a guess of the time from one timed evaluation per model and batch size."""
    from docleak.evidence.audit import units_of
    from docleak.recipes.runner import seconds_per_evaluation

    lines: list[str] = []
    plan: list[dict[str, object]] = []
    total, count = 0.0, 0
    for e in planned:
        units, each = len(units_of(e.config)), seconds_per_evaluation(e.config)
        seconds = units * e.config.budget * each if e.config.attacks[0] != "random" else 0.0
        total, count = total + seconds, count + units
        plan.append({"row": e.row.name, "model": e.config.models[0], "units": units, "evaluations": e.config.budget})
        lines.append(
            f"{e.row.name:45} {e.config.models[0]:20} {units} documents x {e.config.budget} evaluations, "
            f"about {seconds / 60:.0f} min"
        )
    lines.append(f"{count} units, about {total / 60 / workers:.0f} min with {workers} workers")
    emit({"plan": plan, "minutes": total / 60 / workers}, "\n".join(lines), json_output=json_output)


def _facts(planned: list[Experiment], command: str, seconds: float) -> dict[str, str]:
    import platform

    import torch

    import docleak
    from docleak.evidence.run import Run

    done = [Run(e.folder) for e in planned if (e.folder / "run.json").is_file()]
    signatures = dict.fromkeys(str(run.info.get("signature", "")).split(" | ")[3] for run in done)
    first = done[0].config
    return {
        "Command": command,
        "Version": f"docleak {docleak.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "Models": ", ".join(signatures),
        "Seed": str(first["seed"]),
        "Documents": str(first["documents"]),
        "Wall time of this call": f"{seconds:.0f} s (a continued run counts only the last call)",
    }
