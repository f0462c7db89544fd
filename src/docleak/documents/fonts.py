"""Typefaces found inside Python packages (never on the system), and text as integer-placed ink."""

from __future__ import annotations

import importlib.util
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ImageFont

from docleak.documents.page import Word

#: Height x width, 0 = no ink, 255 = full ink.
Ink = NDArray[np.uint8]

_DATA = tomllib.loads(Path(__file__).with_name("fonts.toml").read_text("utf-8"))
#: face -> (package, file inside it). A face whose package is missing is replaced by ``FALLBACK``.
FACES: dict[str, tuple[str, str]] = {face: (package, file) for face, (package, file) in _DATA["faces"].items()}
#: Pillow's built-in Aileron, always there.
FALLBACK = "aileron"


#: The face with the most scripts (Greek, Cyrillic, Hebrew, Arabic, signs; no Chinese, Japanese, Korean or Indic ones).
BROADEST = "dejavu-sans"
#: A code point that is no character, so that every face draws its sign for a lacking letter.
LACKING = "\uffff"


@dataclass(frozen=True)
class Family:
    """The faces one provider uses, and the text sizes (pixels, at 192 x 256) at which they are legible."""

    name: str
    regular: str
    bold: str
    sizes: tuple[int, ...]


FAMILIES = tuple(Family(**{**family, "sizes": tuple(family["sizes"])}) for family in _DATA["families"])
#: What a provider falls back on where its own family is too wide for the page.
NARROW = next(family for family in FAMILIES if family.name == "roboto")


@cache
def font_path(face: str) -> Path | None:
    """Where the file of ``face`` lies, or None if its package is not installed (or it is the fallback)."""
    if face == FALLBACK:
        return None
    package, file = FACES[face]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / file
    return path if path.is_file() else None


@cache
def _load(face: str, size: int) -> ImageFont.FreeTypeFont:
    path = font_path(face)
    if path is not None:
        return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)
    default = ImageFont.load_default(size)
    if not isinstance(default, ImageFont.FreeTypeFont):
        raise RuntimeError(
            "Pillow was built without FreeType, so no scalable font is there. Install a wheel of Pillow."
        )
    return default.font_variant(layout_engine=ImageFont.Layout.BASIC)


@dataclass(frozen=True, eq=False)
class Glyphs:
    """The ink of one word, its offset from the pen (x right, y down from the baseline) and its advance."""

    ink: Ink
    dx: int
    dy: int
    advance: int


@dataclass(frozen=True)
class Type:
    """A face at a pixel size."""

    face: str
    size: int

    @property
    def ascent(self) -> int:
        """Rows of ink above the baseline at most."""
        return _extent(self)[0]

    @property
    def descent(self) -> int:
        """Rows of ink below the baseline at most."""
        return _extent(self)[1]

    @property
    def space(self) -> int:
        """Pixels the pen moves between words."""
        return _advances(self).space

    def width(self, text: str) -> int:
        """Pixels from the pen to the end of the last word's ink or advance."""
        words = text.split()
        return sum(word_ink(self, w).advance for w in words) + self.space * (len(words) - 1)

    def estimate(self, text: str) -> int:
        """``width`` without rendering or kerning; within a few pixels of it."""
        words, advances = text.split(), _advances(self)
        letters = sum([math.ceil(sum(map(advances.__getitem__, word))) for word in words])
        return letters + advances.space * (len(words) - 1)


class Advances(dict[str, float]):
    """How far the pen moves by letter, of one type, and between words."""

    def __init__(self, type_: Type) -> None:
        super().__init__()
        self.font = _load(type_.face, type_.size)
        self.space = max(math.ceil(type_.size * 2 / 7), round(self[" "]))

    def __missing__(self, letter: str) -> float:
        return self.setdefault(letter, self.font.getlength(letter))


@cache
def _advances(type_: Type) -> Advances:
    return Advances(type_)


@lru_cache(maxsize=16384)
def word_ink(type_: Type, word: str) -> Glyphs:
    """Render ``word`` with grey antialiasing; the array is cropped to its ink, and empty where there is none."""
    font = _load(type_.face, type_.size)
    mask, (left, top) = font.getmask2(word, mode="L", anchor="ls")
    width, height = mask.size
    ink: Ink = np.frombuffer(bytes(mask), np.uint8).reshape(height, width)
    if not ink.any():
        return Glyphs(np.zeros((0, 0), np.uint8), 0, 0, max(0, round(font.getlength(word))))
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    y0, y1, x0, x1 = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    dx, dy = max(0, int(left) + x0), int(top) + y0  # never left of the pen, so that clearances hold
    return Glyphs(ink[y0:y1, x0:x1], dx, dy, max(round(font.getlength(word)), dx + x1 - x0))


@cache
def _has_glyph(type_: Type, letter: str) -> bool:
    """Whether the face draws ``letter`` itself, not the sign for a letter it lacks."""
    font = _load(type_.face, type_.size)
    return bytes(font.getmask(letter)) != bytes(font.getmask(LACKING))


@lru_cache(maxsize=65536)
def type_for(type_: Type, word: str) -> Type:
    """``type_``, or the face of BROADEST at its size if that one has letters of ``word`` which ``type_`` lacks."""
    if word.isascii():
        return type_
    lacking = [letter for letter in word if not _has_glyph(type_, letter)]
    broad = Type(BROADEST, type_.size)
    return broad if any(_has_glyph(broad, letter) for letter in lacking) else type_


def draws(type_: Type, word: str) -> bool:
    """Whether ``word`` comes out as written, without a sign for a letter that the face lacks."""
    return word.isascii() or all(_has_glyph(type_for(type_, word), letter) for letter in word)


@cache
def _extent(type_: Type) -> tuple[int, int]:
    glyphs = [word_ink(type_, word) for word in ("HbdflkT(/$@8", "gjpqyQ,;(/$@")]
    return max(-g.dy for g in glyphs), max(g.dy + g.ink.shape[0] for g in glyphs)


def blend(image: NDArray[np.uint8], ink: Ink, x: int, y: int, colour: tuple[int, int, int]) -> None:
    """Put ``ink`` of ``colour`` on an RGB image, its top left corner at (x, y)."""
    height, width = ink.shape
    patch = image[y : y + height, x : x + width]
    alpha = ink[:, :, None].astype(np.int32)
    patch[...] = ((255 - alpha) * patch + alpha * np.array(colour, np.int32) + 127) // 255


def set_line(
    image: NDArray[np.uint8], text: str, type_: Type, x: int, baseline: int, colour: tuple[int, int, int]
) -> Iterator[Word]:
    """Draw ``text`` with the pen starting at (x, baseline); yields one tight ink box per word.

    The caller sees to it that the line fits on the image.
    """
    for text_word in text.split():
        glyphs = word_ink(type_, text_word)
        left, top = x + glyphs.dx, baseline + glyphs.dy
        blend(image, glyphs.ink, left, top, colour)
        height, width = glyphs.ink.shape
        yield Word(text_word, (left, top, left + width, top + height))
        x += glyphs.advance + type_.space
