"""Bounds from attacks: published values, the stated confidence, tight where they can be, loud when they contradict."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.optimize import linprog

from docleak.errors import ContradictionError, PrivacyError
from docleak.privacy.accounting import Guarantee, guarantee, rounded_up
from docleak.privacy.empirical import (
    LowerBound,
    from_counts,
    from_one_run,
    from_scores,
    held_against,
    right_guesses,
)
from docleak.privacy.mechanism import Mechanism, Relation, Unit
from docleak.privacy.one_run import one_run_p_value
from docleak.privacy.ranks import Ranks
from docleak.privacy.tradeoff import AnyMechanism, Gaussian


def honest(epsilon: float) -> float:
    """How often randomised response tells the truth."""
    return 1 / (1 + math.exp(-epsilon))


def gaussian(noise: float, delta: float) -> float:
    """The true epsilon of the Gaussian mechanism (Balle & Wang, 2018, theorem 8)."""
    half, rest = 1 / (2 * noise), noise

    def spent(epsilon: float) -> float:
        return stats.norm.cdf(half - epsilon * rest) - math.exp(epsilon) * stats.norm.cdf(-half - epsilon * rest)

    low, high = 0.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "delta", "published"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_one_run_gives_the_values_printed_in_the_paper(
    canaries: int, guesses: int, right: int, delta: float, published: float
) -> None:
    """Steinke, Nasr & Jagielski (2023): appendix D rounds, section 7 truncates."""
    assert from_one_run(canaries, guesses, right, delta).epsilon == pytest.approx(published, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_p_value_is_the_worst_case_over_what_delta_may_add(data: st.DataObject) -> None:
    """Against a linear program over all distributions of F, of which the formula claims to be the value."""
    canaries = data.draw(st.integers(1, 12))
    guesses = data.draw(st.integers(0, canaries))
    right = data.draw(st.integers(0, guesses))
    epsilon, delta = data.draw(st.floats(0, 4)), data.draw(st.sampled_from([0.0, 1e-4, 0.01]))
    counts = stats.binom(guesses, honest(epsilon))
    reach = [float(counts.sf(right - added - 1)) for added in range(canaries + 1)]  # P[Binomial + F >= v | F = added]
    solved = linprog(
        [-r for r in reach],
        A_ub=[list(range(canaries + 1))],
        b_ub=[2 * canaries * delta],
        A_eq=[[1.0] * (canaries + 1)],
        b_eq=[1.0],
    )
    assert one_run_p_value(canaries, guesses, right, epsilon, delta) == pytest.approx(-solved.fun, abs=1e-7)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.0, 1e-5, 1e-3, 0.02]))
def test_every_epsilon_below_the_bound_is_rejected(canaries: int, guessed: float, kept: float, delta: float) -> None:
    guesses = int(canaries * guessed)
    right = int(guesses * (0.5 + kept / 2))
    bound = from_one_run(canaries, guesses, right, delta).epsilon
    for epsilon in np.linspace(0, bound, 20)[: 20 if bound else 0]:
        assert one_run_p_value(canaries, guesses, right, epsilon, delta) <= 0.05 + 1e-9
    assert one_run_p_value(canaries, guesses, right, bound + 1e-5, delta) > 0.05


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("canaries", [20, 200, 1500])
def test_one_run_on_randomised_response_fails_at_most_as_often_as_it_says(epsilon: float, canaries: int) -> None:
    """Exact: the probability of every number of right guesses that gives a bound above the truth."""
    numbers = np.arange(canaries + 1)
    likely = stats.binom.pmf(numbers, canaries, honest(epsilon))
    wrong = [from_one_run(canaries, canaries, int(v), 0.0).epsilon > epsilon for v in numbers[likely > 1e-9]]
    failed = float(likely[likely > 1e-9][wrong].sum())
    assert failed <= 0.05
    if canaries == 1500 and epsilon < 5:
        assert failed > 0.03, "the test is not as sharp as it should be"


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_bounds_on_randomised_response_become_tight(epsilon: float) -> None:
    many = 10**6
    true, false = int(many * honest(epsilon)), int(many * (1 - honest(epsilon)))
    for bound in (from_one_run(many, many, true, 0.0), from_counts(true, many, false, many, 0.0)):
        assert 0.99 * epsilon < bound.epsilon <= epsilon


def test_the_delta_of_one_run_is_needed_and_enough() -> None:
    """Randomised response that gives each coin away with probability delta is (epsilon, delta)-private."""
    epsilon, delta, canaries = 1.0, 0.05, 1000
    rng = np.random.default_rng(3)
    right = rng.binomial(canaries, delta + (1 - delta) * honest(epsilon), 1000)
    values, counts = np.unique(right, return_counts=True)

    def failed(assumed: float) -> float:
        above = [from_one_run(canaries, canaries, int(v), assumed).epsilon > epsilon for v in values]
        return float(counts[above].sum() / counts.sum())

    assert failed(delta) <= 0.05
    assert failed(0.0) > 0.15, "without its delta the bound must be wrong here"


@pytest.mark.parametrize(("noise", "delta"), [(1.0, 1e-3), (0.5, 1e-3), (4.0, 0.02)])
def test_one_run_on_the_gaussian_mechanism_never_claims_more_than_the_truth(noise: float, delta: float) -> None:
    """Each canary has a direction of its own, so its score is its coin plus noise."""
    truth, rng = gaussian(noise, delta), np.random.default_rng(0)
    bounds = [from_one_run(100, 20, right, delta).epsilon for right in range(21)]
    epsilons = []
    for _ in range(1000):
        coins = rng.random(100) < 0.5
        epsilons.append(bounds[right_guesses(coins + noise * rng.normal(size=100), coins, 10, 10, rng=rng)])
    assert np.mean(np.array(epsilons) > truth) <= 0.05
    if noise < 1:
        assert np.mean(epsilons) > 1, "a training that leaks so much must be seen"


@pytest.mark.parametrize("step", [0.0, 0.5], ids=["all different", "many equal"])
@pytest.mark.parametrize(("noise", "delta"), [(1.0, 1e-3), (4.0, 0.02)])
def test_thresholds_chosen_on_the_data_are_paid_for(noise: float, delta: float, step: float) -> None:
    truth = gaussian(noise, delta)
    rng, failed = np.random.default_rng(1), 0
    members = np.arange(120) < 60
    for _ in range(1000):
        scores = members + noise * rng.normal(size=120)
        scores = np.round(scores / step) if step else scores
        # the bound is above the truth just where the truth is refuted
        seen = Ranks.of_scores(scores[members], scores[~members], rng)
        failed += seen.p_value(AnyMechanism(delta).inverse(truth)) <= 0.05
    assert failed <= 50


def test_the_best_threshold_without_a_correction_would_be_wrong() -> None:
    """The Laplace mechanism, whose rates have the ratio e^epsilon at every high threshold; 60 % confidence."""
    epsilon, n, rng = 2.0, 150, np.random.default_rng(2)
    members = np.arange(2 * n) < n
    wrong = dict.fromkeys(["held out", "not paid for"], 0)
    for _ in range(100):
        scores = members + rng.laplace(size=2 * n) / epsilon
        wrong["held out"] += from_scores(scores, members, 0.0, rng=rng, confidence=0.6).epsilon > epsilon
        best = max(
            from_counts(int(above[members].sum()), n, int(above[~members].sum()), n, 0.0, confidence=0.6).epsilon
            for above in (scores >= threshold for threshold in np.sort(scores[members])[::2])
        )
        wrong["not paid for"] += best > epsilon
    assert wrong["held out"] <= 40 and wrong["not paid for"] > 50


def test_scores_that_tell_all_are_counted_at_a_rank_by_hand() -> None:
    """20 members above 30 others. At the highest other the false positive rate has the law Beta(1, 30), and given it
    all 20 members lie above with chance TPR^20; scipy's quadrature of that, at the bound, is the error of a rank."""
    members = np.arange(50) < 20
    bound = from_scores(members.astype(float), members, 0.01, rng=np.random.default_rng(0))

    def chance(rank: int, of: int, trials: int) -> float:
        def at(rate: float) -> float:
            grown = math.exp(bound.epsilon)
            most = min(1.0, 0.01 + grown * rate, 1 - (1 - rate - 0.01) / grown)
            return float(stats.beta.pdf(rate, rank, of - rank + 1)) * most**trials

        return float(integrate.quad(at, 0, 1, limit=200)[0])

    assert bound.epsilon > 2 and "at 7 ranks" in bound.evidence
    least = min(chance(rank, of, trials) for of, trials in ((30, 20), (20, 30)) for rank in (1, 3, 9, 27) if rank <= of)
    assert 0.93 * 0.05 / 7 < least <= 0.05 / 7


