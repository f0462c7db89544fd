"""The scoreboard: every statement of every recipe, decided by the tables that are stored.

    python -m scripts.scoreboard docs/results --out docs/results/README.md

A stored table is ``table.json`` of a run, kept as FOLDER/PAPER/TABLE.json (of another scale than tiny, as
TABLE-SCALE.json) beside its page. Nothing is computed here: what a table says of its statements was decided when it
was written.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docleak.files import write_atomically
from docleak.metrics.estimate import Estimate
from docleak.recipes import Recipe, list_recipes
from docleak.recipes.statements import CONFIRMED, OPEN, REFUTED
from scripts.deciding import to_decide

VERDICTS = (CONFIRMED, REFUTED, OPEN)
HEAD = "| statement | on | n | measured | verdict | to decide |\n|---|---|---|---|---|---|\n"
EXPLAINED = """\
What the papers conclude from their tables and figures, as statements that docleak's numbers confirm, refute, or cannot
decide. **Confirmed** and **refuted** mean that the whole 95 % interval lies on that side; how each was measured (paired
over the same pages, or two intervals that do not meet) stands on the page of its table, with command, seed, machine and
time. Scale tiny is not the papers' models: what is refuted there is refuted there. Statements marked "(ours)" are no
paper's.

**To decide** is what an open statement would take, reckoned from its own numbers: as many parts (documents, pairs,
providers) as its interval needs to leave the line, and the time that so many more would take in its rows, by what
theirs took. It assumes that the difference that was seen is the true one; half of the time it is smaller, and takes
more. FeDocVQA's data sets here have 68 test documents, so that more of those need other data.
"""


def stored(folder: Path, recipe: str) -> list[dict[str, Any]]:
    """The stored tables of a recipe, that of scale tiny first; ``at`` is the scale, and the part of a table that
    several commands computed."""
    tables = []
    for scale in ("tiny", "base", "paper"):
        name = recipe if scale == "tiny" else f"{recipe}-{scale}"
        parts = [folder / f"{name}.json", *(sorted(folder.glob(f"{name}-*.json")) if scale != "tiny" else ())]
        for file in filter(Path.is_file, parts):
            part = file.stem.removeprefix(Path(name).name).removeprefix("-")
            at = ", ".join(filter(None, (scale, part)))
            tables.append({**json.loads(file.read_text(encoding="utf-8")), "at": at})
    return tables


def lines_of(table: Mapping[str, Any]) -> list[str]:
    """A line per statement and model."""
    lines = []
    for one in table["statements"]:
        quantity = Estimate.of_json(one["quantity"])
        where = one["model"] + (f", {table['at']}" if table["scale"] != "tiny" else "")
        cells = [one["says"], where, quantity.groups or "-", quantity.text(3), one["verdict"], to_decide(table, one)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def scoreboard(folder: Path, recipes: Mapping[str, Recipe]) -> str:
    """The page as Markdown."""
    verdicts: Counter[str] = Counter()
    decided, parts, absent, missing = list[str](), list[str](), list[str](), 0
    for name, recipe in recipes.items():
        tables = stored(folder, name)
        if not tables or not any(table["statements"] for table in tables):
            absent.append(f"- {_title(folder, name)}: {_why_none(recipe, tables)}")
            missing += not tables
            continue
        said = [one["verdict"] for table in tables for one in table["statements"]]
        verdicts.update(said)
        if any(verdict != OPEN for verdict in said):
            decided.append(name)
        lines = [line for table in tables for line in lines_of(table)]
        heading = f"### {_title(folder, name)}: {recipe.title}\n\n{recipe.paper}"
        parts.append(f"{heading}\n\n{HEAD}" + "\n".join(lines) + "\n")
    total = sum(verdicts.values())
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS)
    whole = (
        f"{total} statements on one model each: {counts}. Of {len(recipes)} tables and figures {len(decided)} decide "
    )
    whole += f"one statement or more; {missing} have no stored numbers."
    rest = "\n".join(["## Without a verdict\n", *absent]) if absent else ""
    return "\n".join(["# Scoreboard\n", EXPLAINED, f"**{whole}**\n", *parts, rest]).rstrip() + "\n"


def _title(folder: Path, name: str) -> str:
    return f"[{name}]({name}.md)" if (folder / f"{name}.md").is_file() else name


def _why_none(recipe: Recipe, tables: Sequence[Mapping[str, Any]]) -> str:
    """Why no verdict of the recipe stands on the page."""
    if not recipe.statements:
        return "no statement that numbers could decide"
    if not tables:
        return "not computed by its recipe"
    scales = sorted({scale for statement in recipe.statements for scale in statement.scales})
    return f"stored at scale {tables[0]['scale']}; its statements are of scale {' and '.join(scales)}"


def write_page(
    about: str | None, page: Callable[[Path, Mapping[str, Recipe]], str], arguments: Sequence[str] | None = None
) -> None:
    """A command FOLDER --out PAGE, which writes what ``page`` makes of the tables in FOLDER."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the stored tables are")
    parser.add_argument("--out", type=Path, required=True, help="the page")
    given = parser.parse_args(arguments)
    if not given.folder.is_dir():
        parser.error(f"{given.folder} is no folder; expected docs/results")
    write_atomically(given.out, page(given.folder, list_recipes()).encode())


if __name__ == "__main__":
    write_page(__doc__, scoreboard)
