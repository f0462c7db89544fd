"""``docleak reproduce``: the papers' tables and figures, and experiments of one's own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from docleak import spec
from docleak.cli.command import CLUSTER, DEVICE, WORKERS
from docleak.cli.data import ISSUERS
from docleak.cli.output import Progress, emit, note, working_in
from docleak.cli.studies import command_line, default_workers
from docleak.documents.ranges import COUNT, MOST_SEED, Range
from docleak.models.device import pick_device
from docleak.models.sizes import parse_size
from docleak.options import option
from docleak.spec import counted_words, split_name

if TYPE_CHECKING:
    from docleak.recipes.recipe import Recipe
    from docleak.studies.study import TableRow


@dataclass(frozen=True)
class Given:
    """What the command line puts in place of recipes' settings: ``models`` and ``sizes`` as NAME=VALUE, and others."""

    models: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def changes(self, recipe: Recipe) -> dict[str, Any]:
        """The settings of a recipe that are changed; RecipeError for what means nothing to its kind."""
        from docleak.errors import RecipeError

        settings = dict(self.settings)
        image_sizes = _named(recipe, "--image-size", self.sizes, "donut=320x640", recipe.study.sized)
        if image_sizes:
            settings["image_sizes"] = {model: parse_size(size) for model, size in image_sizes.items()}
        if wrong := [key for key in settings if key not in recipe.study.options]:
            named = ", ".join(f"--{key.removesuffix('s' * (key == 'image_sizes')).replace('_', '-')}" for key in wrong)
            raise RecipeError(
                f"{named}: means nothing to recipe {recipe.name!r}, whose rows are of the kind {recipe.kind}."
            )
        others = [*recipe.study.checkpoints, *recipe.checkpoints]
        sources = _named(recipe, "--model", self.models, "donut=./my-donut", others)
        settings |= {key: sources.pop(key) for key in recipe.study.checkpoints if key in sources}
        return {"models": sources, **settings}

    def of_use_to(self, recipe: Recipe, rows: Sequence[TableRow]) -> Given:
        """What of it the recipe has a name for; of documents those whose format its ``rows`` lack."""
        names = {*recipe.models, *recipe.parts, *recipe.checkpoints}
        sized = {*recipe.models, *recipe.study.sized} if "image_sizes" in recipe.study.options else set()
        needed = {need.option for row in rows for need in row.study.needed(row.model)}
        formats = {split_name(option.partition(" ")[2])[0] for option in needed if option.startswith("--documents ")}
        settings = {key: value for key, value in self.settings.items() if key in recipe.study.options}
        for key in settings.keys() & {"documents", "test_documents"}:
            settings[key] = tuple(source for source in settings[key] if split_name(source)[0] in formats)
        if not any(option.startswith("--ocr ") for option in needed):
            settings.pop("ocr", None)
        return Given(
            tuple(text for text in self.models if _name("--model", text) in names),
            tuple(text for text in self.sizes if _name("--image-size", text) in sized),
            {key: value for key, value in settings.items() if value != ()},
        )

    def said(self) -> list[str]:
        """Each of it as the command line says it."""
        told = [f"--model {text}" for text in self.models] + [f"--image-size {text}" for text in self.sizes]
        for key, value in self.settings.items():
            values = value if isinstance(value, tuple) else (value,)
            told += [f"--{key.replace('_', '-')} {one}" for one in values]
        return told


