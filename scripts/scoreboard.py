"""The scoreboard: every statement of every recipe, decided by the tables that are stored.

    python -m scripts.scoreboard docs/results --out docs/results/README.md

A stored table is ``table.json`` of a run, kept as FOLDER/PAPER/TABLE.json (of another scale than tiny, as
TABLE-SCALE.json) beside its page, which alone names the commit. Nothing is computed here: what a table says of its
statements was decided when it was written.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations, product
from pathlib import Path
from typing import Any

from docleak.files import write_atomically
from docleak.metrics.estimate import Estimate
from docleak.recipes import Recipe, list_recipes
from docleak.recipes.recipe import SCALES
from docleak.recipes.statements import CONFIRMED, OPEN, REFUTED, RELATIONS
from scripts.deciding import to_decide

VERDICTS = (CONFIRMED, REFUTED, OPEN)
#: What a statement says of itself that is docleak's, in a table of a paper's.
OURS = "(ours)"
OVERVIEW = """\
## At a glance

A line per table and figure, docleak's statements on it counted with the paper's.

| table or figure | confirmed | refuted | cannot tell |
|---|---|---|---|
"""
#: What a page's line on its machine says where a GPU computed some of it.
GPU = r"an [AH]\d+ |--device cuda"
#: Options that say how much of the same is computed, and where.
HOW_MUCH = ("--rows", "--pages", "--until-decided", "--workers", "--device", "--out")
HEAD = "| statement | on | n | measured | verdict | to decide |\n|---|---|---|---|---|---|\n"
EXPLAINED = """\
What the papers conclude from their tables and figures, and what docleak asks beside them, as statements that its
numbers confirm, refute, or cannot decide. **Confirmed** and **refuted** mean that the whole 95 % interval lies on that
side, but for "by the number itself": there is no interval then, and what one training or run gave is held to the line.
"Of one training": the interval is over test documents, and says nothing of what another seed would give; of five such
verdicts on FeDocVQA's table 3, two did not outlive three trainings of twice the rounds. What attacks trained models
(CDMI, PFL-DocVQA) is said of those that its page names.
How each was measured (paired over the same pages, or two intervals that do not meet) stands on the page of its table,
with the machine; scale, seed, commit, time and command stand below its heading here. The time is that of the command's
last call, which may have gone on from an earlier one. A share of pages where it is so, less that where it is not, says
how sure a difference is and not how large: "the rows" behind it are the two numbers themselves. ResNet-18's pictures in
mmgia/table1, and all of mmgia/figure3a, where nothing is visible of either row, are an order among failures.
Scale tiny is not the papers' models: what is refuted there is refuted there. But for scale narrow, GI-DQA's tables 1,
3, 4, 7 and 8, figure 6 and section 5, and of the Donut tables 2, 5 and 6, attack with docleak's solver where no row
names the paper's Adam, which in as many evaluations reads none of the fields of twelve pages of the Donut
([table 1](gi-dqa/table1.md)): what is said of "GI-DQA" is of that solver.
What was computed of few pages and of more, otherwise alike, counts as that of more, whatever either says.
Intervals of PSNR, MSE and FFT2D over fewer than six pages (16 of the result pages have some) are too narrow: they were
computed before those were held to Student's, and over five pages missed the truth in 10 %, over two in 50 %; where
values have a long tail, those over up to twenty pages are, too (7 to 10 % missed: no skewness was allowed for).
One verdict rests on such (gi-dqa/settings, the last iterate), and stands if they are widened by nine tenths.
Shares over documents or providers that hold unequal numbers of fields were computed as if these counted alike, which
is a few hundredths too narrow over forty of one to eight fields. Of the verdicts on shares that rest on such an
interval each stands if it is widened by a twentieth; where nothing was read the interval is as it was.
Statements marked "(ours)", and all of tables whose heading says "docleak's own question", are no paper's.

