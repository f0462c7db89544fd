"""Pages of the Hugging Face ecosystem: a folder of ``save_to_disk``, or parquet files, read with pyarrow alone.

Columns are told by their names (COLUMNS). Pictures lie in the tables, as ``datasets`` embeds them, or beside them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from docleak.documents.files import describe_folder, inside, raise_faults, read_image, read_json, require_split, to_box
from docleak.documents.locate import answer_fields
from docleak.documents.page import Box, Entity, Field, Page, Question, Word
from docleak.documents.pages import LazyPages, PageEntry, at_most, clip_overshoot
from docleak.documents.ranges import short
from docleak.errors import DocumentError, MissingExtraError
from docleak.files import Stamps, stamps

#: What is read -> the names its column may have; the first that is there counts.
COLUMNS = {
    "image": ("image", "img"),
    "words": ("words", "tokens"),
    "boxes": ("bboxes", "boxes", "bounding_boxes", "bbox"),
    "tags": ("ner_tags", "tags", "labels"),
    "fields": ("fields",),
    "question": ("question", "query"),
    "answers": ("answers", "answer"),
    "name": ("id", "name"),
    "provider": ("provider",),
    "document": ("document", "doc_id", "docId"),
}
#: What ``boxes=`` may say -> the width and height that boxes are parts of; None for pixels.
SCALES = {"": None, "pixels": None, "1000": 1000.0, "1": 1.0}
SHARD = re.compile(r"(.+?)-\d+-of-\d+$")
SPLIT_NAMES = {"validation": "val", "valid": "val", "dev": "val"}


@dataclass(frozen=True)
class Cell:
    """Where a picture lies: a row of a file, and the folder beside which pictures may lie."""

    file: Path
    row: int
    column: str
    root: Path

    def content(self) -> tuple[Path, bytes | None]:
        """The name of the picture, and its bytes where the table has them."""
        named = Path(f"{self.file}, row {self.row}")
        cell = _picture_cell(self.file, self.row, self.column)
        held = cell.get("bytes") if isinstance(cell, Mapping) else cell
        if isinstance(held, bytes):
            return named, held
        path = cell.get("path") if isinstance(cell, Mapping) else cell
        if isinstance(path, str) and inside(self.root, path) is not None and (self.root / path).is_file():
            return self.root / path, None
        raise DocumentError(
            f"{named}: the column {self.column!r} holds no picture, and names none in the folder ({short(path)}). Save "
            "the data set with its pictures in it (cast the column to datasets.Image() first)."
        )


def load(path: Path, *, limit: int | None = None, split: str = "", boxes: str = "", public: str = "") -> LazyPages:
    """Pages in the order of the files: of ``split``, else of train, else of all splits.

    ``boxes`` says what boxes are in: pixels, 1000 (LayoutLM's) or 1; ``public`` names tags, joined by +, that the empty
    form shows. Raises DocumentError, listing every fault of the tables at once, where columns are missing or do not fit
    together, and MissingExtraError without pyarrow.
    """
    tables = find_files(path)
    if split:
        require_split(path, split, splits(path))
    chosen = [split] if split else ["train"] if "train" in tables else list(tables)
    if boxes not in SCALES:
        raise DocumentError(f"boxes={boxes} of {path}; expected pixels, 1000 or 1.")
    seen: set[str] = set()
    entries, faults = list[PageEntry](), list[str]()
    for file in (file for name in chosen for file in tables[name]):
        for entry in _entries(file, path, SCALES[boxes], frozenset(public.casefold().split("+")), faults, seen):
            entries.append(entry)
            if limit is not None and len(entries) >= limit:
                break
    raise_faults(path, faults, "docs/data-format.md says which columns are read.")
    notes = [f"of {', '.join(chosen)}: it has no split train"] if len(chosen) > 1 else []
    if public and (missing := sorted(set(public.casefold().split("+")) - seen)):
        raise DocumentError(f"public={public} of {path}: no tag is {', '.join(missing)}; expected {_listed(seen)}.")
    if not entries:
        raise DocumentError(f"{path}: the tables have no row. Give a data set with pages.")
    return LazyPages(path, at_most(entries, limit), notes=notes)


def splits(path: Path) -> tuple[str, ...]:
    """The splits that the folder has by name."""
    return tuple(name for name in find_files(path) if name)


def find_files(path: Path) -> dict[str, list[Path]]:
    """The tables at ``path``, by split ("" where there is but one, without a name)."""
    if path.is_file():
        return {"": [path]}
    if (path / "dataset_dict.json").is_file():
        told = read_json(path / "dataset_dict.json")
        names = told.get("splits") if isinstance(told, dict) else None
        if not isinstance(names, list) or not all(isinstance(n, str) and inside(path, n) for n in names) or not names:
            raise DocumentError(f"{path / 'dataset_dict.json'} names no splits of this folder. Save the set again.")
        return {SPLIT_NAMES.get(str(name), str(name)): _saved(path / str(name)) for name in names}
    if (path / "state.json").is_file():
        return {"": _saved(path)}
    files = sorted({file for pattern in ("*.parquet", "*/*.parquet") for file in path.glob(pattern)
                    if inside(path, file.relative_to(path).as_posix())})  # fmt: skip
    if not files:
        raise DocumentError(
            f"{path} {describe_folder(path)}; expected what datasets' save_to_disk wrote (dataset_dict.json or "
            "state.json), or parquet files."
        )
    tables: dict[str, list[Path]] = {}
    for file in files:
        match = SHARD.match(file.stem)
        name = match[1] if match else file.stem
        tables.setdefault(SPLIT_NAMES.get(name, name), []).append(file)
    return tables if len(tables) > 1 or set(tables) <= {"train", "val", "test"} else {"": files}


def _saved(folder: Path) -> list[Path]:
    """The files that ``state.json`` names, in its order."""
    told = read_json(folder / "state.json")
    if isinstance(told, dict) and told.get("_indices_data_files"):
        raise DocumentError(
            f"{folder}: its rows are chosen by an index of their own; call flatten_indices() and save again."
        )
    listed = told.get("_data_files") if isinstance(told, dict) else None
    names = [str(item.get("filename")) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    if not names or not all(inside(folder, n) and (folder / n).is_file() for n in names):
        raise DocumentError(f"{folder / 'state.json'} names no data files in this folder. Save the data set again.")
    return [folder / name for name in names]


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "reading data sets of datasets needs pyarrow: pip install 'docleak[datasets]'."
        ) from error
    return pyarrow


def _table(file: Path) -> Any:
    """The file as pyarrow's table, mapped into memory; only the parts that are looked at are read."""
    return _mapped(file, stamps(file))


@lru_cache(maxsize=8)
def _mapped(file: Path, files: Stamps) -> Any:
    arrow = _arrow()
    try:
        if file.suffix == ".parquet":
            return arrow.parquet.ParquetFile(file, memory_map=True)
        with arrow.memory_map(str(file)) as stream:
            return arrow.ipc.open_stream(stream).read_all()
    except (arrow.ArrowException, OSError, EOFError) as error:
        raise DocumentError(
            f"{file}: cannot be read as a table ({str(error)[:200]}). Save or download it again."
        ) from error


@lru_cache(maxsize=1)
def _group(file: Path, number: int, column: str, files: Stamps) -> Any:
    return _mapped(file, files).read_row_group(number, columns=[column])


def _picture_cell(file: Path, row: int, column: str) -> Any:
    arrow, table = _arrow(), _table(file)
    try:
        if file.suffix != ".parquet":
            return table.column(column)[row].as_py()
        for number in range(table.num_row_groups):
            count = table.metadata.row_group(number).num_rows
            if row < count:
                return _group(file, number, column, stamps(file)).column(column)[row].as_py()
            row -= count
    except (arrow.ArrowException, OSError) as error:
        raise DocumentError(f"{file}: cannot be read ({str(error)[:200]}). Save or download it again.") from error
    raise DocumentError(f"{file} has no row {row}; it was changed meanwhile.")


def _entries(
    file: Path, root: Path, scale: float | None, public: frozenset[str], faults: list[str], seen: set[str]
) -> Iterator[PageEntry]:  # fmt: skip
    """A page for each row without a fault."""
    arrow, table = _arrow(), _table(file)
    parquet = file.suffix == ".parquet"
    schema = table.schema_arrow if parquet else table.schema
    called = {what: next((name for name in names if name in schema.names), "") for what, names in COLUMNS.items()}
    missing = [f"{what} ({' or '.join(COLUMNS[what])})" for what in ("image", "words", "boxes") if not called[what]]
    if missing:
        faults.append(f"{file.name}: no column for {', '.join(missing)} among {_listed(schema.names)}")
        return
    columns = [name for what, name in called.items() if name and what != "image"]
    try:
        rows = (table.read(columns=columns) if parquet else table.select(columns)).to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise DocumentError(f"{file}: cannot be read ({str(error)[:200]}). Save or download it again.") from error
    names = _tag_names(schema, called["tags"], file.parent)
    for number, row in enumerate(rows):
        told = {what: row[name] for what, name in called.items() if name in row}
        try:
            parts = _parts(told, names, public, seen)
        except ValueError as error:
            faults.append(f"{file.name}, row {number}: {error}")
            continue
        name = str(told.get("name") or f"{file.stem}-{number}")
        about = {key: str(told.get(key) or "") for key in ("document", "provider")}
        make = partial(_page, Cell(file, number, called["image"], root if root.is_dir() else root.parent), scale, parts,
                       name, about)  # fmt: skip
        yield PageEntry(name, file, make, about["document"], about["provider"])


def _parts(
    told: Mapping[str, Any], names: Sequence[str], public: frozenset[str], seen: set[str]
) -> tuple[tuple[Word, ...], tuple[Field, ...], tuple[Question, ...], tuple[Entity, ...]]:  # fmt: skip
    """Words, fields, questions and entities of a row; ValueError for what does not fit together."""
    texts, boxes = told["words"], told["boxes"]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"words are {short(texts)}, expected a list of texts")
    if not isinstance(boxes, list) or len(boxes) != len(texts):
        raise ValueError(f"{len(texts)} words and {len(boxes) if isinstance(boxes, list) else 'no'} boxes")
    words = tuple(Word(text, to_box(box)) for text, box in zip(texts, boxes, strict=True))
    questions = _questions(told)
    if told.get("fields") is not None:
        return words, tuple(_field(item, words) for item in told["fields"]), questions, ()
    entities = tuple(_entities(told.get("tags"), len(words), names))
    if "tags" not in told:
        return words, answer_fields(words, questions), questions, ()
    seen.update(entity.label.casefold() for entity in entities)
    fields = tuple(
        Field(
            entity.label, " ".join(texts[i] for i in entity.words), entity.words, entity.label.casefold() not in public
        )
        for entity in entities
        if any(texts[i].strip() for i in entity.words)
    )
    return words, fields, questions, entities


