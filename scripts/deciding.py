"""What it would take to decide a statement that a stored table leaves open, reckoned from its own numbers.

The assumption: the difference that was seen is the true one. Then an interval narrows with the square root of the
number of parts; one at the edge of what was seen (nothing of n, or all of n) with their number, and where it is a
confidence sequence's, that is asked. So the reckoning is no promise: half of the time the true difference is smaller
than the seen one, and more parts are needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from docleak.metrics.estimate import Estimate
from docleak.metrics.sequence import mean_over_time
from docleak.recipes.statements import OPEN, RELATIONS, statement_of

#: More parts than this are as good as none.
MOST = 100_000
DECIDED, EFFECTLESS = "", "the seen difference lies on the line itself: no number would"


def parts_needed(quantity: Estimate, wanted: tuple[float, float]) -> int | None:
    """How many parts it takes for the interval to lie inside or outside of ``wanted``; None where the value lies on a
    bound, or there is no interval."""
    value, low, high = quantity.value, quantity.low, quantity.high
    if value is None or low is None or high is None or low == high or not quantity.groups:
        return None
    if value < wanted[0]:
        asked = [(high - value, wanted[0] - value)]
    elif value > wanted[1]:
        asked = [(value - low, value - wanted[1])]
    else:
        asked = [(value - low, value - wanted[0]), (high - value, wanted[1] - value)]
    growth = 1.0
    for reach, room in asked:
        if reach > 0 and room <= 0:
            return None
        times = reach / room if reach > 0 else 1.0
        growth = max(growth, times if value in (low, high) else times**2)
    return math.ceil(quantity.groups * growth)


def all_or_none_needed(quantity: Estimate, wanted: tuple[float, float]) -> int | None:
    """How many parts it takes for a confidence sequence to lie inside or outside of ``wanted`` if all of them are 0,
    or all 1, as those of ``quantity`` are; None where more than MOST would not."""

    def decides(count: int) -> bool:
        low, high = mean_over_time([float(quantity.value or 0)] * count, planned=count)
        inside = wanted[0] <= low and high <= wanted[1]
        return inside or high < wanted[0] or low > wanted[1]

    few, many = quantity.groups, quantity.groups
    while not decides(many):
        few, many = many, 2 * many
        if many > 2_000:  # a sequence's time grows with its length; the interval with one over it
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if decides(middle) else (middle, many)
    return many


def spent_on(table: Mapping[str, Any], said: Mapping[str, Any]) -> float | None:
    """The seconds that the statement's rows took, where the table says so: attacks, or the training of a release."""
    names = {said["row"], *(said[name] for name in RELATIONS if name in said)}
    rows = [row for row in table["rows"] if row["row"] in names and row["model"] in said["model"]]
    times = [_seconds(row, said["quantity"]["groups"]) for row in rows]
    return sum(seconds for seconds in times if seconds is not None) if any(times) else None


def _seconds(row: Mapping[str, Any], parts: int) -> float | None:
    of_one = row["ours"].get("seconds")
    if isinstance(of_one, Mapping) and of_one.get("value") is not None:  # of each document
        return float(of_one["value"]) * parts
    if isinstance(row.get("trained"), Mapping):
        return float(row["trained"]["seconds"])
    spent = row.get("seconds")
    if isinstance(spent, int | float):
        return float(spent)
    return float(sum(spent)) if isinstance(spent, list) and all(isinstance(one, int | float) for one in spent) else None


def to_decide(table: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """In words: how many parts a statement that is open would take, and how much more time; "" where it is decided."""
    if said["verdict"] != OPEN:
        return DECIDED
    quantity = Estimate.of_json(said["quantity"])
    if quantity.value is None or quantity.low is None or quantity.high is None or quantity.low == quantity.high:
        return "no interval, too few were counted"
    wanted = statement_of(said).wanted
    sequence = str(said.get("how", "")).startswith("mean over") and quantity.value in (0.0, 1.0)
    count = (all_or_none_needed(quantity, wanted) if sequence else None) or parts_needed(quantity, wanted)
    if count is None:
        return EFFECTLESS
    of = quantity.of.removeprefix("guesses about ").replace("parts", "")
    of = of or ("providers" if table["recipe"].startswith("pfl-docvqa") else "documents")
    if count > MOST:
        return f"more than {MOST:,} {of}"
    seconds, growth = spent_on(table, said), count / quantity.groups - 1
    if of == "test documents":  # the trainings stay as they are
        return f"about {count:,} {of}"
    return f"about {count:,} {of}" + (
        f", {_time(seconds * growth)} more{' on a GPU' * table.get('gpu', False)}" if seconds else ""
    )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
