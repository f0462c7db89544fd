from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from docleak.documents import load_pages
from docleak.documents.pages import document_names, page_names, provider_names
from docleak.documents.splits import KEEPING, held_by_coin, held_out, open_parts, own_splits
from docleak.errors import DocumentError


def documents(pages: object) -> set[str]:
    return set(document_names(pages))  # type: ignore[arg-type]


def test_own_splits_are_taken_where_there_are_some(shared_data: Path) -> None:
    spec = f"funsd:{shared_data / 'funsd'}"
    assert own_splits(spec) == ("train", "test") and own_splits(f"{spec}:split=test") == ()
    parts = open_parts(spec, test=0.3, validation=0.15, seed=3)
    assert len(parts.test) == 50 and documents(parts.test) == documents(load_pages(f"{spec}:split=test", seed=0))
    assert len(parts.train) + len(parts.validation) == 149 and len(parts.validation) == round(0.15 * 149)
    assert not documents(parts.train) & documents(parts.validation)
    assert parts.said == (
        "funsd: the test pages are its official split (50 pages).",
        "funsd: no official validation split is here, so 22 of 149 training pages were held out for it (15 % of the "
        "documents, drawn from seed 3).",
    )
    again = open_parts(spec, test=0.3, validation=0.15, seed=3)
    assert page_names(again.train) == page_names(parts.train)
    assert page_names(open_parts(spec, test=0.3, validation=0.15, seed=4).train) != page_names(parts.train)


def test_training_pages_of_official_validation_documents_are_left_out(shared_data: Path) -> None:
    spec = f"wtq:{shared_data / 'wtq'}"
    parts = open_parts(spec, test=0.5, validation=0.5 - 1e-9, seed=0)
    assert not documents(parts.train) & (documents(parts.validation) | documents(parts.test))
    official = load_pages(f"{spec}/WikiTableQuestions/data/random-split-1-train.tsv", seed=0)
    assert documents(parts.train) == documents(official)
    whole = len(load_pages(spec, seed=0))
    assert parts.said[2] == (
        f"wtq: {whole - len(parts.train)} of {whole} training pages are of documents that its test or "
        "validation pages are of, too, and are left out."
    )
    assert len(open_parts(spec, test=0.5, validation=0, seed=0).train) == whole


def test_a_derived_split_is_not_called_official(shared_data: Path) -> None:
    parts = open_parts(f"vrdu:{shared_data / 'vrdu_pfl'}", test=0.3, validation=0.1, seed=0)
    whose = "a split of its derived layout, not of its publishers'"
    assert parts.said[0] == f"vrdu: the validation pages are {whose} ({len(parts.validation)} pages)."
    assert "no official test split is here" in parts.said[1] and len(parts.said) == 2


def test_under_an_epsilon_no_sentence_counts_training_pages(shared_data: Path) -> None:
    for spec, sentences in ((f"wtq:{shared_data / 'wtq'}", 3), (f"sroie:{shared_data / 'sroie'}", 2)):
        parts = open_parts(spec, test=0.3, validation=0.1, seed=0, units=document_names)
        assert len(parts.said) == sentences and not any(str(len(parts.train)) in said for said in parts.said)
        told = (
            " ".join(parts.said)
            .replace(f"({len(parts.test)} pages)", "")
            .replace(f"({len(parts.validation)} pages)", "")
        )
        assert set(re.findall(r"\d+", told)) <= {"30", "10", "0"}, "shares and the seed are public"


def test_what_has_no_official_split_is_held_out_and_said(shared_data: Path) -> None:
    parts = open_parts(f"sroie:{shared_data / 'sroie'}", test=0.3, validation=0, seed=0)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (350, 0, 150)
    assert parts.said == ("sroie: no official test split is here, so 150 of 500 training pages were held out for it "
                          "(30 % of the documents, drawn from seed 0).",)  # fmt: skip
    numbers = held_out(
        document_names(load_pages(str(shared_data / "sroie"), seed=0)), test=0.3, validation=0,
        rng=np.random.default_rng((0, KEEPING, zlib.crc32(b"sroie"))),
    )  # fmt: skip
    assert len(numbers.test) == 150
    tables = open_parts(f"tabfact:{shared_data / 'tabfact'}", test=0.3, validation=0, seed=0)
    assert "no official test split is here" in tables.said[0], "without training statements there is nothing to test"