def _field(item: Any, words: Sequence[Word]) -> Field:
    places = item.get("words") or [] if isinstance(item, dict) else None
    fits = isinstance(places, list) and all(type(i) is int and 0 <= i < len(words) for i in places)
    if not fits or not isinstance(item.get("key"), str) or not isinstance(item.get("value"), str):
        raise ValueError(f"a field is {short(item)}, expected key, value and words (numbers of the {len(words)} words)")
    if places and item.get("private") is not False and not item["value"].strip():
        raise ValueError(f"a private field is {short(item)}, expected a value: what the page shows there")
    return Field(item["key"], item["value"], tuple(places or ()), item.get("private") is not False)


def _entities(tags: Any, count: int, names: Sequence[str]) -> Iterator[Entity]:
    """Runs of words of one tag; B- begins a new one, and O, or nothing, is none."""
    if tags is None:
        return
    if not isinstance(tags, list) or len(tags) != count:
        raise ValueError(f"{count} words and {len(tags) if isinstance(tags, list) else 'no'} tags")
    if any(type(tag) is int for tag in tags) and not all(type(tag) is int and 0 <= tag < len(names) for tag in tags):
        raise ValueError(
            f"tags are numbers, of which the table names {len(names)}; save it with its ClassLabel, or with texts"
        )
    label, places = "", list[int]()
    for number, tag in enumerate([*tags, "O"]):
        text = names[tag] if isinstance(tag, int) else tag or "O"
        begins, _, rest = text.partition("-") if text[:2] in ("B-", "I-", "E-", "S-") else ("I", "", text)
        rest = "" if text == "O" else rest
        if rest != label or begins in ("B", "S"):
            if label:
                yield Entity(label, tuple(places))
            label, places = rest, []
        places.append(number)


