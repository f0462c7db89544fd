"""The values that PDFs should hold, from a CSV or JSON (docs/data-format.md): which file, which key, which text."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docleak.documents.files import raise_faults, read_json, read_text
from docleak.documents.ranges import short
from docleak.errors import DocumentError
from docleak.spec import nearest

#: Columns that say whose a row is; all others are keys of fields, but for the two that a row per value has.
ABOUT = ("file", "page", "provider", "template")
PER_VALUE = ("key", "value")
REMEDY = "Mend these; docs/data-format.md describes the file."


@dataclass(frozen=True)
class Value:
    """A text that a document should hold; ``page`` (from 1) is None where any page of it may."""

    document: str
    key: str
    text: str
    page: int | None = None


@dataclass(frozen=True)
class Values:
    """All values, in the order of the file, and who issued each document into which layout, where the file says so."""

    items: tuple[Value, ...] = ()
    providers: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(value.key for value in self.items)


def read_values(path: Path, pages: Mapping[str, int]) -> Values:
    """Values of the documents whose numbers of pages are ``pages``; every fault of the file at once.

    A CSV (separated by commas, semicolons or tabs) has a column ``file``, perhaps ``page``, ``provider`` and
    ``template``, and either a column per key, or ``key`` and ``value``. A JSON is a list of objects with the same keys,
    in which a value may be a list of texts, or an object of such objects by file.
    """
    if path.suffix.lower() not in (".csv", ".tsv", ".json"):
        raise DocumentError(f"{path}: expected a .csv, .tsv or .json with the values (docs/data-format.md).")
    rows = list(_json_rows(path) if path.suffix.lower() == ".json" else _csv_rows(path))
    faults: list[str] = []
    items: list[Value] = []
    told: dict[str, dict[str, str]] = {"provider": {}, "template": {}}
    for where, row in rows:
        bad, document, page = _whose(row, pages)
        for key, text in _texts(row, bad):
            if text.strip():
                items.append(Value(document, key, text.strip(), page))
        for column, known in told.items():
            text = row.get(column, "")
            if isinstance(text, str) and text and known.setdefault(document, text) != text:
                bad.append(f"{document!r} has the {column} {text!r} here and {known[document]!r} above")
        faults += [f"{where}: {fault}" for fault in bad]
    raise_faults(path, faults, REMEDY)
    if not items:
        raise DocumentError(f"{path}: holds no value. Give a row per file with its values (docs/data-format.md).")
    return Values(tuple(dict.fromkeys(items)), told["provider"], told["template"])


def _whose(row: Mapping[str, Any], pages: Mapping[str, int]) -> tuple[list[str], str, int | None]:
    """Faults of what a row says about itself, its document, and its page where it names one."""
    faults = [f"{key!r} is {short(row[key])}, expected a text" for key in ("file", "provider", "template")
              if not isinstance(row.get(key, ""), str)]  # fmt: skip
    file = row.get("file", "")
    if not isinstance(file, str):
        return faults, "", None
    document = next((name for name in (file, file[:-4] if file.lower().endswith(".pdf") else "") if name in pages), "")
    if not document:
        hint = nearest(file.removesuffix(".pdf"), pages)
        faults.append(f"there is no PDF {file!r}.{hint}" if file else "'file' is missing")
    said = str(row.get("page", "")).strip()
    if not said:
        return faults, document, None
    page = int(said) if said.isdecimal() and len(said) < 9 else 0
    if document and not 1 <= page <= pages[document]:
        faults.append(f"'page' is {short(row['page'])}; expected 1 to {pages[document]}")
    return faults, document, page


def _texts(row: Mapping[str, Any], faults: list[str]) -> Iterator[tuple[str, str]]:
    """Key and text of each value of a row; what is no text is added to ``faults``."""
    if all(key in row for key in PER_VALUE):
        columns = {row["key"]: row["value"]} if isinstance(row["key"], str) and row["key"].strip() else {}
        faults += [] if columns else [f"'key' is {short(row['key'])}, expected a text"]
        extra = sorted(key for key in row if key not in (*ABOUT, *PER_VALUE))
        faults += [f"{key!r} stands beside 'key' and 'value'; expected one of {', '.join(ABOUT)}" for key in extra]
    else:
        columns = {key: row[key] for key in row if key not in ABOUT}
    for key, value in columns.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield key.strip(), text
            elif text is not None:
                faults.append(f"{key!r} is {short(text)}, expected a text in quotes, as the page prints it")


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    text = read_text(path)
    head = text.split("\n", 1)[0]
    separator = max(",;\t", key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise DocumentError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells, expected {len(header)} as in the first line. "
                    "Put values that hold the separator in quotes."
                )
            yield f"line {reader.line_num}", dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise DocumentError(f"{path}, line {reader.line_num}: {error}. Mend that line.") from error


def _check_header(path: Path, header: Sequence[str]) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    faults = [f"the column {name!r} is there twice" for name in twice]
    faults += ["a column has no name"] if "" in header else []
    faults += [] if "file" in header else [f"no column 'file' among {', '.join(header) or 'none'}"]
    faults += [] if set(header) - set(ABOUT) else ["no column with values"]
    if len(alone := set(PER_VALUE) & set(header)) == 1:
        (missing,) = set(PER_VALUE) - alone
        faults.append(f"the column {alone.pop()!r} is there without {missing!r}")
    raise_faults(path, faults, REMEDY)


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    value = read_json(path)
    if isinstance(value, dict):
        rows = [(short(file), {**row, "file": file} if isinstance(row, dict) else row) for file, row in value.items()]
    elif isinstance(value, list):
        rows = [(f"object {number}", row) for number, row in enumerate(value, start=1)]
    else:
        rows = [("it", value)]
    raise_faults(
        path, [f"{where}: a {type(row).__name__}, expected an object" for where, row in rows
               if not isinstance(row, dict)], REMEDY)  # fmt: skip
    yield from rows


def public_keys(spelt: str, keys: Collection[str]) -> frozenset[str]:
    """The keys of a list separated by commas; DocumentError for one that no value has."""
    names = {name.strip() for name in spelt.split(",") if name.strip()}
    if unknown := sorted(names - set(keys)):
        raise DocumentError(
            f"--public names {', '.join(unknown)}, of which there are no values; expected some of "
            f"{', '.join(sorted(keys)) or 'none'}."
        )
    return frozenset(names)
