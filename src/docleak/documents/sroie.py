"""SROIE (ICDAR 2019): scanned receipts with the keys company, date, address and total.

Layout: ``SROIE2019/train/{img/X*.jpg, box/X*.txt, entities/X*.txt}``. A box line is ``x1,y1,...,x4,y4,transcript``
with the four corners of one printed *line*; the transcript may hold commas. An entities file is one JSON object.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from docleak.documents.files import (
    first_folder,
    images_by_stem,
    paired,
    raise_faults,
    read_json,
    read_text,
    require_folder,
    require_split,
)
from docleak.documents.locate import WordStream, letters
from docleak.documents.page import Box, Field, Question, Word
from docleak.documents.pages import LazyPages, PageEntry, at_most, entry_of
from docleak.errors import DocumentError

PARTS = ("img", "box", "entities")
#: The official splits; each has a folder of its name.
SPLITS = ("train", "test")

QUESTIONS = {
    "company": "Which company issued the receipt?",
    "date": "What is the date of the receipt?",
    "address": "What is the address of the company?",
    "total": "What is the total amount?",
}

Line = tuple[Box, str]


def splits(path: Path) -> tuple[str, ...]:
    """The official splits at ``path``."""
    return tuple(split for split in SPLITS if _folder_of(path, split))


def _folder_of(path: Path, split: str) -> Path | None:
    return first_folder([path / split, path / "SROIE2019" / split], PARTS)


def load(path: Path, *, limit: int | None = None, split: str | None = None) -> LazyPages:
    """Receipts of a split (train, if none is named) in order of file name.

    The provider is the company, case, punctuation and spacing unified. Boxes and entities are read at once, images on
    access. Lines are split into words in proportion to their characters. A key whose value is not in the words as
    annotated becomes a field without words (see ``notes``). Raises DocumentError, listing every fault of the data set,
    for missing files and malformed lines or JSON.
    """
    expected = (
        "SROIE's train folder with img/, box/ and entities/, or a folder that holds it as train/ or SROIE2019/train/. "
        "Unpack the data set and give that path."
    )
    if split is not None:
        require_split(path, split, splits(path))
    root = _folder_of(path, split) if split else require_folder(path, ("train", "SROIE2019/train"), PARTS, expected)
    assert root is not None, "required above"
    images = images_by_stem(root / "img")
    boxes = {p.stem for p in (root / "box").glob("*.txt")}
    entities = {p.stem for p in (root / "entities").glob("*.txt")}
    stems, faults = paired({"img": images, "box": boxes, "entities": entities})
    if not stems and not faults:
        raise DocumentError(f"{root}: img/, box/ and entities/ are empty. Unpack the data set again.")
    entries, missing = [], Counter[str]()
    for stem in at_most(stems, limit):
        try:
            entry, unfound = _entry(root, stem, images[stem])
        except DocumentError as error:
            faults.append(str(error))
            continue
        entries.append(entry)
        missing.update(unfound)
    raise_faults(root, faults, "Restore these files from the data set, or remove the receipts from all three folders.")
    notes = [f"{key} not found in the words of {n} of {len(entries)} receipts" for key, n in missing.items()]
    return LazyPages(root, entries, notes=notes)


def _entry(root: Path, stem: str, image: Path) -> tuple[PageEntry, list[str]]:
    """The receipt, and the keys whose value is not in its words."""
    keys = _read_entities(root / "entities" / f"{stem}.txt")
    lines = _read_lines(root / "box" / f"{stem}.txt")
    split = [(n, word) for n, (box, text) in enumerate(lines) for word in split_line(box, text)]
    words = tuple(word for _, word in split)
    fields = tuple(_fields(keys, words, lines, [n for n, _ in split]))
    questions = tuple(Question(QUESTIONS[key], (value,), key) for key, value in keys.items())
    entry = entry_of(
        root / "box" / f"{stem}.txt", image, words, name=stem, fields=fields, questions=questions, document=stem,
        provider=normal_name(keys.get("company", "")),
    )  # fmt: skip
    return entry, [field.key for field in fields if not field.words]


def normal_name(name: str) -> str:
    """A provider's name with case, punctuation and spacing unified, so that spellings of one company agree."""
    return " ".join(part for part in map(letters, re.split(r"[\W_]+", name)) if part)


def split_line(box: Box, text: str) -> list[Word]:
    """The words of a printed line; each gets the share of the line's width that its characters have in the text."""
    text = text.strip()
    x0, y0, x1, y1 = box
    unit = (x1 - x0) / max(len(text), 1)
    return [
        Word(m.group(), (round(x0 + m.start() * unit, 2), y0, round(x0 + m.end() * unit, 2), y1))
        for m in re.finditer(r"\S+", text)
    ]


def _read_entities(path: Path) -> dict[str, str]:
    value = read_json(path)
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise DocumentError(f"{path}: expected one JSON object of strings (company, date, address, total).")
    unknown = sorted(set(value) - set(QUESTIONS))
    if unknown:
        raise DocumentError(f"{path}: unknown keys {unknown}; expected some of {list(QUESTIONS)}.")
    return {key: value[key].strip() for key in QUESTIONS if value.get(key, "").strip()}


def _read_lines(path: Path) -> list[Line]:
    lines, faults = [], []
    for number, row in enumerate(read_text(path).split("\n"), start=1):
        if not row.strip():
            continue
        parts = row.rstrip("\r").split(",", 8)
        try:
            corners = [int(part) for part in parts[:8]]
        except ValueError:
            corners = []
        if len(corners) < 8 or len(parts) < 9:
            faults.append(f"line {number}: {row.strip()[:60]!r}")
            continue
        xs, ys = corners[::2], corners[1::2]
        lines.append(((float(min(xs)), float(min(ys)), float(max(xs)), float(max(ys))), parts[8]))
    if faults:
        raise DocumentError(f"{path}: expected x1,y1,x2,y2,x3,y3,x4,y4,transcript with whole numbers, found {faults}")
    return lines


def _fields(
    keys: dict[str, str], words: Sequence[Word], lines: Sequence[Line], line_of: Sequence[int]
) -> Iterator[Field]:
    stream = WordStream.of([word.text for word in words])
    for key, value in keys.items():
        rank = partial(_total_rank, lines, line_of) if key == "total" else None
        yield Field(key, value, stream.find(value, rank=rank))


def _total_rank(lines: Sequence[Line], line_of: Sequence[int], words: tuple[int, ...]) -> float:
    """2 if the line, or one beside it, says TOTAL; 1 if it says SUBTOTAL or the line before says TOTAL; else 0."""
    here = line_of[words[0]]
    (_, top, _, bottom), _ = lines[here]
    row = [t for (_, y0, _, y1), t in lines if min(bottom, y1) - max(top, y0) > 0.5 * min(bottom - top, y1 - y0)]
    said = letters(" ".join(row))
    if "total" in said:
        return 1.0 if "subtotal" in said else 2.0
    return 1.0 if here > 0 and "total" in letters(lines[here - 1][1]) else 0.0
