"""What a paper concludes from a table as statements that our numbers confirm, refute, or cannot decide.

In a recipe's file:

    [[statements]]
    says = "GI-DQA reads more fields than APRIL"
    column = "binary"                    which number
    row = "GI-DQA"                       whose; without it, of each row
    above = "APRIL"                      or below, or like: the other row; or between = [0.65, 0.75]
    beyond = "chance_s0"                 with between: what of the same row is taken off the number first
    by = 0.05                            above or below by more than so much; of like, at most so much apart
    models = ["donut"]                   on which models, if not on all that have both rows
    scales = ["paper"]                   at which scales, if not at all: what is said of data is not said of made ones

Where the rows say what they measured of each page (pair, field, test document, provider), the statement is about the
paired differences over what both have, by a sequence of intervals that holds whenever one stops (``metrics.sequence``):
the mean difference of a share, and of other numbers how much more often it is higher than lower. The sequence takes
parts for draws in the order they come; where all are there at once, one data set behind the other, their order is
drawn. What is said of one row alone is about the table's interval, unless the table can stop at any page. Elsewhere it
is about the two intervals of the table, which is less sharp; of numbers that are no means over parts, about the numbers
themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from docleak.metrics.estimate import Estimate
from docleak.metrics.sequence import mean_over_time
from docleak.report.measure import shift
from docleak.report.table import Column, Row, Table
from docleak.studies.study import TableRow

CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "cannot tell"
#: Parts that a row has at least, however early all is decided.
LEAST = 3
#: What a run notes of numbers of parts that were planned before, and looked at.
PLANS = "planned before"
#: How two rows can stand to each other.
RELATIONS = ("above", "below", "like")
#: key -> type, in a recipe's file.
KEYS = {"says": str, "column": str, "row": str, **dict.fromkeys(RELATIONS, str), "between": list, "beyond": str,
        "by": float | int, "models": list, "scales": list}  # fmt: skip


@dataclass(frozen=True)
class Statement:
    """``relation`` is one of RELATIONS and names the ``other`` row, or "between", with ``bounds``."""

    says: str
    column: str
    row: str
    relation: str
    other: str = ""
    by: float = 0.0
    bounds: tuple[float, float] = (0.0, 0.0)
    models: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    beyond: str = ""

    @property
    def wanted(self) -> tuple[float, float]:
        """Where the quantity must lie."""
        if self.relation == "between":
            return self.bounds
        return (-self.by, self.by) if self.relation == "like" else (self.by, float("inf"))

    @property
    def sign(self) -> int:
        """-1 where a smaller number is stated: the quantity is that by which it is smaller."""
        return -1 if self.relation == "below" else 1


@dataclass(frozen=True)
class Decision:
    """What became of a statement on one model. ``quantity`` was measured ``how``; ``anytime`` says that its interval
    holds whenever one stops."""

    statement: Statement
    target: str
    verdict: str
    quantity: Estimate
    how: str
    anytime: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        said = self.statement
        return {
            "says": said.says, "model": self.target, "column": said.column, "row": said.row,
            said.relation: list(said.bounds) if said.relation == "between" else said.other, "by": said.by,
            "verdict": self.verdict, "quantity": self.quantity.to_json(), "how": self.how,
            **({"beyond": said.beyond} if said.beyond else {}),
        }  # fmt: skip


def statement_of(text: Mapping[str, Any]) -> Statement:
    """A statement of a recipe's file, which ``faults_of`` has found none in."""
    relation = next((name for name in RELATIONS if name in text), "between")
    low, high = text.get("between", (0.0, 0.0))
    return Statement(
        text["says"], text["column"], text["row"], relation, text.get(relation, "") if relation != "between" else "",
        float(text.get("by", 0.0)), (float(low), float(high)), tuple(text.get("models", ())),
        tuple(text.get("scales", ())), text.get("beyond", ""),
    )  # fmt: skip


