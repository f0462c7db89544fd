"""How much of scrubbed fields was read back: distances over tokens, improvement factor, curves over a ranking.

Dentan et al. (2024), "Reconstructing training data from document understanding models", sections 5.2 and 5.3 and
appendix B. Statistics are kept per field (``Match``); every number of a table is a pure function of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Hamming, JaroWinkler, Levenshtein

from docleak.documents.pages import gathered
from docleak.metrics.estimate import Estimate, effective, expanded_tail, share_ends, share_interval

#: The epsilon of eq. 6, which the paper does not print: it bounds the factor where a baseline reads nothing. Its table
#: 5 tells it: IpF rises with AccAt 100 % by 1 / (4 (PR of the baseline + epsilon)), see docs/fidelity.md.
EPSILON = 1e-2
#: Fields of resamples that are put to a statistic at once, at most (of one resample: all).
AT_ONCE = 1 << 18

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Match:
    """One reconstruction beside its field: ``perfect`` is 0 or 1, the others are distances in 0..1 (0: the same)."""

    perfect: float
    hamming: float
    levenshtein: float
    jaro_winkler: float


def match(truth: Sequence[int], guess: Sequence[int]) -> Match:
    """The four metrics of section 5.2 over token numbers, whatever letters the tokens stand for.

    Hamming is the share of positions that differ, Levenshtein is divided by the longer length, Jaro-Winkler is 1 -
    similarity (prefix weight 0.1, for similarities above 0.7 only). Raises ValueError for an empty field, or for a
    guess of another length: the adversary knows how many tokens there are.
    """
    if not truth or len(guess) != len(truth):
        raise ValueError(
            f"the field has {len(truth)} tokens and its reconstruction {len(guess)}; expected the same, 1+"
        )
    a, b = list(truth), list(guess)
    return Match(
        perfect=float(a == b),
        hamming=float(Hamming.normalized_distance(a, b)),
        levenshtein=float(Levenshtein.normalized_distance(a, b)),
        jaro_winkler=float(JaroWinkler.normalized_distance(a, b)),
    )


def as_array(matches: Sequence[Match]) -> Floats:
    """Matches as an array (N, 4): perfect, hamming, levenshtein, jaro_winkler."""
    return np.array([astuple(one) for one in matches], dtype=np.float64).reshape(-1, 4)


def improvement_factor(attack: Floats, baseline: Floats, *, epsilon: float = EPSILON) -> float:
    """IpF, eq. 6: by how much four means over the same N fields, arrays (N, 4), beat the public baseline's: the mean of
    four ratios, of the fields read exactly to the baseline's, and of its three distances to the attack's.

    1 says that the target model gave nothing away beyond what public data tell.
    """
    if attack.shape != baseline.shape or not len(attack) or epsilon <= 0:
        raise ValueError(
            f"IpF of {len(attack)} and {len(baseline)} fields with epsilon {epsilon}; expected the same 1+"
        )
    return float(_factor(attack, baseline, epsilon))


def _factor(attack: Floats, baseline: Floats, epsilon: float) -> Floats:
    """IpF over fields (..., N, 4), shape (...)."""
    ours, theirs = attack.mean(axis=-2) + epsilon, baseline.mean(axis=-2) + epsilon
    return np.asarray((ours[..., 0] / theirs[..., 0] + (theirs[..., 1:] / ours[..., 1:]).sum(-1)) / 4)


def ranking(scores: Sequence[float] | Floats) -> Numbers:
    """Indices by descending score, (..., N); equal scores stay in the order given. MI_SORT of algorithm 1."""
    return np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")


def first_of(share: float, fields: int) -> int:
    """ceil(p N), the number of fields that are the first ``share`` of so many.

    The paper does not say how it rounds; its table 5 (8 of 777 and of 791 fields at 1 %, 40 of 791 at 5 %) fits ceil.
    """
    return math.ceil(round(share * fields, 9))


def at(share: float, ranked: Floats) -> Floats:
    """AccAt(p) or HamAt(p), eqs. 7 and 9: the mean over the first ceil(p N) of the ``ranked`` values (..., N)."""
    return np.asarray(ranked[..., : first_of(share, ranked.shape[-1])].mean(-1))


def curve(ranked: Floats) -> Floats:
    """AccAt or HamAt of values (..., N) at p = 1/N, 2/N, ..., 1, shape (..., N): it is constant between them."""
    return np.asarray(np.cumsum(ranked, axis=-1) / np.arange(1, ranked.shape[-1] + 1), dtype=np.float64)


def over_documents(
    documents: Sequence[str],
    statistic: Callable[[Numbers], Floats],
    *,
    rng: np.random.Generator,
    rate: bool = False,
    level: float = 0.95,
    resamples: int = 1000,
) -> Estimate:
    """``statistic`` of all fields with its interval, documents resampled (the fields of one stand or fall together).

    ``documents`` names the document of each field; ``statistic`` takes the indices of the fields that enter, some
    several times, (..., N), and gives (...): many resamples are put to it at once. Percentile bootstrap, widened for
    few documents as in ``metrics.score.aggregate``; fewer than two documents give no interval, no field gives no value.
    A ``rate`` whose resamples come out 0 or 1 has at least the exact binomial bound at its free end, and one of few
    documents at both, as there (``share_interval``). Raises ValueError for a level outside (0, 1).
    """
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level is {level} and resamples {resamples}; expected a level in (0, 1) and resamples >= 1")
    members = gathered((document, index) for index, document in enumerate(documents))
    n = len(members)
    if not n:
        return Estimate(None, None, None, 0, 0)
    value = float(statistic(np.arange(len(documents))))
    if n < 2:
        return Estimate(value, None, None, len(documents), n)
    if rate and value in (0.0, 1.0):
        return Estimate(value, *share_ends(value, value, n, level), len(documents), n)
    groups = [np.array(indices) for indices in members.values()]
    draws = np.empty(resamples)
    for rows, chosen in _resampled(groups, rng, resamples):
        draws[rows] = statistic(chosen)
    alike = effective(np.array([len(group) for group in groups])) if rate else n
    tail = expanded_tail(alike, level)
    low, high = (float(end) for end in np.quantile(draws, (tail, 1 - tail)))
    low, high = share_interval(low, high, value, n, level, alike) if rate else (low, high)
    return Estimate(value, low, high, len(documents), n)


def _resampled(
    groups: Sequence[Numbers], rng: np.random.Generator, resamples: int
) -> Iterator[tuple[Numbers, Numbers]]:
    """Which resamples have one number N of fields, and their fields (R, N): those of one draw behind another."""
    sizes, fields = np.array([len(group) for group in groups]), np.concatenate(groups)
    starts = np.cumsum(sizes) - sizes
    drawn = rng.integers(len(groups), size=(resamples, len(groups)))
    lengths = sizes[drawn].sum(axis=1)
    for length in np.unique(lengths):
        alike = np.flatnonzero(lengths == length)
        for rows in np.array_split(alike, math.ceil(len(alike) * length / AT_ONCE)):
            picked = drawn[rows].ravel()
            counts = sizes[picked]
            shift = np.repeat(starts[picked] - (np.cumsum(counts) - counts), counts)
            yield rows, fields[shift + np.arange(len(shift))].reshape(len(rows), length)


#: The shares of table 5.
SHARES = (0.01, 0.05, 1.0)


def multi_shot_table(
    matches: Sequence[Match], scores: Sequence[float], documents: Sequence[str], *, rng: np.random.Generator
) -> dict[str, Estimate]:
    """Table 5's columns of a ranked attack: ``hamming_aac``, ``accuracy_auc``, ``accuracy_at_1%`` and so on.

    AccAUC (eq. 8) is the area under AccAt, HamAAC (eq. 10) the area above HamAt, both in 0..1. Each resample of
    documents is ranked anew by the same scores.
    """
    values, order = as_array(matches), np.asarray(scores, dtype=np.float64)

    def ranked(column: int, then: Callable[[Floats], Floats]) -> Callable[[Numbers], Floats]:
        return lambda chosen: then(values[np.take_along_axis(chosen, ranking(order[chosen]), -1), column])

    columns: dict[str, Callable[[Numbers], Floats]] = {
        "hamming_aac": ranked(1, lambda hamming: 1 - curve(hamming).mean(-1)),
        "accuracy_auc": ranked(0, lambda perfect: curve(perfect).mean(-1)),
    }
    for share in SHARES:
        columns[f"accuracy_at_{share:.0%}"] = ranked(0, partial(at, share))
    return {
        name: over_documents(documents, statistic, rng=rng, rate=name == "accuracy_at_100%")
        for name, statistic in columns.items()
    }


def one_shot_table(
    attack: Sequence[Match],
    baseline: Sequence[Match],
    documents: Sequence[str],
    *,
    rng: np.random.Generator,
    epsilon: float = EPSILON,
) -> dict[str, Estimate]:
    """IpF and the four means of the attack and of the public baseline (``baseline_...``), with intervals."""
    ours, theirs = as_array(attack), as_array(baseline)
    names = ("perfect", "hamming", "levenshtein", "jaro_winkler")
    columns: dict[str, Callable[[Numbers], Floats]] = {
        "improvement_factor": lambda chosen: _factor(ours[chosen], theirs[chosen], epsilon)
    }
    for prefix, array in (("", ours), ("baseline_", theirs)):
        for k, name in enumerate(names):
            columns[prefix + name] = lambda chosen, a=array, k=k: a[chosen, k].mean(-1)  # type: ignore[misc]
    return {
        name: over_documents(documents, values, rng=rng, rate=name.endswith("perfect"))
        for name, values in columns.items()
    }
