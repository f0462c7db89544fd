from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from docleak.metrics.estimate import Estimate
from docleak.metrics.memorisation import Outcome, beyond_public, difference, remembered


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def outcomes(side: bool, rows: list[list[float]], confidence: float | None = 0.95) -> list[Outcome]:
    """One list of values per provider, used as accuracy; ANLS is 0.1 below it."""
    return [
        Outcome(f"{side}-{i}", side, value, max(value - 0.1, 0.0), confidence)
        for i, values in enumerate(rows)
        for value in values
    ]


def test_means_are_over_questions_and_counts_are_told() -> None:
    means = remembered([*outcomes(True, [[1, 1, 0], [0]]), *outcomes(False, [[0], [0, 0]])], rng=rng())
    accuracy, anls = means.positive
    assert accuracy.value == 0.5 and anls.value == pytest.approx(0.45)
    assert (accuracy.n, accuracy.groups) == (4, 2)
    assert means.negative[0].value == 0 and (means.negative[0].n, means.negative[0].groups) == (3, 2)
    assert means.difference[0].value == 0.5
    assert (means.difference[0].n, means.difference[0].groups) == (7, 4)


def test_nothing_remembered_of_few_providers_is_no_proof() -> None:
    """0 of n providers: the exact binomial bound (Clopper & Pearson), also in the difference of two such sides."""
    means = remembered([*outcomes(True, [[0]] * 10), *outcomes(False, [[0]] * 20)], rng=rng())
    bounds = 1 - 0.025 ** (1 / 10), 1 - 0.025 ** (1 / 20)
    assert (means.positive[0].low, means.positive[0].high) == (0, pytest.approx(bounds[0]))
    gap = means.difference[0]
    assert gap.value == 0
    assert (gap.low, gap.high) == (pytest.approx(-bounds[1]), pytest.approx(bounds[0]))


def test_no_confident_answer_says_so() -> None:
    sure, unsure = outcomes(True, [[1], [1]], 0.95), outcomes(False, [[1], [0]], 0.5)
    means = remembered([*sure, *unsure, *outcomes(False, [[0]], None)], rng=rng(), confidence=0.9)
    assert means.positive[0].value == 1
    assert means.negative == (Estimate(None),) * 2
    assert means.difference[0] == Estimate(None, n=2, groups=2)
    assert remembered([], rng=rng()).difference[1].value is None


def test_exactly_the_threshold_is_confident() -> None:
    means = remembered(outcomes(True, [[1], [0]], 0.9), rng=rng(), confidence=0.9)
    assert means.positive[0].n == 2


def test_one_provider_gives_no_interval() -> None:
    means = remembered([*outcomes(True, [[1, 0, 1]]), *outcomes(False, [[0], [1]])], rng=rng())
    assert means.positive[0].low is None and means.difference[0].low is None
    assert means.difference[0].value == pytest.approx(2 / 3 - 0.5)


def test_repeated_questions_of_a_provider_do_not_narrow_the_interval() -> None:
    once = [[float(i < 6)] for i in range(20)]
    many = [row * 30 for row in once]
    one, other = (remembered(outcomes(True, rows), rng=rng()).positive[0] for rows in (once, many))
    assert other.n == 30 * one.n
    assert (other.low, other.high) == (pytest.approx(one.low), pytest.approx(one.high))


def test_the_interval_of_the_difference_holds_the_truth_as_often_as_it_says() -> None:
    """Beta-distributed providers, 1 to 6 questions each; truth 0.35 against 0.15."""
    draw = rng(7)

    def side(member: bool, mean: float, providers: int) -> list[Outcome]:
        rates = draw.beta(4 * mean, 4 * (1 - mean), size=providers)
        return outcomes(member, [draw.binomial(1, rate, size=draw.integers(1, 7)).tolist() for rate in rates])

    held = []
    for seed in range(300):
        rows = [*side(True, 0.35, 25), *side(False, 0.15, 25)]
        gap = remembered(rows, rng=rng(seed), resamples=400).difference[0]
        assert gap.low is not None and gap.high is not None
        held.append(gap.low <= 0.2 <= gap.high)
    assert 0.91 <= np.mean(held) <= 0.985, np.mean(held)


def test_the_difference_is_the_papers_formula() -> None:
    """Newcombe's method 10 is the case of two Wilson intervals: his example, 56/70 and 48/80 (1998, table II, a)."""

    def wilson(hits: int, n: int) -> Estimate:
        z, p = 1.959964, hits / n
        centre, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return Estimate(p, (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n), n, n)

    gap = difference(wilson(56, 70), wilson(48, 80))
    assert (gap.low, gap.high) == (pytest.approx(0.0524, abs=1e-4), pytest.approx(0.3339, abs=1e-4))


def test_a_level_that_makes_no_sense_is_refused() -> None:
    for wrong in ({"level": 0.0}, {"level": 1.0}, {"resamples": 0}):
        with pytest.raises(ValueError, match="level"):
            remembered([], rng=rng(), **wrong)  # type: ignore[arg-type]


def test_what_the_public_model_knew_is_taken_off() -> None:
    """Members' documents are easier for both models: the plain difference is 0.5, training added 0 to it, or 0.5."""
    rng = np.random.default_rng(0)
    public = [Outcome(f"p{i}", i % 2 == 0, float(i % 2 == 0 or i % 4 == 1), 0.0) for i in range(40)]
    assert remembered(public, rng=rng).difference[0].value == pytest.approx(0.5)
    same = beyond_public(public, public, rng=rng)
    assert same[0].value == 0 and same[0].n == 40 and same[0].groups == 40
    worse = [replace(o, accuracy=o.accuracy if o.member else 0.0) for o in public]
    added = beyond_public(worse, public, rng=rng)[0]
    assert added.value == pytest.approx(0.5) and added.low is not None and 0 < added.low < 0.5 < (added.high or 0)
    with pytest.raises(ValueError, match="same questions"):
        beyond_public(public[1:], public[:-1], rng=rng)
