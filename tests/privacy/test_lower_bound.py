"""The one way to a lower bound: the field's own values, a linear program, and 1,000 mechanisms whose epsilon is known.

A bound that is planted too tight fails the same test that the shipped ones pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import linprog

from docleak.errors import PrivacyError
from docleak.privacy.accounting import guarantee
from docleak.privacy.empirical import (
    CURVE,
    FITTED,
    ORDERED,
    STEINKE,
    Guesses,
    Scores,
    Trials,
    from_counts,
    from_one_run,
    lower_bound,
)
from docleak.privacy.gaussian import delta_of
from docleak.privacy.gaussian import epsilon_of as gaussian_epsilon
from docleak.privacy.mechanism import Mechanism, Relation
from docleak.privacy.one_run import (
    best_guesses,
    curve_refuted,
    ladder,
    one_run_p_value,
    ordered_p_value,
    told_by_gaussian,
)
from docleak.privacy.tradeoff import AnyMechanism, Family, Gaussian, Sampled, family_of, largest

DELTA = 1e-6
SAMPLED = Mechanism(1.0, 1, 0.3)


@pytest.mark.parametrize(
    ("by", "levels", "guesses", "right", "expected"),
    [
        (STEINKE, 2, 0, 0, 0.0), (CURVE, 2, 0, 0, 0.0),
        (STEINKE, 386, 3376, 2807, 1.13346), (CURVE, 386, 406, 379, 2.164749),
        (STEINKE, 374, 4666, 4499, 2.311945), (CURVE, 374, 938, 934, 4.7218075),
        (STEINKE, 140, 8233, 8223, 4.395568), (CURVE, 140, 5436, 5436, 9.133752),
    ],
)  # fmt: skip
def test_the_eight_values_of_jax_privacy(by: str, levels: int, guesses: int, right: int, expected: float) -> None:
    """jax_privacy 8967688, tests/auditing_test.py, test_epsilon_one_run_close: 10,000 scores of N(shift, 1) against as
    many of N(0, 1), shift 0, 1, 2, 4. Its code was run for how many guesses, and how many right ones, it settles on."""
    error = 0.05 / levels
    if by == STEINKE:
        epsilon = from_one_run(20_000, guesses, right, DELTA, confidence=1 - error).epsilon
    else:
        curve = Gaussian()
        strength = largest(lambda s: curve_refuted(20_000, guesses, right, curve.inverse(s), error), curve.most)
        epsilon = curve.epsilon(strength, DELTA) if strength else 0.0
    assert epsilon == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("canaries", "guesses", "right"), [(20, 20, 17), (30, 12, 11), (16, 16, 16)])
def test_f_dp_is_the_worst_case_of_a_linear_program(canaries: int, guesses: int, right: int) -> None:
    """All laws of the number of right guesses with E[T; T >= j] / m <= F(E[r - T; T >= j - 1] / m), F by tangents."""
    error = 0.05
    strength = largest(lambda s: curve_refuted(canaries, guesses, right, Gaussian().inverse(s), error), 60.0)
    assert strength > 0
    counts = np.arange(guesses + 1)
    rows, limits = [], []
    for epsilon in np.linspace(-8, 12, 400):
        delta = (
            delta_of(strength, epsilon) if epsilon >= 0 else 1 - math.exp(epsilon) * (1 - delta_of(strength, -epsilon))
        )
        for j in range(1, guesses + 1):
            rows.append(counts * (counts >= j) - math.exp(epsilon) * (guesses - counts) * (counts >= j - 1))
            limits.append(canaries * delta)
    solved = linprog(-(counts >= right).astype(float), A_ub=np.array(rows), b_ub=limits,
                     A_eq=np.ones((1, guesses + 1)), b_eq=[1.0])  # fmt: skip
    assert -solved.fun == pytest.approx(error, rel=2e-2)


def cases() -> list[tuple[int, int, int, float, Family | None]]:
    """60 numbers of canaries, guesses and expected right ones, of mechanisms whose epsilon is known."""
    rows = []
    for canaries in (48, 96, 200, 1000, 5000):
        for share in (1.0, 2 / 3, 1 / 3, 0.1):
            guesses = max(int(canaries * share) // 2 * 2, 4)
            rate = 1 / (1 + math.exp(-1.5))
            rows.append((canaries, guesses, round(guesses * rate), 1.5, None))
            for strength in (0.8, 2.0):
                right = round(guesses * told_by_gaussian(strength, guesses / canaries))
                rows.append((canaries, guesses, right, gaussian_epsilon(strength, DELTA), Gaussian()))
    return rows


def test_sixty_cases_lie_between_steinke_and_the_truth() -> None:
    assert len(cases()) == 60
    higher = 0
    for canaries, guesses, right, truth, family in cases():
        least = from_one_run(canaries, guesses, right, DELTA).epsilon
        bound = lower_bound(Guesses(canaries, guesses, right), DELTA, family=family)
        assert least <= bound.epsilon <= truth, (canaries, guesses, right)
        assert bound.method == (STEINKE if bound.epsilon == least else CURVE)
        higher += bound.epsilon > 1.5 * least
    assert higher >= 30, "with a curve the bound is much higher"


# -- coverage: what a bound says is below the truth in 95 % of mechanisms

SIZE, GUESSED = 120, 60
Bound = Callable[[Guesses], float]


@cache
def bound_of(right: int, family: str = "", confidence: float = 0.95, delta: float = DELTA) -> float:
    curves: dict[str, Family | None] = {"": None, "gaussian": Gaussian(), "sampled": Sampled(SAMPLED)}
    bound = lower_bound(Guesses(SIZE, GUESSED, right), delta, confidence=confidence, family=curves[family])
    return bound.epsilon


def simulated(kind: str, runs: int, rng: np.random.Generator) -> tuple[float, NDArray[np.float64], NDArray[np.bool_]]:
    """The true epsilon at DELTA, scores (runs, m) and coins (runs, m) of a mechanism of that kind."""
    coins = rng.random((runs, SIZE)) < 0.5
    if kind == "randomised response":
        epsilon = float(rng.choice([0.5, 1.0, 2.0]))
        honest = rng.random(coins.shape) < 1 / (1 + math.exp(-epsilon))
        return epsilon, np.where(honest, coins, ~coins).astype(float), coins
    if kind == "laplace":
        epsilon = float(rng.choice([0.5, 1.0, 2.0]))
        return epsilon, coins + rng.laplace(size=coins.shape) / epsilon, coins
    if kind == "gaussian":
        strength = float(rng.choice([0.5, 1.0, 2.0]))
        return gaussian_epsilon(strength, DELTA), strength * coins + rng.normal(size=coins.shape), coins
    if kind == "all at once":  # with chance DELTA_AT_ONCE every coin is given away, else nothing
        told_all = rng.random((runs, 1)) < AT_ONCE
        return 0.0, np.where(told_all, coins, rng.random(coins.shape)), coins
    noise = float(rng.choice([0.5, 1.0]))
    drawn = coins & (rng.random(coins.shape) < SAMPLED.rate)
    truth = guarantee(Mechanism(noise, 1, SAMPLED.rate), DELTA).epsilon
    return truth, drawn + noise * rng.normal(size=coins.shape), coins


AT_ONCE = 0.04
KINDS = ("randomised response", "laplace", "gaussian", "sampled")


def rights(scores: NDArray[np.float64], coins: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Whether the guesses about (runs, m) canaries are right, the surest first."""
    order = np.lexsort((rng.random(scores.shape), scores))
    surest = np.empty_like(order)
    half = SIZE // 2
    surest[:, 0::2], surest[:, 1::2] = order[:, ::-1][:, :half], order[:, :half]
    return np.asarray(np.take_along_axis(coins, surest, 1) == (np.arange(SIZE) % 2 == 0))


