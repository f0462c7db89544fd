"""PDFs as a folder of pages, and the list of what a person should look at afterwards."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn

from docleak.documents.files import raise_faults
from docleak.documents.folder import save
from docleak.documents.page import Field, Image, Page, Word
from docleak.documents.pages import LazyPages
from docleak.documents.pdfs.placing import SHOWN, Remark, Sheet, place
from docleak.documents.pdfs.reading import (
    find_pdfs,
    opened,
    page_of,
    pdf_faults,
    pdfium,
    picture,
    pictures_beside,
    text_layer,
)
from docleak.documents.pdfs.values import Values, public_keys, read_values
from docleak.documents.ranges import short
from docleak.errors import DocumentError
from docleak.files import write_atomically, write_json

REVIEW, RECORD = "review.csv", "conversion.json"
#: Dots per inch at which pages are drawn if nothing else is said: A4 has 1240 x 1754 pixels.
DPI = 150.0

#: Reads the words of a whole page.
Reader = Callable[[Image], Sequence[Word]]
TextFrom = Literal["auto", "layer", "ocr"]


@dataclass
class Converted:
    """What was made: a page's name, PDF, number (from 1) and source of words; and what a person should look at."""

    pages: list[dict[str, object]] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    values: int = 0
    without_values: list[str] = field(default_factory=list)
    #: Pictures that lay beside the PDFs.
    left_out: list[str] = field(default_factory=list)

    def of(self, source: str) -> int:
        """The number of pages whose words came from there: "text layer", "ocr" or "none"."""
        return sum(page["words"] == source for page in self.pages)


def load(path: Path, *, limit: int | None = None) -> LazyPages:
    """No pages, but what to do with PDFs, in a DocumentError: which fields are private does not stand in them."""
    _refuse(path)


def _refuse(path: Path) -> NoReturn:
    find_pdfs(path)
    raise DocumentError(
        f"{path} holds PDFs, of which docleak has to know first which words are private. Convert them once into a "
        f"folder of pages: docleak data convert {shlex.quote(f'pdf:{path}')} NEW-FOLDER --values VALUES.csv "
        "(docs/data-format.md says what that file holds), then give NEW-FOLDER. Without such a file leave --values "
        "out, and mark the fields by mouse: docleak data mark NEW-FOLDER"
    )


@dataclass(frozen=True)
class Conversion:
    """How PDFs become pages: dots per inch, where words come from ("auto": OCR where a page has no text layer), which
    keys are public. ``reader`` makes the reader of whole pages, once it is needed."""

    reader: Callable[[], Reader]
    reader_name: str = ""
    dpi: float = DPI
    text_from: TextFrom = "auto"
    public: str = ""


