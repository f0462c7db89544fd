"""Boxes in other units than pixels: in 0-1 they are refused, in 0-1000 on larger pages they are doubted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from docleak.documents.page import Page, Word
from docleak.spec import counted_words

#: The range to which LayoutLM's boxes are scaled.
NORMALISED = 1000.0
#: Faulty boxes of a page that are listed; the rest are counted.
MOST_SHOWN = 5
#: Share of a page's side beyond which boxes that end before 1000 are not doubted.
REACHED = 0.8
#: A picture with no longer side is too small to tell.
TINY = 20
#: Difference between the lightest and the darkest pixel of a box below which it is called blank, of 255.
INK = 16
#: Pages that are looked at for ink.
LOOKED_AT = 5


def unit_boxes(words: Sequence[Word], size: tuple[int, int]) -> list[str]:
    """A fault if the boxes are shares of the page from 0 to 1: none goes beyond 1, and some are no whole numbers."""
    values = [value for word in words for value in word.box]
    if (
        not values
        or max(size) < TINY
        or min(values) < 0
        or max(values) > 1
        or all(value == int(value) for value in values)
    ):
        return []
    return [
        f"all {len(words)} boxes lie in 0-1; expected pixels of the image. Multiply x by its width and y by its height"
    ]


def beyond(bad: Sequence[str], words: Sequence[Word], size: tuple[int, int]) -> list[str]:
    """What to add to the first faults of a page's boxes: how many more there are, and a probable reason."""
    notes = [f"... and {len(bad) - MOST_SHOWN} more boxes of this page"] if len(bad) > MOST_SHOWN else []
    most = max((value for word in words for value in word.box), default=0.0)
    if bad and max(size) < most <= NORMALISED and most > NORMALISED / 2:
        notes.append("are its boxes scaled to 0-1000? Multiply x by the image's width / 1000, y by its height / 1000")
    return notes


@dataclass
class BoxScale:
    """Sees the boxes of all pages, and says at the end if they look scaled to 0-1000."""

    doubted: list[tuple[int, int]] = field(default_factory=list)
    beyond: bool = False

    def add(self, words: Sequence[Word], size: tuple[int, int]) -> None:
        """One page's words and the width and height of its picture."""
        if not words:
            return
        right, bottom = max(word.box[2] for word in words), max(word.box[3] for word in words)
        if max(right, bottom) > NORMALISED:
            self.beyond = True
        elif max(size) > NORMALISED and bottom < REACHED * size[1]:
            self.doubted.append(size)

    def notes(self) -> list[str]:
        """One sentence, or none: a single box beyond 1000 shows that they are in pixels."""
        if self.beyond or not self.doubted:
            return []
        width, height = self.doubted[0]
        verb = "is" if len(self.doubted) == 1 else "are"
        larger = f"{counted_words(len(self.doubted), 'picture')} {verb} larger"
        return [
            f"no box goes beyond 1000, though {larger} (the first {width} x {height} pixels): if boxes are scaled "
            "to 0-1000, multiply x by width / 1000 and y by height / 1000; look at them "
            "with docleak data inspect"
        ]


def blank_boxes(pages: Sequence[Page]) -> list[str]:
    """A sentence for pages on which a quarter of the words' boxes or more hold no ink; the first LOOKED_AT are read."""
    looked = [pages[number] for number in range(min(len(pages), LOOKED_AT))]
    blank = {page.name: sum(not has_ink(page, word) for word in page.words) for page in looked}
    wrong = [page for page in looked if page.words and blank[page.name] >= max(1, len(page.words) / 4)]
    if not wrong:
        return []
    first = wrong[0]
    return [
        f"on {len(wrong)} of the {len(looked)} pages looked at, boxes of words hold no ink ({first.name!r}: "
        f"{blank[first.name]} of {len(first.words)}): they may be of another scale, or of another picture; look at "
        "them with docleak data inspect"
    ]


def has_ink(page: Page, word: Word) -> bool:
    """Whether the pixels of the word's box differ by INK or more."""
    x0, y0, x1, y1 = (round(value) for value in word.box)
    crop = page.image[max(0, y0) : max(y1, y0 + 1), max(0, x0) : max(x1, x0 + 1)]
    return crop.size > 0 and int(crop.max()) - int(crop.min()) >= INK