def test_ranks_prove_more_than_a_threshold_chosen_on_half_and_a_curve_more_still() -> None:
    rng, truth = np.random.default_rng(3), gaussian(0.5, 1e-5)
    failed, gained, curved = 0, [], []
    for _ in range(40):
        members = rng.random(400) < 0.5
        scores = members + 0.5 * rng.normal(size=400)
        inside, outside = np.sort(scores[members])[::2], np.sort(scores[~members])[::2]
        half = max(
            from_counts(int((inside >= t).sum()), len(inside), int((outside >= t).sum()), len(outside), 1e-5).epsilon
            for t in inside[::5]
        )
        bounds = [from_scores(scores, members, 1e-5, rng=rng, family=one).epsilon for one in (None, Gaussian())]
        gained.append(bounds[0] - half)
        curved.append(bounds[1] - bounds[0])
        failed += bounds[1] > truth
    assert np.mean(gained) > 0.2 and np.min(curved) > 1 and failed <= 5


def test_many_scores_of_the_gaussian_mechanism_bring_the_bound_near_the_truth() -> None:
    rng, members = np.random.default_rng(4), np.arange(100_000) < 50_000
    scores = members + rng.normal(size=100_000)
    bound = from_scores(scores, members, 0.05, rng=rng)
    truth = gaussian(1.0, 0.05)
    assert 0.8 * truth < bound.epsilon <= truth
    assert guarantee(Mechanism(1.0, 1), 0.05).epsilon == pytest.approx(truth, rel=1e-3)


