"""Confidence sequences: they hold at every look, and they decide."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from docleak.metrics.sequence import mean_over_time


def left_out(draw: str, mean: float, *, peek: bool, tries: int = 400, n: int = 40) -> float:
    """The share of simulated tables whose interval lost the true mean: at the end, or, with ``peek``, under the rule of
    an adversary who stops at the first look that leaves it out."""
    rng = np.random.default_rng(7)
    lost = 0
    for _ in range(tries):
        values = (
            rng.binomial(1, mean, n).astype(float) if draw == "coins" else rng.beta(0.3 * mean / (1 - mean), 0.3, n)
        )
        # the interval only ever shrinks, so that of the end has been lost if any look has lost it
        low, high = mean_over_time(values, planned=12 if peek else n)
        lost += not low <= mean <= high
    return lost / tries


@pytest.mark.parametrize("draw", ["coins", "skewed"])
@pytest.mark.parametrize("mean", [0.05, 0.5, 0.8])
def test_whoever_looks_after_every_page_is_misled_in_one_table_of_twenty_at_most(draw: str, mean: float) -> None:
    assert left_out(draw, mean, peek=True) <= 0.05 + 0.02


def test_who_asks_for_more_pages_after_a_look_keeps_the_bets_that_were_laid() -> None:
    """Laid anew for each number of pages, each look had a chance of its own to be wrong (8 % of coins, six looks)."""
    plans, rng = (6, 9, 14, 22, 40), np.random.default_rng(11)
    for _ in range(40):
        values = rng.binomial(1, 0.5, plans[-1]).astype(float)
        kept = [mean_over_time(values[:n], planned=plans[: number + 1]) for number, n in enumerate(plans)]
        assert kept[0] == mean_over_time(values[:6], planned=6)
        assert all(low <= lower and higher <= high for (low, high), (lower, higher) in pairwise(kept))


def test_an_interval_that_is_looked_at_over_and_over_as_if_it_were_the_only_one_does_not_pass() -> None:
    """The planted fault: 1.96 standard errors at every page from the fifth on."""
    rng = np.random.default_rng(3)
    lost = 0
    for _ in range(300):
        values = rng.binomial(1, 0.5, 40)
        looks = [values[:n] for n in range(5, 41)]
        lost += any(abs(v.mean() - 0.5) > 1.96 * v.std() / len(v) ** 0.5 for v in looks)
    assert lost / 300 > 0.15


def test_the_interval_shrinks_with_more_pages_and_a_clear_difference_is_decided_within_eight() -> None:
    narrow, wide = (mean_over_time([0.5, 0.7] * n, planned=2 * n) for n in (40, 5))
    assert wide[0] < narrow[0] < 0.6 < narrow[1] < wide[1]
    assert mean_over_time([1.0] * 8, planned=8)[0] > 0.5
    assert mean_over_time([], planned=5) == (0.0, 1.0)


@pytest.mark.parametrize("values", [[0.2, 1.5], [-0.1]])
def test_values_outside_of_the_range_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"expected all in \[0, 1\]"):
        mean_over_time(values, planned=2)
