"""The division of the reconstruction game."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docleak.documents.game import require_disjoint, split_game
from docleak.errors import DocumentError


@given(st.lists(st.integers(0, 30), min_size=3, max_size=60), st.floats(0.05, 0.9), st.integers(0, 99))
def test_every_document_is_in_one_part(owners: list[int], share: float, seed: int) -> None:
    documents = [f"d{owner}" for owner in owners]
    if len(set(documents)) < 3:
        return
    split = split_game(documents, validation=share, rng=np.random.default_rng(seed))
    parts = [split.private, split.public, split.validation]
    assert sorted(page for part in parts for page in part) == list(range(len(documents)))
    names = [{documents[page] for page in part} for part in parts]
    assert all(names) and not (names[0] & names[1] or names[0] & names[2] or names[1] & names[2])


def test_sizes_are_those_of_the_paper() -> None:
    """SROIE, table 4: 626 receipts, of which 100 for validation, 263 public, 263 private."""
    split = split_game([f"X{i}" for i in range(626)], validation=100 / 626, rng=np.random.default_rng(0))
    assert [len(part) for part in (split.validation, split.public, split.private)] == [100, 263, 263]
    again = split_game([f"X{i}" for i in range(626)], validation=100 / 626, rng=np.random.default_rng(0))
    assert split == again


def test_pages_of_unknown_document_stand_alone() -> None:
    split = split_game([""] * 9, validation=0.3, rng=np.random.default_rng(0))
    assert [len(part) for part in (split.validation, split.public, split.private)] == [3, 3, 3]


@pytest.mark.parametrize(("documents", "share"), [(["a", "b", "b"], 0.3), (["a", "b", "c"], 0.0)])
def test_too_little_is_refused(documents: list[str], share: float) -> None:
    with pytest.raises(DocumentError, match="expected 3 documents"):
        split_game(documents, validation=share, rng=np.random.default_rng(0))


def test_parts_that_overlap_or_are_empty_are_refused() -> None:
    require_disjoint({"private": ["a"], "public": ["b"]})
    with pytest.raises(DocumentError, match=r"private and public share \['b'\].*") as caught:
        require_disjoint({"private": ["a", "b"], "public": ["b"], "validation": []})
    assert "validation is empty" in str(caught.value)