def test_an_operating_point_by_hand() -> None:
    """Both directions: called members, and left alone. Intervals are scipy's own, one-sided at 2.5 % each."""

    def ends(k: int, n: int) -> tuple[float, float]:
        interval = stats.binomtest(k, n).proportion_ci(0.95, method="exact")  # two-sided 95 % is one-sided 97.5 %
        return interval.low, interval.high

    (tpr, _), (_, fpr) = ends(40, 50), ends(2, 60)
    bound = from_counts(40, 50, 2, 60, 0.01)
    assert bound.epsilon == pytest.approx(math.log((tpr - 0.01) / fpr))
    assert bound.epsilon > math.log((1 - fpr - 0.01) / (1 - tpr))
    mirrored = from_counts(60 - 2, 60, 50 - 40, 50, 0.01)  # members and others change places
    assert mirrored.epsilon == pytest.approx(bound.epsilon)
    assert from_counts(0, 50, 60, 60, 0.0).epsilon == 0
    assert from_counts(50, 50, 0, 50, 0.5).epsilon > 0
    assert from_counts(40, 50, 2, 60, 0.9).epsilon == 0


def test_guesses_are_the_extremes_and_equal_scores_are_ordered_at_random() -> None:
    coins = np.array([True, True, False, False, True, False])
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    rng = np.random.default_rng(0)
    assert right_guesses(scores, coins, 2, 1, rng=rng) == 3
    assert right_guesses(scores, coins, 3, 3, rng=rng) == 4
    assert right_guesses(scores, coins, 0, 0, rng=rng) == 0
    with pytest.raises(PrivacyError, match="1 of 6 scores are NaN, which no order ranks"):
        right_guesses(np.where(scores == 3, np.nan, scores), coins, 1, 1, rng=rng)
    sorted_coins = np.arange(40) < 20
    right = [right_guesses(np.zeros(40), sorted_coins, 20, 20, rng=rng) for _ in range(200)]
    assert 19 < np.mean(right) < 21


