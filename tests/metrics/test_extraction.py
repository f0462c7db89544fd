"""CDMI's metrics: distances against other libraries' values, hand-worked curves, appendix B's two properties."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docleak.metrics import extraction
from docleak.metrics.estimate import Estimate, clopper_pearson, expanded_tail
from docleak.metrics.extraction import (
    Floats,
    Match,
    as_array,
    at,
    curve,
    improvement_factor,
    match,
    multi_shot_table,
    one_shot_table,
    over_documents,
    ranking,
)

GOLDEN = Path(__file__).parent / "golden" / "token_distances.json"


def pairs(count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Random fields of 1-15 tokens and damaged copies; the golden values were made from the same pairs."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        length = rng.randint(1, 15)
        truth = [rng.randrange(8) for _ in range(length)]
        guess = [t if rng.random() < 0.6 else rng.randrange(8) for t in truth]
        if rng.random() < 0.3:
            guess = guess[1:] + guess[:1]
        made.append((truth, guess))
    return made


def test_distances_are_those_of_other_libraries() -> None:
    """jellyfish 1.3.0 and textdistance 4.6.3, which agree, on 1,200 pairs whose tokens were written as letters."""
    golden = json.loads(GOLDEN.read_text())["values"]
    made = pairs(1200, 20)
    assert len(golden) == len(made)
    for (truth, guess), values in zip(made, golden, strict=True):
        score = match(truth, guess)
        assert [score.hamming, score.levenshtein, score.jaro_winkler] == pytest.approx(values, abs=1e-8), (truth, guess)
        assert score.perfect == float(truth == guess)


def test_tokens_count_not_their_letters() -> None:
    assert match([101, 2], [1, 2]).hamming == 0.5  # as texts, "101" and "1" would share letters
    assert match([300_000], [300_000]) == Match(1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("truth", "guess"), [([], []), ([1, 2], [1])])
def test_unfit_pairs_are_refused(truth: list[int], guess: list[int]) -> None:
    with pytest.raises(ValueError, match="expected the same"):
        match(truth, guess)


# -- improvement factor ------------------------------------------------------------------------------------------------


def test_improvement_factor_by_hand() -> None:
    """(0.101/0.051 + 0.501/0.401 + 0.401/0.201 + 0.301/0.301) / 4 with epsilon 1e-3; 1e-2 is the default."""
    attack, base = np.array([[0.1, 0.4, 0.2, 0.3]]), np.array([[0.05, 0.5, 0.4, 0.3]])
    by_hand = (0.101 / 0.051 + 0.501 / 0.401 + 0.401 / 0.201 + 1.0) / 4
    assert improvement_factor(attack, base, epsilon=1e-3) == pytest.approx(by_hand, abs=1e-12)
    by_hand = (0.11 / 0.06 + 0.51 / 0.41 + 0.41 / 0.21 + 1.0) / 4
    assert improvement_factor(attack, base) == pytest.approx(by_hand, abs=1e-12)


def test_no_improvement_is_one_and_a_worse_attack_below() -> None:
    base = as_array([match(t, g) for t, g in pairs(50, 1)])
    assert improvement_factor(base, base) == 1.0
    worse = base.copy()
    worse[:, 1:] = np.minimum(1, worse[:, 1:] + 0.2)
    assert improvement_factor(worse, base) < 1 < improvement_factor(base, worse)


def test_epsilon_bounds_the_factor_of_a_baseline_that_reads_nothing() -> None:
    nothing, all_read = np.array([[0.0, 1.0, 1.0, 1.0]]), np.array([[1.0, 0.0, 0.0, 0.0]])
    assert improvement_factor(all_read, nothing) == pytest.approx(1.01 / 0.01)
    assert improvement_factor(all_read, nothing, epsilon=1.0) == pytest.approx(2.0)


# -- curves ------------------------------------------------------------------------------------------------------------


def area(column: str, ranked: Sequence[float] | Floats) -> float:
    """AccAUC of ranked successes, or HamAAC of ranked distances."""
    made = [Match(value, value, value, value) for value in ranked]
    scores, documents = [float(-place) for place in range(len(made))], ["the same"] * len(made)
    value = multi_shot_table(made, scores, documents, rng=np.random.default_rng(0))[column].value
    assert value is not None
    return value


accuracy_auc, hamming_aac = partial(area, "accuracy_auc"), partial(area, "hamming_aac")


def test_curves_by_hand() -> None:
    """Ranked 1, 0, 1, 0: AccAt is 1, 1/2, 2/3, 1/2; its mean is 2/3. Hamming 0, 1, 0.5, 0.5 likewise."""
    perfect, hamming = np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.0, 1.0, 0.5, 0.5])
    assert curve(perfect) == pytest.approx([1, 1 / 2, 2 / 3, 1 / 2])
    assert accuracy_auc(perfect) == pytest.approx(2 / 3)
    assert hamming_aac(hamming) == pytest.approx(1 - (0 + 1 / 2 + 1 / 2 + 1 / 2) / 4)
    assert [float(at(p, perfect)) for p in (0.01, 0.25, 0.26, 0.75, 1.0)] == pytest.approx([1, 1, 1 / 2, 2 / 3, 1 / 2])


@pytest.mark.parametrize(
    ("fields", "share", "taken"), [(777, 0.01, 8), (791, 0.01, 8), (777, 0.05, 39), (791, 0.05, 40)]
)
def test_shares_take_as_many_fields_as_in_table_5(fields: int, share: float, taken: int) -> None:
    ranked = np.zeros(fields)
    ranked[taken - 1] = 1.0
    assert float(at(share, ranked)) == pytest.approx(1 / taken)


def test_area_is_the_integral_of_the_step_function() -> None:
    ranked = np.random.default_rng(0).random(7)
    fine = [float(at((k + 0.5) / 7000, ranked)) for k in range(7000)]
    assert accuracy_auc(ranked) == pytest.approx(float(np.mean(fine)), abs=1e-9)


DISTANCES = st.lists(st.integers(0, 10).map(lambda n: n / 10), min_size=2, max_size=12)


@given(DISTANCES, st.data())
def test_property_1_the_right_order_is_best(values: list[float], data: st.DataObject) -> None:
    """Appendix B: swapping a worse field behind a better one raises HamAAC; sorted is the maximum. AccAUC alike."""
    i = data.draw(st.integers(0, len(values) - 2))
    j = data.draw(st.integers(i + 1, len(values) - 1))
    swapped = list(values)
    swapped[i], swapped[j] = values[j], values[i]
    before, after = hamming_aac(values), hamming_aac(swapped)
    assert np.sign(round(after - before, 12)) == np.sign(values[i] - values[j])
    best = hamming_aac(np.sort(values))
    assert best >= before - 1e-12
    success = 1.0 - np.array(values)  # any similarity; 0/1 values are among them
    assert accuracy_auc(np.sort(success)[::-1]) >= accuracy_auc(success) - 1e-12


@given(DISTANCES, st.data())
def test_property_2_a_better_reconstruction_is_better(values: list[float], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(values) - 1))
    better = list(values)
    better[i] = values[i] / 2
    gain = hamming_aac(better) - hamming_aac(values)
    assert gain > 0 if values[i] else gain == 0
    assert accuracy_auc(1 - np.array(better)) >= accuracy_auc(1 - np.array(values))


def test_ranking_is_stable() -> None:
    assert ranking([1.0, 3.0, 1.0, 3.0]).tolist() == [1, 3, 0, 2]


# -- intervals ---------------------------------------------------------------------------------------------------------


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Fields of a document share an offset; a bootstrap over fields would be too narrow and fail here."""
    rng = np.random.default_rng(7)
    documents = [str(d) for d in range(20) for _ in range(6)]
    held = {"documents": 0, "fields": 0}
    for _ in range(200):
        values = np.repeat(rng.normal(size=20), 6) + 0.1 * rng.normal(size=120)
        for name, unit in (("documents", documents), ("fields", [str(i) for i in range(120)])):
            interval = over_documents(unit, lambda c, v=values: v[c].mean(-1), rng=rng, resamples=200)  # type: ignore[misc]
            assert interval.low is not None and interval.high is not None
            held[name] += interval.low <= 0 <= interval.high
    assert held["documents"] >= 180
    assert held["fields"] < 140