def failures(bound: Callable[[str, NDArray[np.bool_], float], bool], kinds: tuple[str, ...], runs: int = 25) -> float:
    """The share of 1,000 simulated trainings, ``runs`` of each mechanism, in which ``bound`` is above the truth."""
    rng, wrong, count = np.random.default_rng(0), 0, 0
    while count < 1000:
        kind = kinds[count // runs % len(kinds)]
        truth, scores, coins = simulated(kind, runs, rng)
        wrong += sum(bound(kind, right, truth) for right in rights(scores, coins, rng))
        count += runs
    return wrong / count


def test_the_tightest_bound_covers_the_truth_in_a_thousand_mechanisms() -> None:
    granted = {"gaussian": "gaussian", "sampled": "sampled"}

    def above(kind: str, right: NDArray[np.bool_], truth: float) -> bool:
        return bound_of(int(right[:GUESSED].sum()), granted.get(kind, "")) > truth

    def above_for_any(kind: str, right: NDArray[np.bool_], truth: float) -> bool:
        return bound_of(int(right[:GUESSED].sum())) > truth

    assert failures(above, KINDS) <= 0.05
    assert failures(above_for_any, KINDS) <= 0.05


def test_order_statistics_cover_the_truth() -> None:
    """At the truth itself: the bound is above it just where the truth is refuted."""

    def above(kind: str, right: NDArray[np.bool_], truth: float) -> bool:
        return ordered_p_value(right, truth, DELTA) <= 0.05

    failed = failures(above, ("randomised response",))
    assert 0.01 < failed <= 0.05, "neither wrong nor blunt"
    assert failures(above, ("laplace", "gaussian"), runs=125) <= 0.05


PLANTED: dict[str, tuple[tuple[str, ...], Callable[[str, NDArray[np.bool_], float], bool]]] = {
    "too sure": (KINDS[:1], lambda kind, right, truth: bound_of(int(right[:GUESSED].sum()), confidence=0.85) > truth),
    "a Gaussian curve for what is none": (
        KINDS[:2], lambda kind, right, truth: bound_of(int(right[:GUESSED].sum()), "gaussian") > truth,
    ),
    "the best of several numbers of guesses": (
        KINDS[:1],
        lambda kind, right, truth: min(
            float(stats.binom.sf(right[:k].sum() - 1, k, 1 / (1 + math.exp(-truth)))) for k in ladder(SIZE)
        ) <= 0.05,
    ),
    "the canaries taken for independent": (
        ("all at once",),
        lambda kind, right, truth: one_run_p_value(SIZE, GUESSED, int(right[:GUESSED].sum()), truth, 0.0) <= 0.05,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_bound_that_is_too_tight_fails_the_same_test(name: str) -> None:
    kinds, bound = PLANTED[name]
    assert failures(bound, kinds) > 0.05


def test_what_is_given_away_all_at_once_is_covered_by_its_delta() -> None:
    def above(kind: str, right: NDArray[np.bool_], truth: float) -> bool:
        return bound_of(int(right[:GUESSED].sum()), delta=AT_ONCE) > truth or (
            ordered_p_value(right, truth, AT_ONCE) <= 0.05
        )

    assert failures(above, ("all at once",), runs=500) <= 0.05


def test_a_fit_covers_normal_scores_and_no_others() -> None:
    rng = np.random.default_rng(0)
    wrong = {"gaussian": 0, "laplace": 0}
    for kind in wrong:
        for _ in range(10):
            truth, scores, coins = simulated(kind, 50, rng)
            bounds = [lower_bound(Scores(s, c), DELTA, normal=True).epsilon for s, c in zip(scores, coins, strict=True)]
            wrong[kind] += int((np.array(bounds) > truth).sum())
    assert wrong["gaussian"] <= 25 and wrong["laplace"] > 250, wrong
    with pytest.raises(PrivacyError, match=r"made 0 of them members, 4 not; .* Take more of them \(--canaries\)"):
        lower_bound(Scores(np.ones(4), np.zeros(4, dtype=bool)), DELTA, normal=True)


def test_scores_are_read_by_what_is_granted() -> None:
    """Each is tighter than the one before, and all are below the truth (epsilon 8 at 1e-5)."""
    rng = np.random.default_rng(1)
    strength, coins = 1.666, rng.random(1000) < 0.5
    scores = Scores(strength * coins + rng.normal(size=1000), coins)
    anything = lower_bound(scores, 1e-5, rng=rng)
    curve = lower_bound(scores, 1e-5, family=Gaussian(), rng=rng)
    fit = lower_bound(scores, 1e-5, normal=True)
    assert [one.method for one in (anything, curve, fit)] == [ORDERED, CURVE, FITTED]
    assert 2 < anything.epsilon < curve.epsilon < fit.epsilon <= 8
    assert fit.epsilon > 5.5 and curve.epsilon > 3.5
    assert "whatever the mechanism does" in anything.sentence() and "Gaussian noise of some size" in curve.sentence()
    guessed = Guesses(1000, int(curve.evidence.split()[2]), int(curve.evidence.split()[0]))
    assert guessed.guesses in (500, 142), "a half or a seventh"
    assert curve.epsilon == pytest.approx(
        lower_bound(guessed, 1e-5, confidence=1 - 0.05 * 0.9 / 2, family=Gaussian()).epsilon
    ), "nine twentieths of the error"
    with pytest.raises(PrivacyError, match="give rng"):
        lower_bound(scores, 1e-5)


def test_many_runs_with_a_curve_come_nearer_to_the_truth() -> None:
    """1,000 trainings with the canary and 1,000 without: sigma 1, delta 1e-5."""
    rng, truth = np.random.default_rng(0), gaussian_epsilon(1.0, 1e-5)
    failed, plain, curved = 0, [], []
    for _ in range(200):
        hits, alarms = rng.binomial(1000, stats.norm.sf([0.5, 1.5]))
        seen = Trials(int(hits), 1000, int(alarms), 1000)
        plain.append(lower_bound(seen, 1e-5).epsilon)
        curved.append(lower_bound(seen, 1e-5, family=Gaussian()).epsilon)
        failed += curved[-1] > truth
    assert failed <= 10 and np.mean(curved) > 0.7 * truth > 2 * np.mean(plain)
    assert lower_bound(Trials(40, 50, 2, 60), 0.01) == from_counts(40, 50, 2, 60, 0.01)


def test_the_curve_of_a_sampled_mechanism_is_above_and_near_the_exact_one() -> None:
    """With rate 1 it is the Gaussian's; with a lower one less is let through."""
    full, exact = Sampled(Mechanism(1.0, 1, 1.0)).inverse(1.0), Gaussian().inverse(1.0)
    less = Sampled(SAMPLED).inverse(1.0)
    for chance in (0.01, 0.1, 0.3, 0.6, 0.9, 0.99):
        assert exact(chance) * 0.9 < full(chance) <= exact(chance) + 1e-12 < less(chance)
    assert family_of(Mechanism(1.0, 5)) == Gaussian() and isinstance(family_of(SAMPLED), Sampled)
    assert family_of(Mechanism(1.0, 5, 1.0, 0.2)) is None
    assert family_of(Mechanism(1.0, 5, relation=Relation.REPLACE_ONE)) is None
    assert Sampled(SAMPLED).epsilon(1.0, 1e-5) == guarantee(SAMPLED, 1e-5).epsilon
    anything = AnyMechanism(0.01)
    assert anything.inverse(1.0)(0.5) == pytest.approx((0.5 - 0.01) / math.e) and anything.epsilon(1.0, 0.01) == 1.0


def test_the_number_of_guesses_is_planned_before() -> None:
    """Of 1,000 ideal canaries a few hundred are guessed about, whatever is seen later."""

    def proved(guesses: int, right: int) -> float:
        return lower_bound(Guesses(1000, guesses, right), 1e-5, family=Gaussian()).epsilon

    planned = best_guesses(1000, lambda share: told_by_gaussian(1.666, share), proved)
    assert planned % 2 == 0 and 100 <= planned <= 400
    by_all = 1000 * told_by_gaussian(1.666, 1.0), 1000
    assert proved(planned, int(planned * told_by_gaussian(1.666, planned / 1000))) > 1.5 * proved(
        by_all[1], int(by_all[0])
    )