def test_a_contradiction_is_loud_and_names_both() -> None:
    claim = guarantee(Mechanism(2.0, 1), 1e-3)
    held_against(from_one_run(100, 20, 12, 1e-3), claim)
    with pytest.raises(ContradictionError) as caught:
        held_against(from_one_run(400, 400, 398, 1e-3), claim)
    for part in ("398 of 400", "per provider", "delta 0.001", "0.95", rounded_up(claim.epsilon), "n_k", "tied weight",
                 "constant", "clipped", "adjacency", "PLD"):  # fmt: skip
        assert part in str(caught.value), part


def test_no_noise_cannot_be_contradicted() -> None:
    held_against(from_one_run(400, 400, 400, 1e-3), guarantee(Mechanism(0.0, 1), 1e-3))


@pytest.mark.parametrize(
    "claim",
    [
        guarantee(Mechanism(2.0, 1), 0.1),
        guarantee(Mechanism(2.0, 1, relation=Relation.REPLACE_ONE), 1e-3),
        guarantee(Mechanism(2.0, 1, unit=Unit.DOCUMENT), 1e-3),
    ],
    ids=["delta", "relation", "unit"],
)
def test_what_cannot_be_compared_is_refused(claim: Guarantee) -> None:
    with pytest.raises(PrivacyError, match="cannot be compared"):
        held_against(from_one_run(400, 400, 398, 1e-3), claim)


def test_bad_input_is_refused() -> None:
    rng, scores, members = np.random.default_rng(0), np.arange(6.0), np.arange(6) < 3
    for counts in [(3, 2, 0, 5), (1, 2, 6, 5), (0, 0, 0, 5), (0, 5, 0, 0), (-1, 5, 0, 5)]:
        with pytest.raises(PrivacyError, match="at least one of each"):
            from_counts(*counts, 0.0)
    for delta, confidence in [(-0.1, 0.95), (1.0, 0.95), (0.0, 1.0), (math.nan, 0.95)]:
        with pytest.raises(PrivacyError, match="expected a delta"):
            from_counts(1, 2, 1, 2, delta, confidence=confidence)
    with pytest.raises(PrivacyError, match="expected at least one of each"):
        from_scores(scores, np.ones(6, bool), 0.0, rng=rng)
    with pytest.raises(PrivacyError, match="0 members"):
        from_scores(scores, np.zeros(6, bool), 0.0, rng=rng)
    with pytest.raises(PrivacyError, match="finite"):
        from_scores(np.where(members, np.nan, scores), members, 0.0, rng=rng)
    with pytest.raises(PrivacyError, match="no more right"):
        from_one_run(10, 5, 6, 0.0)
    with pytest.raises(PrivacyError, match="no more guesses"):
        right_guesses(scores, members, 4, 3, rng=rng)


@pytest.mark.parametrize(
    ("confidence", "said"), [(0.95, "0.95"), (1 - 0.05 / 3, "0.983"), (0.99999, "0.99999"), (0.5, "0.5")]
)
def test_a_confidence_is_never_rounded_up(confidence: float, said: str) -> None:
    bound = from_counts(40, 40, 0, 40, 1e-5, confidence=confidence)
    assert f", {said} confidence, by" in bound.sentence()


def test_a_lower_bound_is_never_printed_above_itself() -> None:
    bound = LowerBound(2.14951, 1e-5, 0.95, "counted", "assumed")
    assert "epsilon at least 2.149 at" in bound.sentence()
    assert "epsilon at least 0 at" in replace(bound, epsilon=0.0).sentence()
