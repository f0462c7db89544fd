"""Membership rates against scikit-learn and closed forms, intervals that hold, and what n cannot resolve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_auc_score, roc_curve

from docleak.errors import AttackError
from docleak.metrics.estimate import Estimate
from docleak.metrics.membership import (
    Knowledge,
    auc,
    clopper_pearson,
    draw_known,
    membership_rates,
    over_seeds,
)

NAMES = {"accuracy", "balanced_accuracy", "auc", "f1", "tpr_at_10_fpr", "tpr_at_3_fpr", "tpr_at_1_fpr"}


def rates(scores: object, decisions: object, members: object, seed: int = 0, **options: float) -> dict[str, Estimate]:
    vectors = (np.asarray(scores, float), np.asarray(decisions, bool), np.asarray(members, bool))
    return membership_rates(*vectors, rng=np.random.default_rng(seed), **options)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.booleans()), min_size=2, max_size=150))
def test_values_agree_with_scikit_learn(rows: list[tuple[int, bool, bool]]) -> None:
    scores, decisions, members = (np.array(column) for column in zip(*rows, strict=True))
    if members.all() or not members.any():
        return
    estimates = rates(scores, decisions, members, resamples=20)
    assert set(estimates) == NAMES
    assert estimates["accuracy"].value == pytest.approx(accuracy_score(members, decisions))
    assert estimates["balanced_accuracy"].value == pytest.approx(balanced_accuracy_score(members, decisions))
    assert estimates["f1"].value == pytest.approx(f1_score(members, decisions, zero_division=0))
    assert estimates["auc"].value == pytest.approx(roc_auc_score(members, scores))
    assert auc(scores.astype(float), members) == pytest.approx(roc_auc_score(members, scores))
    for rate in estimates.values():
        assert rate.n == rate.groups == len(members)
        assert (rate.value is None) == bool(rate.why)
        if rate.low is not None and rate.high is not None:
            assert 0 <= rate.low <= rate.high <= 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(10, 120), st.sampled_from([0.10, 0.03, 0.01]), st.booleans())
def test_the_threshold_of_a_low_rate_keeps_it_and_is_the_lowest(
    seed: int, others: int, allowed: float, coarse: bool
) -> None:
    """Against scikit-learn's curve: its best point that keeps to the rate, no interpolation."""
    rng = np.random.default_rng(seed)
    members = np.arange(others + 40) < 40
    scores = members + rng.normal(size=len(members))
    scores = np.round(scores, 0) if coarse else scores
    rate = rates(scores, scores > 0, members, resamples=5)[f"tpr_at_{100 * allowed:.0f}_fpr"]
    if others * allowed < 1 - 1e-9:
        assert rate.value is rate.low is rate.high is None
        assert str(math.ceil(1 / allowed - 1e-9)) in rate.why and str(others) in rate.why
        return
    fpr, tpr, _ = roc_curve(members, scores, drop_intermediate=False)
    assert rate.value == pytest.approx(tpr[fpr <= allowed + 1e-9].max())


def test_exact_intervals_agree_with_scipy() -> None:
    for hits, n in [(0, 7), (3, 7), (7, 7), (50, 100)]:
        for level in (0.9, 0.95):
            exact = stats.binomtest(hits, n).proportion_ci(level, method="exact")
            assert clopper_pearson(hits, n, level) == pytest.approx((exact.low, exact.high))
    estimates = rates(range(20), [True] * 14 + [False] * 6, [True] * 10 + [False] * 10)
    assert (estimates["accuracy"].low, estimates["accuracy"].high) == pytest.approx(clopper_pearson(16, 20))


def test_balanced_accuracy_keeps_its_width_where_one_class_is_all_right() -> None:
    """Every member is found, which resampling would take for certain; Newcombe's interval by hand."""
    estimate = rates(range(20), [True] * 15 + [False] * 5, [True] * 10 + [False] * 10)["balanced_accuracy"]
    (hit_low, _), (alarm_low, alarm_high) = clopper_pearson(10, 10), clopper_pearson(5, 10)
    low = 0.5 - math.sqrt((1 - hit_low) ** 2 + (alarm_high - 0.5) ** 2)
    assert estimate.value == 0.75
    assert estimate.low == pytest.approx((1 + low) / 2)
    assert estimate.high == pytest.approx((1 + 0.5 + (0.5 - alarm_low)) / 2)


def test_perfect_attacks_are_not_certain() -> None:
    members = np.arange(30) < 10
    estimates = rates(members, members, members)
    for name in ("auc", "f1", "tpr_at_10_fpr"):
        assert estimates[name].value == estimates[name].high == 1
        assert estimates[name].low == pytest.approx(0.025 ** (1 / 10))
    assert rates(~members, ~members, members)["auc"].high == pytest.approx(1 - 0.025 ** (1 / 10))
    nearly = np.where(np.arange(30) == 9, 0.5, members)  # one member's score is that of no one, and below the others'
    assert rates(nearly, nearly > 0.7, members)["f1"].low <= 0.025 ** (1 / 10), "one miss is no surer than none"


@pytest.mark.parametrize(("inside", "outside", "allowed"), [(300, 100, 0.01), (100, 12, 0.1), (20, 200, 0.01)])
def test_scores_that_know_nothing_are_seldom_surely_above_a_low_false_positive_rate(
    inside: int, outside: int, allowed: float
) -> None:
    """Of many members and few others the threshold lies at one of these: the lower end was above it in 8 to 13 %."""
    rng, name, above = np.random.default_rng(0), f"tpr_at_{100 * allowed:.0f}_fpr", 0
    members = np.arange(inside + outside) < inside
    for _ in range(200):
        scores = rng.random(len(members))
        above += (rates(scores, scores > 0.5, members, resamples=100)[name].low or 0) > allowed
    assert above <= 0.05 * 200
    told = rates(members + rng.random(len(members)) / 2, members, members)[name]
    assert told.value == 1.0 and (told.low or 0) > 0.6, "what is told apart stays told"


