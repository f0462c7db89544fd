"""The document nouns: Page, Word, Field, Question. All frozen; no torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from types import UnionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docleak.documents.ranges import short
from docleak.errors import DocumentError

#: x0, y0, x1, y1 in pixels of the page image; x1 and y1 are exclusive.
Box = tuple[float, float, float, float]
#: Height x width x RGB, uint8.
Image = NDArray[np.uint8]


def fault_list(faults: Sequence[str], *, shown: int = 20) -> str:
    """Every fault on a line of its own, for an error message; beyond ``shown`` only their number."""
    more = [f"... and {len(faults) - shown} more"] if len(faults) > shown else []
    return "".join(f"\n  - {fault}" for fault in [*faults[:shown], *more])


@dataclass(frozen=True)
class Word:
    """One OCR word and where it stands."""

    text: str
    box: Box


def box_faults(words: Sequence[Word], width: int, height: int) -> Iterator[str]:
    """What is wrong with the words' boxes on a page of that many pixels, as phrases."""
    for index, word in enumerate(words):
        x0, y0, x1, y1 = word.box
        if not all(map(math.isfinite, word.box)):
            yield f"word {index} {word.text!r}: box {word.box} is not finite"
        elif x0 >= x1 or y0 >= y1:
            yield f"word {index} {word.text!r}: box {word.box} is inverted or empty"
        elif x0 < 0 or y0 < 0 or x1 > width or y1 > height:
            yield f"word {index} {word.text!r}: box {word.box} leaves the page"


def line_boxes(boxes: Sequence[Box]) -> tuple[Box, ...]:
    """One box per line: boxes in reading order, joined where they share a line."""
    lines: list[list[float]] = []
    for x0, y0, x1, y1 in boxes:
        last = lines[-1] if lines else [x0, y1, x1, y1]
        shared = min(y1, last[3]) - max(y0, last[1])
        if shared > 0.5 * min(y1 - y0, last[3] - last[1]) and x0 >= last[0]:
            last[1], last[2], last[3] = min(last[1], y0), max(last[2], x1), max(last[3], y1)
        else:
            lines.append([x0, y0, x1, y1])
    return tuple((a, b, c, d) for a, b, c, d in lines)


@dataclass(frozen=True)
class Field:
    """A key of the page, its value, and the words that carry it.

    Keys may repeat on a page (several answers under one question of a form). ``words`` are indices into
    ``Page.words`` in reading order. A private field is one that the public template does not contain, so an
    adversary would have to recover it.
    """

    key: str
    value: str
    words: tuple[int, ...]
    private: bool = True


@dataclass(frozen=True)
class Question:
    """A question about the page; any of ``answers`` is right."""

    text: str
    answers: tuple[str, ...]
    key: str | None = None


