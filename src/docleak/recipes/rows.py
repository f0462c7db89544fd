"""The rows of a recipe as studies: begun or resumed side by side, then one table beside the printed numbers.

OUT/recipe.json                   which recipe at which scale
OUT/rows/03-model/                one run per row and model
OUT/table.md, .json, .html, .csv  the table; pictures.png what stands beside it
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any

import docleak
from docleak.documents.visible import in_markdown, without_html
from docleak.errors import DocleakError, RecipeError
from docleak.files import TEMPORARY, read_stored, reported, write_atomically, write_json
from docleak.models.loading import short_name
from docleak.recipes.recipe import Recipe
from docleak.recipes.recipe import Row as RecipeRow
from docleak.recipes.statements import PLANS, decide, settled
from docleak.recipes.statements import table_of as decided_table
from docleak.report.pictures import data_uri
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render
from docleak.runs.claim import claimed
from docleak.runs.run import Run
from docleak.spec import nearest
from docleak.studies.engine import SILENCE, Assignment, Watcher, begin, compute, identity_of
from docleak.studies.study import ROWS, Picture, TableRow, TableStudy

#: What a row's run has under this name: how many of its units were computed for which tables beside its own.
TAKEN_OVER = "taken over"
#: Rows that are named where one is asked for that is not there.
NAMED = 8
#: What the command line changes of the rows of some kinds, each in its own way.
SPECIAL = ("documents", "test_documents", "image_sizes", "rounds")


def rows_of(
    recipe: Recipe,
    kind: type[TableStudy[Any]],
    scale: str,
    out: Path,
    changes: Mapping[str, Any],
    *,
    device: str = "cpu",
    only: str = "",
    complete: bool = True,
) -> list[TableRow]:
    """Every row on each of its models; ``only`` those with that in "NAME (MODEL)", or with one of A|B; a whole
    "NAME (MODEL)" means that row alone, also where it stands in another's.

    RecipeError for a scale that the recipe does not have, where no row is left, and for rows that make no table; where
    they need not be ``complete``, paths that only the user can name may be missing.
    """
    if scale not in recipe.scales:
        known = ", ".join(recipe.scales) or "none"
        raise RecipeError(f"recipe {recipe.name!r} has no scale {scale!r}; it has {known}.")
    names = {*(field.name for field in fields(kind.Config)), *kind.checkpoints}
    merged = {key: value for key, value in changes.items() if key == "models" or (key in names and key not in SPECIAL)}
    sources = {**recipe.scales[scale].get("models", {}), **changes.get("models", {})}
    pairs = _pairs(recipe, scale)
    chosen = chosen_labels(recipe, scale, only)
    asked = [
        (number, row, model, *recipe.settings(row, model, scale, merged))
        for number, (row, model) in enumerate(pairs)
        if model in sources or not kind.sparse
    ]
    of_all = [settings for *_, settings in asked]
    _refuse_for_all(
        kind, [recipe.settings(row, model, scale, {"models": sources}) for _, row, model, *_ in asked], changes
    )
    changes = kind.changes_of(of_all, changes, scale)
    rows = []
    for number, row, model, source, settings in asked:
        if _label(row, model) not in chosen:
            continue
        for data_set, of_set in kind.by_data_set(settings, of_all, changes).items():
            study = kind.of_row(source, settings, {**of_set, "model": model}, device=device)
            folder = study.folder(out) or out / ROWS / "-".join(filter(None, (f"{number:02d}", model, data_set)))
            printed = kind.printed_of(row.printed.get(model, {}), data_set)
            rows.append(TableRow(row.name, model, study, Run(folder), printed, data_set))
    if not rows:
        raise RecipeError(f"recipe {recipe.name!r} has no row with {only!r} in its name at scale {scale!r}.")
    if complete:
        kind.check_rows(rows)
    return rows


def chosen_labels(recipe: Recipe, scale: str, only: str) -> set[str]:
    """ "NAME (MODEL)" of the rows that ``only`` asks for at that scale, as ``rows_of`` reads it."""
    labels = {_label(row, model) for row, model in _pairs(recipe, scale)}
    parts = [part.strip() for part in only.split("|")]
    return {label for label in labels if any(part == label or (part in label and part not in labels) for part in parts)}


def require_rows(recipes: Sequence[Recipe], scale: str, only: str) -> None:
    """RecipeError where one of A|B in ``only`` is empty, or in no name of a row that the recipes have at that scale."""
    labels = [
        _label(row, model) for recipe in recipes if scale in recipe.scales for row, model in _pairs(recipe, scale)
    ]
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    there = f"There are: {'; '.join(labels[:NAMED])}{more}"
    for part in (part.strip() for part in only.split("|")) if only and labels else ():
        if not part:
            raise RecipeError(f"rows are {only!r}, and an empty name would take every row. Leave the | out. {there}.")
        if not any(part in label for label in labels):
            none = f"recipe {recipes[0].name!r} has no row" if len(recipes) == 1 else "no table has a row"
            hint = nearest(part, [*labels, *(label.rpartition(" (")[0] for label in labels)])
            raise RecipeError(f"{none} with {part!r} in its name at scale {scale!r}.{hint} {there}.")


def count_rows(recipe: Recipe, scale: str, models: Collection[str]) -> int:
    """How many rows the recipe has at that scale, on the models that it names there or that are among ``models``."""
    known = {*recipe.scales[scale].get("models", {}), *models}
    return sum(model in known or not recipe.study.sparse for _, model in _pairs(recipe, scale))


def _label(row: RecipeRow, model: str) -> str:
    return f"{row.name} ({model})"


def _pairs(recipe: Recipe, scale: str) -> list[tuple[RecipeRow, str]]:
    """Each row of the scale with each of its models."""
    return [(row, model) for row in recipe.rows if row.at(scale) for model in recipe.models_of(row, scale)]


def _refuse_for_all(
    kind: type[TableStudy[Any]], rows: Sequence[tuple[str, Mapping[str, Any]]], changes: Mapping[str, Any]
) -> None:
    """RecipeError where one checkpoint is to take the place of several that the rows compare."""
    for key in (key for key in kind.checkpoints if key in changes):
        several = list(dict.fromkeys(str(settings[key]) for _, settings in rows if key in settings))
        if len(several) > 1 or (several and not all(key in settings for _, settings in rows)):
            named = " or ".join(f"--model {short_name(one)}=DIR" for one in several)
            raise RecipeError(
                f"--model {key}={changes[key]}: the recipe's rows have different ones; say which: {named}."
            )


def reproduce(
    recipe: Recipe,
    rows: Sequence[TableRow],
    out: Path,
    *,
    scale: str,
    workers: int,
    cluster: str = "",
    command: str = "",
    until_decided: bool = False,
    watcher: Watcher = SILENCE,
) -> None:
    """Compute what is missing; returns when every unit is finished or given up, or, ``until_decided``, as soon as no
    statement of the recipe is open. That is looked at page by page, and a row stops when no open statement needs it.

    Units that a table beside this one has computed under the same configuration are taken over, over fewer or more
    pages too, where the study says that they are the same units.

    Runs that other tables share are waited for while another process is at work in them.
    """
    if until_decided:
        _require_stoppable(recipe, rows)
    claim_folder(out, recipe, scale)
    studies = {row.run.path: row.study for row in rows if not row.study.missing()}
    with ExitStack() as held:
        for path in sorted(studies):
            held.enter_context(claimed(path, wait=studies[path].folder(out) is not None))
        assignments = [Assignment(study, begin(study, path, command=command)) for path, study in studies.items()]
        for assignment in assignments:
            assignment.study.prepare(assignment.run, watcher.said)
        begun = [row for row in rows if row.run.path in studies]
        repeated = [row for row in begun if row.study.stoppable or row.study.repeatable]
        if taken := sum((_take_over(row, out) for row in repeated), Counter[str]()):
            watcher.said(f"{taken.total()} units were computed for tables beside {out.name}: taken over")
        compute(
            assignments, workers=workers, watcher=watcher, cluster=cluster, keep_going=True,
            settled=(lambda: settled(recipe.statements, begun, scale)) if until_decided else None,
        )  # fmt: skip


def _take_over(row: TableRow, out: Path) -> Counter[str]:
    """Copy to the row the finished units that runs of tables beside ``out`` share with it; returns how many of each."""
    wanted = {unit.id for unit in row.study.units()}
    taken, plans = Counter[str](), [*row.run.info.get(PLANS, [])]
    for file in sorted(out.resolve().parent.glob(f"*/{ROWS}/*/run.json")):
        beside = Run(file.parent)
        if file.parents[2] == out.resolve() or not _shared(row, beside):
            continue
        for unit in wanted.intersection(str(record["unit"]) for record in beside.units()):
            if not row.run.has(unit):
                row.run.take_over(unit, beside)
                taken[file.parents[2].name] += 1
                plans += [*beside.info.get(PLANS, []), _planned(row, beside)]
    if taken:
        row.run.write_info(PLANS, [*dict.fromkeys(plan for plan in plans if plan)])
        row.run.write_info(TAKEN_OVER, taken + Counter(row.run.info.get(TAKEN_OVER, {})))
    return taken


def _planned(row: TableRow, beside: Run) -> int:
    """How many parts ``beside``, which shares units with the row, was to have; 0 where that is not known."""
    pages = beside.config.get("pages")
    study = row.study.over(pages) if isinstance(pages, int) else None
    return (study or row.study).planned_parts()


def _shared(row: TableRow, beside: Run) -> bool:
    """Whether units of ``beside`` are the row's under the same id: it is the same run, or one over the first of the
    row's pages, or over more."""
    try:
        if row.run.same_as(beside):
            return True
        pages = beside.config.get("pages")
        if not isinstance(pages, int) or not row.run.same_as(beside, config=row.run.config | {"pages": pages},
                                                             identity=beside.manifest()["identity"]):  # fmt: skip
            return False
        other = row.study.over(pages)
        return other is not None and identity_of(other) == beside.manifest()["identity"]
    except DocleakError:  # a damaged folder of another table is that table's matter
        return False


