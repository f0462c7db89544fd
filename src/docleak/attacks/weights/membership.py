"""Which reconstructions are plausible: the membership metrics of Dentan et al. (2024), section 4.3, and one of ours.

Theirs ask how surprising a reading is to the public model, so that a surprising mistake comes first, too. Ours asks
how sure the attack itself was of its least sure token (docs/results/cdmi/ranking.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import TypeVar

from docleak.attacks.asking import blamed
from docleak.attacks.registries import METRICS
from docleak.attacks.weights.cdmi import Attempt
from docleak.documents.ranges import short
from docleak.errors import AttackError

T = TypeVar("T")


def perplexity(likelihoods: Sequence[float]) -> float:
    """exp of the mean negative log likelihood of a field's tokens (Jelinek et al., 1977)."""
    return math.exp(-sum(math.log(max(p, 1e-300)) for p in likelihoods) / len(likelihoods))


def raw_perplexity(attempt: Attempt) -> float:
    """The reading's perplexity to the public model."""
    return perplexity(attempt.public)


def perplexity_ratio(attempt: Attempt) -> float:
    """Public perplexity over target perplexity."""
    return perplexity(attempt.public) / perplexity(attempt.target)


def raw_and_ratio(attempt: Attempt) -> float:
    """Public perplexity times its ratio to the target's."""
    return perplexity(attempt.public) * perplexity_ratio(attempt)


def max_gap(attempt: Attempt) -> float:
    """The largest difference of a token's likelihood at sampling and to the public model."""
    return max(t - p for t, p in zip(attempt.target, attempt.public, strict=True))


def max_ratio(attempt: Attempt) -> float:
    """The largest ratio of a token's likelihood at sampling and to the public model."""
    return max(t / max(p, 1e-300) for t, p in zip(attempt.target, attempt.public, strict=True))


def weakest_token(attempt: Attempt) -> float:
    """The likelihood at sampling of the least likely token."""
    return min(attempt.target)


#: What an audit sorts by; the paper's tables do by PUBLISHED, which of its five it does not say.
DEFAULT_METRIC, PUBLISHED_METRIC = "weakest-token", "perplexity-ratio"


def plausibility(attempt: Attempt, metric: str) -> float:
    """The metric of that name, or one's own; AttackError lists the known ones, and says where one gives no number."""
    score = METRICS.load(metric)
    if METRICS.plain(metric):
        return score(attempt)
    with blamed(f"the membership metric {metric}", score):
        value = score(attempt)
    if not isinstance(value, Real) or not math.isfinite(value):
        raise AttackError(f"the membership metric {metric} gave {short(value)}; expected a finite number.")
    return float(value)


def choose(attempts: Sequence[T], score: Callable[[T], float]) -> int:
    """MI_FILTER of algorithm 1: the number of the attempt with the highest score, the first of equal ones."""
    scores = [score(attempt) for attempt in attempts]
    return scores.index(max(scores))
