"""Words drawn where a page is blank: the ink that known text leaves, in one of a few looks, and where it may stand.

A look is a typeface and a way of printing. ``printed`` sets each line at the whole pixel size whose ink fits its box,
as a page made at this size has it; ``scanned`` draws large letters and shrinks them into the box, as a scan that was
scaled down has them. The boxes alone tell which typefaces fit (``rank``), the gradient tells how dark the ink is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage
from scipy import ndimage
from torch import Tensor

from docleak.documents.fonts import FACES, FALLBACK, FAMILIES, Type, draws, font_path, type_for, word_ink
from docleak.documents.page import Box, Word
from docleak.documents.pages import gathered
from docleak.models.base import Transcript

Ink = NDArray[np.float64]
Way = Literal["printed", "scanned"]

#: Pixel sizes at which a page may have been printed.
SIZES = range(5, 41)
#: Size of the letters that ``scanned`` shrinks, and samples per pixel and side when it does.
LARGE, SAMPLES = 64, 6
#: A line printed at a whole size misses its box by no more than this many pixels per word, or it was not printed so.
FITS = 1.5
#: Pixels by which another weight of a typeface may fit a line worse and still be tried.
TIE = 1.0
#: Boxes are rounded down to this share of the page (LayoutLM's 0..1000); half of it is added back.
GRID = 1 / 1000
#: Pixels that ``private_mask`` puts around a field.
MARGIN = 1


@dataclass(frozen=True)
class Look:
    """A typeface and how it comes on the page."""

    face: str
    way: Way


@dataclass(frozen=True)
class Line:
    """Words (with boxes in pixels) that share a top and a bottom; ``box`` is theirs. ``look`` may be the line's own."""

    words: tuple[Word, ...]
    look: Look | None = None

    @property
    def box(self) -> Box:
        boxes = [word.box for word in self.words]
        return min(b[0] for b in boxes), boxes[0][1], max(b[2] for b in boxes), boxes[0][3]


def faces() -> tuple[str, ...]:
    """The typefaces that are installed with docleak's packages."""
    return (*(face for face in FACES if font_path(face) is not None), FALLBACK)


def lines_of(words: Iterable[Word]) -> tuple[Line, ...]:
    """Words that can be drawn, as lines: neighbours in the reading order with the same top and bottom."""
    drawn = [word for word in words if word.text.strip() and draws(Type(FALLBACK, LARGE), word.text)]
    return tuple(Line(tuple(group)) for _, group in groupby(drawn, key=lambda word: (word.box[1], word.box[3])))


def rank(lines: Sequence[Line], *, stretched: bool, tried: Sequence[str] | None = None) -> list[tuple[Look, float]]:
    """Looks of the typefaces ``tried`` (all, if left out) by how badly their letters fit the boxes, best first.

    A printed look's misfit is in pixels per word; it is left out above FITS. A scanned one's is the mean deviation of
    its words' widths from their natural ones (in natural logarithms), where the page is ``stretched`` from the widths
    that most words have.
    """
    names = faces() if tried is None else tried
    printed = [(Look(face, "printed"), _misprint(lines, face)) for face in names]
    scanned = [(Look(face, "scanned"), _unevenness(lines, face, stretched)) for face in names]
    fitting = [pair for pair in printed if pair[1] <= FITS]
    return sorted(fitting, key=lambda pair: pair[1]) + sorted(scanned, key=lambda pair: pair[1])


def set_in(box: Box, text: str, face: str) -> Line:
    """``text`` as one line that fills ``box``: its words where the typeface's own widths and spaces put them."""
    x0, y0, x1, y1 = box
    types = [Type(face, size) for size in sizes_near(y0, y1)]
    type_ = min(types, key=lambda t: abs(t.width(text) - (x1 - x0)))
    pen, places = 0, []
    for word in text.split():
        glyphs = word_ink(type_for(type_, word), word)
        places.append((word, pen + glyphs.dx, pen + glyphs.dx + max(1, glyphs.ink.shape[1])))
        pen += glyphs.advance + type_.space
    left, right = places[0][1], places[-1][2]
    scale = (x1 - x0) / (right - left)
    if abs(right - left - (x1 - x0)) <= FITS:
        scale = 1.0  # printed at this very size: whole pixels stay whole
    return Line(tuple(Word(w, (x0 + (a - left) * scale, y0, x0 + (b - left) * scale, y1)) for w, a, b in places))