def test_several_data_sets(shared_data: Path) -> None:
    spec = f"funsd:{shared_data / 'funsd'},synthetic"
    parts = open_parts(spec, test=0.25, validation=0.25, seed=0, count=8)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (6 + 4, 2 + 2, 8 + 2)
    assert [sentence.partition(":")[0] for sentence in parts.said] == ["funsd", "funsd", "synthetic", "synthetic"]
    assert {entry.data_set for entry in parts.train.entries} == {"funsd", "synthetic"}  # type: ignore[attr-defined]


def test_units_are_held_out_by_coins_of_their_own() -> None:
    parts = open_parts("synthetic", test=0.3, validation=0, seed=1, count=40, units=page_names)
    fewer = open_parts("synthetic", test=0.3, validation=0, seed=1, count=39, units=page_names)
    assert set(page_names(fewer.test)) == set(page_names(parts.test)) - set(page_names(parts.train)[-1:]) - (
        {page_names(load_pages("synthetic", seed=1, count=40))[-1]}
    )
    assert "30 % of the units" in parts.said[0] and provider_names(parts.train)
    with pytest.raises(DocumentError, match="1 of 2 pages name no unit"):
        held_by_coin(["a", ""], test=0.5, validation=0, seed=0)


def test_shares_that_leave_nothing() -> None:
    for test, validation in ((0.6, 0.4), (-0.1, 0.0)):
        with pytest.raises(DocumentError, match="expected shares that leave some"):
            open_parts("synthetic", test=test, validation=validation, seed=0)
    with pytest.raises(DocumentError, match="2 documents are too few"):
        held_out(["a", "b", "b"], test=0.4, validation=0.4, rng=np.random.default_rng(0))


def test_held_out_parts_hold_every_page_once_and_documents_whole() -> None:
    documents = [f"d{i // 3}" for i in range(60)] + ["", ""]
    parts = held_out(documents, test=0.3, validation=0.1, rng=np.random.default_rng(0))
    assert sorted(parts.train + parts.validation + parts.test) == list(range(62))
    for part, of in ((parts.test, 7), (parts.validation, 2)):
        keys = {documents[i] or f"page {i}" for i in part}
        assert len(keys) == of  # 30 % and 10 % of 22 documents
        whole = [i for i in range(62) if (documents[i] or f"page {i}") in keys]
        assert sorted(part) == whole
    again = held_out(documents, test=0.3, validation=0.1, rng=np.random.default_rng(0))
    other = held_out(documents, test=0.3, validation=0.1, rng=np.random.default_rng(1))
    assert again == parts and other != parts
    assert held_out(documents, test=0.3, validation=0.0, rng=np.random.default_rng(0)).test == parts.test
    with pytest.raises(DocumentError, match="2 documents are too few to keep 2"):
        held_out(["a", "b"], test=0.4, validation=0.4, rng=np.random.default_rng(0))


def test_under_an_epsilon_a_unit_that_leaves_moves_no_other_one() -> None:
    units = [f"unit {i // 2}" for i in range(400)]
    parts = held_by_coin(units, test=0.3, validation=0.1, seed=4)
    assert 80 < len(parts.test) < 160 and 10 < len(parts.validation) < 80
    for gone in ("unit 3", "unit 77", "unit 150"):
        left = [name for name in units if name != gone]
        less = held_by_coin(left, test=0.3, validation=0.1, seed=4)
        for part in ("train", "validation", "test"):
            before, after = {units[i] for i in getattr(parts, part)}, {left[i] for i in getattr(less, part)}
            assert before - {gone} == after
    with pytest.raises(DocumentError, match="1 of 2 pages name no unit"):
        held_by_coin(["a", ""], test=0.3, validation=0.0, seed=0)
