"""The picture beside a table of gradient attacks: one document, and what each row made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from docleak.documents.page import Image
from docleak.report.pictures import png_of
from docleak.runs.run import Run

SCALE_UP = 2


def sheet_of(tables: Mapping[str, Sequence[tuple[str, Run]]]) -> bytes | None:
    """A PNG of one document a table (title -> its rows, name and run), one table under the other: the true page, then
    each finished row's reconstruction of the first document that all of them have; None without one."""
    shown = {title: strips for title, rows in tables.items() if (strips := _strips(rows))}
    if not shown:
        return None
    sheets = [_sheet(strips, title if len(shown) > 1 else "") for title, strips in shown.items()]
    width = max(sheet.shape[1] for sheet in sheets)
    padded = [np.pad(s, ((0, 0), (0, width - s.shape[1]), (0, 0)), constant_values=255) for s in sheets]
    return png_of(np.concatenate(padded))


def _strips(rows: Sequence[tuple[str, Run]]) -> list[tuple[str, Image]]:
    finished = [(name, run, {str(unit["page"]): unit for unit in run.units()}) for name, run in rows]
    finished = [row for row in finished if row[2]]
    shared = set.intersection(*(set(units) for _, _, units in finished)) if finished else set()
    if not shared:
        return []
    page, strips = sorted(shared)[0], list[tuple[str, Image]]()
    for name, run, units in finished:
        unit = units[page]
        x0, y0, x1, y1 = _region(unit["fields"])
        kinds = (("true page", "truth"), (name, "reconstruction")) if not strips else ((name, "reconstruction"),)
        for title, kind in kinds:
            image = run.read_image(str(unit["unit"]), unit["images"][kind])
            strips.append((title, np.asarray(image[y0:y1, x0:x1])))
    return strips


def _region(fields: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, int]:
    """One rectangle around the private fields that lie close together at the top, in page pixels."""
    boxes = [box for f in fields for box in f["boxes"]]
    x0, y0 = min(b[0] for b in boxes), min(b[1] for b in boxes)
    x1, y1 = max(b[2] for b in boxes), max(b[3] for b in boxes)
    return max(0, int(x0) - 4), max(0, int(y0) - 4), int(x1) + 5, int(min(y1, y0 + 120)) + 5


def _sheet(strips: Sequence[tuple[str, Image]], title: str) -> Image:
    font, top = PIL.ImageFont.load_default(13), 26 if title else 0
    height, width = (side * SCALE_UP for side in strips[0][1].shape[:2])
    cell = max(width, *(int(font.getlength(name)) + 4 for name, _ in strips)) + 8
    columns = max(1, min(len(strips), 1200 // cell))
    rows = -(-len(strips) // columns)
    sheet = PIL.Image.new("RGB", (columns * cell, top + rows * (height + 26)), "white")
    draw = PIL.ImageDraw.Draw(sheet)
    if title:
        draw.text((2, 6), title, fill=(0, 0, 0), font=PIL.ImageFont.load_default(16))
    for index, (name, image) in enumerate(strips):
        x, y = index % columns * cell, top + index // columns * (height + 26)
        draw.text((x + 2, y + 4), name, fill=(0, 0, 0), font=font)
        big = PIL.Image.fromarray(image).resize((width, height), PIL.Image.Resampling.NEAREST)
        sheet.paste(big, (x, y + 22))
    return np.asarray(sheet)
