"""Aggregates: means, counts of what was not scored, and intervals that hold when, and only when, they should."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from docleak.errors import RunError
from docleak.metrics import Estimate, FieldScore, PageScore, aggregate
from docleak.metrics.estimate import by_signs, effective, ratio, ratio_interval, skewed

COLUMNS = {"psnr", "mse", "fft2d", "ssim", "binary", "fuzz_ratio"}


def field(exact: bool | None, fuzz: float | None = None) -> FieldScore:
    scored = exact is not None
    return FieldScore(
        "k", "v", "r", 0.9, exact, fuzz if fuzz is not None or not scored else float(exact), 5.0, 20.0, 0.1
    )


def page(document: str, exacts: list[bool | None], psnr: float | None = 20.0) -> PageScore:
    return PageScore("p", document, tuple(field(e) for e in exacts), 5.0, psnr, 0.1, 0.9, "e 1")


def table(scores: list[PageScore], seed: int = 0, **options: float) -> dict[str, Estimate]:
    return aggregate(scores, rng=np.random.default_rng(seed), **options)  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.booleans(), max_size=4)), max_size=5))
def test_values_and_counts_agree_with_a_loop(layout: list[tuple[str, list[bool]]]) -> None:
    scores = [page(document, list(exacts), psnr=10.0 * i) for i, (document, exacts) in enumerate(layout)]
    estimates = table(scores, resamples=20)
    assert set(estimates) == COLUMNS
    flat = [exact for _, exacts in layout for exact in exacts]
    assert estimates["binary"].value == (pytest.approx(np.mean(flat)) if flat else None)
    assert estimates["binary"].n == estimates["psnr"].n == len(flat)
    assert estimates["binary"].groups == len({document for document, exacts in layout if exacts})
    assert estimates["psnr"].value == (
        pytest.approx(np.mean([10.0 * i for i in range(len(layout))])) if layout else None
    )
    assert estimates["psnr"].groups == len({document for document, _ in layout})
    for estimate in estimates.values():
        assert (estimate.low is None) == (estimate.high is None) == (estimate.groups < 2)
        if estimate.low is not None and estimate.high is not None and estimate.value is not None:
            assert estimate.low <= estimate.value + 1e-9 and estimate.value <= estimate.high + 1e-9


def test_nothing_scored_is_none_and_counted_not_zero() -> None:
    assert table([])["binary"] == Estimate(None, None, None, 0, 0, 0)
    estimate = table([page("a", [None, None]), page("b", [True, None])])["binary"]
    assert estimate == Estimate(1.0, None, None, 1, 1, 3)


def test_one_document_of_many_pages_has_no_interval() -> None:
    estimates = table([page("a", [True, False]) for _ in range(20)])
    assert all(estimate.low is None and estimate.high is None for estimate in estimates.values())
    assert estimates["binary"].value == 0.5


def test_nothing_read_of_ten_documents_does_not_rule_out_everything() -> None:
    none = table([page(str(i), [False] * 3) for i in range(10)])["binary"]
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(0.3085, abs=1e-4)  # Clopper-Pearson, 0 of 10 (R 4: binom.test(0, 10))
    every = table([page(str(i), [True] * 3) for i in range(10)])["fuzz_ratio"]
    assert every.high == 1.0 and every.low == pytest.approx(0.6915, abs=1e-4)


@pytest.mark.parametrize("documents", [2, 6, 20])
def test_little_read_of_few_documents_rules_out_no_more_than_nothing_read(documents: int) -> None:
    """One field of sixty on six documents was "at most 7 %" of others, none of them "at most 46 %"."""
    for apart in (True, False):  # the field that is read, or the one that is not
        exacts = [[not apart] * 10 for _ in range(documents)]
        alike = table([page(str(i), read) for i, read in enumerate(exacts)])["binary"]
        exacts[0][0] = apart
        nearly = table([page(str(i), read) for i, read in enumerate(exacts)])["binary"]
        assert alike.low is not None and nearly.low is not None and nearly.low <= alike.low
        assert alike.high is not None and nearly.high is not None and nearly.high >= alike.high
        assert documents < 6 or (nearly.low, nearly.high) == (alike.low, alike.high)
    psnr = table([page(str(i), [], psnr=0.5 + i / 1000) for i in range(documents)])["psnr"]
    assert psnr.low is not None and psnr.high is not None and psnr.high - psnr.low < 0.1, "it is no share"


@pytest.mark.parametrize("documents", [2, 3, 5])
def test_a_share_of_few_documents_is_no_surer_than_as_many_alike(documents: int) -> None:
    """Resamples stay between the least and the greatest document: 2 of 3 and 3 of 4 fields were "67 to 75 %"."""
    read = np.array([2, 3, *[5] * (documents - 2)], dtype=float)
    estimate = ratio(read, np.array([3, 4, *[7] * (documents - 2)]), np.random.default_rng(0))
    assert estimate.value is not None and estimate.low is not None and estimate.high is not None
    hits, misses = estimate.value * documents, documents * (1 - estimate.value)
    exact = beta.ppf(0.025, hits, misses + 1), beta.ppf(0.975, hits + 1, misses)
    assert estimate.low <= exact[0] + 1e-9 and estimate.high >= exact[1] - 1e-9


def test_groups_of_which_nothing_was_counted_are_none() -> None:
    """A resample of such groups alone was no number, and the interval's ends were neither."""
    with_none = ratio(np.array([1.0, 0.0, 3.0]), np.array([2, 0, 4]), np.random.default_rng(0))
    without = ratio(np.array([1.0, 3.0]), np.array([2, 4]), np.random.default_rng(0))
    assert with_none == without and with_none.groups == 2
    nothing = ratio(np.zeros(3), np.zeros(3, dtype=np.int64), np.random.default_rng(0))
    assert nothing.value is None and nothing.low is None and nothing.high is None


