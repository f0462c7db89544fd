"""Spellings that are one provider, and names that are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docleak.documents import Page, load_pages, provider_names
from docleak.documents.division import divide
from docleak.documents.folder import save
from docleak.documents.names import joined_spellings, one_spelling, provider_key, spellings
from docleak.documents.partition import split_providers

PAPER = np.full((8, 8, 3), 255, dtype=np.uint8)


@pytest.mark.parametrize(
    "spelling",
    ["ACME GmbH", " acme  gmbh", "\uff21\uff23\uff2d\uff25\u00a0GmbH", "AC\u200bME\tGMBH\ufeff", "acme\n gm\u00adbh",
     "A\u034fCME\u2003GmbH\ufe0f", "acme gmbh\x00"],
)  # fmt: skip
def test_case_spacing_and_unicode_form_do_not_count(spelling: str) -> None:
    assert provider_key(spelling) == "acme gmbh"


def test_composed_and_folded_letters() -> None:
    assert provider_key("Mu\u0308ller Stra\u00dfe") == provider_key("M\u00dcLLER STRASSE")
    assert provider_key("o\ufb03ce") == provider_key("OFFICE")


@pytest.mark.parametrize(
    ("one", "other"), [("M\u00fcller", "Mueller"), ("A B", "AB"), ("A.B", "A B"), ("Acme 1", "Acme 2"), ("\u0391", "A")]
)
def test_other_differences_count(one: str, other: str) -> None:
    assert provider_key(one) != provider_key(other)


@given(st.text(max_size=12))
def test_a_key_is_its_own_key(name: str) -> None:
    assert provider_key(provider_key(name)) == provider_key(name)


def test_one_spelling_stands_for_all_and_follows_from_its_own_pages() -> None:
    spelling = spellings(["ACME  ", "acme", "\u200b", "Other", "ACME"])
    assert spelling == {"ACME  ": "ACME", "acme": "ACME", "ACME": "ACME", "\u200b": "", "Other": "Other"}
    assert spellings(["ACME  ", "acme", "ACME"])["acme"] == "ACME", "whoever else is there"
    assert joined_spellings(["ACME  ", "acme", "Other"]) == ["counted as one provider: 'ACME  ', 'acme'"]
    assert joined_spellings(["a", "b", ""]) == []


def test_pages_of_a_folder_come_with_one_spelling_and_it_is_said(tmp_path: Path) -> None:
    names = ["ACME GmbH", "acme gmbh\u200b", "Other", "\u200b"]
    pages = [Page(f"p{i}", PAPER, provider=name) for i, name in enumerate(names)]
    loaded = load_pages(f"folder:{save(pages, tmp_path / 'pages')}", seed=0)
    assert provider_names(loaded) == ("ACME GmbH", "ACME GmbH", "Other", "") == tuple(page.provider for page in loaded)
    assert loaded.notes == ("counted as one provider: 'ACME GmbH', 'acme gmbh\\u200b'",)  # type: ignore[attr-defined]
    assert [page.provider for page in one_spelling(pages)] == ["ACME GmbH", "ACME GmbH", "Other", ""]
    plain = load_pages(f"folder:{save([replace(p, provider='x') for p in pages], tmp_path / 'plain')}", seed=0)
    assert plain.notes == () and one_spelling(plain) is plain  # type: ignore[attr-defined]
    division = divide([f"folder:{save(pages[:3], tmp_path / 'three')}"], 2, by="providers", seed=0)
    assert sorted(len(share.pages) for share in division.shares) == [1, 2]


def test_a_provider_of_several_spellings_is_dealt_to_one_client() -> None:
    rng = np.random.default_rng(0)
    shares = split_providers("set", ["ACME", "acme", " Acme", "b", "c"], ["1", "2", "3", "4", "5"], 3, rng=rng)
    assert any({0, 1, 2} <= set(share.pages) for share in shares)
