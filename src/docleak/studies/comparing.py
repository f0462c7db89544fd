"""Two runs side by side: what changed between them, and what that did to what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docleak.errors import RunError
from docleak.report.measure import LEVEL, MEASURES, Difference, Measure, difference, number_of
from docleak.report.page import joined
from docleak.report.severity import BY_CHANCE, Overall, chance_of
from docleak.report.table import Column, Row, Table
from docleak.studies.registry import read_runs, require_two, runs_at
from docleak.studies.results import flat

#: Characters of a setting that are shown.
LENGTH = 160
#: How the interval of a difference was made (``_kind``), in a sentence.
HOW = {
    "bounded by both": "no resample differs, so bounded by the ends of both intervals, over",
    "widened": "as wide as both single intervals make it, one run having all or none, over",
    "paired": "paired over the same",
    "not paired": "not paired: other documents, providers or clients, or other content;",
}
#: What the interval of a difference says (``Difference.differs``).
SURE = {
    True: "so the two differ",
    False: "so no difference could be told",
    None: "but the lower number has doubts, so whether the two differ could not be told",
}


@dataclass(frozen=True)
class Comparison:
    """``changed`` settings as (name, first's, second's), differences measure by measure, and ``alone``: what only one
    of the two measured. ``within`` are runs that lie in the folders of these two, and are not compared."""

    verdicts: tuple[Overall, Overall]
    changed: tuple[tuple[str, str, str], ...]
    differences: tuple[Difference, ...]
    alone: tuple[str, ...]
    within: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """What came of it, in sentences."""
        lines = [f"First: {self.verdicts[0].label}. Second: {self.verdicts[1].label}."]
        named = zip(("first", "second"), self.verdicts, strict=True)
        lines += [f"Of the {which}: {line}" for which, verdict in named for line in verdict.unfinished]
        lines += [f"Changed: {name}, from {before} to {after}." for name, before, after in self.changed]
        lines += [] if self.changed else ["No setting differs."]
        lines += [self._said(one) for one in self.differences]
        lines += [line] if (line := self._by_chance()) else []
        lines += self.doubts
        lines += [f"Measured in one of the two only: {name}." for name in self.alone]
        return [*lines, *self.within]

    @property
    def doubts(self) -> list[str]:
        """Why a low number of either run is no all-clear, each once."""
        return list(dict.fromkeys(
            f"Of the {which}, {side.of}: {doubt}" for one in self.differences
            for which, side in (("first", one.first), ("second", one.second)) for doubt in side.doubts
        ))  # fmt: skip

    def _by_chance(self) -> str:
        """How often chance alone makes as many of these intervals exclude 0; "" where it does not, or there is one."""
        n = sum(one.estimate.low is not None for one in self.differences)
        apart = sum(not (one.estimate.low or 0) <= 0 <= (one.estimate.high or 0) for one in self.differences)
        if n < 2 or not apart or (so_many := chance_of(apart, n, 1 - LEVEL)) <= BY_CHANCE:
            return ""
        return (
            f"Each of the {n} intervals is a 95 % one by itself: were nothing changed, {apart} or more of them "
            f"({apart} here) would exclude 0 in at most {math.ceil(100 * so_many)} % of comparisons, were they "
            "independent."
        )

    def _said(self, one: Difference) -> str:
        head, of = MEASURES[one.first.what].head, _named(one)
        change = one.estimate
        if change.value is None:
            return f"{head}, {of}: could not be compared ({change.why})."
        moved = f"{head}, {of}: {one.first.text} to {one.second.text}, by {_change(one)}"
        if change.low is None or change.high is None:
            return f"{moved}; {change.why or 'no interval'}."
        how = HOW[_kind(one)]
        return f"{moved}, {how} {change.groups} documents, providers or clients; {SURE[one.differs]}."

    def table(self) -> Table:
        """A row per measure of both."""
        columns = {"measure": Column("Measure"), "first": Column("First"), "second": Column("Second"),
                   "change": Column("Second less first"), "paired": Column("Intervals")}  # fmt: skip
        rows = [
            Row(_named(one), {
                "measure": MEASURES[one.first.what].head, "first": one.first.text, "second": one.second.text,
                "change": _changed_by(one), "paired": _kind(one),
            }) for one in self.differences
        ]  # fmt: skip
        caption = " ".join([
            "95 % intervals, bootstrap over documents, providers or clients; paired ones draw the same ones for both "
            "runs, and where one has all or none, the interval is no narrower than the two single ones make it.",
            *self.doubts,
        ])  # fmt: skip
        return Table("", columns, rows, caption, first="Of")

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "verdicts": [{"severity": str(one.severity), "sentence": one.sentence} for one in self.verdicts],
            "changed": [{"setting": name, "first": one, "second": two} for name, one, two in self.changed],
            "differences": [
                {"measure": one.first.what, "first_of": one.first.of, "second_of": one.second.of,
                 "first": one.first.estimate.to_json(), "second": one.second.estimate.to_json(),
                 "difference": one.estimate.to_json(), "paired": one.paired, "bounded": one.bounded}
                for one in self.differences
            ],
            "alone": list(self.alone), "doubts": self.doubts, "lines": self.lines(),
        }  # fmt: skip


def _kind(one: Difference) -> str:
    """How the interval of a difference was made, for its column."""
    if one.bounded or one.widened:
        return "bounded by both" if one.bounded else "widened"
    return "paired" if one.paired else "not paired"


def compare(first: Path, second: Path) -> Comparison:
    """Both runs' measures side by side. RunError where their kinds differ, they have nothing in common, or they are
    one run."""
    (one, *its), (other, *others) = runs_at([first]), runs_at([second])
    runs = [one, other]
    kinds = [run.kind for run in runs]
    if kinds[0] != kinds[1]:
        raise RunError(
            f"{first} holds a run of the kind {kinds[0]!r}, {second} one of {kinds[1]!r}; what they measure cannot be "
            "compared. Name two runs of one kind."
        )
    readings = [read_runs([run])[0] for run in runs]
    require_two(one, other)
    pairs, alone = _matched(*(reading.measures for reading in readings))
    if not pairs:
        raise RunError(f"{first} and {second} measured nothing in common: {'; '.join(alone) or 'no measure at all'}.")
    seed = np.random.default_rng(int(runs[0].config.get("seed") or 0))
    differences = tuple(difference(one, other, seed, same=True) for one, other in pairs)
    verdicts = (joined(readings[:1]), joined(readings[1:]))
    within = tuple(
        f"Not compared: {run.path}, which lies in {place}; name the two folders that are meant."
        for place, left in ((first, its), (second, others)) for run in left
        if run.path.resolve() not in (one.path.resolve(), other.path.resolve())
    )  # fmt: skip
    return Comparison(verdicts, _changed(one.manifest(), other.manifest()), differences, tuple(alone), within)


def _matched(
    first: Sequence[Measure], second: Sequence[Measure]
) -> tuple[list[tuple[Measure, Measure]], list[str]]:  # fmt: skip
    """Measures of the same part, or, where each run has but one of a kind, these two."""
    pairs, alone = [], []
    for what in MEASURES:
        ours, theirs = ({one.of: one for one in side if one.what == what} for side in (first, second))
        if len(ours) == len(theirs) == 1:
            pairs.append((next(iter(ours.values())), next(iter(theirs.values()))))
            continue
        pairs += [(ours[name], theirs[name]) for name in ours if name in theirs]
        alone += [f"{what} of {name}" for name in sorted(set(ours) ^ set(theirs))]
    return pairs, alone


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """Settings, weights, pages and builds that differ."""
    ours, theirs = ({**flat(one["config"]), **{f"hash of {k}": v for k, v in one.get("identity", {}).items()},
                     "docleak": one["docleak"]} for one in (first, second))  # fmt: skip
    names = [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]
    return tuple((name, _shown(ours.get(name)), _shown(theirs.get(name))) for name in names)


def _shown(value: Any) -> str:
    text = (
        "nothing" if value in (None, "", []) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    )
    return text if len(text) <= LENGTH else f"{text[:LENGTH]} ..."


def _named(one: Difference) -> str:
    return one.first.of if one.first.of == one.second.of else f"{one.first.of} beside {one.second.of}"


def _signed(value: float, one: Difference) -> str:
    text = number_of(value, one.first.what).removesuffix("%")
    return f"+{text.removeprefix('-')}" if value >= 0 or not text.strip("-0.") else text


def _change(one: Difference) -> str:
    """The difference with its interval; that of two shares is in percentage points, no share of the first."""
    change, points = one.estimate, " percentage points" * MEASURES[one.first.what].percent
    assert change.value is not None
    between = ""
    if change.low is not None and change.high is not None:
        between = f" [{_signed(change.low, one)}, {_signed(change.high, one)}]"
    return f"{_signed(change.value, one)}{between}{points}"


def _changed_by(one: Difference) -> str:
    """The same for its column, or why there is none."""
    if one.estimate.value is None:
        return one.estimate.why
    return _change(one) + (" (no interval)" if one.estimate.low is None or one.estimate.high is None else "")
