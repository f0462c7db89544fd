"""vrdu_pfl: public invoices and registration forms whose field values are located word by word; no pickles.

Layout: ``docs.jsonl`` (doc_id, provider), ``fields.jsonl`` (doc_id, page, field, value, text_on_page, word_span
[i, j) into the words of the page), ``qa.jsonl`` (question, answers, image_name, field, set_name),
``ocr/<doc_id>_<page>.json`` ({"words": [{"text", "box"}]}, pixels) and ``images/<doc_id>_<page>.jpg``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from docleak.documents.files import (
    images_by_stem,
    raise_faults,
    read_json,
    read_json_lines,
    require_folder,
    require_split,
    to_box,
)
from docleak.documents.page import Field, Page, Question, Word
from docleak.documents.pages import LazyPages, PageEntry, at_most, grouped, read_page
from docleak.errors import DocumentError

PARTS = ("docs.jsonl", "fields.jsonl", "qa.jsonl", "ocr", "images")

#: The parts of a few-shot division.
FEW_SHOT_PARTS = ("train", "valid", "test")

#: One line of an index.
Row = dict[str, Any]

#: Keys each index must have, with their types.
COLUMNS: dict[str, dict[str, type]] = {
    "docs.jsonl": {"doc_id": str, "provider": str},
    "fields.jsonl": {"doc_id": str, "page": int, "field": str, "text_on_page": str, "word_span": object},
    "qa.jsonl": {"image_name": str, "question": str, "answers": str, "field": str, "set_name": str},
}


def load(path: Path, *, limit: int | None = None, split: str | None = None) -> LazyPages:
    """Pages that hold at least one located field, in the order of fields.jsonl.

    ``split`` keeps the pages with a question of that set_name (train, val, red_test_positive, red_test_negative), or of
    a document of a few-shot division (``splits``). A field's value is the text as printed; its words are exactly
    ``word_span``, though the value may be printed elsewhere on the page too. Indexes are read at once, OCR and images
    on access. Raises DocumentError, listing every fault.
    """
    root = find_root(path)
    docs, located, asked = (read_table(root / name) for name in COLUMNS)
    providers = {row["doc_id"]: row["provider"] for row in docs}
    fields = grouped(located, lambda row: f"{row['doc_id']}_{row['page']}")
    questions = grouped(_of_split(root, docs, asked, split), lambda row: str(row["image_name"]))
    images = images_by_stem(root / "images")
    ocr = {p.stem: p for p in (root / "ocr").glob("*.json")}
    wanted = at_most((name for name in fields if split is None or name in questions), limit)
    if not wanted:
        raise DocumentError(f"{root}: no page{f' of {split!r}' if split else ''} holds a field. Restore fields.jsonl.")
    faults = [
        f"{name}: no file in {d}/"
        for name in wanted
        for d, has in (("images", images), ("ocr", ocr))
        if name not in has
    ]
    faults += [
        f"{name}: its document is not in docs.jsonl" for name in wanted if fields[name][0]["doc_id"] not in providers
    ]
    raise_faults(root, faults, "Restore these files and lines, or take the pages out of fields.jsonl.")
    entries = [
        _entry(name, fields[name], questions.get(name, []), providers, ocr[name], images[name]) for name in wanted
    ]
    return LazyPages(root, entries)


def _entry(
    name: str, fields: Sequence[Row], asked: Sequence[Row], providers: Mapping[str, str], ocr: Path, image: Path
) -> PageEntry:
    document = str(fields[0]["doc_id"])
    provider = providers[document]
    blank = partial(
        Page,
        name=name,
        fields=tuple(map(_field, fields)),
        questions=tuple(_question(row, fields) for row in asked),
        document=document,
        provider=provider,
    )
    return PageEntry(name, ocr, partial(_page, blank, ocr, image), document, provider)


def splits(path: Path) -> tuple[str, ...]:
    """The splits at ``path``: those of the questions (set_name), in order of first appearance, and VRDU's own.

    VRDU's (Wang et al., 2023) are few-shot divisions of the documents: "NAME/train", "NAME/valid" and "NAME/test" for
    each NAME.json in ``few_shot-splits/``, of the folder or of one in it.
    """
    root = find_root(path)
    named = dict.fromkeys(row["set_name"] for row in read_table(root / "qa.jsonl"))
    return (*named, *(f"{name}/{part}" for name in _few_shot(root) for part in FEW_SHOT_PARTS))


def _few_shot(root: Path) -> dict[str, Path]:
    files = (*root.glob("few_shot-splits/*.json"), *root.glob("*/few_shot-splits/*.json"))
    return {file.stem: file for file in sorted(files)}


def _listed(file: Path, part: str, docs: Sequence[Row]) -> set[str]:
    """The documents of a part of a few-shot division, which lists the names of their PDFs."""
    value = read_json(file)
    listed = value.get(part) if isinstance(value, dict) else None
    if not isinstance(listed, list):
        raise DocumentError(f'{file}: expected {{"{part}": [names of PDFs]}}. Download it again.')
    return {row["doc_id"] for row in docs if Path(row.get("source_pdf") or f"{row['doc_id']}.pdf").name in listed}


def find_root(path: Path) -> Path:
    """The folder with all PARTS at ``path`` or in its ``vrdu_pfl``."""
    return require_folder(path, ("vrdu_pfl",), PARTS, f"the folder that holds {', '.join(PARTS)}.")


def read_table(path: Path) -> list[Row]:
    """The rows of one of the indexes; raises DocumentError with every row that lacks a column of COLUMNS."""
    rows, faults = read_json_lines(path)
    faults += [
        f"line {number}: {name} is {row.get(name)!r}, expected {kind.__name__}"
        for number, row in rows
        for name, kind in COLUMNS[path.name].items()
        if not isinstance(row.get(name), kind)
    ]
    faults += [
        f"line {number}: word_span is {row.get('word_span')!r}, expected [first, end] with first < end"
        for number, row in rows
        if "word_span" in COLUMNS[path.name] and not _is_span(row.get("word_span"))
    ]
    raise_faults(path, faults, "Mend these lines or restore the file.")
    return [row for _, row in rows]


def _is_span(value: object) -> bool:
    if not isinstance(value, list) or [type(v) for v in value] != [int, int]:
        return False
    return bool(0 <= value[0] < value[1])


def _of_split(root: Path, docs: Sequence[Row], asked: Sequence[Row], split: str | None) -> Sequence[Row]:
    if split is None:
        return asked
    require_split(root, split, splits(root))
    name, slash, part = split.rpartition("/")
    if not slash:
        return [row for row in asked if row["set_name"] == split]
    documents = _listed(_few_shot(root)[name], part, docs)
    return [row for row in asked if str(row["image_name"]).rpartition("_")[0] in documents]


def _field(row: Row) -> Field:
    first, end = row["word_span"]
    return Field(row["field"], row["text_on_page"], tuple(range(first, end)))


def _question(row: Row, fields: Sequence[Row]) -> Question:
    """The question; right are the label and, where it is spelled differently, the text as printed."""
    printed = [str(f["text_on_page"]) for f in fields if f["field"] == row["field"]]
    return Question(row["question"], tuple(dict.fromkeys([row["answers"], *printed])), row["field"])


def _page(blank: Callable[..., Page], ocr: Path, image: Path) -> Page:
    value = read_json(ocr)
    try:
        words = [Word(str(w["text"]), to_box(w["box"])) for w in value["words"]]  # type: ignore[index]
    except (KeyError, TypeError, ValueError) as error:
        raise DocumentError(
            f'{ocr}: {type(error).__name__} {error}; expected {{"words": [{{"text", "box": [x0, y0, x1, y1]}}]}}. '
            "Restore the file."
        ) from error
    return read_page(blank, image, words)
