from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import PIL.Image
import pytest

from docleak.documents import Field, Page, Question, Word
from docleak.documents.folder import load, save
from docleak.documents.page import Entity, fault_list
from docleak.errors import DocumentError
from docleak.studies.identity import data_hash

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


WORD: Any = Word("118.20", (80, 10, 90, 30))
FIELD: Any = Field("total", "118.20", (0,))
#: What a page is made of -> what is said of it.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": None}, "page None cannot be used:\n  - name is None, expected a text"),
    ({"provider": 3}, "provider is 3, expected a text"),
    ({"template": 3}, "template is 3, expected a text"),
    ({"notes": "cut"}, "notes is 'cut', expected a tuple of str"),
    ({"words": None}, "words is None, expected a tuple of Word"),
    ({"words": (word for word in (WORD,))}, "words is <generator .*, expected a tuple of Word"),
    ({"words": (None,)}, "words holds None at 0, expected a Word"),
    ({"words": (WORD, replace(WORD, text=None))}, "word 1: text is None, expected a text"),
    ({"words": (replace(WORD, box=None),)}, "word 0: box is None, expected four numbers"),
    ({"words": (replace(WORD, box=(1, 2, 3)),)}, r"word 0: box is \(1, 2, 3\), expected four numbers"),
    ({"words": (replace(WORD, box="1 2 3 4"),)}, "word 0: box is '1 2 3 4', expected four numbers"),
    ({"fields": None}, "fields is None, expected a tuple of Field"),
    ({"fields": ("total",)}, "fields holds 'total' at 0, expected a Field"),
    ({"fields": (replace(FIELD, key=None),)}, "field 0: key is None, expected a text"),
    ({"fields": (replace(FIELD, value=118.2),)}, r"field 'total': value is 118\.2, expected a text"),
    ({"fields": (replace(FIELD, private="no"),)}, "field 'total': private is 'no', expected True or False"),
    ({"fields": (replace(FIELD, words=0),)}, "field 'total': words is 0, expected numbers of words"),
    ({"fields": (replace(FIELD, words=(0.0,)),)}, r"field 'total': words is \(0\.0,\), expected numbers of words"),
    ({"fields": (replace(FIELD, words=(np.int64(7),)),)}, r"word indices \[7\] do not exist"),
    ({"questions": None}, "questions is None, expected a tuple of Question"),
    ({"questions": (Question(None, ()),)}, "question 0: text is None, expected a text"),  # type: ignore[arg-type]
    ({"questions": (Question("q", (), 3),)}, "question 'q': key is 3, expected a text or None"),  # type: ignore[arg-type]
    ({"entities": (Entity("date", None),)}, "entity 0: words is None, expected numbers"),  # type: ignore[arg-type]
    ({"links": ((0,),)}, r"link 0 is \(0,\), expected two numbers of entities"),
    ({"image": PIL.Image.new("RGB", (100, 40))}, r"image is a PIL\.Image\.Image; expected an \(H, W, 3\) uint8 array"),
]


@pytest.mark.parametrize(("parts", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_parts_of_another_type_are_named_at_once(parts: dict[str, Any], said: str) -> None:
    """They ended in errors of what used them, hours later, that named no page."""
    with pytest.raises(DocumentError, match=said):
        Page(**({"name": "p", "image": PAPER, "words": (WORD,), "fields": (FIELD,)} | parts))


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    box, first, one = np.array([80, 10, 90, 30]), cast("Any", np.int64(0)), cast("Any", np.int64(1))
    entities = (Entity("total", (first,)), Entity("date", (first,)))
    made = Page("p", PAPER, (replace(WORD, box=tuple(box)), replace(WORD, box=box)),
                (replace(FIELD, words=(first,)), replace(FIELD, words=np.array([1]))), entities=entities,
                links=((first, one),))  # fmt: skip
    plain = Page("p", PAPER, (WORD, WORD), (FIELD, replace(FIELD, words=(1,))),
                 entities=(Entity("total", (0,)), Entity("date", (0,))), links=((0, 1),))  # fmt: skip
    assert data_hash([made]) == data_hash([plain])
    assert load(save([made], tmp_path / "pages"))[0].fields == plain.fields
