"""Private pages that stand in a training several times, and training without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from docleak.documents import Page
from docleak.documents.copies import deduplicated, text_of

#: Of a second scan, the share of words in which one letter is misread.
SLIPS = 0.05
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def with_copies(pages: list[Page], copies: int, rng: np.random.Generator) -> list[Page]:
    """``pages``, and of every second one so many further scans, each filed as a document of its own."""
    return pages + [_scanned(page, number, rng) for page in pages[::2] for number in range(1, copies + 1)]


def without_duplicates(pages: list[Page]) -> list[Page]:
    """The pages that are no near-duplicate of an earlier one of another document (``copies.deduplicated``)."""
    return [pages[i] for i in deduplicated([text_of(page, document=page.document or page.name) for page in pages])]


def _scanned(page: Page, number: int, rng: np.random.Generator) -> Page:
    """The same page under another name, with slips of OCR; what is annotated stays where it was."""
    words = list(page.words)
    for i in np.flatnonzero(rng.random(len(words)) < SLIPS):
        text = words[i].text
        place = int(rng.integers(len(text)))
        slip = LETTERS[int(rng.integers(len(LETTERS)))]
        words[i] = replace(words[i], text=text[:place] + slip + text[place + 1 :])
    again = f"copy-{number}"
    return replace(
        page, name=f"{page.name}-{again}", document=f"{page.document or page.name}-{again}", words=tuple(words)
    )
