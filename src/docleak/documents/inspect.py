"""Draw a page so that a person can see what docleak knows of it: words, private fields and their keys."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from docleak.documents.locate import repeats_of
from docleak.documents.page import Box, Field, Image, Page
from docleak.documents.scrub import blank_template

#: The page is enlarged by a whole number until it is at least this wide and its words this high (but not over 3 x).
MIN_WIDTH = 800
MIN_WORD_HEIGHT = 14
#: Width of the panel and height of its rows, as fractions of the enlarged page's width.
PANEL, ROW = 0.4, 0.02
#: Rows shrink to this many pixels, where there are many fields, before the drawing grows longer than the page.
MIN_ROW = 16

GREY = (170, 170, 170)
DARK = (60, 60, 60)
#: Colours of the private fields, told apart also with the common colour blindnesses (Okabe and Ito 2008).
COLOURS = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (150, 110, 0), (86, 140, 200), (120, 60, 160))


@dataclass(frozen=True)
class Label:
    """One line of the panel: what it says, its colour, and the height on the drawing that it would like to be at."""

    text: str
    colour: tuple[int, int, int]
    wanted: float
    boxes: tuple[Box, ...] = ()


def draw(page: Page, *, template: bool = False) -> Image:
    """The enlarged page with a panel of labels on its right, as uint8 RGB.

    Words have thin grey boxes; each private field has coloured boxes, and a line to its key and value in the panel.
    A place that prints a private value again has the field's colour too. Fields that are public or have no place on
    the page are listed below in grey. ``template`` draws the blank template instead: private boxes only, on the page
    without what was in them, and no private values in the panel.
    """
    factor = enlargement(page)
    pixels = blank_template(page) if template else page.image
    large = np.repeat(np.repeat(pixels, factor, axis=0), factor, axis=1)
    height, width = large.shape[:2]
    labels = _labels(page, factor, values=not template)
    row = max(MIN_ROW, min(round(ROW * width), height // (len(labels) + 1)))
    tops = _spread([label.wanted for label in labels], row, max(height, row * (len(labels) + 1)))
    canvas = Pillow.new("RGB", (round(width * (1 + PANEL)), max([height, *(top + row for top in tops)])), "white")
    canvas.paste(Pillow.fromarray(large))
    pen = ImageDraw.Draw(canvas)
    if not template:
        for word in page.words:
            pen.rectangle(_outline(word.box, factor, 1), outline=GREY)
    pen.line((width, 0, width, canvas.height), fill=GREY)
    for label, top in zip(labels, tops, strict=True):
        _draw_label(pen, label, factor, width, top, row)
    return np.array(canvas, dtype=np.uint8)


def enlargement(page: Page) -> int:
    """The whole number by which the page is enlarged to be legible."""
    heights = [word.box[3] - word.box[1] for word in page.words]
    wanted = MIN_WORD_HEIGHT / float(np.median(heights)) if heights else 1.0
    return max(math.ceil(MIN_WIDTH / page.width), min(math.ceil(wanted), 3))


def _labels(page: Page, factor: int, *, values: bool) -> list[Label]:
    """Placed private fields by height on the page, then the other fields."""

    def text(field: Field) -> str:
        return f"{field.key}: {field.value}" if values or not field.private else field.key

    private, again = [], repeats_of(page)
    for i, field in enumerate(page.private_fields):
        places = [field, *(r for r in again if (r.key, r.value) == (field.key, field.value))]
        boxes = tuple(box for place in places for box in page.field_boxes(place))
        private.append(Label(text(field), COLOURS[i % len(COLOURS)], boxes[0][3] * factor, boxes))
    private.sort(key=lambda label: (label.wanted, label.boxes[0][0]))
    end = float(page.height * factor)
    rest = [Label(f"public: {text(f)}", DARK, end) for f in page.fields if not f.private]
    rest += [Label(f"not located: {text(f)}", DARK, end) for f in page.fields if f.private and not f.words]
    return private + rest


def _spread(wanted: list[float], row: int, height: int) -> list[int]:
    """Tops of rows of ``row`` pixels near the wanted middles, in the same order, none overlapping, all in height."""
    tops: list[int] = []
    for middle in wanted:
        tops.append(max(round(middle - row / 2), tops[-1] + row if tops else 0))
    limit = height
    for i in reversed(range(len(tops))):
        tops[i] = min(tops[i], limit - row)
        limit = tops[i]
    return tops


def _draw_label(pen: ImageDraw.ImageDraw, label: Label, factor: int, width: int, top: int, row: int) -> None:
    """The field's boxes, its text in its row of the panel, and a line between them that underlines the first box."""
    font = ImageFont.load_default(0.75 * row)
    left, middle = width + round(0.04 * width), top + row // 2
    outlines = [_outline(box, factor, 2) for box in label.boxes]
    for outline in outlines:
        pen.rectangle(outline, outline=label.colour, width=2)
    if outlines:
        _, _, x1, y1 = outlines[0]
        pen.line([(x1, y1), (width, y1), (left - 0.006 * width, middle)], fill=label.colour)
    text = _shortened(label.text, font, width * (1 + PANEL) - left)
    pen.text((left, middle), text, fill=label.colour, font=font, anchor="lm")


def _shortened(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: float) -> str:
    """The text on one line, cut with an ellipsis where it is wider than ``room`` pixels."""
    text = " ".join(text.split())
    if font.getlength(text) <= room:
        return text
    fitting = bisect_right(range(len(text)), room, key=lambda length: font.getlength(text[:length] + "..."))
    return text[: max(fitting - 1, 0)] + "..."


def _outline(box: Box, factor: int, width: int) -> Box:
    """A frame ``width`` pixels wide just outside the box on the enlarged page, so that it hides none of the ink."""
    x0, y0, x1, y1 = (v * factor for v in box)
    return (x0 - width, y0 - width, x1 + width - 1, y1 + width - 1)
