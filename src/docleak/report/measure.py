"""What a run measured, in one vocabulary over all kinds of runs: the numbers that a policy bounds, that a model card
lists, and that two runs are compared by."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docleak.metrics.estimate import FEWEST, Estimate, effective, expanded_tail, number_text, ratio
from docleak.metrics.memorisation import difference as independent

RESAMPLES, LEVEL = 2000, 0.95
#: By document or provider: (sum, count) of what was measured of it.
Groups = Mapping[str, tuple[float, int]]


@dataclass(frozen=True)
class Meaning:
    """What a measure is called, whether it is printed in per cent, and what it says."""

    head: str
    percent: bool
    says: str


FIELDS, EXPLAINED, MEMBERSHIP = "fields-read", "gradient-explained", "membership"
MEMORY, SHOWN, CLAIMED = "memorisation", "epsilon-measured", "epsilon-claimed"
DOCUMENT_AUC, DOCUMENT_TPR_10, DOCUMENT_TPR_1 = "document-auc", "document-tpr-at-10-fpr", "document-tpr-at-1-fpr"
DOCUMENT_FIELDS = "document-fields-known"
PRESENCE = "presence-auc"
MEASURES = {
    FIELDS: Meaning(
        "Private fields read", True,
        "Share of the private fields whose value any route gives exactly; of captured updates also of those all of "
        "whose tokens are in the set of tokens read, which has no order.",
    ),
    EXPLAINED: Meaning(
        "Gradient explained", False,
        "Of what the template that the attacker had (the blank one, or the one published under a defence) leaves "
        "unexplained of the gradient that was sent, the share that the best reconstruction explains: the mean over "
        "pages, and in brackets the least and the greatest page, no interval of confidence.",
    ),
    MEMBERSHIP: Meaning(
        "Membership told", True,
        "The most by which an attack is right about more of the providers than saying the same of all would be, or, "
        "where no coins say who is a member and that is less sure, than by the public model's answers; the interval "
        "holds for all attacks together.",
    ),
    MEMORY: Meaning(
        "Memorisation", True,
        "Right answers to what the page no longer shows, on members' documents less on others'; where no coins say who "
        "is a member and a public model was given, less its own difference, or its answers on members' documents, "
        "whichever is less sure.",
    ),
    DOCUMENT_AUC: Meaning(
        "Documents told (AUC)", False,
        "The greatest AUC of a score that tells documents that were trained on from others; 1/2 is chance. The "
        "interval holds for all scores together.",
    ),
    DOCUMENT_TPR_10: Meaning(
        "Documents told at 10 % false alarms", True,
        "The greatest share of the documents that were trained on which a score finds, where it is wrong about one in "
        "ten others; 10 % is chance. The interval holds for all scores together.",
    ),
    DOCUMENT_TPR_1: Meaning(
        "Documents told at 1 % false alarms", True,
        "The same where it is wrong about one in a hundred others; 1 % is chance, and it takes 100 others.",
    ),
    DOCUMENT_FIELDS: Meaning(
        "Fields known", True,
        "How much oftener the true value, taken off its page, ranks first among others on documents that were trained "
        "on than on others.",
    ),
    PRESENCE: Meaning(
        "Presence told (AUC)", False,
        "The greatest AUC of a score that tells pages, or providers, that an update holds from others; 1/2 is chance. "
        "The interval holds for all scores together.",
    ),
    SHOWN: Meaning("Epsilon measured", False, "The epsilon that the attack shows to be exceeded, a lower bound."),
    CLAIMED: Meaning("Epsilon claimed", False, "The epsilon that the lineage of the weights claims, an upper bound."),
}  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """One number: ``what`` of MEASURES, ``of`` which model, release, client or defence.

    ``doubts`` say why a low number is no all-clear. ``by`` holds what the number was computed from, by document or
    provider; where it is a difference, ``less`` holds the other side. ``unbounded``: there is no claim at
    all. ``most``: what could have been shown at most, and ``most_as`` by or under what. ``counted``: what counts as
    read, where it is no value as such. ``printed``: the number in words, where it takes more than its value, such as
    delta and unit of an epsilon. ``at``: of an epsilon its delta, unit and, if it was shown, confidence: epsilons of
    which these differ, or of which one is not known, are not compared.
    ``union``: what it is at most where two routes may have given different fields, of which the number is one route's;
    the doubt that this is (its ``why``) falls where this, too, keeps to a bound.
    """

    what: str
    of: str
    estimate: Estimate
    doubts: tuple[str, ...] = ()
    by: Groups = field(default_factory=dict, repr=False)
    less: Groups = field(default_factory=dict, repr=False)
    unbounded: bool = False
    most: float | None = None
    most_as: str = "by so few guesses"
    counted: str = ""
    printed: str = ""
    at: tuple[float | str | None, ...] = ()
    union: Estimate | None = None

    @property
    def text(self) -> str:
        """The number with its interval, or why there is none."""
        if self.unbounded:
            return "none claimed"
        if self.printed:
            return self.printed
        percent = MEASURES[self.what].percent
        return self.estimate.text(1 if percent else 3, percent=percent) if self.estimate.value is not None else (
            self.estimate.why or "not measured"
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Plain values; groups are left out, for their names may say whose the documents are."""
        return {"measure": self.what, "of": self.of, "unbounded": self.unbounded, "doubts": list(self.doubts),
                "estimate": self.estimate.to_json()}  # fmt: skip


