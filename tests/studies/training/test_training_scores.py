"""The two-stage average and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from docleak.metrics import Estimate
from docleak.metrics.estimate import ratio_interval
from docleak.studies.training.carrying import Result, SetScores
from docleak.studies.training.scores import row_scores, two_stage


def scores(metric: str, sums: list[float], questions: list[int]) -> SetScores:
    other = [0.0] * len(sums)
    pair = (other, sums) if metric == "accuracy" else (sums, other)
    return SetScores(metric, tuple(pair[0]), tuple(pair[1]), tuple(3 * q for q in questions), tuple(questions))


def result(**sets: SetScores) -> Result:
    return Result(sets, 0, {}, 0.0)


def test_a_small_data_set_counts_as_much_as_a_large_one() -> None:
    one = result(a=scores("anls", [1.0, 1.25], [2, 2]), b=scores("accuracy", [1.0], [2]))
    row = row_scores([one], rng=np.random.default_rng(0))
    assert row.average.value == pytest.approx((2.25 / 4 + 1 / 2) / 2, abs=1e-15)
    assert row.loss.value == pytest.approx(3) and one.average == row.average.value
    assert row.average.low is None, "one document has no interval, so the average has none"
    assert (row.average.n, row.average.groups) == (6, 3)


def test_one_set_keeps_its_own_interval() -> None:
    sums, counts = [3.0, 1.0, 0.0, 2.5, 2.0], [4, 2, 3, 3, 2]
    average = row_scores([result(a=scores("anls", sums, counts))], rng=np.random.default_rng(3)).average
    interval = ratio_interval(np.array(sums), np.array(counts), np.random.default_rng(3), 0.95, 2000, share=True)
    assert (average.low, average.high) == pytest.approx(interval)


def test_limits_add_up_in_squares() -> None:
    sets = {"a": Estimate(0.5, 0.2, 0.6, 10, 5), "b": Estimate(0.1, 0.06, 0.22, 10, 5)}
    mean = two_stage(sets)
    assert mean.value == pytest.approx(0.3)
    assert mean.low == pytest.approx(0.3 - math.sqrt(0.3**2 + 0.04**2) / 2)
    assert mean.high == pytest.approx(0.3 + math.sqrt(0.1**2 + 0.12**2) / 2)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Three sets of 25 documents with 5 questions each, whose documents differ: 300 draws."""
    truths, rng = (0.2, 0.5, 0.8), np.random.default_rng(0)
    hits = narrow = 0
    for _ in range(300):
        sets = {}
        for name, truth in zip("abc", truths, strict=True):
            chance = np.clip(rng.normal(truth, 0.1, size=25), 0, 1)
            sets[name] = scores("accuracy", rng.binomial(5, chance).astype(float).tolist(), [5] * 25)
        average = row_scores([result(**sets)], rng=rng).average
        assert average.low is not None and average.high is not None
        hits += average.low <= 0.5 <= average.high
        middle, half = (average.low + average.high) / 2, (average.high - average.low) / 4
        narrow += abs(middle - 0.5) <= half
    assert 0.92 <= hits / 300 <= 0.99
    assert narrow / 300 < 0.85, "an interval of half the width would be noticed"


def test_several_trainings_count_by_document() -> None:
    one = result(a=scores("anls", [2.0, 0.0], [2, 2]))
    two = result(a=scores("anls", [0.0, 1.0], [2, 2]))
    row = row_scores([one, two], rng=np.random.default_rng(0))
    assert (one.average, two.average) == (0.5, 0.25)
    assert row.average.value == pytest.approx(0.375) and row.average.groups == 2
