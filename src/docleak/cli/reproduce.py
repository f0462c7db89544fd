"""``docleak reproduce``: the papers' tables and figures, and experiments of one's own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from docleak import spec
from docleak.cli.output import Progress, emit, note, working_in
from docleak.cli.settings import default_workers, pick_device
from docleak.cli.studies import command_line
from docleak.models.sizes import parse_size

if TYPE_CHECKING:
    from docleak.recipes.recipe import Recipe
    from docleak.studies.study import TableRow


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
    documents: Annotated[
        list[str] | None,
        typer.Option(help="Other pages: synthetic, a folder, or FORMAT:PATH; repeated, the data sets of a training."),
    ] = None,
    test_documents: Annotated[
        list[str] | None, typer.Option(help="Of a training: the test pages of each data set, in the same order.")
    ] = None,
    pages: Annotated[int, typer.Option(help="Documents per row (or data set of a training); 0: the recipe's.")] = 0,
    rounds: Annotated[int, typer.Option(help="Rounds of a training; 0 means the recipe's.")] = 0,
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
    if show_list or not name:
        from docleak.recipes.recipe import titles

        known = titles()
        lines = [f"{key:18} {title} ({paper})" for key, (title, paper) in known.items()]
        emit({key: title for key, (title, _) in known.items()}, "\n".join(lines), json_output=json_output)
        return
    from docleak.recipes import find_recipe
    from docleak.recipes.rows import failures_of, rows_of, write_table
    from docleak.recipes.rows import reproduce as compute_rows

    recipe = find_recipe(name)
    folder = out or Path(f"docleak-{recipe.name.replace('/', '-')}-{scale}")
    given = {"documents": tuple(documents or ()), "test_documents": tuple(test_documents or ()), "pages": pages,
             "rounds": rounds, "budget": budget}  # fmt: skip
    changes = _changes(recipe, recipe.study.options, model or [], image_size or [], given, seed)
    planned = rows_of(recipe, recipe.study, scale, folder, changes, device=pick_device(device), only=rows)
    if dry_run:
        _show_plan(planned, json_output)
        return
    began = time.perf_counter()
    with working_in(folder):
        with Progress(quiet=json_output) as watcher:
            compute_rows(
                recipe, planned, folder, scale=scale, workers=workers or default_workers(), cluster=cluster,
                command=command_line(), watcher=watcher,
            )  # fmt: skip
        page = write_table(recipe, scale, planned, folder, _facts(command_line(), time.perf_counter() - began))
    lost, units = failures_of(planned), sum(len(row.study.units()) for row in planned)
    text = (folder / "table.md").read_text()
    emit({"table": str(page), "units": units, "failed": lost}, text, json_output=json_output)
    if lost:
        note(f"docleak: {len(lost)} units failed twice: {next(iter(lost.items()))}")
        raise typer.Exit(1)


def _changes(
    recipe: Recipe,
    options: Sequence[str],
    models: list[str],
    sizes: list[str],
    given: Mapping[str, object],
    seed: int,
) -> dict[str, Any]:
    """What the command line puts in place of the recipe's settings; RecipeError for what means nothing to its kind."""
    from docleak.errors import RecipeError

    settings: dict[str, Any] = {key: value for key, value in given.items() if value}
    if seed >= 0:
        settings["seed"] = seed
    image_sizes = _named(recipe, "--image-size", sizes, "donut=320x640")
    if image_sizes:
        settings["image_sizes"] = {model: parse_size(size) for model, size in image_sizes.items()}
    if wrong := [key for key in settings if key not in options]:
        named = ", ".join(f"--{key.removesuffix('s' * (key == 'image_sizes')).replace('_', '-')}" for key in wrong)
        raise RecipeError(
            f"{named}: means nothing to recipe {recipe.name!r}, whose rows are of the kind {recipe.kind}."
        )
    return {"models": _named(recipe, "--model", models, "donut=./my-donut"), **settings}


def _named(recipe: Recipe, option: str, texts: list[str], example: str) -> dict[str, str]:
    """NAME=VALUE per model of the recipe."""
    from docleak.errors import RecipeError

    known = sorted({model for row in recipe.rows for model in row.models})
    found = {}
    for text in texts:
        expected = f"NAME=VALUE, for instance {example}, where NAME is one of the recipe's models ({', '.join(known)})"
        name, value = spec.pair(text, what=option, expected=expected, error=RecipeError)
        if name not in known:
            raise RecipeError(f"{option} is {text!r}; expected {expected}.")
        found[name] = value
    return found


def _show_plan(rows: Sequence[TableRow], json_output: bool) -> None:
    """What each row would do."""
    plan = [
        {"row": row.name, "model": row.model, "units": len(row.study.units()), "words": row.study.planned(),
         **row.study.planned_facts()}
        for row in rows
    ]  # fmt: skip
    lines = [f"{row['row']!s:45} {row['model']!s:20} {row['words']}" for row in plan]
    lines.append(f"{sum(row['units'] for row in plan)} units; how long they take is told while it runs")
    emit({"plan": plan}, "\n".join(lines), json_output=json_output)


def _facts(command: str, seconds: float) -> dict[str, str]:
    import platform

    import torch

    import docleak

    return {
        "Command": command,
        "Version": f"docleak {docleak.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "Wall time of this call": f"{seconds:.0f} s (a continued run counts only the last call)",
    }
