"""Where things stand on a synthetic invoice: layout families, and the blank template of a provider."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from docleak.documents.fonts import NARROW, Type, set_line
from docleak.documents.page import Word
from docleak.documents.synthetic_providers import PROVIDERS, Provider, provider, provider_rng
from docleak.documents.synthetic_values import GROUPS, INVOICES

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Layout:
    """One family (invoices.toml): how the header, the title, the fields and the total are arranged."""

    name: str
    header: str
    title: str
    body: str
    total: str


LAYOUTS = tuple(Layout(name, *parts) for name, parts in INVOICES["layouts"].items())


@dataclass(frozen=True)
class Slot:
    """The place of one private value: the pen's range [x0, x1), its baseline and type."""

    key: str
    x0: int
    x1: int
    baseline: int
    right: bool
    type: Type

    def start(self, text: str) -> int:
        """Where the pen starts for ``text``."""
        return self.x1 - self.type.width(text) if self.right else self.x0

    def holds(self, text: str) -> bool:
        """Whether ``text`` fits."""
        return self.type.width(text) <= self.x1 - self.x0


@dataclass(frozen=True, eq=False)
class Template:
    """A provider's blank page at one size, with the words printed on it and the slots to fill.

    The picture is kept compressed, so that hundreds of large templates fit into memory.
    """

    provider: Provider
    layout: Layout
    size: tuple[int, int]
    packed: bytes
    words: tuple[Word, ...]
    baselines: tuple[int, ...]
    slots: tuple[Slot, ...]

    def image(self) -> NDArray[np.uint8]:
        """A fresh copy of the blank page, uint8 (H, W, 3)."""
        width, height = self.size
        return np.frombuffer(bytearray(zlib.decompress(self.packed)), np.uint8).reshape(height, width, 3)


@dataclass(frozen=True)
class Block:
    """Something of full width and known height, drawn once its top is known."""

    height: int
    draw: Callable[[int], None]


