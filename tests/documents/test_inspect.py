from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docleak.documents import Field, Page, Word, load_pages
from docleak.documents.inspect import COLOURS, GREY, draw, enlargement

WORDS = (Word("Total", (5, 10, 35, 24)), Word("9.00", (40, 10, 70, 24)), Word("May", (40, 30, 70, 44)))
FIELDS = (Field("total", "9.00", (1,)), Field("month", "May", (2,), private=False), Field("lost", "x", ()))


def page(width: int = 192, height: int = 256) -> Page:
    return Page("p", np.full((height, width, 3), 255, np.uint8), WORDS, FIELDS)


def has(image: np.ndarray, colour: tuple[int, int, int]) -> bool:
    return bool((image == colour).all(axis=2).any())


@pytest.mark.parametrize(("width", "factor"), [(192, 5), (400, 2), (799, 2), (800, 1), (1700, 1)])
def test_the_page_is_enlarged_by_a_whole_number(width: int, factor: int) -> None:
    assert enlargement(page(width)) == factor
    image = draw(page(width))
    assert image.dtype == np.uint8 and image.shape == (256 * factor, round(width * factor * 1.4), 3)


def test_small_print_is_enlarged_further() -> None:
    assert enlargement(replace(page(800), words=(*WORDS[:1], *[Word("s", (40, 10, 70, 17))] * 9), fields=())) == 2


def test_words_and_private_fields_are_framed_without_hiding_ink() -> None:
    image, template = draw(page()), draw(page(), template=True)
    drawn = image[:, : 192 * 5]
    assert has(drawn, GREY) and has(drawn, COLOURS[0]) and not has(drawn, COLOURS[1])
    assert not has(template[:, : 192 * 5], GREY)
    assert (drawn[55:110, 210:340] == 255).all()  # inside the frame of the total
    panel = image[:, 192 * 5 + 1 :]
    assert has(panel, COLOURS[0]) and not (panel == template[:, 192 * 5 + 1 :]).all()  # only the drawing shows values


def test_the_template_drawing_shows_no_private_ink() -> None:
    inked = page()
    picture = inked.image.copy()
    picture[12:22, 42:68] = 7
    assert (draw(inked.with_image(picture), template=True) == draw(inked, template=True)).all()


def test_many_fields_fit_and_a_page_may_be_bare() -> None:
    fields = tuple(Field(f"a rather long key {i}" * 9, "v", (1,)) for i in range(200))
    assert draw(replace(page(), fields=fields)).shape[0] > 200 * 16
    bare = Page("p", np.zeros((50, 900, 3), np.uint8))
    assert draw(bare).shape == (50, 1260, 3)


@pytest.mark.parametrize("name", ["sroie", "funsd", "vrdu_pfl"])
def test_real_pages_can_be_drawn(shared_data: Path, name: str) -> None:
    real = load_pages(str(shared_data / name), seed=0, count=1)[0]
    assert has(draw(real), COLOURS[0]) and has(draw(real, template=True), COLOURS[0])
