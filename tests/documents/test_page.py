from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from docleak.documents import Field, Page, Question, Word
from docleak.documents.page import Entity, fault_list
from docleak.errors import DocumentError

PAPER = np.full((40, 100, 3), 255, dtype=np.uint8)


def test_all_faults_of_a_page_are_reported_at_once() -> None:
    words = (
        Word("inverted", (10, 5, 8, 9)),
        Word("outside", (90, 5, 130, 9)),
        Word("nan", (float("nan"), 5, 130, 9)),
        Word("fine", (1, 1, 2, 2)),
    )
    with pytest.raises(DocumentError) as raised:
        Page("p", PAPER, words, fields=(Field("total", "1", (7,)),))
    message = str(raised.value)
    assert "'inverted'" in message and "inverted or empty" in message
    assert "'outside'" in message and "leaves the page" in message
    assert "not finite" in message and "[7] do not exist" in message
    assert "fine" not in message


@pytest.mark.parametrize("image", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)])
def test_an_image_of_the_wrong_kind_is_refused(image: np.ndarray) -> None:
    with pytest.raises(DocumentError, match="uint8"):
        Page("p", image)


def test_field_boxes_join_words_of_a_line_and_split_lines() -> None:
    words = (Word("a", (10, 5, 20, 15)), Word("b", (25, 6, 40, 16)), Word("c", (10, 20, 30, 30)))
    page = Page("p", PAPER, words, fields=(Field("k", "a b c", (0, 1, 2)),))
    assert page.field_boxes(page.fields[0]) == ((10, 5, 40, 16), (10, 20, 30, 30))


def test_private_fields_are_those_with_a_place() -> None:
    fields = (Field("a", "x", (0,)), Field("b", "x", ()), Field("c", "x", (0,), private=False))
    page = Page("p", PAPER, (Word("x", (1, 1, 5, 5)),), fields)
    assert [f.key for f in page.private_fields] == ["a"]


def test_with_image_keeps_the_rest_and_the_size() -> None:
    page = Page("p", PAPER, provider="acme")
    assert page.with_image(PAPER // 2).provider == "acme"
    with pytest.raises(DocumentError, match="expected"):
        page.with_image(PAPER[:10])


def test_long_fault_lists_are_cut_with_a_count() -> None:
    assert fault_list(["x"] * 25).endswith("... and 5 more")
    assert fault_list([]) == ""


def test_entities_and_links_must_exist() -> None:
    word = Word("a", (1.0, 1.0, 5.0, 5.0))
    Page("p", PAPER, (word,), entities=(Entity("question", (0,)), Entity("answer", (0,))), links=((0, 1),))
    with pytest.raises(DocumentError, match=r"entity 0 \(answer\)") as caught:
        Page("p", PAPER, (word,), entities=(Entity("answer", (1,)),), links=((0, 1),))
    assert "link (0, 1): there are 1 entities" in str(caught.value)


@pytest.mark.parametrize("answers", ["118.20", None, ("118.20", None)])
def test_answers_that_are_no_tuple_of_texts_are_refused(answers: Any) -> None:
    """The first answer of a text would be its first letter, and that is what a client would train on."""
    with pytest.raises(DocumentError, match=r"question 'How much.': answers are .*, expected a tuple of texts"):
        Page("p", PAPER, questions=(Question("How much?", answers),))
    assert Page("p", PAPER, questions=(Question("How much?", ()),)).questions[0].answers == ()