**To decide** is what an open statement would take, reckoned from its own numbers: as many parts (documents, pairs,
providers) as its interval needs to leave the line, and the time that so many more would take in its rows, by what
theirs took. It assumes that the difference that was seen is the true one; half of the time it is smaller, and takes
more. FeDocVQA's tables take 68 test documents of the 414 that are here ("all"): more than those need other data.
"""


def stored(folder: Path, recipe: str) -> list[dict[str, Any]]:
    """The stored tables of a recipe, that of scale tiny first; ``at`` is the scale, and the part of a table that
    several commands computed, ``commit`` what its page says it was made with."""
    tables = []
    for scale in SCALES:
        whole = folder / (f"{recipe}.json" if scale == "tiny" else f"{recipe}-{scale}.json")
        for file in filter(Path.is_file, (whole, *sorted(folder.glob(f"{recipe}-{scale}-*.json")))):
            part = file.stem.removeprefix(f"{Path(recipe).name}-{scale}-") if file != whole else ""
            at = ", ".join(filter(None, (scale, part)))
            page = file.with_suffix(".md")
            told = page.read_text(encoding="utf-8") if page.is_file() else ""
            machine = re.search(r"^Machine: (.*)commit (\w+)$", told, re.MULTILINE)
            named = {"at": at, "commit": machine and machine[2], "gpu": bool(machine and re.search(GPU, machine[1]))}
            tables.append({**json.loads(file.read_text(encoding="utf-8")), **named})
    return tables


def more_of(tables: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Of statements, by their ``id``, the one that tables computed page by page make of more pages, otherwise alike."""
    larger: dict[int, Mapping[str, Any]] = {}
    for table, other in permutations(tables, 2):
        if _sampled(table) != _sampled(other) or not _of_the_same_models(table, other):
            continue
        for one, beside in product(table["statements"], other["statements"]):
            alike = all(one[key] == beside[key] for key in ("says", "model"))
            if alike and _parts(larger.get(id(one), one)) < _parts(beside):
                larger[id(one)] = beside
    return larger