def _require_stoppable(recipe: Recipe, rows: Sequence[TableRow]) -> None:
    """RecipeError where nothing is stated that rows could decide page by page."""
    if not recipe.statements:
        raise RecipeError(f"--until-decided: recipe {recipe.name!r} states nothing that could be decided.")
    if not type(rows[0].study).stoppable:
        raise RecipeError(
            f"--until-decided: rows of the kind {recipe.kind} are not computed page by page, so that nothing can be "
            "decided before the end; leave it out."
        )


def claim_folder(out: Path, recipe: Recipe, scale: str) -> None:
    """Note which recipe at which scale ``out`` is of; RecipeError if it is of another, or no folder of a recipe."""
    file, wanted = out / "recipe.json", {"recipe": recipe.name, "scale": scale}
    if file.is_file():
        if (note := read_stored(file, advice="Delete the folder, or give another folder (out).")) != wanted:
            raise RecipeError(f"{out} holds {note}, asked for {wanted}. Give another folder (out).")
        return
    if out.is_dir() and (foreign := sorted(f.name for f in out.iterdir() if not f.name.startswith(TEMPORARY))):
        raise RecipeError(
            f"{out} holds {', '.join(foreign[:5])}{' ...' if len(foreign) > 5 else ''} and no {file.name}: it is no "
            "folder of a recipe. Expected an empty or new one: give another folder (out)."
        )
    with reported(out):
        write_json(file, wanted)


