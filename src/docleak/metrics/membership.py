"""How well a membership attack tells providers that were in the training set from others.

The unit is the provider: every row of scores and decisions is one, and its questions are never counted as independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from docleak.errors import AttackError
from docleak.metrics.estimate import DRAWS_AT_ONCE, Estimate, clopper_pearson, expanded_tail, share_ends, unseen

#: False positive rates at which the true positive rate is asked for.
LOW_RATES = (0.10, 0.03, 0.01)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over ``n`` seeds; no deviation from a single one."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Knowledge:
    """What a supervised attack is told (provider -> member?), and the providers that are left to measure it on."""

    known: dict[str, bool]
    evaluated: tuple[str, ...]


def draw_known(truth: Mapping[str, bool], share: float = 0.15, *, rng: np.random.Generator) -> Knowledge:
    """``share`` of the providers, half of them members, drawn for the adversary (Tito et al., 2024, section 5.2.3).

    An odd number is rounded down. Raises AttackError if ``share`` is so small that a class would be missing, or so
    large that one would not be left to measure on.
    """
    of_kind = round(share * len(truth)) // 2 if 0 < share < 1 else 0
    groups = {kind: sorted(name for name, is_member in truth.items() if is_member is kind) for kind in (True, False)}
    fewest = min(len(names) for names in groups.values())
    if not 1 <= of_kind < fewest:
        raise AttackError(
            f"share {share} of {len(groups[True])} members and {len(groups[False])} non-members is {of_kind} of each; "
            "expected at least 1, with some of each left over. Take another share, or more providers."
        )
    known = {str(name): kind for kind, names in groups.items() for name in rng.choice(names, of_kind, replace=False)}
    return Knowledge(dict(sorted(known.items())), tuple(sorted(set(truth) - set(known))))


def membership_rates(
    scores: Floats,
    decisions: Bools,
    members: Bools,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    resamples: int = 2000,
) -> dict[str, Estimate]:
    """accuracy, balanced_accuracy, auc, f1 and tpr_at_10_fpr, tpr_at_3_fpr, tpr_at_1_fpr of an attack; all (P,).

    Accuracy has the exact binomial interval (Clopper & Pearson, 1934); balanced accuracy, a difference of two rates,
    Newcombe's (1998, method 10) from their exact intervals. The others have percentile bootstraps over providers,
    members and non-members resampled apart since who made the split set their numbers, with the percentiles widened for
    few providers as in ``score.aggregate``. Resamples that are 0, or 1, see no risk: the free end is then at least the
    exact bound for as many trials as the smaller class has providers (``share_ends``); so do those of an AUC where all
    scores of a class are equal (``alike_ends``). A class of one gives no bootstrap. A true positive rate is above its
    false positive rate only if chance does not explain it (``_by_chance``): resamples keep near the threshold that is.
    A rate that too few non-members resolve has no value; its ``why`` says so.
    Raises AttackError if only one class is there, the lengths differ, or a score is not finite.
    """
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level is {level} and resamples {resamples}; expected a level in (0, 1) and resamples >= 1")
    _check(scores, decisions, members)
    rows, truth = np.stack([scores, decisions.astype(np.float64)]), members.astype(bool)
    n_in, n_out = int(truth.sum()), int((~truth).sum())
    rate = partial(Estimate, n=len(truth), groups=len(truth), of="providers")
    hits, alarms = int(decisions[truth].sum()), int(decisions[~truth].sum())
    right = hits + n_out - alarms
    rates = {
        "accuracy": rate(right / len(truth), *clopper_pearson(right, len(truth), level)),
        "balanced_accuracy": rate(*_balanced(hits, n_in, alarms, n_out, level)),
    }
    inside, outside = rows[:, None, truth], rows[:, None, ~truth]  # (2, 1, members), (2, 1, non-members)
    measured: dict[str, Measure] = {"auc": _auc, "f1": _f1}
    limits = {f"tpr_at_{100 * allowed:.0f}_fpr": allowed for allowed in LOW_RATES}
    for name, allowed in limits.items():
        if _false_positives(allowed, n_out) < 1:
            needed = math.ceil(1 / allowed - 1e-9)
            why = f"{n_out} non-members cannot resolve a false positive rate of {allowed:.0%}: it takes {needed}"
            rates[name] = rate(None, why=why)
        else:
            measured[name] = _tpr_at(allowed)
    drawn = _bootstrap(inside, outside, list(measured.values()), rng, resamples)
    for (name, measure), draws in zip(measured.items(), drawn, strict=True):
        value = float(measure(inside, outside)[0])
        low, high = _interval(value, draws, min(n_in, n_out), level)
        if low and (limit := limits.get(name)) and _by_chance(value, n_in, n_out, limit) > (1 - level) / 2:
            low = min(low, limit)
        rates[name] = rate(value, low, high)
    rates["auc"] = alike_ends(rates["auc"], [(scores[truth], n_in), (scores[~truth], n_out)], level)
    return rates


def alike_ends(auc: Estimate, sides: Sequence[tuple[Floats, int]], level: float) -> Estimate:
    """An AUC with ends that hold where all scores of one of the ``sides`` (scores, providers) are equal: its resamples
    see no risk of others, and as large a share of it as is ``unseen`` may lie beyond every score of the other side."""
    risk = max((unseen(many, level) for of, many in sides if not np.ptp(of)), default=0.0)
    if auc.value is None or auc.low is None or auc.high is None:
        return auc
    value = auc.value
    return replace(auc, low=min(auc.low, (1 - risk) * value), high=max(auc.high, value + risk * (1 - value)))


def auc(scores: Floats, members: Bools) -> float:
    """The chance that a member's score is above a non-member's, ties counted half (Mann & Whitney, 1947); (P,) each.

    Raises AttackError as ``membership_rates``.
    """
    _check(scores, members, members)
    pair = np.stack([scores, scores])[:, None]
    return float(_auc(pair[..., members], pair[..., ~members])[0])


def over_seeds(values: Sequence[float]) -> Spread:
    """Mean and standard deviation (n - 1 in the denominator) over seeds. It is no interval: the providers are the same.

    Raises ValueError for no value.
    """
    if not values:
        raise ValueError("no values; expected one per seed")
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), std, len(values))


def _check(scores: Floats, decisions: Bools, members: Bools) -> None:
    faults = []
    if not scores.shape == decisions.shape == members.shape or scores.ndim != 1:
        faults.append(f"scores, decisions and members have shapes {scores.shape}, {decisions.shape}, {members.shape}")
    elif members.all() or not members.any():
        faults.append(f"all {len(members)} providers are {'members' if len(members) and members[0] else 'non-members'}")
    if not np.isfinite(scores).all():
        faults.append(f"{(~np.isfinite(scores)).sum()} scores are not finite")
    if faults:
        raise AttackError(
            f"{'; '.join(faults)}. Expected three vectors of one length, finite scores, members and non-members."
        )


def _balanced(hits: int, n_in: int, alarms: int, n_out: int, level: float) -> tuple[float, float, float]:
    """(1 + TPR - FPR) / 2 and Newcombe's interval of the difference."""
    tpr, fpr = hits / n_in, alarms / n_out
    (tpr_low, tpr_high), (fpr_low, fpr_high) = (
        clopper_pearson(hits, n_in, level),
        clopper_pearson(alarms, n_out, level),
    )
    low = tpr - fpr - math.hypot(tpr - tpr_low, fpr_high - fpr)
    high = tpr - fpr + math.hypot(tpr_high - tpr, fpr - fpr_low)
    return (1 + tpr - fpr) / 2, (1 + low) / 2, (1 + high) / 2


