"""Documents of one provider stand or fall together in the intervals of attacks on documents."""

from __future__ import annotations

import numpy as np
import pytest

from docleak.metrics.clustered import ALONE, over_providers, share_over_providers
from docleak.metrics.estimate import Estimate, clopper_pearson
from docleak.metrics.membership import Bools, Floats, membership_rates

AUC, TPR = "auc", "tpr_at_10_fpr"


def rates_of(scores: Floats, members: Bools) -> dict[str, Estimate]:
    rates = membership_rates(scores, scores > np.median(scores), members, rng=np.random.default_rng(0), resamples=300)
    return {name: rates[name] for name in (AUC, TPR)}


def widened(scores: Floats, members: Bools, providers: list[str]) -> dict[str, Estimate]:
    return over_providers(
        rates_of(scores, members), scores, members, providers, rng=np.random.default_rng(1), level=0.95, resamples=300
    )


def alike(rng: np.random.Generator, inside: list[int], outside: list[int], shift: float = 0.0):
    """Scores of which half the variance is the provider's, by sides of so many documents of each provider."""
    of = np.repeat(np.arange(len(inside) + len(outside)), [*inside, *outside])
    members = of < len(inside)
    return (
        rng.normal(size=of.max() + 1)[of] + rng.normal(size=len(of)) + shift * members,
        members,
        [f"p{i}" for i in of],
    )


@pytest.mark.parametrize(("inside", "outside"), [([10] * 8, [10] * 8), ([40] + [1] * 15, [3] * 15)])
def test_providers_whose_documents_are_alike_look_like_members_in_few_draws(
    inside: list[int], outside: list[int]
) -> None:
    rng, draws = np.random.default_rng(0), 80
    before = after = 0
    for _ in range(draws):
        scores, members, providers = alike(rng, inside, outside)
        before += (rates_of(scores, members)[AUC].low or 0) > 0.5
        after += (widened(scores, members, providers)[AUC].low or 0) > 0.5
    assert before > 0.12 * draws, "over documents alone the null is told apart so often"
    assert after <= 0.05 * draws


def test_what_members_documents_share_beyond_their_providers_is_still_told() -> None:
    scores, members, providers = alike(np.random.default_rng(1), [5] * 20, [5] * 20, shift=2.0)
    told = widened(scores, members, providers)
    assert told[AUC].low > 0.6 and told[TPR].low > 0.1 and told[AUC].groups == 40
    assert told[AUC].value == rates_of(scores, members)[AUC].value


def test_nothing_changes_without_several_documents_of_a_provider_on_a_side() -> None:
    scores, members, _ = alike(np.random.default_rng(2), [1] * 20, [1] * 20)
    plain = rates_of(scores, members)
    for providers in ([f"p{i}" for i in range(40)], [f"p{i % 20}" for i in range(40)], [""] * 40, ["one"] * 40):
        assert widened(scores, members, providers) == plain


def test_one_provider_against_another_has_no_interval_and_constants_are_no_surer_than_so_many_providers() -> None:
    scores, members, _ = alike(np.random.default_rng(3), [20], [20])
    one = widened(scores, members, ["a"] * 20 + ["b"] * 20)[AUC]
    assert (one.low, one.high, one.why) == (None, None, ALONE)
    flat = widened(np.zeros(40), members, [f"p{i // 2}" for i in range(40)])[AUC]
    assert flat.value == 0.5 and flat.groups == 20
    assert flat.low == pytest.approx(0.5 * 0.025 ** (1 / 10)) and flat.high == pytest.approx(1 - flat.low)


def test_weighted_rates_are_those_of_the_documents_repeated() -> None:
    from docleak.metrics.clustered import _of

    rng = np.random.default_rng(4)
    scores, members = rng.integers(0, 9, 60).astype(float), np.arange(60) < 25
    weights = rng.integers(0, 4, size=(5, 60)).astype(float)
    for row in weights.astype(int):
        expected = rates_of(np.repeat(scores, row), np.repeat(members, row))
        for name in (AUC, TPR):
            assert _of(name, scores, members, row[None].astype(float))[0] == pytest.approx(expected[name].value)


def test_a_share_of_documents_is_over_their_providers_too() -> None:
    """Eight of ten documents right: of two providers, of one, and of ten."""
    hits, plain = np.array([1.0] * 8 + [0.0] * 2), Estimate(0.8, *clopper_pearson(8, 10), 10, 10)

    def told(providers: list[str]) -> Estimate:
        return share_over_providers(plain, hits, providers, rng=np.random.default_rng(0), level=0.95, resamples=300)

    assert told([""] * 10) == told([f"p{i}" for i in range(10)]) == plain
    two, alone = told(["a"] * 5 + ["b"] * 5), told(["a"] * 10)
    assert two.value == 0.8 and two.groups == 2
    assert two.low is not None and two.low <= clopper_pearson(1.6, 2)[0] and two.high == 1.0
    assert (alone.low, alone.high, alone.groups, alone.why) == (None, None, 1, ALONE)
