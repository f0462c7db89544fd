from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from docleak.documents import LazyPages, Page, Word, provider_names
from docleak.documents.pages import (
    PageEntry,
    at_most,
    clip_overshoot,
    document_names,
    joined,
    page_names,
    picked,
    remembered,
)
from docleak.errors import DocumentError

PAPER = np.full((40, 100, 3), 255, dtype=np.uint8)


def make_pages(count: int, made: list[str]) -> LazyPages:
    def entry(i: int) -> PageEntry:
        def make() -> Page:
            made.append(f"p{i}")
            return Page(f"p{i}", PAPER)

        return PageEntry(f"p{i}", Path("index"), make, provider=f"provider {i % 2}")

    return LazyPages(Path("data"), [entry(i) for i in range(count)], notes=["a note"])


def test_pages_are_made_only_when_asked_for_and_slices_stay_lazy() -> None:
    made: list[str] = []
    pages = make_pages(5, made)
    part = pages[1:4]
    assert len(pages) == 5 and isinstance(part, LazyPages) and len(part) == 3 and part.notes == ("a note",)
    assert provider_names(part) == ("provider 1", "provider 0", "provider 1")
    assert made == []
    assert part[-1].name == "p3" and made == ["p3"]
    assert [page.name for page in pages[::-2]] == ["p4", "p2", "p0"]
    assert provider_names([Page("p", PAPER, provider="acme")]) == ("acme",)
    with pytest.raises(IndexError):
        pages[5]


def test_a_fault_says_where_the_page_was_read() -> None:
    bad = PageEntry("p", Path("x.json"), lambda: Page("p", PAPER, (Word("w", (0, 0, 500, 9)),)))
    with pytest.raises(DocumentError, match=r"leaves the page(.|\n)*read from x\.json"):
        LazyPages(Path("data"), [bad])[0]


def test_remembered_pages_are_made_once() -> None:
    made: list[str] = []
    pages = remembered(make_pages(3, made))
    assert [page.name for page in (pages[1], pages[1], *pages[:2])] == ["p1", "p1", "p0", "p1"]
    assert made == ["p1", "p0"]


def test_parts_are_joined_and_picked_without_being_made() -> None:
    made: list[str] = []
    pages = joined([make_pages(2, made), [Page("q", PAPER, document="d")]])
    assert page_names(pages) == ("p0", "p1", "q") and document_names(picked(pages, [2, 0])) == ("d", "")
    assert made == [] and picked(pages, [2])[0].name == "q" and made == []


def test_limit() -> None:
    assert at_most(range(9), 2) == [0, 1] and at_most(range(3), None) == [0, 1, 2]
    with pytest.raises(DocumentError, match="limit of 0"):
        at_most([], 0)


@pytest.mark.parametrize(
    ("box", "clipped"),
    [
        ((1, 1, 9, 9), (1, 1, 9, 9)),
        ((-2, -1, 102, 41), (0, 0, 100, 40)),
        ((90, 1, 103, 9), (90, 1, 103, 9)),  # too far out: left for Page to refuse
        ((100, 1, 101, 9), (99, 1, 100, 9)),  # wholly in the margin: one pixel at the border
        ((-2, 1, -1, 9), (0, 1, 1, 9)),
        ((9, 1, 1, 9), (9, 1, 1, 9)),
        ((101, -1, 99, 9), (101, -1, 99, 9)),
    ],
)
def test_small_overshoots_are_clipped(box: tuple[int, int, int, int], clipped: tuple[int, int, int, int]) -> None:
    assert clip_overshoot(Word("w", box), 100, 40).box == clipped
