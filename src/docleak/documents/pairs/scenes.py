"""Pairs of our own: three boxes with coloured shapes, and a sentence that is true of them. Public, made on the spot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw

from docleak.documents.pairs.pair import Pair
from docleak.errors import DocumentError

#: As large as NLVR's (Suhr et al., 2017) pictures, whose world these scenes resemble: width, height, side of a box.
SIZE, BOX = (400, 100), 100
#: Left edges of the three boxes; between them is grey.
LEFTS = (0, 150, 300)
COLORS = {"yellow": (255, 255, 0), "black": (0, 0, 0), "blue": (0, 153, 255)}
SHAPES = ("square", "circle", "triangle")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
PLACES = ("left", "middle", "right")
PAPER, BETWEEN = (211, 211, 211), (128, 128, 128)


@dataclass(frozen=True)
class Item:
    """A shape in box ``box`` (0 to 2), its upper left corner and side in pixels of the box."""

    box: int
    shape: str
    color: str
    x: int
    y: int
    side: int


def make_scenes(count: int, *, seed: int) -> list[Pair]:
    """``count`` pairs; the label says whether boxes hold towers of blocks or scattered items."""
    if count < 1:
        raise DocumentError(f"{count} scenes were asked for; expected 1 or more.")
    rng = np.random.default_rng(seed)
    return [_scene(f"scene-{seed}-{number}", rng) for number in range(count)]


def _scene(name: str, rng: np.random.Generator) -> Pair:
    towers = bool(rng.random() < 0.5)
    items = [item for box in range(3) for item in (_tower(box, rng) if towers else _scatter(box, rng))]
    if not items:
        items = [Item(1, "square", "black", 40, 80, 20)]
    sentences = _sentences(items, towers)
    return Pair(name, _draw(items), sentences[int(rng.integers(len(sentences)))], "tower" if towers else "scatter")


def _tower(box: int, rng: np.random.Generator) -> list[Item]:
    colors = list(COLORS)
    height = int(rng.integers(0, 5))
    return [Item(box, "square", colors[rng.integers(3)], 40, 80 - 21 * level, 20) for level in range(height)]


def _scatter(box: int, rng: np.random.Generator) -> list[Item]:
    colors, found = list(COLORS), []
    cells = rng.permutation(9)[: int(rng.integers(0, 6))]
    for cell in sorted(int(c) for c in cells):
        side = int(rng.choice([10, 20, 30]))
        x, y = (33 * (cell % 3) + int(rng.integers(0, 34 - side)), 33 * (cell // 3) + int(rng.integers(0, 34 - side)))
        found.append(Item(box, SHAPES[rng.integers(3)], colors[rng.integers(3)], x, y, side))
    return found


def _draw(items: Sequence[Item]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    picture = Pillow.new("RGB", SIZE, BETWEEN)
    pen = ImageDraw.Draw(picture)
    for left in LEFTS:
        pen.rectangle((left, 0, left + BOX - 1, BOX - 1), fill=PAPER)
    for item in items:
        x0, y0 = LEFTS[item.box] + item.x, item.y
        x1, y1 = x0 + item.side - 1, y0 + item.side - 1
        color = COLORS[item.color]
        if item.shape == "square":
            pen.rectangle((x0, y0, x1, y1), fill=color)
        elif item.shape == "circle":
            pen.ellipse((x0, y0, x1, y1), fill=color)
        else:
            pen.polygon([(x0, y1), (x1, y1), ((x0 + x1) // 2, y0)], fill=color)
    return np.array(picture, dtype=np.uint8)


def _sentences(items: Sequence[Item], towers: bool) -> list[str]:
    """True sentences about the scene, more than one for every scene."""
    colors, kinds = Counter(i.color for i in items), Counter((i.color, i.shape) for i in items)
    noun = "block" if towers else "item"
    said = []
    for color, number in colors.items():
        said.append(f"There {_be(number)} exactly {_number(number)} {color} {_plural(noun, number)}.")
        said.append(f"There is at least one {color} {noun}.")
        if number > 1:
            said.append(f"There are at least two {color} {noun}s.")
    if not towers:
        for (color, shape), number in kinds.items():
            said.append(f"There {_be(number)} {_number(number)} {color} {_plural(shape, number)}.")
            said.append(f"There is a {color} {shape} in one of the boxes.")
    for box, place in enumerate(PLACES):
        inside = [i for i in items if i.box == box]
        if not inside:
            said.append(f"The {place} box is empty.")
            continue
        top, base = min(inside, key=lambda i: i.y), max(inside, key=lambda i: i.y)
        number = len(inside)
        if towers:
            said.append(f"The {place} box has a tower of {_number(number)} {_plural(noun, number)}.")
            said.append(f"There is a tower with a {top.color} block on top of a {base.color} base.")
            said.append(
                f"There is one tower with exactly {_number(number)} {_plural(noun, number)} and a {top.color} top."
            )
        else:
            said.append(f"The {place} box contains {_number(number)} {_plural(noun, number)}.")
            said.append(
                f"There is a box with {_number(number)} {_plural(noun, number)} and a {top.color} {top.shape} above."
            )
    total = len(items)
    said.append(f"There {_be(total)} {_number(total)} {_plural(noun, total)} in the image.")
    missing = [color for color in COLORS if color not in colors]
    return said + [f"There is no {color} {noun} in any box." for color in missing]


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _number(number: int) -> str:
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"
