from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docleak.documents.locate import WordStream, letters


@pytest.mark.parametrize(
    ("text", "value", "words"),
    [
        ("Total: RM9.00 paid", "9.00", (1,)),
        ("no 19.00 but 9.000", "9.00", ()),  # never cut out of a longer number
        ("1 9.00", "19.00", ()),  # nor put together from two
        ("no 2 6 9 2 1 3", "269213", (1, 2, 3, 4, 5, 6)),  # but a long one may be letter-spaced
        ("qty 900 price 9.00", "9.00", (3,)),  # the literal spelling wins
        ("25 / 12 / 2018", "25/12/2018", (0, 1, 2, 3, 4)),
        ("SEGI CASH & CARRY SDN.BHD.", "Segi Cash&Carry sdn bhd", (0, 1, 2, 3, 4)),
        ("the carton art", "art", (2,)),
        ("date:25/12/2018 8:13", "25/12/2018", (0,)),
        ("$1,000.00", "1000.00", (0,)),
        ("STRASSE", "Straße", (0,)),
        ("a *** b", "***", (1,)),
        ("a b", "", ()),
        ("a b", "c", ()),
        ("", "c", ()),
    ],
)
def test_where_a_value_is_found(text: str, value: str, words: tuple[int, ...]) -> None:
    assert WordStream.of(text.split()).find(value) == words


def test_rank_comes_before_spelling_and_order() -> None:
    stream = WordStream.of(["9.00", "x", "9.00", "y", "9.00"])
    assert stream.find_all("9.00") == [(0,), (2,), (4,)]
    assert stream.find("9.00", rank=lambda words: float(words[0] == 2)) == (2,)
    assert stream.find("9.00") == (0,)


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=8), st.data())
def test_a_run_of_whole_words_is_always_found(words: list[str], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(first + 1, len(words)))
    value = " ".join(words[first:end])
    indices = WordStream.of(words).find(value)
    if letters(value):
        assert letters(" ".join(words[i] for i in indices)).count(letters(value)) >= 1