def test_the_interval_is_a_function_of_the_generator_and_of_the_documents_only() -> None:
    rng = np.random.default_rng(1)
    scores = [page(str(i % 7), list(rng.random(4) < 0.5), psnr=rng.normal(20, 3)) for i in range(21)]
    assert table(scores) == table(scores)
    doubled = table(scores + scores)
    for name, estimate in table(scores).items():
        assert doubled[name].low == pytest.approx(estimate.low)
        assert doubled[name].high == pytest.approx(estimate.high)


def test_a_higher_level_gives_a_wider_interval() -> None:
    rng = np.random.default_rng(2)
    scores = [page(str(i), list(rng.random(4) < 0.5)) for i in range(12)]
    narrow, wide = table(scores, level=0.5)["binary"], table(scores, level=0.99)["binary"]
    assert narrow.low is not None and narrow.high is not None and wide.low is not None and wide.high is not None
    assert wide.low < narrow.low < narrow.high < wide.high


def clustered(rng: np.random.Generator, documents: int, fields: int) -> list[PageScore]:
    """Documents whose fields stand or fall together: the chance of a document is Beta(0.8, 0.8), mean 1/2."""
    chances = rng.beta(0.8, 0.8, size=documents)
    return [
        replace(page(str(i), list(rng.random(fields) < chance)), psnr=float(rng.normal(20, 2)))
        for i, chance in enumerate(chances)
    ]


@pytest.mark.parametrize("documents", [6, 12, 20])
def test_a_low_share_is_within_its_interval_as_often_as_it_says(documents: int) -> None:
    """The chance of a document is Beta(0.1, 1.9): of most nothing is read, of few much; one in twenty in all."""
    rng = np.random.default_rng(5)
    held, repeats = 0, 250
    for _ in range(repeats):
        exacts = rng.binomial(8, rng.beta(0.1, 1.9, size=documents))
        estimate = ratio(exacts.astype(float), np.full(documents, 8), rng, resamples=400)
        assert estimate.low is not None and estimate.high is not None
        held += estimate.low <= 0.05 <= estimate.high
    assert held >= 0.95 * repeats


@pytest.mark.parametrize(("documents", "share"), [(20, 0.2), (40, 0.1)])
def test_a_share_of_unequal_documents_is_within_its_interval_as_often_as_it_says(documents: int, share: float) -> None:
    """Of one to eight fields each, read whole or not: 8.3 and 10.7 % of the intervals missed it."""
    rng, missed, repeats = np.random.default_rng(0), 0, 300
    for _ in range(repeats):
        fields = rng.integers(1, 9, documents)
        estimate = ratio(fields * (rng.random(documents) < share), fields, rng, resamples=500)
        assert estimate.low is not None and estimate.high is not None
        missed += not estimate.low <= share <= estimate.high
    assert missed <= 0.06 * repeats


def test_equal_groups_count_as_many_as_they_are_and_one_that_has_nearly_all_as_two() -> None:
    assert effective(np.full(7, 3)) == pytest.approx(7)
    assert effective(np.array([40, 1, 1, 1])) == 2
    assert effective(np.arange(1, 9)) == pytest.approx(36**2 / 204)


def coverage(documents: int, *, by_field: bool, repeats: int = 250) -> tuple[float, float]:
    """How often the 95 % intervals of binary and psnr hold the truth; by_field wrongly calls each field a document."""
    rng = np.random.default_rng(3)
    held = np.zeros(2)
    for _ in range(repeats):
        scores = clustered(rng, documents, fields=8)
        if by_field:
            scores = [
                PageScore("p", f"{s.document}/{i}", (f,), psnr=s.psnr) for s in scores for i, f in enumerate(s.fields)
            ]
        estimates = aggregate(scores, rng=rng, resamples=400)
        for column, (name, truth) in enumerate([("binary", 0.5), ("psnr", 20.0)]):
            low, high = estimates[name].low, estimates[name].high
            held[column] += low is not None and high is not None and low <= truth <= high
    binary, psnr = held / repeats
    return binary, psnr


