"""Known words as ink, against the page maker's own printing, Pillow, and planted wrong typefaces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from docleak.attacks.gradients.joint.drawing import (
    Line,
    Look,
    _shrunk,
    boxes_of,
    dressed,
    faces,
    ink_of,
    lines_of,
    other_weights,
    private_lines,
    rank,
    regions,
    set_in,
    touched,
)
from docleak.documents import private_mask
from docleak.documents.fonts import Type, set_line
from docleak.documents.page import Field, Page, Word
from docleak.models.base import Transcript

SIZE = (64, 200)
TEXTS = ("Total due: 1,204.50 EUR", "Maria Quigley", "12.03.2021")


def printed(*settings: tuple[str, Type]) -> tuple[NDArray[np.uint8], list[Word]]:
    """A page that the synthetic invoices' own printing sets, line by line, and its words."""
    page = np.full((*SIZE, 3), 255, np.uint8)
    words: list[Word] = []
    for number, (text, type_) in enumerate(settings):
        words += set_line(page, text, type_, 5, 16 + 20 * number, (0, 0, 0))
    return page, words


def inked(page: NDArray[np.uint8]) -> NDArray[np.float64]:
    return 1 - page[:, :, 0] / 255


@pytest.mark.parametrize("face", ["dejavu-mono", "dejavu-serif", "roboto", "aileron"])
def test_what_was_printed_is_drawn_again_to_the_pixel(face: str) -> None:
    page, words = printed(*((text, Type(face, 11)) for text in TEXTS))
    lines = lines_of(words)
    ranked = rank(lines, stretched=True)
    exact = [look for look, misfit in ranked if look.way == "printed" and misfit == 0]
    assert Look(face, "printed") in exact
    ink = ink_of(dressed(lines, Look(face, "printed")), SIZE)
    np.testing.assert_allclose(ink, inked(page), atol=1 / 255)


def test_a_wrong_typeface_fits_worse() -> None:
    _, words = printed(*((text, Type("source-serif", 12)) for text in TEXTS))
    misfits = {(look.face, look.way): misfit for look, misfit in rank(lines_of(words), stretched=True)}
    assert misfits["source-serif", "printed"] == 0
    assert misfits.get(("dejavu-mono", "printed"), 9.0) > 1
    assert misfits["source-serif", "scanned"] < 0.5 * misfits["dejavu-mono", "scanned"]


def test_a_bold_line_keeps_its_own_typeface() -> None:
    page, words = printed((TEXTS[0], Type("dejavu-serif", 11)), ("Amount 55.10", Type("dejavu-serif-bold", 11)))
    lines = dressed(lines_of(words), Look("dejavu-serif", "printed"))
    assert {line.look.face for line in lines if line.look and line.box[3] > 24} == {"dejavu-serif-bold"}
    np.testing.assert_allclose(ink_of(lines, SIZE), inked(page), atol=1 / 255)


def test_the_other_weight_is_offered_where_it_fits_as_well() -> None:
    _, words = printed((TEXTS[2], Type("dejavu-mono", 11)))
    line = dressed(lines_of(words), Look("dejavu-mono", "printed"))[0]
    (bold,) = other_weights(line)
    assert bold.look == Look("dejavu-mono-bold", "printed") and bold.words == line.words
    assert other_weights(line, ["dejavu-mono"]) == []
    assert other_weights(replace(line, look=Look("dejavu-mono", "scanned"))) == []


def test_scanned_ink_is_what_pillow_prints_large_and_shrinks() -> None:
    """A size that letters were not made for: the page is printed at eight times the size and averaged."""
    large = np.full((SIZE[0] * 8, SIZE[1] * 8, 3), 255, np.uint8)
    words = list(set_line(large, "Quigley 1,204", Type("roboto", 83), 37, 203, (0, 0, 0)))
    small = inked(large).reshape(SIZE[0], 8, SIZE[1], 8).mean(axis=(1, 3))
    lines = lines_of(Word(w.text, (w.box[0] / 8, w.box[1] / 8, w.box[2] / 8, w.box[3] / 8)) for w in words)
    ink = ink_of(dressed(lines, Look("roboto", "scanned")), SIZE)
    assert np.corrcoef(ink.ravel(), small.ravel())[0, 1] > 0.97
    assert abs(ink.sum() / small.sum() - 1) < 0.05
    wrong = ink_of(dressed(lines, Look("dejavu-serif-bold", "scanned")), SIZE)
    assert np.corrcoef(wrong.ravel(), small.ravel())[0, 1] < np.corrcoef(ink.ravel(), small.ravel())[0, 1] - 0.05