@dataclass(eq=False)
class Sheet:
    """A template under construction. ``unit`` scales type and distances up from the 192 x 256 page."""

    width: int
    height: int
    owner: Provider
    layout: Layout
    rng: np.random.Generator
    unit: float
    squeeze: int = 0  # 1: smallest regular type; 2: a narrow typeface besides
    image: NDArray[np.uint8] = field(init=False)
    words: list[Word] = field(default_factory=list)
    baselines: list[int] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.image = np.full((self.height, self.width, 3), 255, np.uint8)
        family = NARROW if self.squeeze == 2 else self.owner.family
        size = round(family.sizes[0 if self.squeeze else self.owner.size_index % len(family.sizes)] * self.unit)
        self.text = Type(family.regular, size)
        self.bold = Type(family.bold, size)
        self.value = self.bold if self.owner.bold_values and not self.squeeze else self.text
        self.heading = Type(family.bold, size + max(1, round(self.unit)))
        self.title = Type(family.bold, size + round(int(self.rng.integers(2, 5)) * self.unit))
        margins = self.rng.integers(0, self.px(6), size=2) * (self.squeeze < 2)
        self.left, self.right = self.px(5) + int(margins[0]), self.width - self.px(5) - int(margins[1])
        self.leading = self.text.ascent + self.text.descent + self.px(3) + int(self.rng.integers(0, self.px(2) + 1))

    def px(self, length: float) -> int:
        """``length`` pixels of the default page, on this page."""
        return round(length * self.unit)

    @property
    def span(self) -> int:
        """Pixels between the margins."""
        return self.right - self.left

    def need(self, key: str) -> int:
        """Pixels that values of ``key`` need in the type of values."""
        return needed_width(key, self.owner.index, self.value)

    def fits_cell(self, key: str, width: int) -> bool:
        """Whether both label and values of ``key`` fit a width."""
        return max(self.need(key), self.text.width(self.owner.labels[key])) <= width

    def fits_width(self) -> bool:
        """Whether header, core fields and total fit between the margins."""
        owner, room = self.owner, self.span - 2 * self.px(4)
        total = self.heading.width(owner.labels["total"]) + needed_width("total", owner.index, self.heading)
        header = max(self.text.width(line) for line in (owner.name, owner.address, owner.contact))
        core = max(self.need(key) for key in ("invoice_number", "date", "customer_name"))
        return max(total + self.px(6), header, core, self.title.width(owner.title) + self.px(6)) <= room

    def write(self, text: str, type_: Type, x: int, baseline: int, colour: Colour) -> None:
        """Print public text."""
        new = list(set_line(self.image, text, type_, x, baseline, colour))
        self.words.extend(new)
        self.baselines.extend([baseline] * len(new))

    def label(self, key: str, x: int, baseline: int) -> None:
        """Print the label of a field."""
        grey = self.owner.label_grey
        self.write(self.owner.labels[key], self.text, x, baseline, (grey, grey, grey))

    def fill(self, x0: int, y0: int, x1: int, y1: int, colour: Colour) -> None:
        """Paint a rectangle."""
        self.image[y0:y1, x0:x1] = colour

    def rule(self, y: int, grey: int | None = None) -> None:
        """Draw a horizontal hairline."""
        colour = self.owner.accent if grey is None else (grey, grey, grey)
        self.fill(self.left, y, self.right, y + max(1, round(self.unit / 1.5)), colour)

    def frame(self, x0: int, y0: int, x1: int, y1: int, grey: int | None = None) -> None:
        """Draw the outline of a rectangle (x1, y1 exclusive)."""
        colour = self.owner.accent if grey is None else (grey, grey, grey)
        thick = max(1, round(self.unit / 1.5))
        self.fill(x0, y0, x1, y0 + thick, colour)
        self.fill(x0, y1 - thick, x1, y1, colour)
        self.fill(x0, y0, x0 + thick, y1, colour)
        self.fill(x1 - thick, y0, x1, y1, colour)

    def slot(
        self, key: str, x0: int, x1: int, baseline: int, *, right: bool = False, type_: Type | None = None
    ) -> None:
        """Reserve the place of a value."""
        self.slots.append(Slot(key, x0, x1, baseline, right, type_ or self.value))

    def template(self) -> Template:
        """What stands on the sheet."""
        packed, size = zlib.compress(self.image.tobytes(), 1), (self.width, self.height)
        marks = tuple(self.words), tuple(self.baselines), tuple(self.slots)
        return Template(self.owner, self.layout, size, packed, *marks)

    def aligned(self, text: str, type_: Type, align: str, x0: int, x1: int) -> int:
        """The pen's start for text aligned left, centre or right between x0 and x1."""
        spare = x1 - x0 - type_.width(text)
        return x0 + {"left": 0, "centre": spare // 2, "right": spare}[align]


@lru_cache(maxsize=PROVIDERS)
def _samples(index: int) -> dict[str, tuple[str, ...]]:
    """Thirty values of every key, as provider ``index`` writes them."""
    rng, formats = provider_rng(index, 7), provider(index).formats
    drawn = [{k: v for _, draw in GROUPS for k, v in draw(formats, rng).items()} for _ in range(30)]
    return {key: tuple(values[key] for values in drawn) for key in drawn[0]}


@lru_cache(maxsize=16384)
def needed_width(key: str, index: int, type_: Type) -> int:
    """Pixels that provider ``index``'s values of ``key`` need: nearly all of them, or 60 % for names and e-mails."""
    widths = sorted(type_.estimate(text) for text in _samples(index)[key])
    return widths[18] if key in ("customer_name", "customer_email") else widths[-1] + 2


def default_unit(size: tuple[int, int]) -> float:
    """Type on larger pages grows with the square root of the page, so that they also hold more."""
    return max(1.0, math.sqrt(min(size[0] / 192, size[1] / 256)))