@dataclass(frozen=True)
class Entity:
    """Words of the page (indices in reading order) that form one thing of a kind: a header, an answer, a date."""

    label: str
    words: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Page:
    """One page image with its OCR words, fields and questions.

    ``image`` is uint8 RGB, shape (H, W, 3). ``document`` names the document the page belongs to,
    ``provider`` who issued it (the unit of privacy), ``template`` the layout it was filled into. ``notes`` says in
    phrases what of the document the page does not show, such as rows of a table beyond its end. ``entities`` and
    ``links`` (pairs of numbers of entities, from question to answer) are what an extraction model is trained on, where
    a data set annotates more than the fields. ``data_set`` is which of several data sets opened as one the page is of.
    Raises DocumentError, listing every fault at once, if something is of another type, or boxes or indices do not fit
    the image.
    """

    name: str
    image: Image
    words: tuple[Word, ...] = ()
    fields: tuple[Field, ...] = ()
    questions: tuple[Question, ...] = ()
    document: str = ""
    provider: str = ""
    template: str | None = None
    notes: tuple[str, ...] = ()
    entities: tuple[Entity, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    data_set: str = ""

    def __post_init__(self) -> None:
        image = self.image
        if not isinstance(image, np.ndarray):
            raise DocumentError(
                f"page {self.name!r}: image is a {type(image).__module__}.{type(image).__qualname__}; expected an "
                "(H, W, 3) uint8 array, such as numpy.asarray(image.convert('RGB')) of a PIL image."
            )
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise DocumentError(
                f"page {self.name!r}: image has shape {image.shape} and dtype {image.dtype}; expected a non-empty "
                "(H, W, 3) uint8 array, such as numpy.asarray(image.convert('RGB')) of a PIL image."
            )
        if wrong := list(_wrong_types(self)):
            raise DocumentError(f"page {self.name!r} cannot be used:{fault_list(wrong)}")
        faults = list(self._faults())
        if faults:
            raise DocumentError(
                f"page {self.name!r} ({self.width} x {self.height} pixels) cannot be used:{fault_list(faults)}\n"
                "Boxes are x0, y0, x1, y1 in pixels of the page image, x0 < x1 and y0 < y1."
            )

    def _faults(self) -> Iterator[str]:
        yield from box_faults(self.words, self.width, self.height)
        for field in self.fields:
            bad = [int(i) for i in field.words if not 0 <= i < len(self.words)]
            if bad:
                yield f"field {field.key!r}: word indices {bad} do not exist (there are {len(self.words)} words)"
        for question in self.questions:
            answers = question.answers
            if not isinstance(answers, tuple | list) or not all(isinstance(answer, str) for answer in answers):
                yield f"question {question.text!r}: answers are {answers!r}, expected a tuple of texts"
        for number, entity in enumerate(self.entities):
            bad = [int(i) for i in entity.words if not 0 <= i < len(self.words)]
            if bad:
                yield f"entity {number} ({entity.label}): word indices {bad} do not exist"
        for link in self.links:
            if not all(0 <= end < len(self.entities) for end in link):
                yield f"link {link}: there are {len(self.entities)} entities"

    @property
    def height(self) -> int:
        return int(self.image.shape[0])

    @property
    def width(self) -> int:
        return int(self.image.shape[1])

    @property
    def private_fields(self) -> tuple[Field, ...]:
        """Fields the public template leaves blank and that have a place on the page."""
        return tuple(f for f in self.fields if f.private and f.words)

    def field_boxes(self, field: Field) -> tuple[Box, ...]:
        """One box per line the field covers: boxes of its words, joined where they share a line."""
        return line_boxes([self.words[index].box for index in field.words])

    def with_image(self, image: Image) -> Page:
        """The same page with another picture of the same size."""
        if image.shape != self.image.shape:
            raise DocumentError(f"page {self.name!r}: new image has shape {image.shape}, expected {self.image.shape}")
        return replace(self, image=image)


#: The parts of a page, and what each is a tuple of.
_PARTS: dict[str, Any] = {
    "words": Word, "fields": Field, "questions": Question, "entities": Entity, "links": tuple, "notes": str,
}  # fmt: skip
#: Of these are the boxes of nearly all pages.
_NUMBERS = {int, float}


def _wrong_types(page: Page) -> Iterator[str]:
    """What is of another type than declared, as phrases: where it is used, its error would name no page."""
    for name in ("name", "document", "provider", "data_set", "template"):
        yield from _unlike(name, getattr(page, name), str | None if name == "template" else str, "a text")
    for name, kind in _PARTS.items():
        parts = getattr(page, name)
        if not isinstance(parts, tuple | list):
            yield f"{name} is {short(parts)}, expected a tuple of {kind.__name__}"
            continue
        for number, part in enumerate(parts):
            if not isinstance(part, kind):
                yield f"{name} holds {short(part)} at {number}, expected a {kind.__name__}"
            elif kind is Word:
                if type(part.box) is not tuple or len(part.box) != 4 or not {*map(type, part.box)} <= _NUMBERS:
                    yield from _not_all(f"word {number}: box", part.box, Real, "four numbers", count=4)
                yield from _unlike(f"word {number}: text", part.text, str, "a text")
            elif kind is Field:
                yield from _unlike(f"field {number}: key", part.key, str, "a text")
                yield from _unlike(f"field {part.key!r}: value", part.value, str, "a text")
                yield from _unlike(f"field {part.key!r}: private", part.private, bool | np.bool_, "True or False")
                yield from _not_all(f"field {part.key!r}: words", part.words, Integral, "numbers of words")
            elif kind is Question:
                yield from _unlike(f"question {number}: text", part.text, str, "a text")
                yield from _unlike(f"question {part.text!r}: key", part.key, str | None, "a text or None")
            elif kind is Entity:
                yield from _unlike(f"entity {number}: label", part.label, str, "a text")
                yield from _not_all(f"entity {number}: words", part.words, Integral, "numbers of words")
            elif kind is tuple:
                yield from _not_all(f"link {number}", part, Integral, "two numbers of entities", count=2)


def _unlike(name: str, value: object, kind: type | UnionType, expected: str) -> Iterator[str]:
    if not isinstance(value, kind):
        yield f"{name} is {short(value)}, expected {expected}"


def _not_all(name: str, values: Any, kind: type, expected: str, *, count: int = -1) -> Iterator[str]:
    """numpy's numbers, and arrays of them, are numbers."""
    held = isinstance(values, tuple | list | np.ndarray)
    if not held or not all(isinstance(value, kind) for value in values) or count not in (-1, len(values)):
        yield f"{name} is {short(values)}, expected {expected}"