def reproduce(
    name: str = option("", "A recipe such as gi-dqa/table1, or a .toml file of your own.", argument=True),
    show_list: bool = option(False, "List the recipes and stop.", "--list"),
    dry_run: bool = option(False, "Show the units and an estimate, compute nothing."),
    rehearse: bool = option(False, "Say what is missing, compute one step of each row, and estimate the rest; NAME may "
                            "be a paper, such as cdmi, or all."),
    fewest: bool = option(False, "Of each table that is rehearsed one row, the same where tables share it."),
    scale: str = option("tiny", "tiny (a laptop), narrow (the paper's solver and all of its steps, on a narrow network "
                        "made on the spot), base (the published sizes, with random weights made on the spot) or paper "
                        "(the papers' models, data and budgets)."),
    out: Path | None = option(None, "Folder; an interrupted experiment is continued."),
    model: tuple[str, ...] = option((), "Another checkpoint: donut=DIR or layoutlmv3=HUB/NAME; of pairs also aligner=, "
                                    "language=, generator=, of extraction models resnet=, tuned_on=.", repeat=True),
    documents: tuple[str, ...] = option((), "Other pages: synthetic, a folder, or FORMAT:PATH; repeated, the data sets "
                                        "of a training, or of pairs.", repeat=True),
    test_documents: tuple[str, ...] = option((), "Of a training: the test pages of each data set, in the same order.",
                                             repeat=True),
    pages: int | None = option(None, "Documents per row, or data set of a training, where 0 is all; by default the "
                               "recipe's.", range=COUNT),
    rounds: int | None = option(None, "Rounds of a training; by default the recipe's.", range=COUNT),
    issuers: int | None = option(None, "Providers whose synthetic invoices released models are trained on; by default "
                                 "the recipe's.", range=Range(0, ISSUERS.most)),
    per_issuer: float | None = option(None, "Documents of each of them on average, 3 or more; by default the recipe's.",
                                      range=Range(0, 1_000)),
    budget: int | None = option(None, "Gradient evaluations per document; by default the recipe's.",
                                range=Range(0, 10_000_000)),
    image_size: tuple[str, ...] = option((), "Pages of another size in pixels: donut=320x640; of pairs also by format, "
                                         "openi=64x64; repeatable.", repeat=True),
    ocr: str = option("", "Another reader of pictures: rapidocr, tesseract, trocr:PATH; by default the recipe's."),
    until_decided: bool = option(False, "Stop at the first page after which no statement of the recipe is open."),
    seed: int | None = option(None, "Seed; by default the recipe's.", range=Range(-1, MOST_SEED)),
    rows: str = option("", "Only rows with this in their name and (MODEL), such as '(donut)'; A|B takes either. A "
                       "whole name with its (MODEL) takes that row alone."),
    device: str = DEVICE,
    workers: int = WORKERS,
    cluster: str = CLUSTER,
) -> None:  # fmt: skip
    """Run a paper's table: ours beside the printed values, with intervals; run again to continue."""
    if show_list or not name:
        from docleak.recipes.recipe import titles

        known = titles()
        lines = [f"{key:18} {title} ({paper})" for key, (title, paper) in known.items()]
        emit({key: title for key, (title, _) in known.items()}, "\n".join(lines))
        return
    from docleak.recipes import find_recipe
    from docleak.recipes.rows import facts_of_call, failures_of, require_rows, rows_of, write_table
    from docleak.recipes.rows import reproduce as compute_rows

    settings = {"documents": documents, "test_documents": test_documents, "pages": pages,
                "rounds": rounds, "issuers": issuers, "per_issuer": per_issuer, "budget": budget,
                "ocr": ocr, "seed": seed}  # fmt: skip
    changed = {key: value for key, value in settings.items() if value not in (None, "", ())}
    given = Given(model, image_size, changed)
    if rehearse:

        def planned_of(recipe: Recipe, folder: Path, given: Given) -> Sequence[TableRow]:
            return rows_of(recipe, recipe.study, scale, folder, given.changes(recipe), device=pick_device(device),
                           only=rows, complete=False)  # fmt: skip

        _rehearse(name, scale, rows, fewest, out, planned_of, given)
        return
    recipe = find_recipe(name)
    folder = out or Path(f"docleak-{recipe.name.replace('/', '-')}-{scale}")
    device = pick_device(device)
    require_rows([recipe], scale, rows)
    planned = rows_of(recipe, recipe.study, scale, folder, given.changes(recipe), device=device, only=rows)
    if dry_run:
        _show_plan(planned)
        return
    began = time.perf_counter()
    with working_in(folder):
        with Progress() as watcher:
            compute_rows(
                recipe, planned, folder, scale=scale, workers=workers or default_workers(device), cluster=cluster,
                command=command_line(), until_decided=until_decided, watcher=watcher,
            )  # fmt: skip
        wall = f"{time.perf_counter() - began:.0f} s (a continued run counts only the last call)"
        facts = {**facts_of_call(command_line()), "Wall time of this call": wall}
        page = write_table(recipe, scale, planned, folder, facts)
    lost, units = failures_of(planned), sum(len(row.study.units()) for row in planned)
    text = (folder / "table.md").read_text()
    emit({"table": str(page), "units": units, "failed": lost}, f"{text}\nTable: {page}")
    if lost:
        note(f"docleak: {counted_words(len(lost), 'unit')} failed twice: {next(iter(lost.items()))}")
        raise typer.Exit(1)


