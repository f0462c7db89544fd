"""Text metrics against slow dynamic programmes and published examples."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docleak.errors import DocumentError
from docleak.metrics import accuracy, anls, exact, fuzz_ratio, normalise

SHORT = st.text(alphabet="abAB1. é", max_size=9)


def longest_common_subsequence(a: str, b: str) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if x == y else max(table[i - 1][j], table[i][j - 1])
    return table[-1][-1]


def edit_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (x != y)))
    return row[-1]


@settings(max_examples=200, deadline=None)
@given(SHORT, SHORT)
def test_fuzz_ratio_is_twice_the_common_subsequence_over_both_lengths(read: str, truth: str) -> None:
    a, b = "".join(read.split()), "".join(truth.split())
    expected = 2 * longest_common_subsequence(a, b) / (len(a) + len(b)) if a or b else 1.0
    assert fuzz_ratio(read, truth) == pytest.approx(expected)
    assert (fuzz_ratio(read, truth) == 1) == exact(read, truth)


def test_exact_ignores_space_and_nothing_else() -> None:
    assert exact("(555)123-4567", " (555) 123-4567\n")
    assert exact("a\u00a0b", "a b")
    assert not exact("Ab", "ab")
    assert not exact("12.50", "12,50")
    assert not exact("Müller", "Muller")
    assert normalise(" a\tb c\n") == "abc"


def test_the_same_characters_in_other_code_points_are_the_same() -> None:
    """As PDFs and file systems write them: composed or not, and with marks that nobody sees."""
    assert exact("Müller", "Mu\u0308ller") and exact("Mu\u0308ller", "Müller")
    assert exact("19.00", "\u200e19.00\u200b") and exact("Rechnung", "Rech\u00adnung") and exact("1", "1\x00")
    for unseen in "\u200d\u034f\ufe0f\u3164":  # a joiner, and what is not seen but no format character
        assert exact("Rechnung", f"Rech{unseen}nung") and normalise(unseen) == ""
    assert normalise("\u200b") == "" and normalise("x\u00b2") == "x\u00b2", "a square is no 2"


def test_fuzz_ratio_of_known_pairs() -> None:
    assert fuzz_ratio("", "abc") == 0
    assert fuzz_ratio("abd", "abc") == pytest.approx(2 / 3)


@settings(max_examples=200, deadline=None)
@given(SHORT, st.lists(SHORT, min_size=1, max_size=3), st.sampled_from([0.0, 0.5, 0.8]))
def test_anls_agrees_with_a_slow_oracle(prediction: str, answers: list[str], threshold: float) -> None:
    given_text = prediction.lower().strip()
    similarities = [
        1 - edit_distance(given_text, truth) / max(len(given_text), len(truth), 1)
        for truth in (answer.lower().strip() for answer in answers)
    ]
    best = max(similarities) if given_text else 0.0
    assert anls(prediction, answers, threshold) == pytest.approx(best if best >= threshold - 1e-12 else 0.0)


def test_anls_keeps_the_threshold_itself_and_drops_what_is_below() -> None:
    assert anls("ab", ["aX"]) == 0.5
    assert anls("abc", ["aXX"]) == 0.0
    assert anls("aXX", ["nothing", "axx"]) == 1.0
    assert anls("", ["a"]) == 0.0


def test_accuracy_is_lower_case_and_stripped_but_keeps_inner_space() -> None:
    assert accuracy(" ITC Limited", ["x", "itc limited "]) == 1.0
    assert accuracy("itclimited", ["itc limited"]) == 0.0


@pytest.mark.parametrize("metric", [anls, accuracy])
@pytest.mark.parametrize("answers", [[], "a"])
def test_answers_must_be_a_sequence_of_texts(metric: object, answers: object) -> None:
    with pytest.raises(DocumentError, match="expected a sequence"):
        metric("a", answers)  # type: ignore[operator]
