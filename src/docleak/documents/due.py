"""DUE (Borchmann et al., 2021): DocVQA, and other sets, in the layout that FeDocVQA trains on.

Layout of a data set: ``{train,dev,val,test}/`` with ``document.jsonl`` (name, annotations: key, values: value and
value_variants) and ``documents_content.jsonl`` (name, contents: tool_name and tokens_layer, formerly common_format,
with tokens, positions in pixels, and in structures.pages the tokens and the extent of each page), following the
schemas of due-benchmark/du-schema. Page images, made from ``pdfs/``, are ``images/<name>.png`` or ``png/<name>/*.png``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from docleak.documents.files import (
    IMAGE_SUFFIXES,
    describe_folder,
    images_by_stem,
    raise_faults,
    read_image,
    read_json_lines,
    require_split,
)
from docleak.documents.locate import answer_fields
from docleak.documents.page import Box, Page, Question, Word
from docleak.documents.pages import LazyPages, PageEntry, at_most
from docleak.errors import DocumentError

ANNOTATIONS, CONTENTS = "document.jsonl", "documents_content.jsonl"
#: Folders of each official split.
SPLITS = {"train": ("train",), "val": ("dev", "val"), "test": ("test",)}
#: Where page images are looked for, in the data set's folder and in the split's.
PICTURES = ("images", "png", "documents")

Json = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """Where the contents of one document stand in documents_content.jsonl."""

    file: Path
    offset: int
    number: int

    def read(self) -> Json:
        """The object on the line."""
        with self.file.open("rb") as file:
            file.seek(self.offset)
            value: Json = json.loads(file.readline())
        return value


def splits(path: Path) -> tuple[str, ...]:
    """The official splits at ``path``."""
    return tuple(_folders(path))


def load(path: Path, *, limit: int | None = None, split: str | None = None) -> LazyPages:
    """The first page of every document, in the order of document.jsonl.

    ``path`` is a data set's folder (the ``split``; if none is named its train split, and without one all splits there
    are, and ``notes`` says so) or a split's. Words are those of the first tool that found any. Boxes are scaled from
    the tool's page to the image and cut at its borders, as FeDocVQA does. A question with several values is answered by
    all of them, joined with ", "; one value has its variants as alternatives. Each answer found on the page is a
    private field whose key is the question. Annotations with nested values are left out (``notes``). Indexes are read
    at once, contents and images on access. Raises DocumentError, listing every fault.
    """
    if split is not None:
        require_split(path, split, splits(path))
    folders, notes = _find(path, split)
    entries: list[PageEntry] = []
    nested = 0
    for folder in folders:
        rows, faults = read_json_lines(folder / ANNOTATIONS)
        faults += [f"line {number}: {fault}" for number, row in rows if (fault := _annotation_fault(row))]
        raise_faults(folder / ANNOTATIONS, faults, "Expected the schema of due-benchmark. Download the file again.")
        chosen = [row for _, row in at_most(rows, limit)]
        contents, pictures = _index(folder / CONTENTS), _pictures(folder)
        for row in chosen:
            name = str(row["name"])
            faults += [f"{name}: not in {CONTENTS}"] if name not in contents else []
            faults += [f"{name}: no page image"] if name not in pictures else []
            questions, left_out = _questions(row)
            nested += left_out
            if not faults:
                make = partial(_page, name, contents[name], pictures[name], questions)
                entries.append(PageEntry(name, folder / CONTENTS, make, document=name))
        raise_faults(
            folder,
            faults,
            f"Page images are looked for in {', '.join(f'{p}/' for p in PICTURES)} beside or in the split's folder. "
            "Make them from the PDFs, e.g. `pdftoppm -r 300 -png -singlefile pdfs/NAME.pdf images/NAME` for each one.",
        )
    if not entries:
        raise DocumentError(f"{folders[0] / ANNOTATIONS}: holds no document. Download it again.")
    if nested:
        notes.append(f"{nested} annotations with nested values were left out")
    return LazyPages(path, entries if limit is None else entries[:limit], notes=notes)


def _is_split(folder: Path) -> bool:
    return (folder / ANNOTATIONS).is_file() and (folder / CONTENTS).is_file()


def _folders(path: Path) -> dict[str, Path]:
    """The folder of each official split at ``path``."""
    named = [(split, path / name) for split, names in SPLITS.items() for name in reversed(names)]
    return {split: folder for split, folder in named if _is_split(folder)}


def _find(path: Path, split: str | None) -> tuple[list[Path], list[str]]:
    """The split folders that ``path`` means, and what is to be said about that choice."""
    there = _folders(path)
    if split or "train" in there:
        return [there[split or "train"]], []
    if there:
        names = " and ".join(folder.name for folder in there.values())
        return list(there.values()), [f"no train split: {names} were read instead"]
    if _is_split(path):
        return [path], []
    raise DocumentError(
        f"{path} {describe_folder(path)}; expected a DUE data set with train/, dev/ or test/, each with {ANNOTATIONS} "
        f"and {CONTENTS}, or one of these folders. Unpack the data set and give that path."
    )


def _annotation_fault(row: Json) -> str:
    if not isinstance(row.get("name"), str) or not isinstance(row.get("annotations"), list):
        return "without a 'name' or without a list 'annotations'"
    for item in row["annotations"]:
        if not isinstance(item, dict) or not isinstance(item.get("key"), str):
            return f"an annotation of {row['name']!r} has no 'key'"
        values = item.get("values")
        if not isinstance(values, list) or not all(isinstance(v, dict) for v in values):
            return f"'values' of {item['key']!r} are no list of objects"
        if not all("children" in v or isinstance(v.get("value"), str) for v in values):
            return f"a value of {item['key']!r} is no text"
    return ""


def _questions(row: Json) -> tuple[tuple[Question, ...], int]:
    """The questions of a document, and how many annotations were left out for their nested values."""
    questions, nested = [], 0
    for item in row["annotations"]:
        values = item["values"]
        if not values or any("children" in value for value in values):
            nested += 1
            continue
        answers = [", ".join(value["value"] for value in values)]
        if len(values) == 1:
            answers += [str(variant) for variant in values[0].get("value_variants", [])]
        questions.append(Question(item["key"], tuple(dict.fromkeys(answers)), item["key"]))
    return tuple(questions), nested


def _index(path: Path) -> dict[str, Line]:
    """Where each document's contents are; the file is read line by line, as it may be larger than memory."""
    lines: dict[str, Line] = {}
    faults = []
    for number, offset, text in _lines(path):
        try:
            value = json.loads(text)
        except ValueError as error:
            faults.append(f"line {number}: not JSON ({error})")
            continue
        fault = _content_fault(value)
        if fault:
            faults.append(f"line {number}: {fault}")
        else:
            lines[value["name"]] = Line(path, offset, number)
    raise_faults(path, faults, "Expected the schema of due-benchmark. Download the file again.")
    return lines


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number (from 1), offset and text of each line that is not blank."""
    offset = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if text.strip():
                yield number, offset, text
            offset += len(text)


def _content_fault(value: object) -> str:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return "no object with a 'name'"
    contents = value.get("contents")
    if not isinstance(contents, list) or not all(isinstance(item, dict) for item in contents):
        return f"'contents' of {value['name']!r} are no list of objects"
    for item in contents:
        layer = _layer(item)
        tokens, positions = layer.get("tokens", []), layer.get("positions", [])
        if not isinstance(tokens, list) or not isinstance(positions, list) or len(tokens) != len(positions):
            return f"{value['name']!r}, {item.get('tool_name')}: tokens and positions are not lists of one length"
    return ""


def _layer(content: Json) -> Json:
    layer = content.get("tokens_layer") or content.get("common_format") or {}
    return layer if isinstance(layer, dict) else {}


def _pictures(split: Path) -> dict[str, Path]:
    """The image of the first page by document: a file of its name, or the first one in a folder of its name."""
    images: dict[str, Path] = {}
    for folder in [place / name for place in (split, split.parent) for name in PICTURES]:
        if not folder.is_dir():
            continue
        for inner in sorted(p for p in folder.iterdir() if p.is_dir()):
            pages = [p for p in inner.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES]
            if pages:
                images.setdefault(inner.name, min(pages, key=lambda p: (len(p.name), p.name)))
        for name, image in images_by_stem(folder).items():
            images.setdefault(name, image)
    return images


def _page(name: str, line: Line, image: Path, questions: Sequence[Question]) -> Page:
    pixels = read_image(image)
    layer: Json = next((reading for reading in map(_layer, line.read()["contents"]) if reading.get("tokens")), {})
    try:
        words = tuple(_words(layer, pixels.shape[1], pixels.shape[0]))
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise DocumentError(
            f"{line.file}, line {line.number}: {type(error).__name__} {error}; expected positions of four numbers and "
            "pages with structure_value and positions. Download the file again."
        ) from error
    return Page(name, pixels, words, answer_fields(words, questions), tuple(questions), document=name)


def _words(layer: Json, width: int, height: int) -> Iterator[Word]:
    """The tokens of the first page with text and area, in pixels of an image of this width and height."""
    pages = layer.get("structures", {}).get("pages", {})
    extent, ranges = pages.get("positions") or [[0, 0, width, height]], pages.get("structure_value")
    first, end = ranges[0] if ranges else (0, len(layer.get("tokens", [])))
    fx, fy = width / float(extent[0][2]), height / float(extent[0][3])
    for token, position in zip(layer.get("tokens", [])[first:end], layer.get("positions", [])[first:end], strict=True):
        box = scaled_box(position, fx, fy, width, height)
        if str(token).strip() and box[0] < box[2] and box[1] < box[3]:
            yield Word(str(token).strip(), box)


def scaled_box(position: Sequence[float], fx: float, fy: float, width: int, height: int) -> Box:
    """A box x0, y0, x1, y1 times the factors, cut at the borders of an image of that width and height."""
    x0, y0, x1, y1 = position
    return (
        min(max(round(x0 * fx, 2), 0.0), float(width)), min(max(round(y0 * fy, 2), 0.0), float(height)),
        min(max(round(x1 * fx, 2), 0.0), float(width)), min(max(round(y1 * fy, 2), 0.0), float(height)),
    )  # fmt: skip