def _rehearse(
    name: str, scale: str, only: str, one_each: bool, out: Path | None,
    planned_of: Callable[[Recipe, Path, Given], Sequence[TableRow]], given: Given,
) -> None:  # fmt: skip
    """Rehearse one recipe, or all of a paper or of all that have the scale and a row that ``only`` asks for, each with
    what of ``given`` it has a use for; exit code 1 where a row that lacks nothing fails. The pages are written table
    by table; one that was cut off goes on."""
    from docleak.errors import RecipeError
    from docleak.recipes import find_recipe, list_recipes
    from docleak.recipes.rehearsal import PARTS, fewest, keep_ended, rehearse
    from docleak.recipes.rehearsed import write_rehearsal
    from docleak.recipes.rows import chosen_labels, facts_of_call, require_rows

    known = list_recipes()
    several = {key: recipe for key, recipe in known.items() if name in ("all", key.partition("/")[0])}
    named = name if several else find_recipe(name).name.replace("/", "-")
    folder = out or Path(f"docleak-rehearsal-{named}-{scale}")
    if several:
        recipes = [recipe for recipe in several.values() if scale in recipe.scales]
        if not recipes:
            scales = {one for recipe in several.values() for one in recipe.scales}
            raise RecipeError(spec.unknown("scale", scale, sorted(scales)))
        require_rows(recipes, scale, only)
        recipes = [recipe for recipe in recipes if chosen_labels(recipe, scale, only)]
        parts = [given.of_use_to(recipe, planned_of(recipe, folder, Given())) for recipe in recipes]
        used = {text for part in parts for text in part.said()}
        if idle := [text for text in given.said() if text not in used]:
            raise RecipeError(f"{', '.join(idle)}: no recipe of scale {scale} has a use for it. Leave it out.")
    else:
        recipes, parts = [find_recipe(name)], [given]
        require_rows(recipes, scale, only)
    plans = [planned_of(recipe, folder, part) for recipe, part in zip(recipes, parts, strict=True)]
    plans = fewest(plans) if one_each else plans
    tables = []
    place = folder / PARTS
    with working_in(folder):
        keep_ended(place)
        for recipe, planned in zip(recipes, plans, strict=True):

            def say(text: str, name: str = recipe.name) -> None:
                note(f"rehearsing {name}: {text}")

            tables.append((recipe, list(zip(planned, rehearse(planned, place, say), strict=True))))
            facts = facts_of_call(command_line())
            if len(tables) < len(recipes):
                facts["So far"] = f"{len(tables)} of {len(recipes)} tables and figures"
            page = write_rehearsal(tables, scale, folder, facts)
        shutil.rmtree(place, ignore_errors=True)
    stopped = {f"{recipe.name}: {row.name}, {row.target}": rehearsed.stops
               for recipe, rows in tables for row, rehearsed in rows if rehearsed.stops}  # fmt: skip
    emit({"rehearsal": str(page), "stopped": stopped}, (folder / "rehearsal.md").read_text())
    if stopped:
        note(f"docleak: {counted_words(len(stopped), 'row')} cannot be computed: {next(iter(stopped.items()))}")
        raise typer.Exit(1)


def _name(option: str, text: str) -> str:
    """What NAME=VALUE is of."""
    from docleak.errors import RecipeError

    return spec.pair(text, what=option, expected="NAME=VALUE, for instance donut=./my-donut", error=RecipeError)[0]


def _named(
    recipe: Recipe, option: str, texts: Sequence[str], example: str, others: Sequence[str] = ()
) -> dict[str, str]:
    """NAME=VALUE per model of the recipe, or one of the ``others``."""
    from docleak.errors import RecipeError

    known = [*recipe.models, *others]
    pairs = {}
    for text in texts:
        expected = f"NAME=VALUE, for instance {example}, where NAME is one of the recipe's models ({', '.join(known)})"
        name, value = spec.pair(text, what=option, expected=expected, error=RecipeError)
        if name not in known:
            raise RecipeError(f"{option} is {text!r}; expected {expected}.")
        pairs[name] = value
    return pairs


def _show_plan(rows: Sequence[TableRow]) -> None:
    """What each row would do."""
    plan = [
        {"row": row.name, "model": row.target, "units": len(row.study.units()), "words": row.study.planned(),
         **row.study.planned_facts()}
        for row in rows
    ]  # fmt: skip
    lines = [f"{row['row']!s:45} {row['model']!s:20} {row['words']}" for row in plan]
    lines.append(f"{sum(row['units'] for row in plan)} units; how long they take is told while it runs")
    emit({"plan": plan}, "\n".join(lines))
