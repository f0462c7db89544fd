"""Pairs of our own: three boxes with coloured shapes, and a sentence that is true of them. Public, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw

from docleak.documents.pairs.pair import Pair
from docleak.documents.pairs.sentences import Item, description, sentence
from docleak.errors import DocumentError

#: As large as NLVR's (Suhr et al., 2017) pictures, whose world these scenes resemble: width, height, side of a box.
SIZE, BOX = (400, 100), 100
#: Left edges of the three boxes; between them is grey.
LEFTS = (0, 150, 300)
COLORS = {"yellow": (255, 255, 0), "black": (0, 0, 0), "blue": (0, 153, 255)}
LABELS = ("scatter", "tower")
SHAPES = ("square", "circle", "triangle")
PAPER, BETWEEN = (211, 211, 211), (128, 128, 128)


def make_scenes(count: int, *, seed: int, described: bool = False) -> list[Pair]:
    """``count`` pairs; the label says whether boxes hold towers of blocks or scattered items. The sentence fits many
    pictures; of ``described`` ones it tells what each box holds, and fits hardly another."""
    if count < 1:
        raise DocumentError(f"{count} scenes were asked for; expected 1 or more.")
    rng = np.random.default_rng(seed)
    return [_scene(f"scene-{seed}-{number}", rng, described) for number in range(count)]


def _scene(name: str, rng: np.random.Generator, described: bool) -> Pair:
    towers = bool(rng.random() < 0.5)
    items = [item for box in range(3) for item in (_tower(box, rng) if towers else _scatter(box, rng))]
    if not items:
        items = [Item(1, "square", "black", 40, 80, 20)]
    text = description(items) if described else sentence(items, towers, rng)
    return Pair(name, _draw(items), text, "tower" if towers else "scatter")


def _tower(box: int, rng: np.random.Generator) -> list[Item]:
    colors = list(COLORS)
    height = int(rng.integers(0, 5))
    return [Item(box, "square", colors[rng.integers(3)], 40, 80 - 21 * level, 20) for level in range(height)]


def _scatter(box: int, rng: np.random.Generator) -> list[Item]:
    colors, items = list(COLORS), []
    cells = rng.permutation(9)[: int(rng.integers(0, 8))]
    for cell in sorted(int(c) for c in cells):
        side = int(rng.choice([10, 20, 30]))
        x, y = (33 * (cell % 3) + int(rng.integers(0, 34 - side)), 33 * (cell // 3) + int(rng.integers(0, 34 - side)))
        items.append(Item(box, SHAPES[rng.integers(3)], colors[rng.integers(3)], x, y, side))
    return items


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
