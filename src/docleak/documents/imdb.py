"""Records of questions in .npy files, as PFL-DocVQA, SP-DocVQA and FeDocVQA are handed out for training ("imdb").

A file is a pickled array of dicts, one for each question, behind a header (which FeDocVQA's lack): question, answers
(a text or several, absent where they are kept secret), image_name (``<document>_<page>``), ocr_tokens,
ocr_normalized_boxes (x0, y0, x1, y1 in [0, 1]), and perhaps set_name, provider, document, field, label. Nothing in
the pickles is run (``pickles``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docleak.documents.files import images_by_stem, raise_faults, read_image
from docleak.documents.locate import WordStream
from docleak.documents.page import Field, Page, Question, Word
from docleak.documents.pages import PageEntry, at_most, clip_overshoot, grouped
from docleak.documents.pickles import read_object_array

REQUIRED = ("question", "image_name", "ocr_tokens", "ocr_normalized_boxes")
#: Texts that a record may have besides.
NAMES = ("set_name", "provider", "document", "field", "label")

#: Normalised boxes may overshoot 1 by rounding; beyond this they are surely pixels.
LARGEST_NORMALISED = 1.5


@dataclass(frozen=True)
class Ocr:
    """What was read on a page: texts, and their boxes as fractions of it, shape (len(tokens), 4)."""

    tokens: tuple[str, ...]
    boxes: NDArray[np.floating[Any]]

    @property
    def blank(self) -> NDArray[np.bool_]:
        """Which tokens have no text; shape (len(tokens),)."""
        return np.array([not token.strip() for token in self.tokens], dtype=bool)

    @property
    def flat(self) -> NDArray[np.bool_]:
        """Which boxes have no area; shape (len(tokens),)."""
        return np.asarray((self.boxes[:, 0] == self.boxes[:, 2]) | (self.boxes[:, 1] == self.boxes[:, 3]))

    def words(self, width: int, height: int) -> list[Word]:
        """The tokens with text and area, boxes in pixels (rounded to 0.01, undoing the noise of 32-bit fractions)."""
        pixels = np.round(self.boxes.astype(np.float64) * (width, height, width, height), 2).tolist()
        return [
            Word(token.strip(), (x0, y0, x1, y1))
            for token, (x0, y0, x1, y1) in zip(self.tokens, pixels, strict=True)
            if token.strip() and x0 != x1 and y0 != y1
        ]


@dataclass(frozen=True)
class Record:
    """A question about the page of an image, in ``row`` of its file (the header is row 0); names may be empty."""

    row: int
    image_name: str
    question: str
    answers: tuple[str, ...]
    ocr: Ocr
    names: Mapping[str, str]

    @property
    def key(self) -> str:
        """What is asked for: the field, else the question."""
        return self.names["field"] or self.question

    @property
    def document(self) -> str:
        """The document, by its name or that of the image."""
        return self.names["document"] or self.image_name.rpartition("_")[0] or self.image_name


def read_records(array: Path, *, what: str) -> list[Record]:
    """The records of a .npy file; DocumentError, naming ``what`` it should be and every fault, if it is none."""
    values = read_object_array(array, what=f"{what}'s records").tolist()
    first = 1 if values and isinstance(values[0], dict) and "image_name" not in values[0] else 0
    faults = [f"element {row}: {fault}" for row, value in enumerate(values[first:], first) if (fault := _fault(value))]
    raise_faults(array, faults, f"Expected {what}'s records behind an optional header. Download the file again.")
    return [_record(row, value) for row, value in enumerate(values[first:], first)]


def _fault(value: object) -> str:
    """What is wrong with a record, or nothing."""
    if not isinstance(value, dict):
        return f"a {type(value).__name__}, expected a dict"
    if absent := [key for key in REQUIRED if key not in value]:
        return f"without {', '.join(absent)}"
    if isinstance(value["image_name"], list | np.ndarray):
        return "a question about several pages (MP-DocVQA); expected one image_name"
    bad = [key for key in REQUIRED[:2] if not isinstance(value[key], str)]
    if bad := bad + [key for key in NAMES if not isinstance(value.get(key) or "", str)]:
        return f"{', '.join(bad)} expected to be text"
    tokens, answers = value["ocr_tokens"], value.get("answers")
    if not _texts(tokens):
        return "ocr_tokens are not texts"
    if answers is not None and not isinstance(answers, str) and not _texts(answers):
        return "answers are not texts"
    try:
        boxes = _boxes(value)
    except (TypeError, ValueError):
        return "ocr_normalized_boxes are not rows of four numbers"
    if len(tokens) != len(boxes):
        return f"{len(tokens)} ocr_tokens but {len(boxes)} ocr_normalized_boxes"
    if not np.isfinite(boxes).all() or (boxes.size and boxes.max() > LARGEST_NORMALISED):
        return f"boxes up to {boxes.max():g}, expected fractions of the page in [0, 1]"
    return ""


def _texts(value: object) -> bool:
    listed = isinstance(value, list | tuple | set | frozenset | np.ndarray)
    return listed and all(isinstance(text, str) for text in value)  # type: ignore[attr-defined]


def _boxes(value: Mapping[str, Any]) -> NDArray[np.floating[Any]]:
    boxes = np.asarray(value["ocr_normalized_boxes"])
    kind = boxes.dtype if boxes.dtype in (np.float32, np.float64) else np.float64
    return boxes.astype(kind, copy=False).reshape(-1, 4)


def _record(row: int, value: Mapping[str, Any]) -> Record:
    answers = value.get("answers")
    texts = () if answers is None else (answers,) if isinstance(answers, str) else answers
    ordered = sorted(texts) if isinstance(texts, set | frozenset) else texts
    return Record(
        row=row,
        image_name=str(value["image_name"]),
        question=str(value["question"]),
        answers=tuple(map(str, ordered)),
        ocr=Ocr(tuple(map(str, value["ocr_tokens"])), _boxes(value)),
        names={name: str(value.get(name) or "") for name in NAMES},
    )


def entries_of_records(
    records: Iterable[tuple[Path, Record]], folder: Path, provider: Callable[[Path, Record], str], limit: int | None
) -> tuple[list[PageEntry], list[str]]:
    """Pages in the order of their first record, which says what was read on them, and notes on what they lack.

    ``records`` come with their files; images lie in ``folder``. All questions about an image are questions of one page;
    each answer that is found on it is a private field. DocumentError for images that are not there.
    """
    pages = grouped(records, lambda one: one[1].image_name)
    pictures = images_by_stem(folder)
    chosen = at_most(pages.items(), limit)
    faults = [f"{name}: no such image in {folder}" for name, _ in chosen if name not in pictures]
    raise_faults(folder, faults, "Download these images, or take their records out of the .npy files.")
    entries = []
    for name, asked in chosen:
        source, first = asked[0]
        issuer = next(filter(None, (provider(array, record) for array, record in asked)), "")
        questions = tuple(Question(record.question, record.answers, record.key) for _, record in asked)
        make = partial(_page, name, first.ocr, questions, pictures[name], first.document, issuer)
        entries.append(PageEntry(name, source, make, first.document, issuer))
    return entries, _notes([record for _, asked in chosen for _, record in asked], [a[0][1].ocr for _, a in chosen])


def _notes(records: Sequence[Record], read: Sequence[Ocr]) -> list[str]:
    silent = sum(not record.answers for record in records)
    blank = sum(int(ocr.blank.sum()) for ocr in read)
    flat = sum(int((ocr.flat & ~ocr.blank).sum()) for ocr in read)
    notes = [f"{blank} tokens without text were left out"] if blank else []
    notes += [f"{flat} tokens whose box has no area were left out"] if flat else []
    return [*notes, f"{silent} questions have no answer in the files"] if silent else notes


def _page(name: str, ocr: Ocr, questions: Sequence[Question], image: Path, document: str, provider: str) -> Page:
    pixels = read_image(image)
    height, width = pixels.shape[:2]
    words = tuple(clip_overshoot(word, width, height) for word in ocr.words(width, height))
    stream = WordStream.of([word.text for word in words])
    fields = [
        Field(question.key or question.text, question.answers[0], stream.find(question.answers[0]))
        for question in questions
        if "".join(question.answers[:1]).strip()
    ]
    return Page(
        name=name,
        image=pixels,
        words=words,
        fields=tuple(dict.fromkeys(fields)),
        questions=tuple(dict.fromkeys(questions)),
        document=document,
        provider=provider,
    )