def claimed(
    of: str, epsilon: float | None, delta: float | None, unit: str, printed: str = "", doubts: Sequence[str] = (), *,
    of_one: bool = False,
) -> Measure:  # fmt: skip
    """The epsilon of a claim, None for none, ``printed`` with all that it holds of. A bound on epsilon is on a
    provider's, unless all is ``of_one`` unit: of a claim per single ``unit`` of those that a provider may have several
    of, a low number is no all-clear, nor is it with other ``doubts``."""
    several = f"It is per {unit}, and one provider may have several: of all of them together more is given away."
    doubts = (*([several] if unit in ("document", "record") and not of_one else []), *doubts)
    number = Estimate.exactly(epsilon)
    return Measure(CLAIMED, of, number, doubts, unbounded=epsilon is None, printed=printed, at=(delta, str(unit)))


def holding(name: str, held: object) -> str:
    """A name and a digest of what is held: a group of one name that holds something else is another one."""
    return f"{name} {hashlib.sha256(str(held).encode(errors='surrogatepass')).hexdigest()[:16]}"


def holdings(held: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Name -> ``holding`` of all that stands beside that name, in whatever order."""
    groups = defaultdict[str, list[str]](list)
    for name, item in held:
        groups[name].append(str(item))
    return {name: holding(name, sorted(items)) for name, items in groups.items()}


def measured(groups: Sequence[tuple[str, float, int]]) -> dict[str, tuple[float, int]]:
    """(group, sum, count) summed by group."""
    sums: dict[str, tuple[float, int]] = {}
    for name, total, count in groups:
        before = sums.get(name, (0.0, 0))
        sums[name] = (before[0] + total, before[1] + count)
    return sums


def share_of(groups: Groups, rng: np.random.Generator, *, of: str = "fields", share: bool = True) -> Estimate:
    """Sum over count with its interval, bootstrapped over the groups; no value where nothing was counted."""
    sums, counts = (np.array([pair[i] for pair in groups.values() if pair[1]]) for i in (0, 1))
    why = ("nothing could be counted", "one document or provider gives no interval", "")[min(len(sums), 2)]
    return ratio(sums.astype(float), counts.astype(np.int64), rng, share=share, of=of, why=why)


def shift(estimate: Estimate, by: float) -> Estimate:
    """The estimate plus a constant."""
    value, low, high = (None if end is None else end + by for end in (estimate.value, estimate.low, estimate.high))
    return replace(estimate, value=value, low=low, high=high)


@dataclass(frozen=True)
class Difference:
    """By how much ``second`` is more than ``first``, ``paired`` over the same documents or providers, or not.

    ``bounded``: no resample differed, and the interval is made of the ends of both single ones; ``widened``: one side
    has all or none, and an end is what the two single ones make it."""

    first: Measure
    second: Measure
    estimate: Estimate
    paired: bool
    bounded: bool = False
    widened: bool = False

    @property
    def differs(self) -> bool | None:
        """Whether the interval says that the two differ; None where it does, and the lower number has doubts."""
        low, high = self.estimate.low, self.estimate.high
        if low is None or high is None or low <= 0 <= high:
            return False
        return None if (self.first if low > 0 else self.second).doubts else True


def difference(first: Measure, second: Measure, rng: np.random.Generator, *, same: bool) -> Difference:
    """Second less first. Where ``same`` says that groups of one name are one document, and both have the same, each
    resample draws them for both; else each is drawn for itself. Groups of which nothing was counted are none, and of
    fewer than FEWEST there is no interval; unequal ones count as ``effective`` says. Resamples of a side whose groups
    are all alike (nothing read, or all) show no risk of it: there the interval is at least as wide as the two single
    ones make it (Zou & Donner, 2008). Epsilons at other deltas, or per other units, have no difference.
    """
    if first.unbounded or second.unbounded:
        why = f"{first.text} in the first, {second.text} in the second"
        return Difference(first, second, Estimate(None, why=why), False)
    if first.estimate.value is None or second.estimate.value is None:
        lacking = (one.estimate.why for one in (first, second) if one.estimate.value is None)
        why = next(filter(None, lacking), "not measured in both")
        return Difference(first, second, Estimate(None, why=why), False)
    if first.what in (SHOWN, CLAIMED) and (first.at != second.at or not first.at or {None, ""} & {*first.at}):
        why = f"{first.text} in the first, {second.text} in the second: that is no difference of one epsilon"
        return Difference(first, second, Estimate(None, why=why), False)
    if first.by and second.by and bool(first.less) != bool(second.less):
        why = "beyond others' in one, beyond the public model's answers alone in the other: two numbers of two things"
        return Difference(first, second, Estimate(None, why=why), False)
    value = second.estimate.value - first.estimate.value
    if not (first.by and second.by):
        return Difference(first, second, Estimate(value, why="no interval: it was not counted by document"), False)
    sides = tuple(
        tuple({name: pair for name, pair in groups.items() if pair[1]} for groups in side)
        for side in ((first.by, second.by), (first.less, second.less))
    )
    paired = same and all(set(one) == set(other) for one, other in sides)
    least = min(len(groups) for pair in sides for groups in pair if groups)
    if least < FEWEST:
        told = "document, provider or client" if least == 1 else "documents, providers or clients"
        why = f"no interval: {least} {told}, and fewer than {FEWEST} decide nothing"
        return Difference(first, second, Estimate(value, groups=least, why=why), paired)
    drawn = np.zeros(RESAMPLES)
    for sign, (ours, theirs) in zip((1, -1), sides, strict=True):
        if ours and theirs:
            drawn += sign * _drawn(ours, theirs, rng, paired=paired)
    counts = [[count for _, count in groups.values()] for pair in sides for groups in pair if groups]
    tail = expanded_tail(min(effective(np.array(of)) for of in counts), LEVEL)
    low, high = (float(end) for end in np.quantile(drawn, (tail, 1 - tail)))
    widened, bounded = False, low == high and first.what != EXPLAINED  # whose ends are the least and the greatest page
    if bounded:  # every resample gave the same: the ends of both intervals bound it
        ends = [getattr(one.estimate, end) for one, end in
                ((second, "low"), (first, "high"), (second, "high"), (first, "low"))]  # fmt: skip
        low, high = (ends[0] - ends[1], ends[2] - ends[3]) if None not in ends else (math.nan, math.nan)
    elif any(_alike(groups) for pair in sides for groups in pair) and first.what != EXPLAINED:
        joint = independent(second.estimate, first.estimate)
        wide = (
            low if joint.low is None else min(low, joint.low),
            high if joint.high is None else max(high, joint.high),
        )
        widened, (low, high) = wide != (low, high), wide
    known = not math.isnan(low) and low < high
    why = "" if known else "every resample gave the same, which is no interval"
    estimate = Estimate(value, low if known else None, high if known else None, first.estimate.n, least, why=why)
    return Difference(first, second, estimate, paired, bounded and known, widened)


def _alike(groups: Groups) -> bool:
    return len({total / count for total, count in groups.values() if count}) == 1


def _drawn(ours: Groups, theirs: Groups, rng: np.random.Generator, *, paired: bool) -> NDArray[np.float64]:
    """Resampled ratios of ``theirs`` less those of ``ours``; one draw for both where they are ``paired``."""
    names = sorted(ours)
    others = names if paired else sorted(theirs)
    picked = rng.integers(len(names), size=(RESAMPLES, len(names)))
    picked_others = picked if paired else rng.integers(len(others), size=(RESAMPLES, len(others)))
    return _ratios(theirs, others, picked_others) - _ratios(ours, names, picked)


def _ratios(groups: Groups, names: Sequence[str], picked: NDArray[np.int64]) -> NDArray[np.float64]:
    sums, counts = (np.array([groups[name][i] for name in names], dtype=float)[picked].sum(axis=1) for i in (0, 1))
    ratios: NDArray[np.float64] = sums / np.maximum(counts, 1)
    return ratios


def number_of(value: float, what: str) -> str:
    """A bound or a difference as the measure prints its numbers."""
    percent = MEASURES[what].percent
    return number_text(value, 1 if percent else 3, percent=percent)
