"""PFL-DocVQA: invoice pages with questions, OCR tokens and the provider of each document.

Layout: ``imdb/imdb_{train_client_k,val,test}.npy`` (or ``train.npy``, ``valid.npy``) with ``images/<image_name>.jpg``
beside ``imdb/``, and optionally ``data_points.json``. Each .npy is a pickled object array: element 0 is a header,
then one record per question with question, answers (one string), image_name (``<document>_<page>``), ocr_tokens,
ocr_normalized_boxes (x0, y0, x1, y1 in [0, 1]) and perhaps provider, document, field.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from docleak.documents.files import describe_folder, first_folder, images_by_stem, raise_faults, read_image, read_json
from docleak.documents.locate import WordStream
from docleak.documents.page import Field, Page, Question, Word, fault_list
from docleak.documents.pages import LazyPages, PageEntry, at_most, clip_overshoot
from docleak.errors import DocumentError

REQUIRED = ("question", "answers", "image_name", "ocr_tokens", "ocr_normalized_boxes")

#: Normalised boxes may overshoot 1 by rounding; beyond this they are surely pixels.
_LARGEST_NORMALISED = 1.5

#: What reading a damaged or foreign pickle raises.
UNPICKLING_ERRORS = (
    OSError, ValueError, EOFError, pickle.UnpicklingError, ImportError, AttributeError, LookupError, TypeError,
)  # fmt: skip

#: A record of the .npy file: question, answers, image_name, ocr_tokens, ...
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A record and the provider that data_points.json gives it, if the record has none itself."""

    record: Record
    provider: str

    @property
    def answers(self) -> tuple[str, ...]:
        answers = self.record["answers"]
        return (answers,) if isinstance(answers, str) else tuple(map(str, answers))

    @property
    def key(self) -> str:
        return str(self.record.get("field") or self.record["question"])


def find_arrays(path: Path) -> list[Path]:
    """The record files at ``path``: the .npy file itself, or all in the folder or in its ``imdb``."""
    if path.is_file() and path.suffix == ".npy":
        return [path]
    folder = first_folder([path / "imdb", path], [])
    return sorted(folder.glob("*.npy")) if folder else []


def load(path: Path, *, limit: int | None = None, allow_pickle: bool = False) -> LazyPages:
    """Pages in the order of their first record; all questions about one image are questions of one Page.

    Page images are in ``images/`` beside the folder of the .npy files, or in it.
    Each answer that is found in the tokens is a private field whose key is the record's ``field`` or its question.
    Tokens without text and boxes without area are dropped and counted in ``notes``. The .npy files are pickles and
    are refused unless ``allow_pickle``. Raises DocumentError, listing every fault of the data set.
    """
    arrays = find_arrays(path)
    if not arrays:
        raise DocumentError(
            f"{path} {describe_folder(path)}; expected a PFL-DocVQA .npy file, or a folder with such files or with "
            "imdb/*.npy. Give the folder that holds imdb/ and images/."
        )
    if not allow_pickle:
        raise DocumentError(
            f"{arrays[0]}: PFL-DocVQA's .npy files are Python pickles, and reading a pickle runs whatever code its "
            "author put in it. If you made the files, or checked them against the official checksums, say so with "
            "--allow-pickle (allow_pickle=True); `docleak data convert` then writes them once as a plain folder that "
            "needs no such trust."
        )
    picture_folder = first_folder([arrays[0].parent.parent / "images", arrays[0].parent / "images"], [])
    if picture_folder is None:
        raise DocumentError(
            f"{arrays[0].parent.parent / 'images'}: there is no such folder of page images; expected "
            "<image_name>.jpg files in it. Download the images."
        )
    rows = [row for array in arrays for row in read_rows(array)]
    pages: dict[str, list[Row]] = {}
    for row in rows:
        pages.setdefault(str(row.record["image_name"]), []).append(row)
    pictures = images_by_stem(picture_folder)
    chosen = at_most(pages.items(), limit)
    faults = [f"{name}: no such image in {picture_folder}" for name, _ in chosen if name not in pictures]
    raise_faults(path, faults, "Download these images, or take their records out of the .npy files.")
    entries = [_entry(name, rows_, pictures[name], arrays[0]) for name, rows_ in chosen]
    if not entries:
        raise DocumentError(f"{path}: the .npy files hold a header and no record. Download them again.")
    return LazyPages(path, entries, notes=_notes(rows_[0].record for _, rows_ in chosen))


def load_clients(path: Path, *, limit: int | None = None, allow_pickle: bool = False) -> dict[str, LazyPages]:
    """The pages of each client of the official partition, by its name in ``imdb_train_client_k.npy``, in order of k.

    Raises DocumentError as ``load`` does, and if there is no file of a client or a provider is in two of them.
    """
    named = {found[0]: array for array in find_arrays(path) if (found := re.search(r"client_\d+$", array.stem))}
    if not named:
        raise DocumentError(
            f"{path} {describe_folder(path)}; expected PFL-DocVQA's imdb_train_client_<k>.npy. Give the folder that "
            "holds imdb/, or divide the pages by providers."
        )
    order = sorted(named, key=lambda name: int(name.rpartition("_")[2]))
    clients = {name: load(named[name], limit=limit, allow_pickle=allow_pickle) for name in order}
    owner: dict[str, str] = {}
    faults = []
    for name, pages in clients.items():
        for provider in sorted({entry.provider for entry in pages.entries} - {""}):
            if owner.setdefault(provider, name) != name:
                faults.append(f"provider {provider!r} is in {owner[provider]} and in {name}")
    raise_faults(path, faults, "A provider belongs to one client. Download the files again, or divide by providers.")
    return clients