def dressed(lines: Sequence[Line], look: Look, tried: Sequence[str] | None = None) -> tuple[Line, ...]:
    """The lines in ``look``, but printed ones that another typeface fits better in that one (totals are often bold)."""
    if look.way == "scanned":
        return tuple(replace(line, look=look) for line in lines)
    common = [type_.size for type_, _ in _types(lines, look.face)]
    out = []
    for line, size in zip(lines, common, strict=True):
        misses = {face: _types([line], face)[0][1] for face in (look.face, *(faces() if tried is None else tried))}
        misses[look.face] = _miss(line, Type(look.face, size))
        face = min(misses, key=lambda name: misses[name])  # the page's own typeface comes first, and wins a tie
        out.append(replace(line, look=Look(face, "printed")))
    return tuple(out)


def other_weights(line: Line, tried: Sequence[str] | None = None) -> list[Line]:
    """The line in the bold, or regular, typeface of the same family, where that fits its boxes as well."""
    look = line.look
    if look is None or look.way == "scanned":
        return []
    twins = {other for f in FAMILIES for other in (f.regular, f.bold) if look.face in (f.regular, f.bold)} - {look.face}
    sure = _types([line], look.face)[0][1]
    fitting = sorted(
        face
        for face in twins
        if face in (faces() if tried is None else tried) and _types([line], face)[0][1] <= sure + TIE
    )
    return [replace(line, look=Look(face, "printed")) for face in fitting]


def ink_of(lines: Sequence[Line], size: tuple[int, int]) -> Ink:
    """How much of each pixel (H, W) = ``size`` the words cover, in [0, 1]; what leaves the page is cut off."""
    page = np.zeros(size)
    looks = ((line.look, line) for line in lines)
    sizes = gathered((look.face, line) for look, line in looks if look is not None and look.way == "printed")
    types = {line: t for face, same in sizes.items() for line, (t, _) in zip(same, _types(same, face), strict=True)}
    for line in lines:
        if line.look is not None:
            for ink, x, y in _printed(line, types[line]) if line in types else _scanned(line, line.look.face):
                _put(page, ink, x, y)
    return page


def _put(page: Ink, ink: Ink, x: int, y: int) -> None:
    """Lay ``ink`` on the page, its top left corner at (x, y)."""
    height, width = page.shape
    top, left = max(y, 0), max(x, 0)
    bottom, right = min(y + ink.shape[0], height), min(x + ink.shape[1], width)
    if top < bottom and left < right:
        place = page[top:bottom, left:right]
        np.maximum(place, ink[top - y : bottom - y, left - x : right - x], out=place)


def _edges(box: Box) -> tuple[int, int, int, int]:
    x0, y0, x1, y1 = (round(edge) for edge in box)
    return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)


def _printed(line: Line, type_: Type) -> Iterable[tuple[Ink, int, int]]:
    glyphs = [word_ink(type_for(type_, word.text), word.text) for word in line.words]
    top = min(g.dy for g in glyphs)
    for word, g in zip(line.words, glyphs, strict=True):
        x0, y0, _, _ = _edges(word.box)
        yield g.ink / 255, x0, y0 + g.dy - top


def _types(lines: Sequence[Line], face: str) -> list[tuple[Type, float]]:
    """For each line the size whose ink fits its boxes best, and by how many pixels it misses them in all.

    Short lines often fit several sizes; of these the one that fits the other lines best is taken.
    """
    misses = [{size: _miss(line, Type(face, size)) for size in sizes_near(line.box[1], line.box[3])} for line in lines]
    common = {size: sum(miss.get(size, math.inf) == min(miss.values()) for miss in misses) for size in SIZES}
    chosen = [min(miss, key=lambda size: (miss[size], -common[size])) for miss in misses]
    return [(Type(face, size), miss[size]) for size, miss in zip(chosen, misses, strict=True)]


def sizes_near(top: float, bottom: float) -> list[int]:
    """Sizes at which a line of this height may have been printed."""
    height = round(bottom) - round(top)
    return [size for size in SIZES if height / 1.6 <= size <= height * 2.6] or [SIZES[-1]]


def _miss(line: Line, type_: Type) -> float:
    glyphs = [word_ink(type_for(type_, word.text), word.text) for word in line.words]
    if not all(g.ink.size for g in glyphs):
        return math.inf
    _, y0, _, y1 = _edges(line.box)
    height = max(g.dy + g.ink.shape[0] for g in glyphs) - min(g.dy for g in glyphs)
    wide = 0
    for word, g in zip(line.words, glyphs, strict=True):
        x0, _, x1, _ = _edges(word.box)
        wide += abs(g.ink.shape[1] - (x1 - x0))
    return float(wide + len(glyphs) * abs(height - (y1 - y0)))


