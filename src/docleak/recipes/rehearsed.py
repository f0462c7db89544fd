"""What a rehearsal found, as a page: a line per row of a table, or per table of all of them, and what is missing.

OUT/rehearsal.md, .json, .html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from docleak.files import write_json
from docleak.recipes.recipe import Recipe
from docleak.recipes.rehearsal import Missing, Rehearsed
from docleak.recipes.rows import count_rows, write_page
from docleak.report.table import Column, Row, Table, Value
from docleak.studies.study import STEP, TableRow

#: A table's rows, and what was found of each.
Found = Sequence[tuple[TableRow, Rehearsed]]
COLUMNS = {
    "there": Column("there"), "missing": Column("missing"), "work": Column("the whole takes, at most"),
    "seconds": Column("rehearsed in (s)", 0), "memory": Column("peak memory (GB)", 1),
    "estimate": Column("estimate of the whole"), "stops": Column("stopped by"),
}  # fmt: skip
FOOTNOTE = (
    "Rehearsed is the least part of a row: models and pages of the scale's own size, one unit, one step or as "
    "few gradient evaluations as the attack can begin with (of an attack on weights few candidates a token, of a "
    f"step of a training {STEP} examples at most, whose time is scaled up), in a process of its own with one "
    "thread, loading included. Rows with the same least part share one rehearsal, whose seconds stand in each. "
    "Peak memory is that process's: a whole row may hold more documents, candidates or, of models below 50 "
    "million parameters, examples; of a Donut whose step needs more than the machine has it is counted on tensors "
    "without content, and nothing is computed. The estimate is the seconds of each kind of work, times how often the "
    "whole does it, for one process on this machine: rough, as a step's seconds include what is loaded once where the "
    "two cannot be told apart, and as what rows or tables share is counted in each. Of rows that lack something "
    "the work is as the recipe says, without what only the documents tell. Where some rows were asked for, work "
    "and estimate are theirs."
)
UNITS = (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1))
NOT_TOLD = "-"


def write_rehearsal(
    recipes: Mapping[Recipe, Found] | Sequence[tuple[Recipe, Found]], scale: str, out: Path, facts: Mapping[str, str]
) -> Path:
    """Write the pages of one recipe's rows, or of several recipes; returns the HTML's path. ``facts`` stand below."""
    pairs = list(recipes.items() if isinstance(recipes, Mapping) else recipes)
    rows = [Row(f"{row.name} ({row.target})", _values([rehearsed])) for row, rehearsed in pairs[0][1]]
    found = Table("Rows", COLUMNS, rows) if len(pairs) == 1 else _of_recipes(pairs, scale)
    tables = [table for table in (found, _of_missing(pairs)) if table.rows]
    recipe = replace(pairs[0][0], finding="", note=FOOTNOTE)
    if len(pairs) > 1:
        papers = {of.name.partition("/")[0] for of, _ in pairs}
        every = f"Every table and figure of {papers.pop()}" if len(papers) == 1 else "Every table and figure"
        if any(_share(of, rows, scale) != str(len(rows)) for of, rows in pairs):
            every = every.replace("Every table and figure", "Some rows of tables and figures")
        else:
            every += f" at scale {scale}"
        recipe = replace(recipe, name="all", title=f"{every}, rehearsed", paper=f"{len(pairs)} of them")
    told = [{"recipe": of.name, "row": row.name, "model": row.target, **asdict(rehearsed)}
            for of, rehearsals in pairs for row, rehearsed in rehearsals]  # fmt: skip
    write_json(out / "rehearsal.json", {"scale": scale, **facts, "rows": told})
    return write_page(out / "rehearsal.html", recipe, scale, tables, facts)


def _of_recipes(pairs: Sequence[tuple[Recipe, Found]], scale: str) -> Table:
    rows = [
        Row(recipe.name, {"rows": _share(recipe, found, scale), **_values([rehearsed for _, rehearsed in found])})
        for recipe, found in pairs
    ]
    return Table("Tables and figures", {"rows": Column("rows"), **COLUMNS}, rows, first="recipe")


def _share(recipe: Recipe, rehearsals: Found, scale: str) -> str:
    """How many rows, and of how many where some were not asked for."""
    asked = {(row.name, row.model) for row, _ in rehearsals}
    whole = count_rows(recipe, scale, {model for _, model in asked})
    return str(len(rehearsals)) if len(asked) == whole else f"{len(asked)} of {whole}"


def _of_missing(pairs: Sequence[tuple[Recipe, Found]]) -> Table:
    needed: dict[Missing, dict[str, None]] = {}
    for recipe, rehearsals in pairs:
        for _, rehearsed in rehearsals:
            for lack in rehearsed.missing:
                needed.setdefault(lack, {})[recipe.name] = None
    columns = {"where": Column("where"), "bytes": Column("to download (MB)", 0), "recipes": Column("recipes")}
    rows = [
        Row(lack.option, {"where": lack.where or NOT_TOLD, "bytes": lack.bytes / 1e6 if lack.bytes else None,
                          "recipes": ", ".join(names)})
        for lack, names in needed.items()
    ]  # fmt: skip
    return Table("What is missing", columns, rows, first="option")


def _values(rehearsals: Sequence[Rehearsed]) -> dict[str, Value]:
    """The cells of rows taken together."""
    work: dict[str, int] = {}
    for rehearsed in rehearsals:
        for kind, count in rehearsed.work.items():
            work[kind] = work.get(kind, 0) + count
    done = [rehearsed for rehearsed in rehearsals if rehearsed.seconds is not None]
    estimates = [rehearsed.estimate for rehearsed in done if rehearsed.estimate is not None]
    peak = max((max(one.peak, one.device_peak) for one in rehearsals), default=0)
    return {
        "there": _listed([text for rehearsed in rehearsals for text in rehearsed.there]),
        "missing": _listed([lack.option for rehearsed in rehearsals for lack in rehearsed.missing]),
        "work": ", ".join(f"{count:,} {kind}" for kind, count in work.items()) or NOT_TOLD,
        "seconds": sum(rehearsed.seconds or 0.0 for rehearsed in done) if done else None,
        "memory": peak / 1e9 if peak else None,
        "estimate": duration(sum(estimates)) if estimates and len(done) == len(rehearsals) else None,
        "stops": _listed([rehearsed.stops for rehearsed in rehearsals if rehearsed.stops]),
    }


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(texts)) or NOT_TOLD


def duration(seconds: float) -> str:
    """Seconds in the largest unit of which there are two or more."""
    name, size = next(((name, size) for name, size in UNITS if seconds >= 2 * size), UNITS[-1])
    return f"{seconds / size:,.0f} {name}" if seconds >= 10 * size else f"{seconds / size:.1f} {name}"