def read_rows(array: Path) -> list[Row]:
    """The records of one trusted .npy file after its header, with their providers."""
    try:
        with array.open("rb") as file:
            if file.read(6) != b"\x93NUMPY":
                raise DocumentError(f"{array}: not a NumPy .npy file. Download it again.")
        records = np.load(array, allow_pickle=True)
    except UNPICKLING_ERRORS as error:
        raise DocumentError(f"{array}: cannot be unpickled ({error}). Download the file again.") from error
    if records.ndim != 1 or records.dtype != object:
        raise DocumentError(
            f"{array}: an array of shape {records.shape} and dtype {records.dtype}; expected a one-dimensional object "
            "array of records. Give PFL-DocVQA's imdb files."
        )
    faults = [fault for i, record in enumerate(records) if i > 0 for fault in _record_faults(i, record)]
    raise_faults(array, faults, "Expected PFL-DocVQA records after the header (element 0). Download the file again.")
    providers = read_providers(array, len(records))
    return [Row(r, str(r.get("provider") or providers.get(i, ""))) for i, r in enumerate(records) if i > 0]


def _record_faults(index: int, record: object) -> list[str]:
    if not isinstance(record, Mapping):
        return [f"element {index}: a {type(record).__name__}, expected a dict"]
    absent = [key for key in REQUIRED if key not in record]
    if absent:
        return [f"element {index}: without {', '.join(absent)}"]
    tokens = record["ocr_tokens"]
    try:
        boxes = np.asarray(record["ocr_normalized_boxes"], dtype=np.float64).reshape(-1, 4)
    except (TypeError, ValueError):
        return [f"element {index}: ocr_normalized_boxes are not rows of four numbers"]
    if len(tokens) != len(boxes):
        return [f"element {index}: {len(tokens)} ocr_tokens but {len(boxes)} ocr_normalized_boxes"]
    if boxes.size and boxes.max() > _LARGEST_NORMALISED:
        return [f"element {index}: boxes up to {boxes.max():g}, expected fractions of the page in [0, 1]"]
    return []


def read_providers(array: Path, size: int) -> dict[int, str]:
    """Provider of each row by data_points.json beside ``array``; {} if there is none or it is about other files.

    It is ``{"client_k": {provider: [rows]}}`` for ``*client_k.npy``, or ``{provider: [rows]}`` for a single train
    file (``centralized_data_points.json``); rows count the header, so 0 is an error.
    """
    names = ("data_points.json", "centralized_data_points.json")
    path = next((array.parent / name for name in names if (array.parent / name).is_file()), None)
    if path is None:
        return {}
    points = read_json(path)
    if not isinstance(points, dict):
        raise DocumentError(f"{path}: expected a JSON object of clients or providers. Download it again.")
    if all(isinstance(value, dict) for value in points.values()):
        points = next((points[client] for client in points if array.stem.endswith(client)), {})
    elif "train" not in array.stem:
        return {}
    faults = [
        f"{provider}: row {row!r}"
        for provider, rows in points.items()
        for row in (rows if isinstance(rows, list) else [rows])
        if not isinstance(row, int) or not 0 < row < size
    ]
    if faults:
        raise DocumentError(f"{path}: expected rows 1 to {size - 1} of {array.name}, found:{fault_list(faults)}")
    return {row: str(provider) for provider, rows in points.items() for row in rows}


def _entry(name: str, rows: Sequence[Row], image: Path, source: Path) -> PageEntry:
    document = str(rows[0].record.get("document") or name.rpartition("_")[0] or name)
    provider = next((row.provider for row in rows if row.provider), "")
    make = partial(_page, name, tuple(rows), image, document, provider)
    return PageEntry(name, source, make, document, provider)


def _page(name: str, rows: Sequence[Row], image: Path, document: str, provider: str) -> Page:
    pixels = read_image(image)
    height, width = pixels.shape[:2]
    words = tuple(clip_overshoot(word, width, height) for word in _words(rows[0].record, width, height))
    stream = WordStream.of([word.text for word in words])
    fields = [
        Field(row.key, row.answers[0], stream.find(row.answers[0])) for row in rows if "".join(row.answers[:1]).strip()
    ]
    questions = [Question(str(row.record["question"]), row.answers, row.key) for row in rows]
    return Page(
        name=name,
        image=pixels,
        words=words,
        fields=tuple(dict.fromkeys(fields)),
        questions=tuple(dict.fromkeys(questions)),
        document=document,
        provider=provider,
    )


def _boxes(record: Record) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(record["ocr_normalized_boxes"], dtype=np.float64).reshape(-1, 4)


def _words(record: Record, width: int, height: int) -> list[Word]:
    """The tokens with text and area, boxes in pixels (rounded to 0.01, undoing the noise of 32-bit fractions)."""
    scale = np.array([width, height, width, height])
    words = []
    for token, box in zip(record["ocr_tokens"], np.round(_boxes(record) * scale, 2).tolist(), strict=True):
        x0, y0, x1, y1 = box
        if str(token).strip() and x0 != x1 and y0 != y1:
            words.append(Word(str(token).strip(), (x0, y0, x1, y1)))
    return words


def _notes(records: Iterable[Record]) -> list[str]:
    """How many tokens ``_words`` drops, over the pages (their first records)."""
    empty = flat = 0
    for record in records:
        boxes = _boxes(record)
        blank = np.array([not str(token).strip() for token in record["ocr_tokens"]], dtype=bool)
        thin = (boxes[:, 0] == boxes[:, 2]) | (boxes[:, 1] == boxes[:, 3])
        empty += int(blank.sum())
        flat += int((thin & ~blank).sum())
    sentences = [(empty, "tokens without text"), (flat, "tokens whose box has no area")]
    return [f"{count} {what} were left out" for count, what in sentences if count]