def failures_of(rows: Sequence[TableRow]) -> dict[str, str]:
    """Units that were given up: row, model and unit -> the last error."""
    return {
        f"{row.name}, {row.target}: {unit}": why
        for row in rows
        for unit, why in row.run.failures().items()
    }  # fmt: skip


def tables_of(rows: Sequence[TableRow]) -> list[Table]:
    """One table per model and data set, a row for each of its rows, printed numbers beside ours."""
    kind = type(rows[0].study)
    shown = kind.columns_of(rows)
    told = {
        f"{name}_{data}": Column(f"paper, {data}: {column.head}", column.digits)
        for name, column in shown.items()
        for data in kind.printed_sets
        if any(f"{name}_{data}" in row.printed for row in rows)
    }
    columns = {**shown, **told}
    tables = []
    for target in dict.fromkeys(row.target for row in rows):
        lines = [row for row in rows if row.target == target]
        title = _in_all([row.study.title() for row in lines]) or lines[0].model
        title = ", ".join(filter(None, (title, lines[0].data_set)))
        tables.append(Table(title, columns, [_row(line, told) for line in lines]))
    return tables


def _in_all(titles: Sequence[str]) -> str:
    """What all rows say of their model, from its beginning: not the size of the pages where rows have several."""
    parts = zip(*(title.split(", ") for title in titles if title), strict=False)
    return ", ".join(same[0] for same in takewhile(lambda same: len(set(same)) == 1, parts))


