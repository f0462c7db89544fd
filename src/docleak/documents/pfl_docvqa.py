"""PFL-DocVQA: invoice pages with questions, OCR tokens and the provider of each document.

Records (``imdb``) stand in ``imdb/imdb_{train_client_k,val,test}.npy`` of BLUE as it was first handed out, in
``train.npy`` and ``valid.npy`` of the kit for RED, in its ``SaTML_PMIA*.npy``, and in ``{train,val,test}/{blue_train,
blue_val,red_test}.npy``; images are ``images/<image_name>.jpg`` beside them. A record's set_name says its split, else
its label (member, non_member), else its file's name. Providers are in the records, or in JSON files beside them:
``data_points.json`` and ``centralized_data_points.json`` by rows, ``provider2docs.json`` and ``red_doc2provider.json``
by documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docleak.documents.files import describe_folder, first_folder, raise_faults, read_json
from docleak.documents.imdb import Record, entries_of_records, read_records
from docleak.documents.page import fault_list
from docleak.documents.pages import LazyPages
from docleak.errors import DocumentError

RED_TEST_POSITIVE, RED_TEST_NEGATIVE = "red_test_positive", "red_test_negative"
SPLITS = ("train", "val", "test", RED_TEST_POSITIVE, RED_TEST_NEGATIVE)
#: What the files call the splits: in set_name, as a label, or as the end of their own names.
SPLIT_OF = {
    "train": "train", "blue_train": "train", "val": "val", "valid": "val", "blue_val": "val",
    "test": "test", "test_positive": "test", "test_negative": "test", "blue_test": "test",
    RED_TEST_POSITIVE: RED_TEST_POSITIVE, RED_TEST_NEGATIVE: RED_TEST_NEGATIVE,
    "member": RED_TEST_POSITIVE, "non_member": RED_TEST_NEGATIVE,
}  # fmt: skip
#: Where record files are, below the path that is given.
FOLDERS = ("imdb", "imdb/*", "train", "val", "test", ".")
WHAT = "PFL-DocVQA"


def find_arrays(path: Path) -> list[Path]:
    """The record files at ``path``: the .npy file itself, or all in the first of FOLDERS that has some.

    The folders of single splits belong together.
    """
    if path.is_file() and path.suffix == ".npy":
        return [path]
    by_folder = {folder: sorted(path.glob(f"{folder}/*.npy")) for folder in FOLDERS} if path.is_dir() else {}
    parts = [array for split in ("train", "val", "test") for array in by_folder.get(split, [])]
    return next(filter(None, (by_folder.get("imdb"), by_folder.get("imdb/*"), parts, by_folder.get("."))), [])


def splits(path: Path) -> tuple[str, ...]:
    """The official splits that the files at ``path`` hold."""
    there = {_said(array) for array in find_arrays(path)} & {"train", "val"}
    for array in find_arrays(path):
        if not _said(array):
            there |= {split_of(array, record) for record in read_records(array, what=WHAT)}
    return tuple(split for split in SPLITS if split in there)


def load(path: Path, *, limit: int | None = None, split: str | None = None) -> LazyPages:
    """Pages in the order of their first record; all questions about one image are questions of one Page.

    ``split`` is one of ``splits``; without it the pages are those of all files. Each answer that is found in the tokens
    is a private field whose key is the record's ``field`` or its question. Tokens without text, boxes without area and
    questions without answer are counted in ``notes``. Raises DocumentError, listing every fault of the data set.
    """
    arrays = _arrays(path)
    if split is not None:
        arrays = [array for array in arrays if _said(array) in ("", split)]
    read = {array: read_records(array, what=WHAT) for array in arrays}
    records = [
        (array, record)
        for array, of_file in read.items()
        for record in of_file
        if split is None or split_of(array, record) == split
    ]
    if not records:
        raise DocumentError(
            f"{path}: the .npy files hold no record{f' of the split {split!r}' if split else ''}; expected one for "
            "each question. Download them again, or give the path alone."
        )
    entries, notes = entries_of_records(records, _pictures(arrays[0]), Providers(read), limit)
    return LazyPages(path, entries, notes=notes)


def _arrays(path: Path) -> list[Path]:
    if arrays := find_arrays(path):
        return arrays
    raise DocumentError(
        f"{path} {describe_folder(path)}; expected a PFL-DocVQA .npy file, or a folder with such files or with "
        "imdb/*.npy. Give the folder that holds imdb/ and images/."
    )


def _pictures(array: Path) -> Path:
    above = (array.parent, array.parent.parent, array.parent.parent.parent)
    folder = first_folder([place / name for place in above for name in ("images/full", "images")], [])
    if folder is None:
        raise DocumentError(
            f"{above[1] / 'images'}: there is no such folder of page images; expected <image_name>.jpg files in it. "
            "Download the images."
        )
    return folder


def _said(array: Path) -> str:
    """The split that a file's name says; empty where its records say it themselves, as those of tests do."""
    stem = array.stem.lower()
    return "train" if "train" in stem else "val" if re.search(r"(^|_)val(id)?$", stem) else ""