# Each measure takes scores and decisions of R resamples, (2, R, members) and (2, R, non-members), and gives (R,).
Measure = Callable[[Floats, Floats], Floats]


def _f1(inside: Floats, outside: Floats) -> Floats:
    """2 TP / (2 TP + FP + FN); there are members, so the denominator is 0 never."""
    hits = inside[1].sum(axis=1)
    return np.asarray(2 * hits / (hits + outside[1].sum(axis=1) + inside.shape[2]))


def _auc(inside: Floats, outside: Floats) -> Floats:
    from scipy.stats import rankdata  # takes half a second

    n_in, n_out = inside.shape[2], outside.shape[2]
    ranks = rankdata(np.concatenate([inside[0], outside[0]], axis=1), axis=1)
    return np.asarray((ranks[:, :n_in].sum(axis=1) - n_in * (n_in + 1) / 2) / (n_in * n_out))


def _tpr_at(allowed: float) -> Measure:
    def measure(inside: Floats, outside: Floats) -> Floats:
        """The share of members above the lowest threshold that few enough non-members are above; nothing between."""
        n_out = outside.shape[2]
        threshold = np.sort(outside[0], axis=1)[:, n_out - 1 - _false_positives(allowed, n_out)]
        return np.asarray((inside[0] > threshold[:, None]).mean(axis=1))

    return measure


def _by_chance(rate: float, n_in: int, n_out: int, allowed: float) -> float:
    """How often scores that know nothing find so many members, or more, before one non-member too many (negative
    hypergeometric: so many draws in any order, with no more non-members among them than are allowed)."""
    from scipy.stats import hypergeom  # takes half a second

    hits, spared = round(rate * n_in), _false_positives(allowed, n_out)
    return float(hypergeom.cdf(spared, n_in + n_out, n_out, hits + spared))


def _false_positives(allowed: float, others: int) -> int:
    """How many of the non-members may be called members."""
    return math.floor(allowed * others + 1e-9)


def _bootstrap(
    inside: Floats, outside: Floats, measures: Sequence[Measure], rng: np.random.Generator, resamples: int
) -> Floats:
    """(measures, resamples): each measure of the same resamples."""
    n_in, n_out = inside.shape[2], outside.shape[2]
    parts: list[Floats] = []
    for _ in range(0, resamples, step := max(1, DRAWS_AT_ONCE // (n_in + n_out))):
        size = min(step, resamples - sum(part.shape[1] for part in parts))
        in_drawn = inside[:, 0, rng.integers(n_in, size=(size, n_in))]  # (2, size, members)
        out_drawn = outside[:, 0, rng.integers(n_out, size=(size, n_out))]
        parts.append(np.stack([measure(in_drawn, out_drawn) for measure in measures]))
    return np.concatenate(parts, axis=1)


def _interval(value: float, draws: Floats, fewest: int, level: float) -> tuple[float | None, float | None]:
    if fewest < 2:
        return None, None
    tail = expanded_tail(fewest, level)
    low, high = (value, value) if value in (0.0, 1.0) else np.quantile(draws, (tail, 1 - tail))
    return share_ends(float(low), float(high), fewest, level)