def test_a_stretched_page_costs_a_scanned_look_nothing() -> None:
    _, words = printed(*((text, Type("roboto", 14)) for text in ("Mary Quigley", "1,204")))
    wide = [Word(w.text, (2 * w.box[0], w.box[1], 2 * w.box[2], w.box[3])) for w in words]
    lines = lines_of(wide)
    misfit = {s: dict(rank(lines, stretched=s))[Look("roboto", "scanned")] for s in (True, False)}
    assert misfit[True] < 0.1 and misfit[False] == pytest.approx(np.log(2), abs=0.1)


def test_ink_beyond_the_page_is_cut_off_and_letters_nobody_has_are_left_out() -> None:
    lines = lines_of([Word("long", (180, 60, 230, 70)), Word("\U0001f4a3", (3, 3, 9, 9)), Word(" ", (0, 0, 4, 4))])
    assert [word.text for line in lines for word in line.words] == ["long"]
    for way in ("printed", "scanned"):
        ink = ink_of([replace(lines[0], look=Look("roboto", way))], SIZE)  # type: ignore[arg-type]
        assert ink.shape == SIZE and 0 < ink.max() <= 1 and not ink[:, :175].any()


@pytest.mark.parametrize("face", ["dejavu-sans", "source-serif"])
def test_a_text_without_boxes_is_set_as_the_page_maker_sets_it(face: str) -> None:
    page, words = printed((TEXTS[0], Type(face, 12)))
    box = Line(tuple(words)).box
    box = box[0], min(w.box[1] for w in words), box[2], max(w.box[3] for w in words)
    line = set_in(box, TEXTS[0], face)
    assert [word.text for word in line.words] == TEXTS[0].split()
    assert [word.box[0::2] for word in line.words] == [word.box[0::2] for word in words]
    ink = ink_of([replace(line, look=Look(face, "printed"))], SIZE)
    np.testing.assert_allclose(ink, inked(page), atol=1 / 255)


def test_only_words_of_private_places_are_drawn_and_rounded_boxes_are_mended() -> None:
    """LayoutLM's 0..1000 rounds down; for every whole pixel of 224 the edge comes back."""
    private = torch.zeros(224, 224, dtype=torch.bool)
    private[100:112] = True
    edges = range(10, 200)
    words = []
    for x in edges:
        q = [int(v * 1000 / 224) * 224 / 1000 for v in (x, 101, x + 8, 111)]
        words += [Word(str(x), (q[0], q[1], q[2], q[3])), Word("public", (q[0], 20.0, q[2], 30.0))]
    lines = private_lines(Transcript("", "", tuple(words)), private)
    private_words = [word for line in lines for word in line.words]
    assert [word.text for word in private_words] == [str(x) for x in edges]
    assert [tuple(round(edge) for edge in word.box) for word in private_words] == [(x, 101, x + 8, 111) for x in edges]


def test_a_word_is_private_by_its_middle_across_and_down() -> None:
    private = torch.zeros(100, 100, dtype=torch.bool)
    private[40:60, 50:80] = True
    boxes = ((52, 45, 70, 55), (40, 45, 62, 55), (30, 45, 60, 55), (70, 45, 95, 55), (55, 10, 75, 30), (55, 35, 75, 47))
    words = tuple(Word(f"w{number}", box) for number, box in enumerate(boxes))
    texts = {word.text for line in private_lines(Transcript("", "", words), private) for word in line.words}
    assert texts == {"w0", "w1", "w5"}, "middles at x = 61, 51, 45, 82.5 and 65, 65; y = 50 but for 20 and 41"


def test_ink_covers_the_parts_of_pixels_that_its_box_does() -> None:
    ink, x0, y0 = _shrunk(np.full((30, 40), 255, np.uint8), (1 + 1 / 3, 2.5, 3.5, 4 + 1 / 3))
    assert (x0, y0) == (1, 2)
    np.testing.assert_allclose(ink, np.outer([1 / 2, 1, 1 / 3], [2 / 3, 1, 1 / 2]), atol=1e-6)


def test_the_places_of_a_mask_are_the_boxes_that_made_it() -> None:
    words = (Word("a", (5, 5, 20, 15)), Word("b", (0, 30, 40, 40)), Word("c", (100, 50, 200, 64)))
    page = Page(
        "p", np.full((*SIZE, 3), 255, np.uint8), words, tuple(Field(w.text, "v", (i,)) for i, w in enumerate(words))
    )
    private = torch.from_numpy(private_mask(page))
    assert set(boxes_of(regions(private), SIZE)) == {word.box for word in words}
    ink = np.zeros(SIZE)
    ink[35, 10] = 1
    there = touched(private, ink)
    assert there.sum() == private[29:41].sum() and bool(there[35, 10]) and not bool(there[10, 10])


def test_the_fallback_is_always_there() -> None:
    assert "aileron" in faces() and len(set(faces())) == len(faces())
