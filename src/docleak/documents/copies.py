"""Where else a value stands: documents that print it too, and documents that are nearly the same.

A field that an attack reads back was remembered from its own page only if no other page says the same. Found as Carlini
et al. (2023), "Quantifying memorization across neural language models", count duplicates, with a tolerance for OCR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rapidfuzz import fuzz, process

from docleak.documents.locate import spelling
from docleak.documents.page import Page

#: Likeness, in percent (rapidfuzz's ratio), from which two pages are near-duplicates of each other.
NEAR_PAGE = 90.0
#: Likeness from which a page stands in two collections at once.
SAME_PAGE = 98.0
#: Likeness from which two spellings are one value, where they have LONG letters or more and the same digits.
NEAR_VALUE, LONG = 90.0, 10


@dataclass(frozen=True)
class PageText:
    """A page as the spellings of its words in reading order (``locate.spelling``), and the document it belongs to."""

    document: str
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """All words, a space between two."""
        return " ".join(self.words)


@dataclass(frozen=True)
class Copies:
    """Of one value: how many *other* documents of a collection print it, and how many are nearly the field's own."""

    printing: int
    near_duplicates: int


def text_of(page: Page, *, document: str) -> PageText:
    """``page`` as words; ``document`` names what it counts as."""
    return PageText(document, tuple(text for word in page.words if (text := spelling(word.text))))


def copies_of(value: str, page: PageText, others: Sequence[PageText]) -> Copies:
    """Count the documents of ``others``, without that of ``page``, that print ``value`` or are nearly like ``page``."""
    elsewhere = [other for other in others if other.document != page.document]
    printing = {other.document for other in elsewhere if prints(value, other)}
    return Copies(len(printing), len({elsewhere[i].document for i in near_duplicates(page, elsewhere)}))


def near_duplicates(page: PageText, others: Sequence[PageText], *, near: float = NEAR_PAGE) -> list[int]:
    """Numbers of the pages of ``others`` whose text is like that of ``page`` to ``near`` percent, ascending."""
    texts = [other.text for other in others]
    hits = process.extract(page.text, texts, scorer=fuzz.ratio, score_cutoff=near, limit=None)
    return sorted(index for text, _, index in hits if text)


def deduplicated(pages: Sequence[PageText]) -> list[int]:
    """Numbers of the pages that are left, ascending, when the near-duplicates of each one are taken out behind it.

    Pages of one document are no duplicates of each other.
    """
    kept: list[int] = []
    for number, page in enumerate(pages):
        if not near_duplicates(page, [pages[i] for i in kept if pages[i].document != page.document]):
            kept.append(number)
    return kept


def shared(one: Mapping[str, PageText], other: Mapping[str, PageText]) -> list[tuple[str, str]]:
    """Pairs of names of pages that stand in both collections, by their text (SAME_PAGE); blank pages are none."""
    names, texts = list(other), list(other.values())
    return [(a, names[i]) for a, page in one.items() for i in near_duplicates(page, texts, near=SAME_PAGE)]


def prints(value: str, page: PageText) -> bool:
    """Whether a run of whole words of ``page`` spells ``value``.

    Case, spacing and punctuation do not count, signs between digits do. A value of LONG letters or more is also found
    with slips (NEAR_VALUE), but never with other digits: "1,234.00" is no copy of "1,235.00".
    """
    wanted = spelling(value)
    if not wanted:
        return False
    runs = list(_runs(page.words, len(wanted), slack=len(wanted) // 10 if len(wanted) >= LONG else 0))
    if wanted in runs:
        return True
    if len(wanted) < LONG:
        return False
    near = process.extract(wanted, runs, scorer=fuzz.ratio, score_cutoff=NEAR_VALUE, limit=None)
    return any(_digits(text) == _digits(wanted) for text, _, _ in near)


def _runs(words: Sequence[str], length: int, *, slack: int) -> set[str]:
    """Consecutive words joined, of ``length`` letters give or take ``slack``."""
    text, ends = "".join(words), set(accumulate(map(len, words), initial=0))
    lengths = range(length - slack, length + slack + 1)
    return {text[start : start + long] for start in ends for long in lengths if start + long in ends}


def _digits(text: str) -> str:
    return "".join(sign for sign in text if sign.isdigit())