def split_of(array: Path, record: Record) -> str:
    """The split of a record; DocumentError where neither it nor its file names one."""
    named = record.names["set_name"] or record.names["label"] or _said(array) or array.stem.removeprefix("imdb_")
    if split := SPLIT_OF.get(named.lower()):
        return split
    raise DocumentError(
        f"{array}, row {record.row}: {record.image_name!r} is of the set {named!r}; expected one of "
        f"{', '.join(SPLIT_OF)}. Give PFL-DocVQA's own files, or divide them by providers."
    )


def load_clients(path: Path, *, limit: int | None = None) -> dict[str, LazyPages]:
    """The pages of each client of the official partition, by its name in ``imdb_train_client_k.npy``, in order of k.

    Raises DocumentError as ``load`` does, and if there is no file of a client or a provider is in two of them.
    """
    named = {said[0]: array for array in find_arrays(path) if (said := re.search(r"client_\d+$", array.stem))}
    if not named:
        raise DocumentError(
            f"{path} {describe_folder(path)}; expected PFL-DocVQA's imdb_train_client_<k>.npy. Give the folder that "
            "holds imdb/, or divide the pages by providers."
        )
    order = sorted(named, key=lambda name: int(name.rpartition("_")[2]))
    clients = {name: load(named[name], limit=limit) for name in order}
    owner: dict[str, str] = {}
    faults = []
    for name, pages in clients.items():
        for provider in sorted({entry.provider for entry in pages.entries} - {""}):
            if owner.setdefault(provider, name) != name:
                faults.append(f"provider {provider!r} is in {owner[provider]} and in {name}")
    raise_faults(path, faults, "A provider belongs to one client. Download the files again, or divide by providers.")
    return clients


class Providers:
    """The provider of a record: its own, or by the JSON files beside its file; empty where none names one."""

    def __init__(self, read: Mapping[Path, Sequence[Record]]) -> None:
        sizes = {array: 1 + max((record.row for record in records), default=0) for array, records in read.items()}
        self._by_row = {array: _providers_of_rows(array, size) for array, size in sizes.items()}
        folders = dict.fromkeys(array.parent for array in read)
        self._by_document = dict(pair for folder in folders for pair in _providers_of_documents(folder))

    def __call__(self, array: Path, record: Record) -> str:
        named = record.names["provider"] or self._by_row[array].get(record.row, "")
        return named or self._by_document.get(record.document, "")


def _providers_of_rows(array: Path, size: int) -> dict[int, str]:
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


def _providers_of_documents(folder: Path) -> Iterator[tuple[str, str]]:
    """Document and provider by ``*doc2provider.json`` ({document: {"provider"}}) and ``*provider2docs.json``."""
    for path in sorted((*folder.glob("*doc2provider.json"), *folder.glob("*provider2docs.json"))):
        named: Any = read_json(path)
        try:
            if path.stem.endswith("doc2provider"):
                yield from ((document, _text(of["provider"])) for document, of in named.items())
            else:
                yield from ((_text(document), name) for name, of in named.items() for document in of)
        except (AttributeError, KeyError, TypeError) as error:
            raise DocumentError(
                f'{path}: {type(error).__name__} {error}; expected {{document: {{"provider"}}}} in *doc2provider.json '
                "and {provider: [documents]} in *provider2docs.json. Download it again."
            ) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value
