"""DocVQA (Mathew et al., 2021), single pages, as the Robust Reading Competition hands it out, or as records ("imdb").

The competition's files are ``{train,val}_v1.0_withQT.json`` (before: without ``_withQT``) and ``test_v1.0.json`` in the
folder, in ``spdocvqa_qas/`` or one for each split: {"data": [{"question", "image": "documents/<name>.png",
"ucsf_document_id", "answers"}]}; test questions have no answers. Images are in ``documents/`` or ``spdocvqa_images/``,
and what Microsoft's OCR read in ``ocr_results/`` or ``spdocvqa_ocr/<name>.json``. Records (``imdb``) are
``imdb_<split>.npy``, ``new_imdb_<split>.npy`` or ``<split>/vqa.npy``, their images in ``images/`` as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from docleak.documents.due import scaled_box
from docleak.documents.files import (
    describe_folder,
    images_by_stem,
    raise_faults,
    read_image,
    read_json,
    require_split,
)
from docleak.documents.imdb import entries_of_records, read_records
from docleak.documents.locate import answer_fields
from docleak.documents.page import Page, Question, Word
from docleak.documents.pages import LazyPages, PageEntry, at_most, grouped
from docleak.errors import DocumentError

SPLITS = ("train", "val", "test")
#: Files of a split: the competition's questions, which come first, and records.
QUESTIONS = ("{}_v1.0_withQT.json", "{}_v1.0.json")
RECORDS = ("imdb_{}.npy", "new_imdb_{}.npy")
#: Where these are, below the folder that is given.
FOLDERS = (".", "spdocvqa_qas", "imdb", "spdocvqa_imdb")
#: Where images and OCR results are, in the folder of the questions or up to two above.
PICTURES = ("documents", "spdocvqa_images/documents", "spdocvqa_images", "images/documents", "images")
READ = ("ocr_results", "spdocvqa_ocr/ocr_results", "spdocvqa_ocr")
WHAT = "DocVQA"


#: One question of the competition's files.
Row = dict[str, Any]


def splits(path: Path) -> tuple[str, ...]:
    """The official splits at ``path``."""
    return tuple(_files(path))


def load(path: Path, *, limit: int | None = None, split: str | None = None) -> LazyPages:
    """Pages in the order of their first question; all questions about an image are questions of one page.

    ``path`` is the data set's folder (the ``split``; if none is named its train split, and without one all splits there
    are, and ``notes`` says so) or one of its files. Each answer that is found on the page is a private field whose key
    is the question. ``document`` is that of the Industry Documents Library, which may have several pages in the data
    set. Raises DocumentError, listing every fault.
    """
    files, notes = _find(path, split)
    entries: list[PageEntry] = []
    for file in files:
        made, more = _of_records(file, limit) if file.suffix == ".npy" else _of_questions(file, limit)
        entries += made
        notes += more
    if not entries:
        raise DocumentError(f"{files[0]}: holds no question. Download it again.")
    return LazyPages(path, entries if limit is None else entries[:limit], notes=notes)


def _files(path: Path) -> dict[str, Path]:
    """The file of each split at ``path``."""
    there = {}
    for split in SPLITS:
        named = [path / folder / name.format(split) for name in (*QUESTIONS, *RECORDS) for folder in (*FOLDERS, split)]
        if file := next((file for file in (*named, path / split / "vqa.npy") if file.is_file()), None):
            there[split] = file
    return there


def _find(path: Path, split: str | None) -> tuple[list[Path], list[str]]:
    if path.is_file() and path.suffix in (".json", ".npy") and split is None:
        return [path], []
    there = _files(path)
    if not there:
        raise DocumentError(
            f"{path} {describe_folder(path)}; expected DocVQA's train_v1.0_withQT.json, or its imdb_train.npy, in it, "
            f"in {', '.join(f'{folder}/' for folder in FOLDERS[1:])} or train/. Unpack the data set and give that path."
        )
    if split is not None:
        require_split(path, split, tuple(there))
    if split or "train" in there:
        return [there[split or "train"]], []
    return list(there.values()), [f"no train questions: those of {' and '.join(there)} were read instead"]


def _beside(file: Path, names: Sequence[str]) -> Path | None:
    """The first of these folders in that of the file or up to two above."""
    above = (file.parent, *file.resolve().parent.parents)[:3]
    return next((place / name for place in above for name in names if (place / name).is_dir()), None)


def _pictures(file: Path) -> Path:
    if folder := _beside(file, PICTURES):
        return folder
    raise DocumentError(
        f"{file}: there is no folder of page images beside it; expected one of "
        f"{', '.join(f'{name}/' for name in PICTURES)}. Download the images."
    )


def _of_records(file: Path, limit: int | None) -> tuple[list[PageEntry], list[str]]:
    records = [(file, record) for record in read_records(file, what=WHAT)]
    return entries_of_records(records, _pictures(file), lambda array, record: record.names["provider"], limit)


def _of_questions(file: Path, limit: int | None) -> tuple[list[PageEntry], list[str]]:
    asked = grouped(_read_questions(file), lambda row: PurePosixPath(row["image"]).stem)
    folder, read = _pictures(file), _beside(file, READ)
    pictures = images_by_stem(folder)
    chosen = at_most(asked.items(), limit)
    faults = [f"{name}: no such image in {folder}" for name, _ in chosen if name not in pictures]
    results = {name: read / f"{name}.json" for name, _ in chosen} if read else {}
    faults += [f"{name}: no such file in {read}" for name, result in results.items() if not result.is_file()]
    raise_faults(file, faults, "Download these images and OCR results, or take their questions out of the file.")
    entries = []
    for name, rows in chosen:
        document = rows[0].get("ucsf_document_id") or name.rpartition("_")[0] or name
        questions = (Question(row["question"], tuple(row.get("answers") or ()), row["question"]) for row in rows)
        make = partial(_page, name, pictures[name], results.get(name), tuple(dict.fromkeys(questions)), document)
        entries.append(PageEntry(name, file, make, document))
    silent = sum(not row.get("answers") for _, rows in chosen for row in rows)
    notes = [f"{silent} questions have no answer in {file.name}"] if silent else []
    return entries, notes if read else [*notes, f"no {' or '.join(READ)} beside {file.name}: its pages have no words"]


def _read_questions(file: Path) -> list[Row]:
    value = read_json(file)
    rows = value.get("data") if isinstance(value, dict) else None
    if not isinstance(rows, list):
        raise DocumentError(f'{file}: expected {{"data": [questions]}}. Download the file again.')
    faults = [f"question {number}: {fault}" for number, row in enumerate(rows) if (fault := _row_fault(row))]
    raise_faults(file, faults, "Expected question, image, ucsf_document_id and answers. Download the file again.")
    return rows


def _row_fault(row: object) -> str:
    if not isinstance(row, dict):
        return f"a {type(row).__name__}, expected an object"
    absent = [key for key in ("question", "image") if not isinstance(row.get(key), str)]
    if absent or not isinstance(row.get("ucsf_document_id") or "", str):
        return f"no text under {', '.join(absent) or 'ucsf_document_id'}"
    answers = row.get("answers") or []
    listed = isinstance(answers, list) and all(isinstance(answer, str) for answer in answers)
    return "" if listed else "answers are no list of texts"


def _page(name: str, image: Path, read: Path | None, questions: Sequence[Question], document: str) -> Page:
    pixels = read_image(image)
    try:
        words = tuple(_words(read_json(read), pixels.shape[1], pixels.shape[0])) if read else ()
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise DocumentError(
            f'{read}: {type(error).__name__} {error}; expected {{"recognitionResults": [{{"width", "height", "lines": '
            '[{"words": [{"text", "boundingBox"}]}]}]}, boxes of eight numbers. Download the file again.'
        ) from error
    return Page(name, pixels, words, answer_fields(words, questions), tuple(questions), document=document)


def _words(result: Any, width: int, height: int) -> Iterator[Word]:
    """The words with text and area on the first page of an OCR result, in pixels of an image of this size."""
    for page in result["recognitionResults"][:1]:
        fx, fy = width / float(page["width"]), height / float(page["height"])
        for word in (word for line in page["lines"] for word in line["words"]):
            corners, text = [float(place) for place in word["boundingBox"]], str(word["text"]).strip()
            xs, ys = corners[::2], corners[1::2]
            if len(corners) != 8 or not all(map(math.isfinite, corners)):
                raise ValueError(f"boundingBox {corners}")
            box = scaled_box((min(xs), min(ys), max(xs), max(ys)), fx, fy, width, height)
            if text and box[0] < box[2] and box[1] < box[3]:
                yield Word(text, box)