@pytest.mark.parametrize("documents", [8, 20])
def test_intervals_hold_the_truth_as_often_as_they_say(documents: int) -> None:
    assert min(coverage(documents, by_field=False)) >= 0.91


@pytest.mark.parametrize(("documents", "most"), [(5, 0.09), (8, 0.08), (20, 0.06)])
def test_numbers_of_a_long_tail_are_within_their_interval(documents: int, most: float) -> None:
    """Of 600 exponential draws over 5, 8 and 20 documents 12.3, 11.5 and 7.8 % of the intervals missed the mean."""
    rng, repeats = np.random.default_rng(8), 600
    draws, once = rng.exponential(size=(repeats, documents)), np.ones(documents, dtype=np.int64)
    ends = [ratio_interval(of, once, rng, 0.95, 200, share=False) for of in draws]
    missed = sum(low is None or high is None or not low <= 1 <= high for low, high in ends)
    assert missed <= most * repeats


def test_a_skewed_interval_is_students_where_there_is_no_skewness_and_none_without_spread() -> None:
    """By hand: of 1, 2, 3 Student's reaches 4.303 / sqrt(3) to both sides; a tail above moves both ends up."""
    low, high = skewed(2.0, np.array([-1.0, 0.0, 1.0]), 0.95)
    assert (low, high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    tail = np.array([-1.0, -1.0, -1.0, -1.0, 4.0])
    bent, plain = skewed(0.0, tail, 0.95), skewed(0.0, tail, 0.95, skewness=0.0)
    assert bent[0] > plain[0] and bent[1] > plain[1]
    assert skewed(0.0, -tail, 0.95) == pytest.approx((-bent[1], -bent[0]))
    assert skewed(3.0, np.zeros(4), 0.95) == (3.0, 3.0)


def test_intervals_over_fields_would_not() -> None:
    assert max(coverage(20, by_field=True, repeats=80)) < 0.85


def test_ends_are_numbers_that_there_are() -> None:
    """Over two documents Student's interval of an MSE of 100 began at -535."""
    far, near = replace(page("a", [True], psnr=99.0), mse=150.0, fft2d=0.9, ssim=0.9), page("b", [True])
    estimates = table([far, replace(near, mse=50.0, fft2d=0.1, ssim=-0.9)])
    ends = {name: (of.low, of.high) for name, of in estimates.items()}
    assert ends["mse"][0] == 0.0 and ends["psnr"][1] == 100.0
    assert ends["fft2d"] == (0.0, 1.0) and ends["ssim"] == (-1.0, 1.0)
    told = Estimate(0.9, 0.2, 1.3, 6).within(-1.0, 1.0)
    assert (told.low, told.high) == (0.2, 1.0) and Estimate(0.9).within(-1.0, 1.0) == Estimate(0.9)


def test_different_engines_are_not_mixed() -> None:
    with pytest.raises(RunError, match="different OCR engines"):
        table([page("a", [True]), replace(page("b", [True]), engine="other 2")])


@pytest.mark.parametrize("options", [{"level": 0.0}, {"level": 95}, {"resamples": 0}])
def test_impossible_levels_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected a level"):
        table([page("a", [True])], **options)


@pytest.mark.parametrize("differences", [[], [0, 0], [3], [2, -1, 1], [4, 0, -2, 1, 1]])
def test_signs_by_a_coin_are_counted_as_by_hand(differences: list[int]) -> None:
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True))
            for signs in itertools.product((1, -1), repeat=len(differences))]  # fmt: skip
    assert by_signs(differences) == np.mean([one >= sum(differences) for one in sums])


@pytest.mark.parametrize("groups", [2, 3, 4, 5])
def test_numbers_of_few_groups_hold_the_truth_as_often_as_they_say(groups: int) -> None:
    """Resamples stay between the least and the greatest of them: of 600 intervals of two 50 % were beside the truth, of
    three 26 %, of four and five 10 %."""
    rng, missed = np.random.default_rng(groups), 0
    for _ in range(300):
        sums, counts = 5 * rng.normal(size=groups), np.full(groups, 5, dtype=np.int64)
        low, high = ratio_interval(sums, counts, rng, 0.95, 100, share=False)
        missed += not low <= 0 <= high
    assert missed / 300 <= 0.08
    assert ratio_interval(np.zeros(3), np.ones(3, dtype=np.int64), rng, 0.95, 100, share=False) == (0.0, 0.0)
