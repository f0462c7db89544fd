"""What is struck out of a redacted edition, and what is not."""

from html import escape
from pathlib import Path

import pytest

from docleak.report.redaction import places, private_values, struck, struck_page


def test_a_value_within_another_word_is_not_struck_and_so_not_told() -> None:
    assert (
        struck("given beforehand by Rose, Roseburg 4", ["befor", "Rose"])
        == "given beforehand by [redacted], Roseburg 4"
    )
    assert struck("file_A-911107x.png", ["A-911107"]) == "file_[redacted]x.png", (
        "numbers are struck wherever they stand"
    )


def test_what_an_attack_read_is_struck_near_to_the_truth_or_not() -> None:
    """A name with one letter wrong tells the name; a made-up "befor" is struck, and "beforehand" stays."""
    record = {
        "answer": "A-911107",
        "recovered": {"believed_exact": False, "answer": "Rosa Meyer"},
        "fields": [{"value": "Rose Meyer"}],
    }
    values = private_values([record])
    assert values == {"A-911107", "Rosa Meyer", "Rose Meyer"}
    assert struck("read: Rosa Meyer", values) == "read: [redacted]"
    attempt = {"tokens": [7, 8], "target": [0.5, 0.4], "text": "##marina romera"}
    off_weights = private_values([{"value": "Marina Romero", "attempts": [attempt], "baseline": [attempt]}])
    assert struck("Surest of all it is of \u201cmarina romera\u201d.", off_weights).count("romera") == 0
    assert private_values([{"words": [{"text": "Total"}]}]) == frozenset(), "a word of a page may be any word"


@pytest.mark.parametrize("written", ["JANE DOE AG", "Jane  Doe", "JaneDoe", "jane\nd\u006fe", "Jane Doe"])
def test_a_value_is_struck_however_it_is_written(written: str) -> None:
    assert "oe" not in struck(written, ["Jane Doe"]).casefold()
    assert struck("Mu\u0308ller KG", ["M\u00fcller KG"]) == struck("M\u00fcller kg", ["M\u00fcller KG"]) == "[redacted]"
    assert struck("ROSE, and a rose", ["Rose"]) == "[redacted], and a rose", "a word may be a name, or no name"


def test_the_markup_of_a_page_is_no_value() -> None:
    page = '<span class="blank" title="span 7">a span of Jane &amp; Co</span>'
    told = struck_page(page, ["span", "blank", "Jane & Co"], escape)
    assert told == '<span class="blank" title="[redacted] 7">a [redacted] of [redacted]</span>'


def test_no_attribute_or_comment_keeps_a_value() -> None:
    page = '<!-- of ACME 7 --><input data-of=\'ACME 7\' placeholder="acme  7" class="ACME 7"><p>7</p>'
    told = struck_page(page, ["ACME 7"], escape)
    assert told.count("[redacted]") == 3 and told.casefold().count("acme") == 1, "but the class, which is markup"


def test_names_of_pages_and_places_are_struck(tmp_path: Path) -> None:
    record = {"page": "Jane Roe 1990", "provider": "ACME 7", "scores": {"document": "file 12"}}
    assert private_values([record]) == {"Jane Roe 1990", "ACME 7", "file 12"}
    settings = {"documents": f"folder:{tmp_path}", "models": ["donut-start", "/home/alice/model"], "seed": 3, "of": "."}
    assert places(settings) == {str(tmp_path), "/home/alice/model"}


def test_where_documents_are_is_struck_wherever_the_report_is_written(tmp_path: Path) -> None:
    """A relative place is not there, seen from another folder."""
    settings = {
        "documents": "acme claims", "members": "folder:acme-in", "division": {"documents": "issuers", "seed": 0},
        "clients": ["north=acme-north", "clinic-b"], "models": ["acme/model"], "test_documents": ["synthetic"],
        "updates": "acme-a,sroie:acme-b", "public_documents": "sroie:acme-c:split=test",
    }  # fmt: skip
    struck = places(settings)
    assert {"acme claims", "acme-in", "acme-north", "acme-a", "acme-b", "acme-c"} <= struck
    assert not struck & {"issuers", "acme/model", "synthetic", "north", "clinic-b", "test"}
    for clients in (["/home/anna/pages"], {"a": "/home/anna/pages"}, ("b=/home/anna/pages",)):
        assert places({"clients": clients}) == {"/home/anna/pages"}, clients
