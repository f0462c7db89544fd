"""Write pages as PDFs, some as scans without a text layer, to try the way from PDFs to an audit on."""

from __future__ import annotations

import csv
import ctypes
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image as Pillow

from docleak.documents.files import require_new
from docleak.documents.page import Page, Word
from docleak.documents.pdfs.reading import POINTS, pdfium
from docleak.files import drafted_folder

#: Dots per inch at which a page's pixels are laid on paper, and every how many-th PDF is a scan.
DPI, SCANS = 150, 3
VALUES = "values.csv"


def write_pdfs(pages: Iterable[Page], out: Path, *, dpi: float = DPI, scans: int = SCANS) -> int:
    """Write a PDF for each document, and ``values.csv`` with the private fields' values; returns how many PDFs.

    A page is its picture at ``dpi`` with an invisible text layer of its words; every ``scans``-th PDF has pictures
    alone. Pages of a document follow one another. The folder appears complete or not at all.
    """
    library = pdfium()
    require_new(out, "PDFs")
    number = 0
    with drafted_folder(out) as draft, (draft / VALUES).open("w", encoding="utf-8", newline="") as listing:
        rows = csv.writer(listing)
        rows.writerow(("file", "provider", "key", "value"))
        for number, (_, group) in enumerate(groupby(pages, key=lambda page: page.document or page.name), start=1):
            document, name = library.PdfDocument.new(), f"document-{number:04}.pdf"
            for page in group:
                add_page(document, page, dpi=dpi, layer=number % scans != 0)
                rows.writerows((name, page.provider, f.key, f.value) for f in page.private_fields if f.value.strip())
            document.save(str(draft / name))
            document.close()
    return number


def add_page(document: Any, page: Page, *, dpi: float, picture: bool = True, layer: bool = True) -> None:
    """Add the page to pypdfium2's ``document``: its ``picture``, its words as a text ``layer``, or both.

    Without the picture the words are printed, in Helvetica, else they are invisible.
    """
    library = pdfium()
    scale = POINTS / dpi
    width, height = page.width * scale, page.height * scale
    sheet = document.new_page(width, height)
    if picture:
        image = library.PdfImage.new(document)
        image.set_bitmap(library.PdfBitmap.from_pil(Pillow.fromarray(page.image)))
        image.set_matrix(library.PdfMatrix().scale(width, height))
        sheet.insert_obj(image)
    for word in page.words if layer else ():
        _add_word(document, sheet, word, scale, height, visible=not picture)
    sheet.gen_content()
    sheet.close()


def _add_word(document: Any, sheet: Any, word: Word, scale: float, height: float, *, visible: bool) -> None:
    """The word's text, stretched to its box."""
    from pypdfium2 import raw

    item = raw.FPDFPageObj_NewTextObj(document, b"Helvetica", ctypes.c_float(10))
    text = (word.text + "\0").encode("utf-16-le")
    raw.FPDFText_SetText(item, ctypes.cast(ctypes.c_char_p(text), ctypes.POINTER(ctypes.c_ushort)))
    raw.FPDFTextObj_SetTextRenderMode(
        item, raw.FPDF_TEXTRENDERMODE_FILL if visible else raw.FPDF_TEXTRENDERMODE_INVISIBLE
    )
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    raw.FPDFPageObj_GetBounds(item, left, bottom, right, top)
    wide, high = right.value - left.value, top.value - bottom.value
    x0, y0, x1, y1 = (value * scale for value in word.box)
    if wide <= 0 or high <= 0:  # no letter of it is in the typeface
        raw.FPDFPageObj_Destroy(item)
        return
    across, up = (x1 - x0) / wide, (y1 - y0) / high
    raw.FPDFPageObj_Transform(item, across, 0, 0, up, x0 - left.value * across, height - y1 - bottom.value * up)
    raw.FPDFPage_InsertObject(sheet, item)
