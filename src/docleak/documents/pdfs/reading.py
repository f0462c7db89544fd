"""Read PDFs with pypdfium2 (extra ``pdf``): which there are, what is wrong with them, pictures and text layers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docleak.documents.files import IMAGE_SUFFIXES, OTHER_PICTURES, describe_folder, inside
from docleak.documents.page import Image, Word
from docleak.documents.ranges import MOST_PIXELS
from docleak.errors import DocumentError, MissingExtraError

#: Points, in which PDFs measure, to an inch; a part of a pixel is one more, but not the rounding of single precision.
POINTS, ROUNDED = 72, 1 - 1e-6
#: A page whose text layer has fewer words is a scan if a picture covers this share of it: such layers are stamps,
#: page numbers, or what a viewer added.
FEW_WORDS, MOSTLY_PICTURE = 10, 0.5
#: Fractions of a pixel that boxes are computed in; pdfium maps to whole numbers only.
FINER = 16
#: What pdfium says of a hyphen at the end of a line.
LINE_HYPHEN = "\x02"


@dataclass(frozen=True)
class Layer:
    """The words of a page's text layer, with boxes in pixels, and whether the page is a picture that they do not tell.

    ``scanned``: there are no words, or fewer than FEW_WORDS on a page that one picture covers mostly, or the fonts do
    not say which letters most of theirs are.
    """

    words: tuple[Word, ...]
    scanned: bool


def pdfium() -> Any:
    """The library; MissingExtraError where it is not installed."""
    try:
        import pypdfium2
    except ImportError as error:
        raise MissingExtraError("reading PDFs needs pypdfium2: pip install 'docleak[pdf]'.") from error
    return pypdfium2


def find_pdfs(path: Path) -> dict[str, Path]:
    """PDFs at ``path``, a file or a folder and those in it, by name: the path within the folder without its suffix.

    DocumentError where there is none, where a link leads out of the folder, or where two have the same name.
    """
    if path.is_file() and path.suffix.lower() == ".pdf":
        return {path.stem: path}
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() == ".pdf" and p.is_file()) if path.is_dir() else []
    if not files:
        raise DocumentError(f"{path} {describe_folder(path)}; expected a PDF, or a folder with PDFs (*.pdf).")
    named: dict[str, Path] = {}
    for file in files:
        name = file.relative_to(path).with_suffix("").as_posix()
        if inside(path, file.relative_to(path).as_posix()) is None:
            raise DocumentError(f"{file} is a link out of the folder and is not read; copy the PDF in.")
        if name in named:
            raise DocumentError(f"{file} and {named[name]} have one name but for the suffix's case; rename one.")
        named[name] = file
    return named


def pictures_beside(path: Path) -> list[str]:
    """Names of the pictures in the folder at ``path``, and of those in it, which are no PDFs."""
    suffixes = (*IMAGE_SUFFIXES, *OTHER_PICTURES)
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.suffix.lower() in suffixes)


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """The PDF as pypdfium2's document, with forms; DocumentError for what is encrypted, damaged or without pages."""
    library = pdfium()
    document = None
    try:
        document = library.PdfDocument(file)
        document.init_forms()
        pages = len(document)
    except (library.PdfiumError, OSError) as error:
        if document is not None:
            document.close()
        raise DocumentError(f"{file}: {_refusal(str(error))}") from error
    try:
        if not pages:
            raise DocumentError(f"{file}: the PDF has no page. Export it again, or take it out of the folder.")
        yield document
    finally:
        document.close()


def _refusal(error: str) -> str:
    if "password" in error.lower():
        return "the PDF is encrypted. Save a copy without a password (qpdf --decrypt) and give that."
    if "security" in error.lower():
        return "the PDF is protected in a way that pdfium does not know. Save a copy without protection."
    return f"cannot be read as a PDF ({error.rstrip('.')}). Export it again, or take it out of the folder."


def pdf_faults(file: Path, dpi: float) -> tuple[int, list[str]]:
    """How many pages the PDF has, and what is wrong with it, as phrases, without drawing it."""
    library = pdfium()
    try:
        with opened(file) as document:
            faults = []
            for number in range(len(document)):
                where = f"{file}: page {number + 1}"
                try:
                    sides = document.get_page_size(number)
                    width, height = (math.ceil(side * dpi / POINTS * ROUNDED) for side in sides)  # as pdfium draws it
                    document[number].close()
                except library.PdfiumError as error:
                    faults.append(f"{where} cannot be read ({error}). Export the PDF again, or take that page out.")
                    continue
                if width * height > MOST_PIXELS:
                    faults.append(f"{where} has {width} x {height} pixels at {dpi:g} dots per inch, expected at most "
                                  f"{MOST_PIXELS:,} in all. Say a smaller --dpi.")  # fmt: skip
            return len(document), faults
    except DocumentError as error:
        return 0, [str(error)]


