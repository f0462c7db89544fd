"""What a model still answers once the answer is hidden, of providers it was trained on and of others.

Accuracy and ANLS as in DocVQA (Tito et al., 2024, Tables 2, 7, 8). The unit is the provider: its documents stand or
fall together, so intervals resample providers, never questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from docleak.documents.pages import gathered
from docleak.metrics.estimate import Estimate, ratio_of


@dataclass(frozen=True)
class Outcome:
    """One hidden answer: whether its provider is a ``member`` of the training, and what the reply was worth.

    ``accuracy`` is 0 or 1, ``anls`` in 0..1 (similarities below 0.5 are 0); ``confidence`` is None where the model
    gives none, and such a reply never counts as confident.
    """

    provider: str
    member: bool
    accuracy: float
    anls: float
    confidence: float | None = None


@dataclass(frozen=True)
class Remembered:
    """Accuracy and ANLS of members (``positive``), others (``negative``), and positive - negative.

    Means in 0..1 (differences in -1..1) over ``n`` questions of so many providers (``groups``).
    """

    positive: tuple[Estimate, Estimate]
    negative: tuple[Estimate, Estimate]
    difference: tuple[Estimate, Estimate]


def remembered(
    outcomes: Sequence[Outcome],
    *,
    rng: np.random.Generator,
    confidence: float | None = None,
    level: float = 0.95,
    resamples: int = 2000,
) -> Remembered:
    """The means over the outcomes, or over those of at least this ``confidence`` (the paper's 0.9).

    Each side's interval is ``ratio_interval`` over its providers, so none right of n providers is not printed as "0 to
    0". That of the difference joins the two (Zou & Donner, 2008, eq. 3), which holds there, too. Both sides draw from
    ``rng``. Raises ValueError for a level outside (0, 1).
    """
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level is {level} and resamples {resamples}; expected a level in (0, 1) and resamples >= 1")
    kept = [o for o in outcomes if confidence is None or (o.confidence is not None and o.confidence >= confidence)]

    def side(member: bool, name: str) -> Estimate:
        return _mean([(o.provider, getattr(o, name)) for o in kept if o.member == member], rng, level, resamples)

    positive, negative = ((side(member, "accuracy"), side(member, "anls")) for member in (True, False))
    accuracy, anls = (difference(one, other) for one, other in zip(positive, negative, strict=True))
    return Remembered(positive, negative, (accuracy, anls))


def beyond_public(
    target: Sequence[Outcome], public: Sequence[Outcome], *, rng: np.random.Generator
) -> tuple[Estimate, Estimate]:
    """How much more of the members' than of the others' answers the training mended: accuracy and ANLS, in -2..2.

    The difference of ``remembered``, taken of what each answer gained over the public model's answer to the same
    question: if members' documents are easier by chance, they are so for both models. ``target`` and ``public`` are
    in the same order; raises ValueError if they are not.
    """
    accuracy, anls = (_spread(share) for share in remembered(_gains(target, public), rng=rng).difference)
    return accuracy, anls


def gained(target: Sequence[Outcome], public: Sequence[Outcome], *, rng: np.random.Generator) -> Estimate:
    """How much oftener the members' answers are right than the public model's to the same questions, in -1..1: what it
    told before, the training did not teach. ValueError as ``beyond_public``."""
    return _spread(remembered(_gains(target, public), rng=rng).positive[0], 1)


def _gains(target: Sequence[Outcome], public: Sequence[Outcome]) -> list[Outcome]:
    """What each answer gained, from -1..1 to 0..1."""
    if [(o.provider, o.member) for o in target] != [(o.provider, o.member) for o in public]:
        raise ValueError("the outcomes of the two models are not of the same questions in the same order")
    return [
        replace(t, accuracy=(1 + t.accuracy - p.accuracy) / 2, anls=(1 + t.anls - p.anls) / 2)
        for t, p in zip(target, public, strict=True)
    ]


def _spread(share: Estimate, less: float = 0.0) -> Estimate:
    """The inverse of ``_gains``' scale: of a mean with ``less`` 1, of a difference of two with 0."""
    value, low, high = (None if one is None else 2 * one - less for one in (share.value, share.low, share.high))
    return replace(share, value=value, low=low, high=high)


def difference(one: Estimate, other: Estimate) -> Estimate:
    """``one - other`` of two independent shares, its interval from theirs (Zou & Donner, 2008, eq. 3)."""
    of = partial(Estimate, n=one.n + other.n, groups=one.groups + other.groups)
    if one.value is None or other.value is None:
        return of(None)
    value = one.value - other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return of(value)
    below = math.hypot(one.value - one.low, other.high - other.value)
    above = math.hypot(one.high - one.value, other.value - other.low)
    return of(value, value - below, value + above)


def _mean(values: Sequence[tuple[str, float]], rng: np.random.Generator, level: float, resamples: int) -> Estimate:
    """The mean over (provider, value) and its interval over providers."""
    return ratio_of(gathered(values).values(), rng, level=level, resamples=resamples)
