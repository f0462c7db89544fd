from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from docleak.documents import Field, Page, Word, blank_template, private_mask, sroie
from docleak.documents.scrub import commonest_colour


def invoice(value: str, *, paper: str = "white", ink: str = "black") -> Page:
    """A page with a ruled cell that holds ``value``, in a box that does not depend on it."""
    picture = Image.new("RGB", (120, 60), paper)
    pen = ImageDraw.Draw(picture)
    pen.rectangle((30, 15, 100, 35), outline=ink)
    pen.text((2, 18), "Total", fill=ink)
    pen.text((36, 18), value, fill=ink)
    words = (Word("Total", (2, 18, 28, 30)), Word(value, (33.4, 17.2, 96.6, 32.5)))
    return Page("p", np.array(picture), words, (Field("total", value, (1,)),))


def test_the_mask_is_rounded_outwards_grown_and_clipped() -> None:
    page = invoice("1")
    exact = np.zeros((60, 120), dtype=bool)
    exact[17:33, 33:97] = True
    assert (private_mask(page, margin=0) == exact).all()
    exact[16:34, 32:98] = True
    assert (private_mask(page) == exact).all()
    assert private_mask(page, margin=500).all()
    assert not private_mask(replace(page, fields=(Field("total", "1", ()),))).any()
    assert not private_mask(replace(page, fields=(Field("total", "1", (1,), private=False),))).any()
    with pytest.raises(ValueError, match="margin"):
        private_mask(page, margin=-1)


def test_the_mask_covers_lines_not_the_rectangle_around_them() -> None:
    words = (Word("a", (80, 10, 110, 20)), Word("b", (10, 30, 40, 40)))
    page = Page("p", np.zeros((60, 120, 3), np.uint8), words, (Field("k", "a b", (0, 1)),))
    assert private_mask(page, margin=0).sum() == 600


@pytest.mark.parametrize(("paper", "ink"), [("white", "black"), ("#d8d0c0", "#203060"), ("#101820", "white")])
def test_nothing_of_the_value_remains(paper: str, ink: str) -> None:
    templates = [blank_template(invoice(value, paper=paper, ink=ink)) for value in ("1.00", "98765.43", "")]
    assert (templates[0] == templates[1]).all() and (templates[0] == templates[2]).all()
    page = invoice("98765.43", paper=paper, ink=ink)
    mask = private_mask(page)
    inside = templates[0][mask]
    assert (inside == page.image[0, 0]).all()  # one colour, that of the paper
    assert (templates[0][~mask] == page.image[~mask]).all()  # and the rest is untouched
    assert page.image[mask].std() > 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_template_depends_on_public_pixels_only(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    boxes = []
    for _ in range(data.draw(st.integers(1, 4))):  # private boxes that may touch, overlap and fill the page
        x0, y0 = data.draw(st.floats(0, 15)), data.draw(st.floats(0, 15))
        boxes.append((x0, y0, data.draw(st.floats(x0 + 1, 20)), data.draw(st.floats(y0 + 1, 20))))
    words = tuple(Word("x", box) for box in boxes)
    fields = tuple(Field("k", "x", (i,)) for i in range(len(boxes)))
    page = Page("p", rng.integers(0, 256, (20, 20, 3), dtype=np.uint8), words, fields)
    margin = data.draw(st.integers(0, 3))
    other = page.image.copy()
    other[private_mask(page, margin=margin)] = rng.integers(0, 256, 3)
    same = blank_template(page, margin=margin) == blank_template(page.with_image(other), margin=margin)
    assert same.all()


def test_commonest_colour() -> None:
    ink, light, dark = ([10, 10, 10], [250, 250, 250], [90, 90, 90])
    assert commonest_colour(np.array([ink, light, light], np.uint8)).tolist() == light
    assert commonest_colour(np.array([ink, light, dark], np.uint8)).tolist() == light  # the lightest of equals
    assert commonest_colour(np.array([ink, ink, light], np.uint8)).tolist() == ink
    assert commonest_colour(np.zeros((0, 3), np.uint8)).tolist() == [255, 255, 255]


def test_a_page_that_is_private_all_over_becomes_white() -> None:
    page = Page("p", np.zeros((9, 9, 3), np.uint8), (Word("x", (0, 0, 9, 9)),), (Field("k", "x", (0,)),))
    assert (blank_template(page) == 255).all()


def test_a_real_receipt(shared_data: Path) -> None:
    page = sroie.load(shared_data / "sroie", limit=1)[0]
    template, mask = blank_template(page), private_mask(page)
    assert template[mask].min() > 240 > page.image[mask].min()
    assert (template[~mask] == page.image[~mask]).all()
