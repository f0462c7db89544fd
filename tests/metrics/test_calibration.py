"""Reliability of stated probabilities, against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from docleak.metrics.calibration import brier, calibration_error, reliability


def test_brier_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        p, y = rng.random(30), rng.integers(0, 2, 30).astype(float)
        assert brier(p, y) == pytest.approx(brier_score_loss(y, p))


def test_bins_are_scikit_learns_quantiles() -> None:
    rng = np.random.default_rng(1)
    p, y = rng.random(100), rng.integers(0, 2, 100).astype(float)
    true, stated = calibration_curve(y, p, n_bins=5, strategy="quantile")
    diagram = reliability(p, y, bins=5)
    assert [one.stated for one in diagram] == pytest.approx(stated)
    assert [one.true for one in diagram] == pytest.approx(true)
    assert [one.count for one in diagram] == [20] * 5


def test_calibration_error_by_hand() -> None:
    p, y = np.array([0.1, 0.2, 0.8, 0.9]), np.array([0.0, 1.0, 1.0, 1.0])
    assert calibration_error(p, y, bins=2) == pytest.approx((abs(0.15 - 0.5) + abs(0.85 - 1)) / 2)
    assert calibration_error(p, y, bins=9) == pytest.approx((0.1 + 0.8 + 0.2 + 0.1) / 4), "a bin for each"


def test_true_statements_are_told_from_false_ones() -> None:
    rng = np.random.default_rng(2)
    p = rng.random(4000)
    y = (rng.random(4000) < p).astype(float)
    assert calibration_error(p, y) < 0.03 < 0.15 < calibration_error(1 - p, y)
    assert brier(p, y) < brier(np.full(4000, y.mean()), y) < brier(1 - p, y)


def test_impossible_statements_are_refused() -> None:
    for p, y in (([], []), ([0.5], [1.0, 0.0]), ([1.5], [1.0])):
        with pytest.raises(ValueError, match="expected as many"):
            brier(np.array(p), np.array(y))


def test_bins_of_unequal_size_count_by_their_fields() -> None:
    """Seven fields in five bins of 2, 2, 1, 1, 1: ECE is a mean over fields, not over bins."""
    p = np.array([0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.9])
    y = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    gaps = [2 * abs(0.15 - 0.5), 2 * abs(0.4 - 1), abs(0.6 - 0), abs(0.7 - 1), abs(0.9 - 1)]
    assert calibration_error(p, y) == pytest.approx(sum(gaps) / 7)
