"""Synthetic invoices whose issuers can be asked for."""

from __future__ import annotations

import numpy as np
import pytest

from docleak.cli.app import command_line
from docleak.cli.command import Line
from docleak.cli.guard import commands_of
from docleak.documents.issuers import (
    FIRST,
    LAST,
    NUMBERS,
    PROVIDER_KEYS,
    draw_counts,
    facts,
    issuer_page,
    make_issuers,
)
from docleak.documents.pages import document_names, provider_names
from docleak.documents.redaction import traces
from docleak.documents.synthetic_providers import provider
from docleak.errors import DocumentError


def test_every_document_of_a_provider_prints_its_facts_where_its_fields_say() -> None:
    for index in range(FIRST, FIRST + 40):
        expected = facts(index)
        for page in make_issuers([index], [2], seed=3):
            fields = {field.key: field for field in page.fields if field.key in PROVIDER_KEYS}
            assert {key: field.value for key, field in fields.items()} == expected
            for field in fields.values():
                assert not field.private
                assert " ".join(page.words[i].text for i in field.words) == field.value


def test_documents_of_a_provider_differ_in_their_values_and_are_remade_exactly() -> None:
    first, second = make_issuers([FIRST], [2], seed=0)
    again = issuer_page(FIRST, 1, seed=0)
    assert np.array_equal(second.image, again.image) and second.questions == again.questions
    values = [{f.value for f in page.fields if f.private} for page in (first, second)]
    assert not values[0] & values[1]
    assert not np.array_equal(first.image, issuer_page(FIRST, 0, seed=1).image)


def test_names_and_numbers_belong_to_one_provider() -> None:
    assert len({provider(index).name for index in (*range(FIRST), *NUMBERS)}) == FIRST + len(NUMBERS) == 2596
    taxes = [facts(index).get("provider_tax_number") for index in range(FIRST, FIRST + 400)]
    printed = [tax for tax in taxes if tax]
    assert len(set(printed)) == len(printed) and 180 < len(printed) < 300


def test_pages_are_known_by_document_and_provider_without_being_made() -> None:
    pages = make_issuers([FIRST, FIRST + 7], [2, 3], seed=0)
    assert provider_names(pages) == (provider(FIRST).name,) * 2 + (provider(FIRST + 7).name,) * 3
    assert document_names(pages) == tuple(page.document for page in pages)
    assert provider_names(pages) == tuple(page.provider for page in pages)


def test_every_question_is_answered_on_its_page() -> None:
    keys = set()
    for page in make_issuers(range(FIRST, FIRST + 30), [3] * 30, seed=0):
        printed = " ".join(word.text for word in page.words)
        assert len(page.questions) >= 2
        for question in page.questions:
            assert question.answers[0] in printed
            keys.add(question.key)
    assert set(PROVIDER_KEYS) < keys


def test_what_ocr_missed_is_in_the_picture_alone_and_asked_for_all_the_same() -> None:
    plain, holed, none = (make_issuers(range(FIRST, FIRST + 30), [4] * 30, seed=0, missed=m) for m in (0.0, 0.3, 1.0))
    asked = gone = 0
    for one, other, bare in zip(plain, holed, none, strict=True):
        assert np.array_equal(one.image, other.image) and one.questions == other.questions == bare.questions
        assert {word.text for word in other.words} <= {word.text for word in one.words}
        for question in one.questions:
            if question.key in PROVIDER_KEYS:
                asked += 1
                gone += not traces(other, question.answers)
                assert traces(one, question.answers) and not traces(bare, question.answers)
    assert 0.25 < gone / asked < 0.45  # of each three in ten; an e-mail address goes with the name in it, too
    with pytest.raises(DocumentError, match="expected the share, 0 to 1"):
        make_issuers([FIRST], [1], seed=0, missed=1.2)


def test_every_provider_has_a_page() -> None:
    for index in (*range(LAST), *NUMBERS[LAST - FIRST :: 7]):
        assert issuer_page(index, 0, seed=0).image.shape == (256, 192, 3)


@pytest.mark.parametrize("command", ["reproduce", "data make"])
def test_no_command_takes_more_providers_than_there_are(command: str) -> None:
    line = dict(commands_of(command_line()))[command]
    assert isinstance(line, Line)
    allowed = line.asked["issuers"].option.range
    assert allowed is not None and allowed.most == len(NUMBERS)


def test_a_page_that_cannot_be_made_is_refused() -> None:
    for index in (LAST, NUMBERS[-1] + 1):
        with pytest.raises(DocumentError, match="providers 0 to 2596"):
            issuer_page(index, 0, seed=0)
    with pytest.raises(DocumentError, match="at least"):
        issuer_page(0, 0, seed=0, size=(192, 240))
    with pytest.raises(DocumentError, match="every provider once"):
        make_issuers([1, 1], [2, 2], seed=0)


def test_numbers_of_documents_have_the_mean_asked_for_and_a_heavy_tail() -> None:
    counts = np.array(draw_counts(20_000, mean=6, least=3, rng=np.random.default_rng(0)))
    assert counts.min() == 3 and abs(counts.mean() - 6) < 0.1 and counts.max() > 20
    with pytest.raises(DocumentError, match="least"):
        draw_counts(3, mean=1, least=2, rng=np.random.default_rng(0))