@pytest.mark.parametrize(("inside", "outside", "share"), [(3, 30, 0.5), (100, 12, 0.1)])
def test_a_class_whose_scores_are_all_equal_is_not_certain(inside: int, outside: int, share: float) -> None:
    """Scores of two values that know nothing: resamples of equal ones never differ, and AUCs of 1/2 were excluded, to
    either side, in 24 % and 16 % of 200 draws."""
    wrong, rng, members = 0, np.random.default_rng(0), np.arange(inside + outside) < inside
    for _ in range(150):
        scores = (rng.random(len(members)) < share).astype(float)
        auc = rates(scores, scores > 0, members, resamples=100)["auc"]
        wrong += not (auc.low or 0) <= 0.5 <= (auc.high or 0)
    assert wrong <= 0.08 * 150
    equal = rates(np.zeros(33), np.zeros(33), np.arange(33) < 3)["auc"]
    assert (equal.value, equal.low) == (0.5, pytest.approx(0.5 * 0.025 ** (1 / 3))), "nor is a score that never differs"
    assert equal.high == pytest.approx(1 - 0.5 * 0.025 ** (1 / 3))


def test_a_class_of_one_has_no_bootstrap() -> None:
    estimates = rates([3, 2, 1], [True, False, False], [True, False, False])
    assert estimates["auc"].value == 1 and estimates["auc"].low is None
    assert estimates["accuracy"].low is not None


@pytest.mark.parametrize("shift", [0.0, 1.2])
def test_intervals_hold_the_truth_about_as_often_as_they_say(shift: float) -> None:
    """Normal scores, whose AUC is known; 300 repetitions of a 95 % interval, and of one that promises 50 %.

    Percentile intervals of an AUC are a little too short: measured 92 to 95 %.
    """
    rng = np.random.default_rng(5)
    members = np.arange(80) < 35
    truth = {"auc": stats.norm.cdf(shift / math.sqrt(2)), "tpr_at_10_fpr": stats.norm.sf(stats.norm.isf(0.1) - shift),
             "balanced_accuracy": stats.norm.cdf(shift / 2), "accuracy": stats.norm.cdf(shift / 2)}  # fmt: skip
    held = dict.fromkeys(truth, 0)
    narrow = 0
    for seed in range(300):
        scores = shift * members + rng.normal(size=80)
        estimates = rates(scores, scores > shift / 2, members, seed, resamples=200)
        for name, value in truth.items():
            held[name] += estimates[name].low <= value <= estimates[name].high  # type: ignore[operator]
        half = rates(scores, scores > shift / 2, members, seed, resamples=200, level=0.5)["auc"]
        narrow += half.low <= truth["auc"] <= half.high  # type: ignore[operator]
    assert all(count >= 265 for count in held.values()), held
    assert 110 < narrow < 195, "an interval of half the confidence must miss about half the time"


def test_resampling_is_repeatable_and_moves_with_the_seed() -> None:
    rng = np.random.default_rng(0)
    members = np.arange(60) < 30
    scores = members + rng.normal(size=60)
    first, again, other = (rates(scores, scores > 0.5, members, seed)["auc"] for seed in (1, 1, 2))
    assert first == again != other
    assert first.value == other.value


@pytest.mark.parametrize(
    ("scores", "decisions", "members", "words"),
    [
        ([1, 2], [True, True], [True, True], "all 2 providers are members"),
        ([1, 2], [True, True], [False, False], "all 2 providers are non-members"),
        ([], [], [], "all 0 providers"),
        ([1, math.nan], [True, True], [True, False], "1 scores are not finite"),
        ([1, 2, 3], [True, True], [True, False], "shapes"),
    ],
)
def test_what_cannot_be_measured_is_refused(scores: object, decisions: object, members: object, words: str) -> None:
    with pytest.raises(AttackError, match=words):
        rates(scores, decisions, members)


def test_known_providers_are_balanced_and_the_rest_is_evaluated() -> None:
    truth = {f"p{i:03}": i < 307 for i in range(660)}
    drawn = draw_known(truth, rng=np.random.default_rng(0))
    assert len(drawn.known) == 98 and sum(drawn.known.values()) == 49  # 15 % of 660 is 99
    assert all(truth[name] is is_member for name, is_member in drawn.known.items())
    assert sorted([*drawn.known, *drawn.evaluated]) == sorted(truth)
    assert drawn == draw_known(dict(reversed(truth.items())), rng=np.random.default_rng(0))
    assert drawn != draw_known(truth, rng=np.random.default_rng(1))
    assert isinstance(drawn, Knowledge)


@pytest.mark.parametrize(
    ("members", "others", "share"), [(4, 4, 0.15), (0, 50, 0.15), (2, 60, 0.1), (20, 20, 0.0), (20, 20, 1.0)]
)
def test_a_share_that_leaves_a_class_empty_is_refused(members: int, others: int, share: float) -> None:
    truth = {f"p{i}": i < members for i in range(members + others)}
    with pytest.raises(AttackError, match="Take another share"):
        draw_known(truth, share, rng=np.random.default_rng(0))


def test_spread_over_seeds() -> None:
    spread = over_seeds([0.5, 0.6, 0.7])
    assert (spread.mean, spread.std, spread.n) == (pytest.approx(0.6), pytest.approx(0.1), 3)
    assert over_seeds([0.5, 0.7]).std == pytest.approx(0.1 * 2**0.5), "two suffice"
    assert over_seeds([0.5]).std is None
    with pytest.raises(ValueError, match="one per seed"):
        over_seeds([])
