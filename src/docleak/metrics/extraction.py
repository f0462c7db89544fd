"""How much of scrubbed fields was read back: distances over tokens, improvement factor, curves over a ranking.

Dentan et al. (2024), "Reconstructing training data from document understanding models", sections 5.2 and 5.3 and
appendix B. Statistics are kept per field (``Match``); every number of a table is a pure function of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Hamming, JaroWinkler, Levenshtein

from docleak.metrics.estimate import Estimate, expanded_tail

#: The epsilon of eq. 6, which the paper does not print: it bounds the factor where a baseline reads nothing. Its table
#: 5 tells it: IpF rises with AccAt 100 % by 1 / (4 (PR of the baseline + epsilon)), see docs/fidelity.md.
EPSILON = 1e-2

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
    """IpF, eq. 6: by how much four means over the same N fields, arrays (N, 4), beat the public baseline's.

    1 says that the target model gave nothing away beyond what public data tell.
    """
    if attack.shape != baseline.shape or not len(attack) or epsilon <= 0:
        raise ValueError(
            f"IpF of {len(attack)} and {len(baseline)} fields with epsilon {epsilon}; expected the same 1+"
        )
    ours, theirs = attack.mean(axis=0) + epsilon, baseline.mean(axis=0) + epsilon
    return float((ours[0] / theirs[0] + (theirs[1:] / ours[1:]).sum()) / 4)


def ranking(scores: Sequence[float] | Floats) -> Numbers:
    """Indices by descending score, (N,); equal scores stay in the order given. MI_SORT of algorithm 1."""
    return np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")


def at(share: float, ranked: Floats) -> float:
    """AccAt(p) or HamAt(p), eqs. 7 and 9: the mean over the first ceil(p N) of the ``ranked`` values (N,).

    The paper does not say how it rounds; its table 5 (8 of 777 and of 791 fields at 1 %, 40 of 791 at 5 %) fits ceil.
    """
    if not 0 < share <= 1 or not len(ranked):
        raise ValueError(f"the mean over a share of {share} of {len(ranked)} values; expected a share in (0, 1] of 1+")
    return float(ranked[: math.ceil(round(share * len(ranked), 9))].mean())


def curve(ranked: Floats) -> Floats:
    """AccAt or HamAt at p = 1/N, 2/N, ..., 1, shape (N,): it is constant between them."""
    return np.asarray(np.cumsum(ranked) / np.arange(1, len(ranked) + 1), dtype=np.float64)


def accuracy_auc(perfect: Floats) -> float:
    """AccAUC, eq. 8, of the 0/1 values of ranked fields, (N,): the area under AccAt, in 0..1."""
    return float(curve(perfect).mean())


def hamming_aac(hamming: Floats) -> float:
    """HamAAC, eq. 10, of the Hamming distances of ranked fields, (N,): the area above HamAt, in 0..1."""
    return float(1 - curve(hamming).mean())


def over_documents(
    documents: Sequence[str],
    statistic: Callable[[Numbers], float],
    *,
    rng: np.random.Generator,
    rate: bool = False,
    level: float = 0.95,
    resamples: int = 1000,
) -> Estimate:
    """``statistic`` of all fields with its interval, documents resampled (the fields of one stand or fall together).

    ``documents`` names the document of each field; ``statistic`` takes the indices of the fields that enter, some
    several times. Percentile bootstrap, widened for few documents as in ``metrics.score.aggregate``; fewer than two
    documents give no interval, no field gives no value. A ``rate`` of exactly 0 or 1 over all documents has the exact
    binomial bound at its free end, as there. Raises ValueError for a level outside (0, 1).
    """
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level is {level} and resamples {resamples}; expected a level in (0, 1) and resamples >= 1")
    members: dict[str, list[int]] = {}
    for index, document in enumerate(documents):
        members.setdefault(document, []).append(index)
    n = len(members)
    if not n:
        return Estimate(None, None, None, 0, 0)
    value = statistic(np.arange(len(documents)))
    if n < 2:
        return Estimate(value, None, None, len(documents), n)
    if rate and value in (0.0, 1.0):
        unseen = 1 - ((1 - level) / 2) ** (1 / n)
        low, high = (0.0, unseen) if value == 0 else (1 - unseen, 1.0)
        return Estimate(value, low, high, len(documents), n)
    groups = [np.array(indices) for indices in members.values()]
    draws = [statistic(np.concatenate([groups[i] for i in rng.integers(n, size=n)])) for _ in range(resamples)]
    tail = expanded_tail(n, level)
    low, high = np.quantile(draws, (tail, 1 - tail))
    return Estimate(value, float(low), float(high), len(documents), n)


#: The shares of table 5.
SHARES = (0.01, 0.05, 1.0)


def multi_shot_table(
    matches: Sequence[Match], scores: Sequence[float], documents: Sequence[str], *, rng: np.random.Generator
) -> dict[str, Estimate]:
    """Table 5's columns of a ranked attack: ``hamming_aac``, ``accuracy_auc``, ``accuracy_at_1%`` and so on.

    Each resample of documents is ranked anew by the same scores.
    """
    values, order = as_array(matches), np.asarray(scores, dtype=np.float64)

    def ranked(column: int, then: Callable[[Floats], float]) -> Callable[[Numbers], float]:
        return lambda chosen: then(values[chosen][ranking(order[chosen])][:, column])

    columns: dict[str, Callable[[Numbers], float]] = {
        "hamming_aac": ranked(1, hamming_aac),
        "accuracy_auc": ranked(0, accuracy_auc),
    }
    for share in SHARES:
        columns[f"accuracy_at_{share:.0%}"] = ranked(0, lambda found, p=share: at(p, found))  # type: ignore[misc]
    return {
        name: over_documents(documents, each, rng=rng, rate=name == "accuracy_at_100%")
        for name, each in columns.items()
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
    columns: dict[str, Callable[[Numbers], float]] = {
        "improvement_factor": lambda chosen: improvement_factor(ours[chosen], theirs[chosen], epsilon=epsilon)
    }
    for prefix, array in (("", ours), ("baseline_", theirs)):
        for k, name in enumerate(names):
            columns[prefix + name] = lambda chosen, a=array, k=k: float(a[chosen, k].mean())  # type: ignore[misc]
    return {
        name: over_documents(documents, each, rng=rng, rate=name.endswith("perfect")) for name, each in columns.items()
    }