def convert(
    path: Path, out: Path, conversion: Conversion, *, values: Path | None = None, limit: int | None = None,
    on_page: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> Converted:  # fmt: skip
    """Write the pages of the PDFs at ``path`` as a new folder, with a list of what to look at and a record.

    Every PDF and the values are looked at first; all faults come at once, and nothing is written then. Raises
    DocumentError for these, MissingExtraError without pypdfium2.
    """
    pdfium()
    pdfs = find_pdfs(path)
    counts, faults, names = dict[str, int](), list[str](), set[str]()
    for name, file in pdfs.items():
        counts[name], bad = pdf_faults(file, conversion.dpi)
        of_pages = {_page_name(name, number, counts[name]) for number in range(counts[name])}
        twice = [
            f"{file}: page {one!r} would have the name of another PDF's. Rename one."
            for one in sorted(of_pages & names)
        ]
        faults, names = [*faults, *bad, *twice], names | of_pages
    raise_faults(path, faults, "Nothing was written.")
    known = read_values(values, counts) if values else Values()
    public = public_keys(conversion.public, known.keys)
    done = Converted(left_out=pictures_beside(path))
    total = min(sum(counts.values()), limit or sum(counts.values()))

    def also(draft: Path) -> None:
        write_atomically(draft / REVIEW, review(done.remarks).encode())
        write_json(draft / RECORD, {
            "dpi": conversion.dpi, "reader": conversion.reader_name if done.of("ocr") else None,
            "values": done.values, "pages": done.pages,
        })  # fmt: skip

    save(_pages(pdfs, counts, known, public, conversion, done, total, on_page), out, also=also)
    return done


def _pages(
    pdfs: Mapping[str, Path], counts: Mapping[str, int], known: Values, public: frozenset[str],
    conversion: Conversion, done: Converted, total: int, on_page: Callable[[int, int, str], None],
) -> Iterator[Page]:  # fmt: skip
    """Page after page; a document's words are read first, for a value may stand on any of its pages."""
    reader: Reader | None = None
    for name, file in pdfs.items():
        left = min(counts[name], total - len(done.pages))
        if not left:
            return
        with opened(file) as document:
            sheets = []
            for number in range(left):
                with page_of(document, number) as page:
                    layer = text_layer(page, conversion.dpi)
                    ocr = conversion.text_from == "ocr" or (conversion.text_from == "auto" and layer.scanned)
                    if ocr:
                        reader = reader or conversion.reader()
                    words = _read(reader, picture(page, conversion.dpi)) if ocr and reader else layer.words
                sheets.append(Sheet(words, ocr))
                on_page(len(done.pages) + number + 1, total, name)
            values = [value for value in known.items if value.document == name]
            done.values += len(values)
            done.without_values += [] if values else [name]
            fields, remarks = place(values, sheets, public=public)
            done.remarks += remarks
            for number, (sheet, of_page) in enumerate(zip(sheets, fields, strict=True)):
                with page_of(document, number) as page:
                    image = picture(page, conversion.dpi)
                made = _page(name, number, counts[name], image, sheet, of_page, known)
                source = "ocr" if sheet.ocr else "text layer"
                done.pages.append({"name": made.name, "pdf": name, "page": number + 1,
                                   "words": source if sheet.words else "none"})  # fmt: skip
                yield made


def _read(reader: Reader, image: Image) -> tuple[Word, ...]:
    """The words of a page; DocumentError for what an engine of somebody's own gives instead."""
    words: object = reader(image)
    if not isinstance(words, list | tuple) or not all(isinstance(word, Word) for word in words):
        raise DocumentError(f"the engine's read_page gave {short(words)}; expected a list of docleak.documents.Word.")
    return tuple(words)


def _page(
    name: str, number: int, count: int, image: Image, sheet: Sheet, fields: tuple[Field, ...], known: Values
) -> Page:  # fmt: skip
    return Page(
        name=_page_name(name, number, count), image=image, words=sheet.words, fields=fields,
        document=name, provider=known.providers.get(name, ""), template=known.templates.get(name),
    )  # fmt: skip


def _page_name(name: str, number: int, count: int) -> str:
    return f"{name}-{number + 1}" if count > 1 else name


def review(remarks: Sequence[Remark]) -> str:
    """The list for a person as CSV: a row per value, with the places in question."""
    rows = io.StringIO(newline="")
    writer = csv.writer(rows)
    writer.writerow(("file", "key", "value", "what became of it", "page", "words there"))
    for remark in remarks:
        about = (remark.value.document, remark.value.key, remark.value.text, remark.what)
        for page, text in remark.places or (("", ""),):
            writer.writerow([_cell(cell) for cell in (*about, page, text)])
    return rows.getvalue()


def _cell(cell: object) -> object:
    """Texts that a spreadsheet would take for a formula get an apostrophe in front."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def told(remark: Remark) -> str:
    """The remark as a line of the terminal."""
    value = remark.value
    places = ", ".join(f"page {page}: {text!r}" for page, text in remark.places[:SHOWN])
    more = f" and {len(remark.places) - SHOWN} more" if len(remark.places) > SHOWN else ""
    return f"{value.document}, {value.key} {value.text!r}: {remark.what}{f' ({places}{more})' if places else ''}"