def _misprint(lines: Sequence[Line], face: str) -> float:
    words = sum(len(line.words) for line in lines)
    return sum(miss for _, miss in _types(lines, face)) / words if words else math.inf


def _scanned(line: Line, face: str) -> Iterable[tuple[Ink, int, int]]:
    type_ = Type(face, LARGE)
    glyphs = [word_ink(type_for(type_, word.text), word.text) for word in line.words]
    top, bottom = min(g.dy for g in glyphs), max(g.dy + g.ink.shape[0] for g in glyphs)
    for word, g in zip(line.words, glyphs, strict=True):
        if not g.ink.size:
            continue
        x0, y0, x1, y1 = word.box
        scale = (y1 - y0) / (bottom - top)
        upper, lower = y0 + (g.dy - top) * scale, y0 + (g.dy + g.ink.shape[0] - top) * scale
        yield _shrunk(g.ink, (x0, upper, x1, lower))


def _shrunk(ink: NDArray[np.uint8], box: Box) -> tuple[Ink, int, int]:
    """The ink scaled into the box (parts of pixels count), and the whole pixel of its top left corner."""
    x0, y0 = math.floor(box[0]), math.floor(box[1])
    width, height = max(1, math.ceil(box[2]) - x0), max(1, math.ceil(box[3]) - y0)
    fine = np.zeros((height * SAMPLES, width * SAMPLES))
    left, upper = round((box[0] - x0) * SAMPLES), round((box[1] - y0) * SAMPLES)
    across, down = max(1, round((box[2] - box[0]) * SAMPLES)), max(1, round((box[3] - box[1]) * SAMPLES))
    scaled = np.asarray(PILImage.fromarray(ink).resize((across, down), PILImage.Resampling.BOX)) / 255
    _put(fine, scaled, left, upper)
    return fine.reshape(height, SAMPLES, width, SAMPLES).mean(axis=(1, 3)), x0, y0


def _unevenness(lines: Sequence[Line], face: str, stretched: bool) -> float:
    """Mean deviation, from 0 or from their median, of the logarithms of box width over natural width of each word."""
    type_ = Type(face, LARGE)
    ratios = []
    for line in lines:
        for word in line.words:
            ink = word_ink(type_for(type_, word.text), word.text).ink
            x0, y0, x1, y1 = word.box
            if ink.size and x1 > x0 and y1 > y0:
                ratios.append(math.log((x1 - x0) / (y1 - y0)) - math.log(ink.shape[1] / ink.shape[0]))
    common = np.median(ratios) if stretched and ratios else 0.0
    return float(np.abs(np.array(ratios) - common).mean()) if ratios else math.inf


def private_lines(transcript: Transcript, private: Tensor) -> tuple[Line, ...]:
    """The words (in pixels) of a page whose middle lies in ``private`` (H, W), as lines."""
    height, width = private.shape
    half = (width * GRID / 2, height * GRID / 2) * 2
    words = []
    for word in transcript.words:
        box: Box = tuple(edge + h for edge, h in zip(word.box, half, strict=True))  # type: ignore[assignment]
        x, y = int((box[0] + box[2]) / 2), int((box[1] + box[3]) / 2)
        if box[0] < box[2] and box[1] < box[3] and x < width and y < height and bool(private[y, x]):
            words.append(Word(word.text, box))
    return lines_of(words)


def regions(private: Tensor) -> tuple[tuple[slice, slice], ...]:
    """Rows and columns of each connected piece of ``private`` (H, W)."""
    labels, _ = ndimage.label(private.cpu().numpy())
    return tuple((rows, columns) for rows, columns in ndimage.find_objects(labels))


def boxes_of(found: Sequence[tuple[slice, slice]], size: tuple[int, int]) -> tuple[Box, ...]:
    """The ink's place in each region: without the margin that the mask has on the sides where there was room for it."""
    height, width = size
    boxes = []
    for rows, columns in found:
        x0, x1 = (columns.start + MARGIN * (columns.start > 0), columns.stop - MARGIN * (columns.stop < width))
        y0, y1 = (rows.start + MARGIN * (rows.start > 0), rows.stop - MARGIN * (rows.stop < height))
        if x0 < x1 and y0 < y1:
            boxes.append((float(x0), float(y0), float(x1), float(y1)))
    return tuple(boxes)


def touched(private: Tensor, ink: np.ndarray) -> Tensor:
    """Which private pixels (H, W) are in a region with any of ``ink`` (H, W)."""
    out = private.clone()
    for rows, columns in regions(private):
        if not ink[rows, columns].any():
            out[rows, columns] = False
    return out