def _questions(told: Mapping[str, Any]) -> tuple[Question, ...]:
    asked, answers = _text_of(told.get("question")), told.get("answers")
    if not asked:
        return ()
    texts = [_text_of(answer) for answer in (answers if isinstance(answers, list) else [answers])]
    return (Question(asked, tuple(text for text in texts if text)),)


def _text_of(value: Any) -> str:
    """A text, or that of an object of texts by language or by "text"."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("en", "text", *value) if isinstance(value.get(key), str)), "")
    return value if isinstance(value, str) else ""


def _tag_names(schema: Any, column: str, folder: Path) -> list[str]:
    """The names of a column's ClassLabel, from the table's own description or ``dataset_info.json``."""
    held = (schema.metadata or {}).get(b"huggingface")
    info: Any = {}
    try:
        info = json.loads(held)["info"] if held else read_json(folder / "dataset_info.json")
        kind = info["features"][column]
    except (ValueError, KeyError, TypeError, DocumentError):
        return []
    while isinstance(kind, dict | list) and not (isinstance(kind, dict) and "names" in kind):
        kind = (kind.get("feature") if isinstance(kind, dict) else kind[0] if kind else None)  # fmt: skip
    names = kind["names"] if isinstance(kind, dict) else []
    return [str(name) for name in names] if isinstance(names, list) else []


def _page(cell: Cell, scale: float | None, parts: tuple[Any, ...], name: str, about: Mapping[str, str]) -> Page:
    words, fields, questions, entities = parts
    path, content = cell.content()
    image = read_image(path, content=content)
    height, width = image.shape[:2]
    most = max((value for word in words for value in word.box), default=0.0)
    if scale is None and words and ((most <= 1 and max(width, height) > 1) or (max(width, height) + 2 < most <= 1000)):
        raise DocumentError(
            f"{path}: the boxes reach to {most:g} on a picture of {width} x {height} pixels. Say what of: "
            f"datasets:{cell.root}:boxes={1 if most <= 1 else 1000}"
        )
    if scale is not None:
        words = tuple(Word(word.text, _scaled(word.box, scale, width, height)) for word in words)
    words = tuple(clip_overshoot(word, width, height) for word in words)
    document, provider = about["document"], about["provider"]
    return Page(name, image, words, fields, questions, document, provider, entities=entities)


def _scaled(box: Box, scale: float, width: int, height: int) -> Box:
    """A box in parts of the page in whole pixels, one wide and high at least."""
    x0, y0 = math.floor(box[0] / scale * width), math.floor(box[1] / scale * height)
    x1, y1 = math.ceil(box[2] / scale * width), math.ceil(box[3] / scale * height)
    return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)


def _listed(names: Any) -> str:
    listed = sorted(names)
    return ", ".join(listed[:20]) + (f" and {len(listed) - 20} more" if len(listed) > 20 else "") if listed else "none"