def _of_the_same_models(table: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether all models, with the digests of their weights, of one of the tables are of the other, too."""
    ours, theirs = ({*str(one.get("Models", "")).split(", ")} for one in (table, other))
    return ours <= theirs or theirs <= ours


def _parts(statement: Mapping[str, Any]) -> int:
    return int(statement["quantity"].get("groups") or 0)


def _sampled(table: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two tables must share to be samples of the same; documents that options name are in the command."""
    words = shlex.split(table.get("Command", ""))
    asked = sorted((name, value) for name, value in pairwise(words) if name.startswith("--") and name not in HOW_MUCH)
    return table["scale"], table.get("Seed"), table.get("Budget"), asked


def lines_of(table: Mapping[str, Any], larger: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """A line per statement and model."""
    lines = []
    for one in table["statements"]:
        quantity = Estimate.of_json(one["quantity"])
        at = str(table["at"]).removeprefix("tiny").removeprefix(", ")
        where = ", ".join(filter(None, (one["model"], at if at != one["model"] else "")))
        verdict = one["verdict"]
        if verdict != OPEN:
            verdict += " by the number itself" if quantity.low is None else ""
            verdict += " of one training" if of_one_training(table, one) else ""
        more = larger.get(id(one))
        verdict += f" (not counted: see that of {_parts(more)})" if more else ""
        measured = quantity.text(3) + _beside(table, one)
        cells = [one["says"], where, quantity.groups or "-", measured, verdict, "" if more else to_decide(table, one)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _beside(table: Mapping[str, Any], statement: Mapping[str, Any]) -> str:
    """The two rows' own numbers, of a statement about the share of parts where one is above the other."""
    if not str(statement["how"]).startswith("share of the same"):
        return ""
    of = {row["row"]: row["ours"] for row in table["rows"] if row["model"] == statement["model"]}
    names = statement["row"], next(statement[name] for name in RELATIONS if name in statement)
    first, second = (of[name][statement["column"]]["value"] for name in names)
    return f", the rows {first:.3g} against {second:.3g}"


def _made(table: Mapping[str, Any]) -> str:
    """How the table was made, in a line, as far as it or its page says so."""
    wall = re.match(r"[\d,]+ s", str(table.get("Wall time of this call", "")))
    facts = {"seed ": table.get("Seed"), "commit ": table["commit"], "": wall and wall[0]}
    said = ", ".join(f"{name}{value}" for name, value in facts.items() if value)
    return f"- {table['at']}: {said}: `{table.get('Command', '-')}`"


def of_one_training(table: Mapping[str, Any], statement: Mapping[str, Any]) -> bool:
    """Whether a row that the statement is about is a training that was made once, as its table counts them."""
    about = {statement.get(key) for key in ("row", "above", "below", "like")}
    counts = [row["ours"].get("trainings") for row in table["rows"] if row["row"] in about]
    return any(isinstance(count, dict) and count["value"] == 1 for count in counts)


def scoreboard(folder: Path, recipes: Mapping[str, Recipe]) -> str:
    """The page as Markdown."""
    papers, ours = _Count("Of the papers' findings"), _Count("Of docleak's own questions")
    parts, absent, glance = list[str](), list[str](), list[str]()
    for name, recipe in recipes.items():
        tables, count = [_now(recipe, table) for table in stored(folder, name)], ours if recipe.ours else papers
        larger = more_of(tables) if recipe.study.stoppable else {}
        said = [one for table in tables for one in table["statements"] if id(one) not in larger]
        decided = [one for one in said if one["verdict"] != OPEN and (recipe.ours or OURS not in one["says"])]
        count.tables += 1
        count.missing += not tables
        count.decided += bool(decided)
        count.by_number += bool(decided) and not any(map(_has_interval, decided))
        for one in said:
            whose = ours if OURS in one["says"] else count
            whose.verdicts[one["verdict"]] += 1
            whose.intervals += _has_interval(one)
        if not said:
            absent.append(f"- {_title(folder, name)}: {_why_none(recipe, tables)}")
            continue
        totals = Counter(one["verdict"] for one in said)
        cells = [f"{_title(folder, name)}: {recipe.title}", *(totals[verdict] for verdict in VERDICTS)]
        glance.append(f"| {' | '.join(map(str, cells))} |")
        lines = [line for table in tables for line in lines_of(table, larger)]
        question = "; docleak's own question" if recipe.ours else ""
        heading = f"### {_title(folder, name)}: {recipe.title}\n\n{recipe.paper}{question}"
        parts.append("\n".join([f"{heading}\n", *map(_made, tables), f"\n{HEAD}" + "\n".join(lines), ""]))
    rest = "\n".join(["## Without a verdict\n", *absent]) if absent else ""
    counts = [f"{count.text()}\n" for count in (papers, ours) if count.tables]
    overview = OVERVIEW + "\n".join(glance) + "\n\n## Statement by statement\n"
    return "\n".join(["# Scoreboard\n", EXPLAINED, *counts, overview, *parts, rest]).rstrip() + "\n"


@dataclass
class _Count:
    """Verdicts, how many of them have an interval, and the tables that decide at least one, of the papers or of
    docleak; ``by_number`` do so without any interval."""

    of: str
    verdicts: Counter[str] = field(default_factory=Counter)
    intervals: int = 0
    tables: int = 0
    decided: int = 0
    by_number: int = 0
    missing: int = 0

    def text(self) -> str:
        counts = ", ".join(f"{self.verdicts[verdict]} {verdict}" for verdict in VERDICTS)
        return (
            f"**{self.of}: {self.verdicts.total()} statements on one model each, {counts}. Of {self.tables} tables and "
            f"figures {self.decided} decide one statement or more, {self.by_number} of them by a number without "
            f"interval alone; {self.missing} have no stored numbers.**\n{self.intervals} of the statements have a 95 % "
            f"interval: if each truth lay on its line, chance would decide some {math.ceil(self.intervals / 20)}. "
            "Nothing is corrected for that."
        )


def _has_interval(statement: Mapping[str, Any]) -> bool:
    return bool(Estimate.of_json(statement["quantity"]).interval_text())


def _now(recipe: Recipe, table: dict[str, Any]) -> dict[str, Any]:
    """The table without statements that its recipe has come to make of other models alone."""
    of = {one.says: one.models for one in recipe.statements if one.models}
    said = [one for one in table["statements"] if one["model"] in of.get(one["says"], (one["model"],))]
    return {**table, "statements": said}


def _title(folder: Path, name: str) -> str:
    """The name as a link to its page, or, where it has pages of its parts alone, with links to these."""
    if (folder / f"{name}.md").is_file():
        return f"[{name}]({name}.md)"
    pages = {table["at"]: f"{name}-{table['at'].replace(', ', '-')}.md" for table in stored(folder, name)}
    links = [f"[{at}]({page})" for at, page in pages.items() if (folder / page).is_file()]
    return f"{name} ({', '.join(links)})" if links else name


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