def faults_of(statements: Sequence[Any], names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """What is wrong with a file's statements, whose rows have these ``names`` and ``columns``."""
    faults = []
    for number, text in enumerate(statements, 1):
        place = f"statement {number}"
        if not isinstance(text, Mapping):
            faults.append(f"{place} is no table")
            continue
        faults += [f"{place}: unknown key {key!r}; known: {', '.join(KEYS)}" for key in text if key not in KEYS]
        faults += [f"{place}: {key} is {text[key]!r}, expected another type" for key, kind in KEYS.items()
                   if key in text and not isinstance(text[key], kind)]  # fmt: skip
        faults += [f"{place} lacks {key!r}" for key in ("says", "column", "row") if key not in text]
        said = [name for name in (*RELATIONS, "between") if name in text]
        if len(said) != 1:
            faults.append(f"{place} needs one of above, below, like and between; found {', '.join(said) or 'none'}")
        for key in ("row", *RELATIONS):
            if key in text and text[key] not in names:
                faults.append(f"{place}: there is no row {text[key]!r}")
        if "column" in text and text["column"] not in columns and not str(text["column"]).startswith("score_"):
            faults.append(f"{place}: there is no column {text['column']!r}")
        between = text.get("between", (0, 0))
        if isinstance(between, list) and not (
            len(between) == 2 and all(isinstance(end, int | float) for end in between) and between[0] <= between[1]
        ):
            faults.append(f"{place}: between is {between}, expected [low, high]")
        if text.get("like") and not text.get("by"):
            faults.append(f"{place}: like needs by, the difference that counts for none")
        if text.get("beyond") and "between" not in text:
            faults.append(f"{place}: beyond is of between, which says where the rest must lie")
    return faults


def decide(statements: Sequence[Statement], rows: Sequence[TableRow], scale: str) -> list[Decision]:
    """Every statement of the scale on every model that has its rows, by what their runs hold now."""
    targets = dict.fromkeys(row.target for row in rows)
    decisions = []
    for statement in (one for one in statements if not one.scales or scale in one.scales):
        for target in targets:
            here = {row.name: row for row in rows if row.target == target}
            model = next(row.model for row in rows if row.target == target)
            needed = [statement.row, *([statement.other] if statement.other else [])]
            if all(name in here for name in needed) and (not statement.models or model in statement.models):
                decisions.append(_decided(statement, target, [here[name] for name in needed]))
    return decisions


def settled(statements: Sequence[Statement], rows: Sequence[TableRow], scale: str) -> set[int]:
    """The numbers of the rows that no open statement needs, once they have LEAST parts. Intervals that are of one look
    alone decide at the end: until then their statements are open."""
    wanted = {(one.target, name) for one in decide(statements, rows, scale) if one.verdict == OPEN or not one.anytime
              for name in (one.statement.row, one.statement.other)}  # fmt: skip
    return {number for number, row in enumerate(rows)
            if (row.target, row.name) not in wanted and len(row.run.units()) >= LEAST}  # fmt: skip


def _decided(statement: Statement, target: str, rows: Sequence[TableRow]) -> Decision:
    over_time = _over_time(statement, rows)
    quantity, how = over_time or _quantity(statement, rows)
    return Decision(statement, target, _verdict(quantity, statement.wanted), quantity, how, over_time is not None)


def _verdict(quantity: Estimate, wanted: tuple[float, float]) -> str:
    """Whether the interval lies in what is wanted, or outside of it; a number of no parts is what it is.

    An interval without width is what resampling makes of a few equal parts: it decides nothing. Neither does a number
    of parts that are too few for an interval.
    """
    if quantity.value is None or (quantity.low is not None and quantity.low == quantity.high):
        return OPEN
    if quantity.groups and None in (quantity.low, quantity.high):
        return OPEN
    low = quantity.value if quantity.low is None else quantity.low
    high = quantity.value if quantity.high is None else quantity.high
    closed = wanted[1] < float("inf")
    if (wanted[0] <= low if closed else wanted[0] < low) and high <= wanted[1]:
        return CONFIRMED
    outside = high < wanted[0] if closed else high <= wanted[0]
    return REFUTED if outside or low > wanted[1] else OPEN


def _over_time(statement: Statement, rows: Sequence[TableRow]) -> tuple[Estimate, str] | None:
    """What the statement is about where parts say it, and how it was measured."""
    studies = [row.study for row in rows]
    parts = [row.study.measured(row.run, statement.column) if _begun(row) else {} for row in rows]
    shared = [name for name in parts[0] if all(name in part for part in parts)]  # in the order they were computed
    if not studies[0].stoppable:
        np.random.default_rng(0).shuffle(shared := sorted(shared))
    share = statement.column in studies[0].shares
    paired = len(rows) == 2 and (share or not statement.by)
    if not shared or statement.beyond or not (paired or (share and studies[0].stoppable)):
        return None
    before = dict.fromkeys(plan for row in rows for plan in _planned_before(row))
    planned = [*before, max(len(shared), *(study.planned_parts() for study in studies))]
    n, of = len(shared), studies[0].parts_of(statement.column) or "parts"
    if len(rows) == 1:
        values = [parts[0][name] for name in shared]
        low, high = mean_over_time(values, planned=planned)
        return Estimate(float(np.mean(values)), low, high, n, n, of=of), f"mean over {of}"
    differences = np.array([statement.sign * (parts[0][name] - parts[1][name]) for name in shared])
    how = f"mean difference over the same {of}"
    if not share:
        differences, how = np.sign(differences), f"share of the same {of} where it is so, less that where it is not"
    low, high = mean_over_time(list((differences + 1) / 2), planned=planned)
    return Estimate(float(differences.mean()), 2 * low - 1, 2 * high - 1, n, n, of=of), how


def _quantity(statement: Statement, rows: Sequence[TableRow]) -> tuple[Estimate, str]:
    """The same by the numbers of the table."""
    numbers = [_number(row, statement.column) for row in rows]
    if statement.beyond:
        less = _number(rows[0], statement.beyond)
        numbers = [Estimate(None) if less.value is None else _beyond(numbers[0], less)]
    if any(number.value is None for number in numbers):
        return Estimate(None, why="nothing was measured yet"), "nothing was measured yet"
    if len(numbers) == 1:
        said = "the number itself" + (", of too few for an interval" if numbers[0].groups else "")
        said = said if numbers[0].low is None else "the table's interval"
        return numbers[0], f"{said}, less {statement.beyond}" if statement.beyond else said
    return _apart(numbers[0], numbers[1], statement.sign)


def _apart(first: Estimate, second: Estimate, sign: int) -> tuple[Estimate, str]:
    """The difference of two numbers whose parts nobody can pair: as wide as their intervals allow."""
    if sign < 0:
        first, second = second, first
    assert first.value is not None and second.value is not None
    value = first.value - second.value
    if None in (first.low, first.high) and None in (second.low, second.high):
        parts = max(first.groups, second.groups)
        return Estimate(value, groups=parts), "the numbers themselves" + (", too few for an interval" if parts else "")
    ends = [(e.value if e.low is None else e.low, e.value if e.high is None else e.high) for e in (first, second)]
    (low, high), (lower, higher) = ends
    assert low is not None and high is not None and lower is not None and higher is not None
    n = min(first.groups, second.groups)
    return Estimate(value, low - higher, high - lower, n, n), "the table's two intervals, not paired"


def _beyond(number: Estimate, less: Estimate) -> Estimate:
    """The number less another of its row; where that has an interval, too, as wide as both allow."""
    assert less.value is not None
    if None in (number.value, number.low, number.high, less.low, less.high):
        return shift(number, -less.value)
    return replace(_apart(number, less, 1)[0], n=number.n, groups=number.groups, of=number.of)


def _planned_before(row: TableRow) -> list[int]:
    """How many parts were planned when some of the row's were looked at, in a table beside it."""
    return row.run.info.get(PLANS, []) if _begun(row) else []


def _begun(row: TableRow) -> bool:
    return (row.run.path / "run.json").is_file()


def _number(row: TableRow, column: str) -> Estimate:
    value = row.study.numbers(row.run).get(column) if _begun(row) else None
    if isinstance(value, Estimate):
        return value
    return Estimate(float(value) if isinstance(value, int | float) else None)


#: The table of decisions under a recipe's own.
COLUMNS = {"model": Column("on"), "quantity": Column("measured"), "n": Column("n", 0), "verdict": Column("verdict"),
           "how": Column("how")}  # fmt: skip


def table_of(decisions: Sequence[Decision], ours: bool) -> Table:
    """A row per statement and model; of a recipe that is ``ours`` they are no paper's."""
    rows = [
        Row(one.statement.says, {"model": one.target, "quantity": one.quantity.text(3), "verdict": one.verdict,
                                 "n": float(one.quantity.groups) if one.quantity.groups else "-",
                                 "how": f"{one.how}: {' against '.join(filter(None, (said.row, said.other)))}"})
        for one in decisions
        for said in (one.statement,)
    ]  # fmt: skip
    caption = (
        "95 % intervals. A statement is confirmed where the whole interval says so, refuted where none of it does. "
        "Paired ones hold however many were computed before stopping."
    )
    title = "Statements, tested" if ours else "The paper's findings, tested"
    return Table(title, COLUMNS, rows, caption, first="statement")
