"""What a factor does: the mean improvement factor of the rows that share its value, with intervals over documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from docleak.documents.pages import gathered
from docleak.metrics.estimate import Estimate
from docleak.metrics.extraction import Floats, Match, as_array, improvement_factor
from docleak.studies.weights.table import GameTable

#: What a row asks for: the settings of a recipe's row.
Asked = Mapping[str, Any]
#: Document, and one-shot matches of attack and baseline, of a field.
Outcome = tuple[str, Match, Match]
#: A number of the means of attack and baseline, arrays (N, 4) each.
Statistic = Callable[[Floats, Floats], float | Floats]
#: factor -> how a row's value of it is called. A factor counts where rows differ in it.
FACTORS: dict[str, Callable[[Asked], str]] = {
    "model": lambda a: str(a["model"]),
    "task": lambda a: str(a["task"]),
    "data": lambda a: str(a["data"]),
    "modality": lambda a: ("noise for pictures" if a["noise"] else "bimodal") if a["bimodal"] else "unimodal",
    "criterion": lambda a: str(a["criterion"]),
    "target trained on": lambda a: "other pages" if a["control"] else "the attacked pages",
    "public pages": lambda a: a["public_data"] or ", ".join(f"no {k} {v}" for k, v in a["public_without"].items())
    or "own",
}  # fmt: skip
#: Keeps a distance of 0 from being divided by; no epsilon of eq. 6.
TINY = 1e-9
RESAMPLES = 400


def three_distances(ours: Floats, theirs: Floats) -> Floats:
    """IpF without its first term, exact readings: by how much three mean distances fell, (..., N, 4) to (...)."""
    before, after = (np.maximum(side.mean(axis=-2)[..., 1:], TINY) for side in (theirs, ours))
    return np.asarray((before / after).mean(-1))


@dataclass(frozen=True)
class Found:
    """What a row's run says: estimates by column, the target's card, the fields' table, and their outcomes."""

    estimates: Mapping[str, Estimate]
    card: Mapping[str, Any]
    table: GameTable | None = None
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class Level:
    """One value of a factor: means over ``n`` rows with their intervals, and of the improvement factors that the paper
    prints, over ``told`` rows of these (none of the last epoch, for one)."""

    factor: str
    value: str
    ipf: Estimate
    distances: Estimate
    n: int
    printed: float | None
    told: int

    @property
    def name(self) -> str:
        """For a line of a table or picture."""
        return self.value if self.factor == self.value else f"{self.factor}: {self.value}"

    @property
    def text(self) -> str:
        """For the lines under a table."""
        of = f" over {self.told}" * (0 < self.n != self.told)
        paper = "" if self.printed is None else f" (paper {self.printed:.3f}{of})"
        if not self.n:
            return f"-{paper}"
        return f"{self.ipf.text()}{paper} over {self.n} rows; its distances alone {self.distances.text()}"


#: A row: what it asks for, its outcomes (none while it is not computed), and the paper's improvement factor.
Member = tuple[Asked, Sequence[Outcome], float | None]


def levels(members: Sequence[Member]) -> list[Level]:
    """Every value of every factor in which the rows differ, and the mean of all rows first."""
    means = [_level("all rows", "all rows", members)] if len(members) > 1 else []
    for name, value in FACTORS.items():
        groups = gathered((value(member[0]), member) for member in members)
        if len(groups) > 1:
            means += [_level(name, level, group) for level, group in groups.items()]
    return means


def _level(factor: str, value: str, members: Sequence[Member]) -> Level:
    printed = [number for _, _, number in members if number is not None]
    done = [outcomes for _, outcomes, _ in members if outcomes]
    epsilon = float(members[0][0]["ipf_epsilon"])
    statistics = (partial(improvement_factor, epsilon=epsilon), three_distances)
    ipf, distances = (mean_over_rows(done, statistic, rng=np.random.default_rng(0)) for statistic in statistics)
    return Level(factor, value, ipf, distances, len(done), float(np.mean(printed)) if printed else None, len(printed))


def mean_over_rows(rows: Sequence[Sequence[Outcome]], statistic: Statistic, *, rng: np.random.Generator) -> Estimate:
    """The mean of a statistic over rows, with its 95 % interval; a document is drawn in every row that has it. Of one
    document there is no interval."""
    if not rows:
        return Estimate(None)
    sums = [_by_document(outcomes) for outcomes in rows]
    documents = sorted({name for row in sums for name in row})
    whole = _mean(sums, dict.fromkeys(documents, 1), statistic)
    if len(documents) < 2:
        return Estimate(whole, None, None, sum(map(len, rows)), len(documents))
    draws = []
    for _ in range(RESAMPLES):
        names, counts = np.unique(rng.integers(len(documents), size=len(documents)), return_counts=True)
        draws.append(_mean(sums, {documents[i]: int(n) for i, n in zip(names, counts, strict=True)}, statistic))
    low, high = np.nanquantile(np.array(draws), (0.025, 0.975))
    return Estimate(whole, float(low), float(high), sum(map(len, rows)), len(documents))


def _by_document(outcomes: Sequence[Outcome]) -> dict[str, tuple[Floats, int]]:
    """Sums of the matches of attack and baseline, (2, 4), and their number, by document."""
    sums: dict[str, tuple[Floats, int]] = {}
    for document, ours, theirs in outcomes:
        before, count = sums.get(document, (np.zeros((2, 4)), 0))
        sums[document] = (before + as_array([ours, theirs]), count + 1)
    return sums


def _mean(rows: Sequence[Mapping[str, tuple[Floats, int]]], drawn: Mapping[str, int], statistic: Statistic) -> float:
    """The mean over the rows that have one of the documents; not a number if none has."""
    values = []
    for row in rows:
        there = [(row[name], times) for name, times in drawn.items() if name in row]
        if there:
            total = np.sum([times * sums for (sums, _), times in there], axis=0)
            means = total / sum(times * count for (_, count), times in there)
            values.append(float(statistic(means[:1], means[1:])))
    return float(np.mean(values)) if values else float("nan")
