"""Copies of a value: what counts as printed elsewhere, and which pages are nearly the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Indel

from docleak.documents.copies import PageText, copies_of, deduplicated, near_duplicates, prints, text_of
from docleak.documents.synthetic import make_pages


def page(text: str, document: str = "d") -> PageText:
    return PageText(document, tuple(text.casefold().split()))


@pytest.mark.parametrize(
    ("value", "text", "there"),
    [
        ("Oscar Nguyen", "bill to oscar nguyen total", True),
        ("Oscar Nguyen", "oscar and nguyen", False),
        ("9.00", "total 9.00", True),
        ("9.00", "total 19.00", False),
        ("900", "total 9.00", False),
        ("12 High Street, Leeds", "at 12 high streat leeds since", True),  # a slip of OCR
        ("12 High Street, Leeds", "at 13 high street leeds since", False),  # another number is another address
        ("1234567890", "no 1234567891", False),
        ("", "anything", False),
        ("--", "-- anything", False),
    ],
)
def test_whole_words_with_slips_but_never_other_digits(value: str, text: str, there: bool) -> None:
    assert prints(value, page(text)) is there


@given(st.lists(st.sampled_from(["ab", "c", "12", "dd", "3.4"]), min_size=1, max_size=8), st.data())
def test_a_run_of_words_is_always_found(words: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(words) - 1))
    stop = data.draw(st.integers(start + 1, len(words)))
    assert prints(" ".join(words[start:stop]), PageText("d", tuple(words)))


def test_documents_are_counted_once_and_never_the_fields_own() -> None:
    document = page("client oscar nguyen", "own")
    others = [document, page("oscar nguyen", "own"), page("oscar nguyen paid", "a"), page("again oscar nguyen", "a"),
              page("client oscar nguyan", "b"), page("nobody", "c")]  # fmt: skip
    copies = copies_of("Oscar Nguyen", document, others)
    assert copies.printing == 2, "a twice is one, b has a slip"
    assert copies.near_duplicates == 1, "b alone is nearly the same page"


def test_near_duplicates_are_those_of_another_measure() -> None:
    """Against Indel's normalised similarity, which rapidfuzz's ratio is defined by, on 30 pages with words changed."""
    rng = np.random.default_rng(0)
    base = text_of(make_pages(1, seed=1)[0], document="0")
    others = []
    for number in range(30):
        words = [word if rng.random() > number / 60 else "other" for word in base.words]
        others.append(PageText(str(number + 1), tuple(words)))
    expected = [i for i, o in enumerate(others) if Indel.normalized_similarity(base.text, o.text) >= 0.9]
    assert near_duplicates(base, others) == expected
    assert 3 < len(expected) < 27
    assert near_duplicates(page(""), [page("")]) == [], "blank pages are no duplicates"


def test_a_planted_duplicate_is_found_among_invoices() -> None:
    pages = make_pages(40, seed=2)
    field = pages[0].private_fields[0]
    texts = [text_of(p, document=str(i)) for i, p in enumerate(pages)]
    alone = copies_of(field.value, texts[0], texts)
    copy = text_of(replace(pages[0], name="copy"), document="copy")
    planted = copies_of(field.value, texts[0], [*texts, copy])
    assert planted.printing == alone.printing + 1
    assert planted.near_duplicates == alone.near_duplicates + 1


def test_of_near_duplicates_the_first_stays_and_pages_of_one_document_do() -> None:
    first = "invoice 17 of the twelfth of may to oscar nguyen total 9.00"
    again = first.replace("nguyen", "nguycn")
    pages = [page(first, "a"), page("something else", "b"), page(again, "c"), page(again, "a"), page("", "d")]
    assert deduplicated(pages) == [0, 1, 3, 4], "the third is nearly the first; the fourth is of its document"
    assert deduplicated([page("", "a"), page("", "b")]) == [0, 1], "blank pages are like nothing"