def _row(row: TableRow, told: Mapping[str, Column]) -> Row:
    begun = (row.run.path / "run.json").is_file()
    numbers = row.study.numbers(row.run) if begun else {}
    apart = {name: row.printed[name] for name in told if name in row.printed}
    printed = {name: value for name, value in row.printed.items() if name not in told}
    named = {"model": row.model, **({"data_set": row.data_set} if row.data_set else {})}
    facts = {**named, **(row.study.row_values(row.run) if begun else {})}
    return Row(row.name, {**numbers, **apart}, printed, row.run.failures() if begun else {}, facts)


def facts_of_call(command: str) -> dict[str, str]:
    """What stands under a table of how it was computed: the ``command``, and versions."""
    import torch

    python = platform.python_version()
    return {"Command": command, "Version": f"docleak {docleak.__version__}, torch {torch.__version__}, Python {python}"}


def write_table(recipe: Recipe, scale: str, rows: Sequence[TableRow], out: Path, facts: Mapping[str, str]) -> Path:
    """Write table.md, .json, .csv, .html and pictures.png; returns the path of the page. ``facts`` stand under it."""
    kind, tables = type(rows[0].study), tables_of(rows)
    facts = {**kind.row_facts(rows), **_computed_before(rows), **facts}
    decisions = decide(recipe.statements, rows, scale)
    stated = [decided_table(decisions, recipe.ours)] if decisions else []
    picture = kind.picture(rows)
    if picture is not None:
        write_atomically(out / "pictures.png", picture.png)
    flat = Table("", {**tables[0].columns}, [row for table in tables for row in table.rows])
    write_atomically(out / "table.csv", flat.to_csv().encode())
    told = {"statements": [one.to_json() for one in decisions], "rows": flat.to_json()}
    write_json(out / "table.json", {"recipe": recipe.name, "scale": scale, **facts, **told})
    shown = [*tables, *stated]
    return write_page(out / "table.html", recipe, scale, shown, facts, footnote=kind.footnote_of(rows), picture=picture)


def write_page(
    file: Path, recipe: Recipe, scale: str, tables: Sequence[Table], facts: Mapping[str, str], *, footnote: str = "",
    picture: Picture | None = None,
) -> Path:  # fmt: skip
    """Write the page as HTML to ``file``, whose path is returned, and as Markdown beside it."""
    html = render("recipe.html.j2", recipe=recipe, scale=scale, tables=tables, facts=facts, footnote=footnote,
                  picture=picture, uri=data_uri(picture.png) if picture else "")  # fmt: skip
    write_atomically(file.with_suffix(".md"), markdown_of(recipe, scale, tables, facts).encode())
    write_atomically(file, html.encode("utf-8", "backslashreplace"))
    return file


def _computed_before(rows: Sequence[TableRow]) -> dict[str, str]:
    """What is said of units that this table's command did not compute."""
    begun = [row.run for row in rows if (row.run.path / "run.json").is_file()]
    taken = sum((Counter(run.info.get(TAKEN_OVER, {})) for run in begun), Counter[str]())
    if not taken:
        return {}
    of_each = " and ".join(f"{count} for table {name!r}" for name, count in sorted(taken.items()))
    whole = sum(len(row.study.units()) for row in rows)
    return {
        "Computed before": f"of {whole} units {of_each}, by the same code with the same libraries and number of cores, "
        "from the same weights and pages"
    }


def markdown_of(recipe: Recipe, scale: str, tables: Sequence[Table], facts: Mapping[str, str]) -> str:
    """The page as Markdown: what the paper found, the tables, and ``facts`` under them."""
    finding = f" {recipe.whose_finding}: {recipe.finding}" if recipe.finding else ""
    finding = without_html(f"{recipe.source(scale)}{finding}")
    parts = [f"## {in_markdown(recipe.title)}", "", finding, ""]
    parts += [table.to_markdown() for table in tables]
    parts += [f"{name}: {without_html(value)}  " for name, value in facts.items()]
    return "\n".join([*parts, *(["", without_html(recipe.note)] if recipe.note else [])]) + "\n"
