"""What a factor does: the mean improvement factor of the rows that share its value, with intervals over documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from docleak.metrics.estimate import Estimate
from docleak.metrics.extraction import Floats, as_array, improvement_factor
from docleak.recipes.extraction.config import ExtractionConfig
from docleak.recipes.extraction.measures import Measured, three_distances

#: factor -> how a row's value of it is called. A factor counts where rows differ in it.
FACTORS: dict[str, Callable[[ExtractionConfig], str]] = {
    "model": lambda c: c.model,
    "task": lambda c: c.task,
    "data": lambda c: c.data,
    "modality": lambda c: ("noise for pictures" if c.noise else "bimodal") if c.bimodal else "unimodal",
    "criterion": lambda c: c.criterion,
    "target trained on": lambda c: "other pages" if c.control else "the attacked pages",
    "public pages": lambda c: c.public_data or ", ".join(f"no {k} {v}" for k, v in c.public_without.items()) or "own",
}
#: The improvement factor and the same without its first term, of means of (4,) of attack and baseline.
STATISTICS: dict[str, Callable[[Floats, Floats], float]] = {"ipf": improvement_factor, "distances": three_distances}
RESAMPLES = 400


@dataclass(frozen=True)
class Member:
    """One row: its settings, what was found, and the paper's improvement factor if it prints one."""

    config: ExtractionConfig
    found: Measured | None
    printed: float | None


@dataclass(frozen=True)
class Level:
    """One value of a factor: means over ``n`` rows with their intervals, and of the paper's improvement factors."""

    factor: str
    value: str
    ipf: Estimate
    distances: Estimate
    n: int
    printed: float | None

    @property
    def name(self) -> str:
        """For a line of a table or picture."""
        return self.value if self.factor == self.value else f"{self.factor}: {self.value}"

    @property
    def text(self) -> str:
        """For the lines under a table."""
        paper = "" if self.printed is None else f" (paper {self.printed:.3f})"
        if not self.n:
            return f"-{paper}"
        return f"{_words(self.ipf)}{paper} over {self.n} rows; its distances alone {_words(self.distances)}"


def levels(members: Sequence[Member]) -> list[Level]:
    """Every value of every factor in which the rows differ, and the mean of all rows first."""
    found = [_level("all rows", "all rows", members)] if len(members) > 1 else []
    for name, value in FACTORS.items():
        groups: dict[str, list[Member]] = {}
        for member in members:
            groups.setdefault(value(member.config), []).append(member)
        if len(groups) > 1:
            found += [_level(name, each, group) for each, group in groups.items()]
    return found


def _level(factor: str, value: str, members: Sequence[Member]) -> Level:
    printed = [m.printed for m in members if m.printed is not None]
    done = [m.found for m in members if m.found is not None and m.found.outcomes]
    ipf, distances = (mean_over_rows(done, name, rng=np.random.default_rng(0)) for name in STATISTICS)
    return Level(factor, value, ipf, distances, len(done), float(np.mean(printed)) if printed else None)


def mean_over_rows(found: Sequence[Measured], statistic: str, *, rng: np.random.Generator) -> Estimate:
    """The mean of a statistic over rows, with its 95 % interval; a document is drawn in every row that has it."""
    if not found:
        return Estimate(None, None, None, 0, 0)
    rows = [_by_document(each) for each in found]
    documents = sorted({name for row in rows for name in row})
    whole = _mean(rows, dict.fromkeys(documents, 1), statistic)
    draws = []
    for _ in range(RESAMPLES):
        names, counts = np.unique(rng.integers(len(documents), size=len(documents)), return_counts=True)
        draws.append(_mean(rows, {documents[i]: int(n) for i, n in zip(names, counts, strict=True)}, statistic))
    low, high = np.nanquantile(np.array(draws), (0.025, 0.975))
    fields = sum(len(each.outcomes) for each in found)
    return Estimate(whole, float(low), float(high), fields, len(documents))


def _by_document(found: Measured) -> dict[str, tuple[Floats, int]]:
    """Sums of the matches of attack and baseline, (2, 4), and their number, by document."""
    sums: dict[str, tuple[Floats, int]] = {}
    for one in found.outcomes:
        before, count = sums.get(one.document, (np.zeros((2, 4)), 0))
        sums[one.document] = (before + as_array([one.ours, one.theirs]), count + 1)
    return sums


def _mean(rows: Sequence[Mapping[str, tuple[Floats, int]]], drawn: Mapping[str, int], statistic: str) -> float:
    """The mean over the rows that have one of the documents; not a number if none has."""
    values = []
    for row in rows:
        there = [(row[name], times) for name, times in drawn.items() if name in row]
        if there:
            total = np.sum([times * sums for (sums, _), times in there], axis=0)
            means = total / sum(times * count for (_, count), times in there)
            values.append(STATISTICS[statistic](means[:1], means[1:]))
    return float(np.mean(values)) if values else float("nan")


def _words(e: Estimate) -> str:
    return "-" if e.value is None else f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]"