def test_tables_have_values_and_intervals() -> None:
    made = [match(t, g) for t, g in pairs(60, 3)]
    documents = [str(i // 4) for i in range(60)]
    rng = np.random.default_rng(0)
    scores = [-m.hamming for m in made]  # an oracle ranking
    multi = multi_shot_table(made, scores, documents, rng=rng)
    assert set(multi) == {"hamming_aac", "accuracy_auc", "accuracy_at_1%", "accuracy_at_5%", "accuracy_at_100%"}
    everything = multi["accuracy_at_100%"]
    assert everything.value == pytest.approx(np.mean([m.perfect for m in made]))
    assert everything.n == 60 and everything.groups == 15
    reverse = multi_shot_table(made, [-s for s in scores], documents, rng=rng)
    assert (multi["accuracy_auc"].value or 0) > (reverse["accuracy_auc"].value or 0)
    one = one_shot_table(made, made, documents, rng=rng)["improvement_factor"]
    assert (one.value, one.low, one.high) == (1.0, 1.0, 1.0)


def test_nothing_read_is_not_proven_impossible() -> None:
    lost = [Match(0.0, 1.0, 1.0, 1.0)] * 10
    table = multi_shot_table(lost, [0.0] * 10, [str(i) for i in range(10)], rng=np.random.default_rng(0))
    assert table["accuracy_at_100%"].value == 0
    assert table["accuracy_at_100%"].high == pytest.approx(1 - 0.025 ** (1 / 10))


@settings(max_examples=20)
@given(st.integers(0, 100))
def test_the_same_generator_gives_the_same_interval(seed: int) -> None:
    def once() -> object:
        draw = np.random.default_rng(seed)
        return over_documents(["a", "b", "c"], lambda c: c.mean(-1), rng=draw, resamples=50)

    assert once() == once()


def test_resamples_are_those_of_one_draw_behind_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are put to the statistic at once."""
    documents = ["a"] * 5 + ["b"] * 2 + ["c", "d", "d"]
    values, places = np.random.default_rng(1).random(10), [[0, 1, 2, 3, 4], [5, 6], [7], [8, 9]]
    rng = np.random.default_rng(2)
    draws = [values[[k for i in rng.integers(4, size=4) for k in places[i]]].mean() for _ in range(300)]
    tail = expanded_tail(4, 0.95)
    for at_once in (1, 64, 1 << 18):
        monkeypatch.setattr(extraction, "AT_ONCE", at_once)
        interval = over_documents(documents, lambda c: values[c].mean(-1), rng=np.random.default_rng(2), resamples=300)
        assert [interval.low, interval.high] == np.quantile(draws, (tail, 1 - tail)).tolist()


def test_one_field_read_of_many_rules_out_no_more_than_none_read() -> None:
    documents = [str(index // 10) for index in range(120)]
    read = np.zeros(120)
    read[3] = 1.0

    def of(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], rate: bool) -> Estimate:
        rng = np.random.default_rng(0)
        return over_documents(documents, lambda chosen: values[chosen].mean(-1), rng=rng, rate=rate, resamples=300)

    one, none = of(read, True), of(np.zeros(120), True)
    assert (one.low, one.high) == (none.low, none.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 12)))
    assert of(1 - read, True).low == pytest.approx(0.025 ** (1 / 12))
    assert (of(read, False).high or 1) < 0.05, "what is no rate keeps its resamples"


def test_a_rate_over_unequal_documents_takes_them_as_so_many_equal_ones() -> None:
    """Of forty documents of one to eight fields, a tenth of which is read whole, 9 to 11 % of intervals missed it."""
    rng, missed, tries = np.random.default_rng(0), 0, 300
    for _ in range(tries):
        counts = rng.integers(1, 9, 40)
        hits = np.repeat(rng.random(40) < 0.1, counts).astype(float)
        documents = np.repeat(np.arange(40), counts).astype(str).tolist()
        rate = over_documents(documents, lambda at, of=hits: of[at].mean(-1), rng=rng, rate=True, resamples=300)
        assert rate.low is not None and rate.high is not None
        missed += not rate.low <= 0.1 <= rate.high
    assert missed <= 0.06 * tries


def test_two_documents_have_an_interval_and_one_has_none() -> None:
    def share_of(*documents: str) -> Estimate:
        values = np.arange(len(documents)) / 10
        rng = np.random.default_rng(0)
        return over_documents(documents, lambda chosen: values[chosen].mean(-1), rng=rng, resamples=200)

    two, one = share_of("a", "a", "b"), share_of("a", "a", "a")
    assert (two.groups, two.low, two.high) == (2, 0.05, 0.2), "the means of either document alone"
    assert (one.groups, one.low, one.high) == (1, None, None) and one.value == pytest.approx(0.1)


@pytest.mark.parametrize("documents", [2, 5])
def test_a_share_of_few_documents_is_no_surer_than_as_many_alike(documents: int) -> None:
    """2 of 3 and 3 of 4 fields read whole were "71 % [67, 75]" of a game on weights, too."""
    names = [str(number) for number in range(documents) for _ in range(4)]
    read = np.array([field < 3 - (number == 0) for number in range(documents) for field in range(4)], dtype=float)
    share = over_documents(names, lambda fields: read[fields].mean(-1), rng=np.random.default_rng(0), rate=True)
    low, high = clopper_pearson(documents * float(read.mean()), documents)
    assert share.low is not None and share.low <= low and share.high is not None and share.high >= high
