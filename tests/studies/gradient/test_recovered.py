"""A case whose adversary is given no text and reads it out of the gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from docleak.documents.page import Word
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import load_model
from docleak.studies.gradient.case import build_case
from docleak.studies.gradient.config import Exposure
from docleak.studies.gradient.texts import text_record


@pytest.mark.parametrize("name", ["donut-start", "donut-trained", "layoutlmv3-start", "layoutlmv3-trained"])
def test_the_gradient_gives_the_whole_text_away(name: str) -> None:
    model = load_model(name)
    for seed, page in enumerate(make_pages(2, seed=3, size=model.image_size)):
        case = build_case(model, [model.fit(page)], Exposure(recover_text=True), seed=seed)
        assert not case.knowledge.question_known and not case.knowledge.answer_known
        assert case.recovered is not None and case.knowledge.inputs == case.recovered.inputs
        record = text_record(case)
        assert record is not None and record["exact"] and record["believed_exact"], record
        for key, value in case.inputs[0].tensors.items():
            assert torch.equal(case.knowledge.inputs[0].tensors[key], value), key
        assert "read out of the gradient" in " ".join(case.knowledge.sentences())
        assert record["question"] == case.question.text and record["answer"] == case.question.answers[0]
        asked = [field.value == case.question.answers[0] for field in page.private_fields]
        assert record["fields_read"] == ([True] * len(asked) if record["words"] else asked)


@pytest.mark.parametrize("name", ["donut-start", "layoutlmv3-start"])
def test_noise_takes_it_away_and_the_adversary_notices(name: str) -> None:
    model = load_model(name)
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    exposure = Exposure(recover_text=True, defense="noise:sigma=1")
    try:
        record = text_record(build_case(model, [page], exposure, seed=0))
    except AttackError:  # not even the number of tokens can be told
        record = {"exact": False, "believed_exact": False}
    assert record is not None and not record["exact"] and not record["believed_exact"]


@pytest.mark.parametrize("name", ["donut-start", "layoutlmv3-start"])
def test_without_the_text_tables_there_is_no_closed_form(name: str) -> None:
    model = load_model(name)
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    with pytest.raises(AttackError, match="embed"):
        build_case(model, [page], Exposure(recover_text=True, stages=("output",)), seed=0)


def test_nothing_is_recorded_where_it_was_not_looked_for() -> None:
    model = load_model("layoutlmv3-start")
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    assert text_record(build_case(model, [page], Exposure(), seed=0), look=False) is None


def test_an_adversary_who_was_given_the_text_reads_it_all_the_same() -> None:
    model = load_model("layoutlmv3-start")
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    record = text_record(build_case(model, [page], Exposure(), seed=0))
    assert record is not None and record["exact"]
    assert [word["text"] for word in record["words"]] == [word.text for word in page.words]  # type: ignore[index, attr-defined]


def test_where_there_is_no_closed_form_the_record_says_why() -> None:
    model = load_model("layoutlmv3-start")
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    record = text_record(build_case(model, [page], Exposure(stages=("output",)), seed=0))
    assert record is not None and "embed" in str(record["failed"])


def test_a_field_whose_words_stand_in_one_box_counts_as_read() -> None:
    """OCR, and pages.jsonl by ``box``, may give a value of several words as one: what is read of it are its words."""
    model = load_model("layoutlmv3-start")
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    number, several = next((n, field) for n, field in enumerate(page.fields) if field.private and len(field.words) > 1)
    first, *rest = several.words
    boxes = [page.words[word].box for word in several.words]
    left, top, right, bottom = zip(*boxes, strict=True)
    words = list(page.words)
    words[first] = Word(several.value, (min(left), min(top), max(right), max(bottom)))
    fields = list(page.fields)
    fields[number] = replace(several, words=(first,))
    for word in rest:  # keeps the others' numbers
        words[word] = Word(".", (0.0, 0.0, 1.0, 1.0))
    joined = replace(page, words=tuple(words), fields=tuple(fields))
    record = text_record(build_case(model, [joined], Exposure(recover_text=True), seed=0))
    assert record is not None and record["exact"] and record["believed_exact"], record["wrong_parts"]
    assert record["fields_by"]["words"][joined.private_fields.index(fields[number])]


def test_words_that_are_not_the_fields_value_are_told_apart() -> None:
    """An OCR that misread a value, or a data set that writes it otherwise: the words were read, the value was not."""
    model = load_model("layoutlmv3-start")
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    number = next(n for n, field in enumerate(page.fields) if field.private)
    fields = [replace(f, value=f"other {f.value}") if n == number else f for n, f in enumerate(page.fields)]
    record = text_record(build_case(model, [replace(page, fields=tuple(fields))], Exposure(recover_text=True), seed=0))
    assert record is not None and all(record["fields_by"]["words"])  # type: ignore[index]
    assert record["fields_spelt"] == [field is not fields[number] for field in fields if field.private]
