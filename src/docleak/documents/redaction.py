"""Hide an answer on a page for the memorisation test (Tito et al., 2024, appendix D.1.1): its words and its ink.

The paper says "exact or fuzzy matches" and "radius 20", and no public code holds either; what they mean here is in
``Removal`` and ``redact``. Only what OCR found is hidden: a logo stays, and is meant to, since the picture is the cue.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image as PILImage
from PIL import ImageFilter
from rapidfuzz.distance import Levenshtein

from docleak.documents.locate import letters
from docleak.documents.page import Box, Entity, Field, Image, Page
from docleak.errors import DocumentError

#: Height in pixels up to which pages are blurred with ``Removal.radius`` as it is.
USUAL_HEIGHT = 2000
#: What shows people where a page was blurred.
BLUE = (70, 130, 255)


@dataclass(frozen=True)
class Removal:
    """What counts as a clue, and how it is blurred. ``inside`` is stricter than the paper tells.

    A run of words goes if the normalised Levenshtein similarity of its letters and digits (case folded, no spaces or
    punctuation) with the answer's, or with those of one of its words of ``shortest`` or more, is ``threshold`` or more.
    ``inside`` also removes a word that contains one of these, bare numbers such as a year apart, within a longer one
    ("www.kcci.com" for "kcci"), which the paper's own removal misses (D.1.2).
    ``radius`` is the Gaussian's standard deviation in pixels, as in Pillow. It is not made smaller for small pages,
    which would leave more to see than the paper did, but grows with the height of pages above USUAL_HEIGHT, since a
    blur of 20 pixels of a 600 dpi scan can be read. ``margin`` grows the boxes, which OCR often cuts tight.
    Raises DocumentError for values that remove nothing or everything.
    """

    threshold: float = 0.8
    shortest: int = 4
    inside: bool = True
    radius: float = 20.0
    margin: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1 or self.shortest < 1 or not self.radius > 0 or self.margin < 0:
            raise DocumentError(
                f"{self}: expected a threshold in (0, 1], shortest >= 1, a radius above 0 and a margin of 0 or more."
            )


#: The default: the stricter removal.
THOROUGH = Removal()
#: Nearer to what the paper describes, whose removal leaves an answer that stands inside a longer word.
AS_IN_THE_PAPER = Removal(inside=False)


@dataclass(frozen=True, eq=False)
class Redacted:
    """``page`` without the answer, ``boxes`` (whole pixels) that were blurred, and numbers of the words ``dropped``.

    Nothing dropped means that the answer was not found: the page is then as it was.
    """

    page: Page
    boxes: tuple[Box, ...]
    dropped: tuple[int, ...]


def redact(page: Page, answers: Sequence[str], removal: Removal = THOROUGH) -> Redacted:
    """The page without any trace of ``answers`` (spellings of one) that its OCR words show.

    Questions stay. Fields keep their key and value, but one that lost a word is kept without words, as one that has no
    place on the page; entities keep what words remain, so that links stay right. The fuzzy rule may take a short
    neighbour along, such as an "of" behind a name. Raises DocumentError if ``answers`` is one text.
    """
    if isinstance(answers, str):
        raise DocumentError(f"answers are {answers!r}; expected a sequence of one or more texts")
    runs = _joined(traces(page, answers, removal))
    dropped = tuple(index for run in runs for index in run)
    if not dropped:
        return Redacted(page, (), ())
    places = [box for run in runs for box in page.field_boxes(Field("", "", run))]
    boxes = tuple(_grown(box, removal.margin, page) for box in places)
    radius = removal.radius * max(1.0, page.height / USUAL_HEIGHT)
    return Redacted(without_words(page.with_image(blurred(page.image, boxes, radius)), dropped), boxes, dropped)


def traces(page: Page, answers: Sequence[str], removal: Removal = THOROUGH) -> tuple[int, ...]:
    """Numbers of the words that give one of ``answers`` away, ascending; none if the answer is not on the page."""
    texts = [letters(word.text) for word in page.words]
    numbers: set[int] = set()
    for answer in answers:
        wanted = _wanted(answer, removal.shortest)
        if removal.inside:  # a longer word tells all of the answer, and its words, but for bare numbers such as years
            telling = [text for text in wanted[:1] + [word for word in wanted[1:] if not word.isdigit()]
                       if len(text) >= removal.shortest]  # fmt: skip
            numbers.update(i for i, text in enumerate(texts) if any(part in text for part in telling))
        for run in _runs(texts, len(answer.split()) + 1):
            if any(similarity("".join(texts[i] for i in run), text) >= removal.threshold for text in wanted):
                numbers.update(run)
    return tuple(sorted(numbers))


def similarity(one: str, other: str) -> float:
    """Normalised Levenshtein similarity, 1 - edits / length of the longer; 1 for equal texts, also for empty ones."""
    return float(Levenshtein.normalized_similarity(one, other))


def blurred(image: Image, boxes: Sequence[Box], radius: float) -> Image:
    """The picture with every box (whole pixels) blurred on its own, so that nothing inside it comes from outside.

    Pixels outside the boxes are unchanged. A box is continued beyond its edges by its outermost pixels.
    """
    picture = image.copy()
    for x0, y0, x1, y1 in boxes:
        place = (slice(int(y0), int(y1)), slice(int(x0), int(x1)))
        crop = PILImage.fromarray(np.ascontiguousarray(picture[place]))
        picture[place] = np.asarray(crop.filter(ImageFilter.GaussianBlur(radius)))
    return picture


def blue(page: Page, boxes: Sequence[Box]) -> Image:
    """The picture for people, half of the colour in the boxes BLUE (as in the paper's figure 11)."""
    picture = page.image.copy()
    for x0, y0, x1, y1 in boxes:
        place = (slice(int(y0), int(y1)), slice(int(x0), int(x1)))
        picture[place] = ((picture[place].astype(np.uint16) + np.array(BLUE, np.uint16)) // 2).astype(np.uint8)
    return picture


def _wanted(answer: str, shortest: int) -> list[str]:
    """The answer as it is compared, and its words of ``shortest`` letters or more; [] without letters and digits."""
    parts = [text for word in answer.split() if len(text := letters(word)) >= shortest]
    return [text for text in dict.fromkeys([letters(answer), *parts]) if text]


def _runs(texts: Sequence[str], longest: int) -> Iterator[range]:
    """Every run of up to ``longest`` words whose first and last have letters or digits."""
    for start, text in enumerate(texts):
        for end in range(start + 1, min(start + longest, len(texts)) + 1):
            if text and texts[end - 1]:
                yield range(start, end)


def _joined(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Ascending numbers as runs without gaps."""
    runs: list[tuple[int, ...]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1] += (number,)
        else:
            runs.append((number,))
    return runs


def _grown(box: Box, margin: int, page: Page) -> Box:
    x0, y0, x1, y1 = box
    left, top = max(math.floor(x0) - margin, 0), max(math.floor(y0) - margin, 0)
    return left, top, min(math.ceil(x1) + margin, page.width), min(math.ceil(y1) + margin, page.height)


def without_words(page: Page, dropped: Sequence[int]) -> Page:
    """The page without these words, indices of the others moved along."""
    gone = set(dropped)
    kept = [index for index in range(len(page.words)) if index not in gone]
    new = {old: number for number, old in enumerate(kept)}

    def field(one: Field) -> Field:
        return replace(one, words=() if gone & set(one.words) else tuple(new[i] for i in one.words))

    def entity(one: Entity) -> Entity:
        return replace(one, words=tuple(new[i] for i in one.words if i in new))

    return replace(
        page,
        words=tuple(page.words[i] for i in kept),
        fields=tuple(map(field, page.fields)),
        entities=tuple(map(entity, page.entities)),
    )
