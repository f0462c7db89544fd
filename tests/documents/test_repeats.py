"""A private value that the page prints again must not stay visible in its template."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docleak.documents import Field, Page, Word, blank_template, private_mask, repeats_of, sroie
from docleak.documents.inspect import draw
from docleak.documents.synthetic import make_pages
from docleak.metrics import score_page


def page_of(texts: list[str], field: Field, *more: Field) -> Page:
    """One word a line, each a black bar of its own in an otherwise white page."""
    image = np.full((12 * len(texts), 60, 3), 255, dtype=np.uint8)
    words = []
    for line, text in enumerate(texts):
        image[12 * line + 3 : 12 * line + 9, 5:55] = 0
        words.append(Word(text, (5, 12 * line + 3, 55, 12 * line + 9)))
    return Page("p", image, tuple(words), (field, *more))


def again(page: Page) -> list[tuple[int, ...]]:
    return [field.words for field in repeats_of(page)]


def test_a_value_printed_twice_is_blanked_twice_and_scored_once() -> None:
    page = page_of(["Total", "19.00", "Paid", "19.00"], Field("total", "19.00", (1,)))
    assert again(page) == [(3,)]
    template, mask = blank_template(page), private_mask(page)
    assert (template[38:46, 4:56] == 255).all(), "the repeat is still visible"
    assert mask[38:46, 4:56].all() and mask.sum() == 2 * private_mask(page, repeats=False).sum()
    spoiled = page.image.copy()
    spoiled[36:] = 128  # only the repeat is wrong
    assert score_page(page, spoiled, None).mse == 0


@pytest.mark.parametrize(
    ("texts", "value", "found"),
    [
        (["9.00", "9.00"], "9.00", [(1,)]),
        (["9.00", "900"], "9.00", []),  # another number
        (["9.00", "19.00"], "9.00", []),  # never cut out of a longer one
        (["9.00", "RM9.00,"], "9.00", [(1,)]),
        (["9.00", "9.00", "x", "9.00"], "9.00", [(1,), (3,)]),
        (["RM9.00", "x", "9.00"], "9.00", [(2,)]),
        (["date:25/12/2018", "25/12/2018", "Date: 25/12/2018"], "25/12/2018", [(1,), (2,)]),
        (["Acme Ltd.", "ACME", "LTD"], "Acme Ltd", [(1, 2)]),
        (["Acme", "Acmeville"], "Acme", []),
        (["Acme", "Ac", "me"], "Acme", [(1, 2)]),
        (["1", "1", "1"], "1", []),  # too short to give anything away
        (["999", "999"], "999", []),
        (["9999", "9999"], "9999", [(1,)]),
        (["****", "****"], "****", [(1,)]),
    ],
)
def test_what_counts_as_a_repeat(texts: list[str], value: str, found: list[tuple[int, ...]]) -> None:
    assert again(page_of(texts, Field("k", value, (0,)))) == found


def test_what_the_field_prints_is_looked_for_beside_its_value() -> None:
    page = page_of(["25/12/2018", "x", "25/12/2018"], Field("date", "2018-12-25", (0,)))
    assert again(page) == [(2,)]


def test_words_of_other_fields_are_left_to_them() -> None:
    """A second private field covers its place itself; a public one was declared public."""
    texts = ["Acme", "Acme", "Acme", "Acme"]
    page = page_of(
        texts, Field("payee", "Acme", (0,)), Field("seller", "Acme", (1,)), Field("head", "Acme", (2,), False)
    )
    assert [(field.key, field.words) for field in repeats_of(page)] == [("payee", (3,))]
    assert (blank_template(page)[27:33] == page.image[27:33]).all(), "the public field stays"


def test_a_field_without_a_place_or_a_public_one_has_no_repeats() -> None:
    assert again(page_of(["Acme", "Acme"], Field("k", "Acme", ()))) == []
    assert again(page_of(["Acme", "Acme"], Field("k", "Acme", (0,), private=False))) == []


def test_the_drawing_shows_where_the_repeats_are() -> None:
    page = page_of(["19.00", "x", "19.00"], Field("total", "19.00", (0,)))
    alone = replace(page, words=(*page.words[:2], Word("20.00", page.words[2].box)))
    assert (draw(page) != draw(alone)).any()


def test_synthetic_invoices_print_nothing_twice() -> None:
    """So that blanking repeats changed none of their numbers."""
    for size in ((192, 256), (224, 224)):
        assert not any(repeats_of(page) for page in make_pages(40, seed=0, size=size))


def test_a_real_receipt_that_repeats_its_total(shared_data: Path) -> None:
    page = next(p for p in sroie.load(shared_data / "sroie") if p.name == "X51005301661")
    places = [(field.key, [page.words[i].text for i in field.words]) for field in repeats_of(page)]
    assert places.count(("date", ["20/12/2017"])) == 2 and ("total", ["73.00"]) in places
    template = blank_template(page)
    for field in repeats_of(page):
        for x0, y0, x1, y1 in page.field_boxes(field):
            assert template[int(y0) : int(y1), int(x0) : int(x1)].std() == 0