@contextmanager
def page_of(document: Any, number: int) -> Iterator[Any]:
    """Page ``number`` (from 0), with what was typed into forms and beside the text made part of it."""
    from pypdfium2 import raw

    page = document[number]
    try:
        if raw.FPDFPage_GetAnnotCount(page) and raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY) == 1:
            page.close()
            page = document[number]
        yield page
    finally:
        page.close()


def picture(page: Any, dpi: float) -> Image:
    """The page drawn at ``dpi``, uint8 RGB of shape (H, W, 3)."""
    drawn = page.render(scale=dpi / POINTS * ROUNDED).to_pil().convert("RGB")
    return np.array(drawn, dtype=np.uint8)


def text_layer(page: Any, dpi: float) -> Layer:
    """The page's words in the order of the PDF, with whole-pixel boxes around their ink at ``dpi``.

    Words are what white space, or the end of a line, parts. Text outside of the page is left out, and so are letters
    without a place. Letters whose ink has no extent, as in layers that an OCR program wrote, get their line's height.
    """
    from pypdfium2 import raw

    width, height = (math.ceil(side * dpi / POINTS * ROUNDED) for side in page.get_size())
    text = page.get_textpage()
    words: list[Word] = []
    letters, corners = "", list[tuple[float, float, float, float]]()
    count = text.count_chars()
    unsaid = sum(raw.FPDFText_HasUnicodeMapError(text, number) == 1 for number in range(count))
    for number in range(count + 1):
        letter = chr(raw.FPDFText_GetUnicode(text, number)) if number < count else " "
        if not letter.isspace():
            letters += "-" if letter == LINE_HYPHEN else letter
            corners.append(_place(text, number))
        if letter.isspace() or letter == LINE_HYPHEN:
            spelt = letters.encode("utf-16", "surrogatepass").decode("utf-16", "ignore").replace("\0", "")
            box = _pixels(page, corners, width, height)
            if spelt and box is not None:
                words.append(Word(spelt, box))
            letters, corners = "", []
    text.close()
    few = len(words) < FEW_WORDS and _picture_share(page) >= MOSTLY_PICTURE
    return Layer(tuple(words), not words or few or 2 * unsaid > count)


def _place(text: Any, number: int) -> tuple[float, float, float, float]:
    """Left, bottom, right and top of a letter in points: its ink's, or its line's where the ink has none."""
    tight: tuple[float, float, float, float] = text.get_charbox(number)
    flat = tight[2] - tight[0] < 0.1 or tight[3] - tight[1] < 0.1
    return text.get_charbox(number, loose=True) if flat else tight


def _pixels(
    page: Any, corners: list[tuple[float, float, float, float]], width: int, height: int
) -> tuple[float, float, float, float] | None:
    """The box around places in points, in pixels of a picture of that size; None if its middle is not on it."""
    from pypdfium2 import raw

    placed = [c for c in corners if c[2] > c[0] and c[3] > c[1]]
    if not placed:
        return None
    left, bottom = min(c[0] for c in placed), min(c[1] for c in placed)
    right, top = max(c[2] for c in placed), max(c[3] for c in placed)
    across, down = [], []
    for x, y in ((left, bottom), (right, top)):
        one, two = ctypes.c_int(), ctypes.c_int()
        raw.FPDF_PageToDevice(page, 0, 0, width * FINER, height * FINER, 0, x, y, one, two)
        across.append(one.value / FINER)
        down.append(two.value / FINER)
    if not (0 <= sum(across) / 2 < width and 0 <= sum(down) / 2 < height):
        return None
    x0, y0 = max(math.floor(min(across)), 0), max(math.floor(min(down)), 0)
    return x0, y0, max(min(math.ceil(max(across)), width), x0 + 1), max(min(math.ceil(max(down)), height), y0 + 1)


def _picture_share(page: Any) -> float:
    """The share of the page that its largest picture covers."""
    from pypdfium2 import raw

    width, height = page.get_size()
    bounds = [item.get_bounds() for item in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE])]
    areas = [(right - left) * (top - bottom) for left, bottom, right, top in bounds]
    return max(areas, default=0.0) / (width * height) if width * height else 0.0
