"""The calibrated answer: it learns what tells right tokens, states true probabilities, and never sees a truth."""

from __future__ import annotations

import inspect
from itertools import product

import numpy as np
import pytest

from docleak.attacks.weights import Attempt
from docleak.attacks.weights.calibration import FEATURES, Calibrator, at_least, features_of, fit_calibrator
from docleak.errors import AttackError
from docleak.metrics.calibration import brier, calibration_error

Readings = list[tuple[list[Attempt], int]]


def made(count: int, rng: np.random.Generator) -> tuple[Readings, list[list[bool]]]:
    """Readings whose tokens are right with exactly the likelihood that the target states."""
    readings: Readings = []
    right = []
    for _ in range(count):
        likely = rng.uniform(0.05, 0.95, size=int(rng.integers(3, 9)))
        public = rng.uniform(0.05, 0.95, size=len(likely))
        tokens = tuple(int(t) for t in rng.integers(0, 1000, len(likely)))
        readings.append(([Attempt(tokens, tuple(likely.tolist()), tuple(public.tolist()))], 0))
        right.append([bool(rng.random() < p) for p in likely])
    return readings, right


def test_it_states_true_probabilities_on_fields_it_has_not_seen() -> None:
    rng = np.random.default_rng(0)
    calibrator = fit_calibrator(*made(300, rng))
    readings, right = made(300, rng)
    p = np.concatenate([calibrator.tokens(*reading) for reading in readings])
    y = np.array([one for flags in right for one in flags], dtype=float)
    assert calibration_error(p, y) < 0.05
    assert brier(p, y) < 0.9 * brier(np.full(len(y), y.mean()), y)


def test_shuffled_truth_teaches_nothing() -> None:
    rng = np.random.default_rng(1)
    readings, right = made(300, rng)
    flat = [one for flags in right for one in flags]
    rng.shuffle(flat)
    parts = iter(flat)
    calibrator = fit_calibrator(readings, [[next(parts) for _ in flags] for flags in right])
    fresh, true = made(300, rng)
    p = np.concatenate([calibrator.tokens(*reading) for reading in fresh])
    y = np.array([one for flags in true for one in flags], dtype=float)
    assert brier(p, y) > 0.97 * brier(np.full(len(y), y.mean()), y)


def test_what_never_varies_has_scale_one_and_no_weight() -> None:
    """With one attempt per field the attempts always agree."""
    calibrator = fit_calibrator(*made(40, np.random.default_rng(3)))
    at = FEATURES.index("agreement")
    assert (calibrator.mean[at], calibrator.scale[at]) == (1.0, 1.0) and abs(calibrator.weights[at]) < 1e-9


def test_features_by_hand() -> None:
    attempts = [Attempt((7, 8, 7), (0.5, 0.25, 1.0), (0.1, 0.2, 0.3)), Attempt((7, 9, 9), (0.5, 0.5, 0.5), (0.1,) * 3)]
    rows = features_of(attempts, 0)
    by_name = dict(zip(FEATURES, rows.T, strict=True))
    assert by_name["target"] == pytest.approx(np.log([0.5, 0.25, 1.0]))
    assert by_name["public"] == pytest.approx(np.log([0.1, 0.2, 0.3]))
    assert by_name["weakest_target_so_far"] == pytest.approx(np.log([0.5, 0.25, 0.25]))
    assert by_name["mean_target"] == pytest.approx([np.log(0.125) / 3] * 3)
    assert by_name["agreement"].tolist() == [1.0, 0.5, 0.5]
    assert by_name["repeated"].tolist() == [0.0, 0.0, 1.0] and by_name["length"].tolist() == [3.0] * 3


@pytest.mark.parametrize("share", [0.0, 0.4, 0.5, 1.0])
def test_a_share_of_tokens_against_all_outcomes(share: float) -> None:
    p = np.array([0.1, 0.7, 0.4, 0.9, 0.25])
    expected = 0.0
    for outcome in product([0, 1], repeat=5):
        if sum(outcome) >= share * 5 - 1e-12:
            expected += float(np.prod(np.where(np.array(outcome) == 1, p, 1 - p)))
    assert at_least(share, p) == pytest.approx(expected)


def test_one_kind_of_outcome_is_a_constant() -> None:
    readings, right = made(4, np.random.default_rng(2))
    never = fit_calibrator(readings, [[False] * len(flags) for flags in right])
    count = sum(map(len, right))
    assert never.tokens(*readings[0]) == pytest.approx(1 / (count + 2))


def test_truths_that_do_not_fit_are_refused() -> None:
    readings, right = made(2, np.random.default_rng(3))
    for r, t in (([], []), (readings, right[:1]), (readings, [right[0], right[1][:-1]])):
        with pytest.raises(AttackError, match="to calibrate with"):
            fit_calibrator(r, t)


def test_the_answer_takes_no_truth() -> None:
    assert list(inspect.signature(Calibrator.tokens).parameters) == ["self", "attempts", "chosen"]
