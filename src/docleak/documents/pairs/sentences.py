"""True sentences about a scene: who reads them learns colours, numbers, tops and bases, and what touches an edge.

Their wordings resemble those that NLVR's writers chose; what they say is worked out from the scene.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

#: The boxes, in a description.
BOXES = ("left", "middle", "right")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
#: Chance that a number is written in digits, and that a sentence begins small or lacks its full stop.
DIGITS, SMALL, OPEN = 0.3, 0.2, 0.5


@dataclass(frozen=True)
class Item:
    """A shape in box ``box`` (0 to 2), its upper left corner and side in pixels of a box of 100 x 100."""

    box: int
    shape: str
    color: str
    x: int
    y: int
    side: int

    @property
    def touches(self) -> bool:
        """Whether it lies at an edge of its box."""
        return min(self.x, self.y) <= 1 or max(self.x, self.y) + self.side >= 99


def sentence(items: Sequence[Item], towers: bool, rng: np.random.Generator) -> str:
    """One true sentence, each kind of what can be said as likely as any other."""
    boxes = [[i for i in items if i.box == box] for box in range(3)]
    kinds = [said for said in (_of_towers(boxes, rng) if towers else _of_boxes(boxes, rng)) if said]
    kinds.append(_of_items(items, "block" if towers else "item", rng))
    chosen = kinds[int(rng.integers(len(kinds)))]
    text = chosen[int(rng.integers(len(chosen)))]
    if rng.random() < SMALL:
        text = text[0].lower() + text[1:]
    return text if rng.random() < OPEN else f"{text}."


def description(items: Sequence[Item]) -> str:
    """Of each box how many items of each colour it has, which hardly another scene has: "left: two blue, one black;
    middle: none; right: ..."."""
    parts = []
    for box, place in enumerate(BOXES):
        counts = sorted(Counter(item.color for item in items if item.box == box).items())
        parts.append(f"{place}: " + (", ".join(f"{NUMBERS[count]} {color}" for color, count in counts) or "none"))
    return "; ".join(parts)


def number(count: int, rng: np.random.Generator) -> str:
    """In words, or in digits."""
    return str(count) if rng.random() < DIGITS or count >= len(NUMBERS) else NUMBERS[count]


def _are(count: int, noun: str, rng: np.random.Generator, *, how: str = "") -> str:
    """ "There are HOW two NOUNs"."""
    verb, end = ("is", "") if count == 1 else ("are", "s")
    return f"There {verb} {how}{number(count, rng)} {noun}{end}"


def _a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _of_items(items: Sequence[Item], noun: str, rng: np.random.Generator) -> list[str]:
    """Of all boxes together: how many there are of a colour."""
    said = []
    other = noun if noun == "block" else str(rng.choice(["item", "object"]))
    for color, count in Counter(i.color for i in items).items():
        how = str(rng.choice(["", "exactly ", "only "]))
        said += [_are(count, f"{color} {other}", rng, how=how)]
        if count > 1:
            least = int(rng.integers(1, count))
            said.append(_are(least, f"{color} {other}", rng, how="at least "))
    return said or [f"There is no {noun} in any box"]


def _of_towers(boxes: list[list[Item]], rng: np.random.Generator) -> list[list[str]]:
    towers = [sorted(box, key=lambda i: i.y) for box in boxes if box]  # top first
    if not towers:
        return []
    return [_ends(towers, rng), _heights(towers, rng), _stacked(towers), _contents(towers, rng)]


def _ends(towers: list[list[Item]], rng: np.random.Generator) -> list[str]:
    """Which colour is at the top or the base of how many towers."""
    said = []
    for place, end in (("top", 0), ("base", -1), ("bottom", -1)):
        for color, count in Counter(tower[end].color for tower in towers).items():
            how = str(rng.choice(["", "exactly ", "at least "]))
            said += [
                f"{_are(count, 'tower', rng, how=how)} with a {color} block at the {place}",
                f"{_are(count, f'{color} block', rng, how=how)} as the {place} of a tower",
                f"There is at least one tower with a {color} block at the {place}",
            ]
    return said


def _heights(towers: list[list[Item]], rng: np.random.Generator) -> list[str]:
    said = []
    heights = Counter(map(len, towers))
    for tower in towers:
        height, top, base = number(len(tower), rng), tower[0].color, tower[-1].color
        blocks = f"{height} block{'' if len(tower) == 1 else 's'}"
        only = str(rng.choice(["", "only ", "exactly "]))
        said += [
            f"There is a tower with {only}{blocks}",
            f"There is a tower with exactly {blocks} with a {top} block at the top",
            f"There is at least one tower with exactly {blocks} having a {top} block at the top",
            f"There is a {top} block as the top of a tower with {blocks}",
            f"There is a tower of {blocks} with a {base} base",
        ]
        if heights[len(tower)] == 1:
            said.append(f"The tower with {blocks} has a {top} block at the top")
        if len({i.color for i in tower}) == 1:
            said.append(f"There is a {top} tower" + f" with {only}{blocks}" * bool(rng.random() < 0.6))
    if heights.most_common(1)[0][1] > 1:
        tall, count = heights.most_common(1)[0]
        said.append(f"There are {number(count, rng)} towers with {number(tall, rng)} blocks")
    return said


def _stacked(towers: list[list[Item]]) -> list[str]:
    pairs = {(a.color, b.color) for tower in towers for a, b in pairwise(tower)}
    said = []
    for over, under in sorted(pairs):
        said += [
            f"There is at least one {over} block on {_a(under)} block",
            f"There is a tower with a {over} block over a {under} block",
            f"There is at least one tower which has a {over} block above a {under} block",
            f"One tower has a {over} block on top of a {under} block",
        ]
    return said


def _contents(towers: list[list[Item]], rng: np.random.Generator) -> list[str]:
    said = []
    colors = sorted({i.color for tower in towers for i in tower})
    for color in colors:
        count = sum(any(i.color == color for i in tower) for tower in towers)
        said.append(f"{_are(count, 'tower', rng)} with {color} blocks")
    for tower in towers:
        parts = _listed(Counter(i.color for i in tower), "block", rng)
        said += [f"There is a tower with {parts}", f"There is a box with {parts}"]
    return said


def _of_boxes(boxes: list[list[Item]], rng: np.random.Generator) -> list[list[str]]:
    full = [box for box in boxes if box]
    return [_filled(full, rng), _colors(full, rng), _shapes(full, rng), _touching(full, rng)] if full else []


def _filled(boxes: list[list[Item]], rng: np.random.Generator) -> list[str]:
    said = []
    for box in boxes:
        count, end = number(len(box), rng), "" if len(box) == 1 else "s"
        noun = str(rng.choice(["item", "object"])) + end
        said += [f"One of the grey box has exactly {count} {noun}", f"There is a box with {count} {noun}",
                 f"One of the grey square has exactly {count} {noun}"]  # fmt: skip
    return said


def _colors(boxes: list[list[Item]], rng: np.random.Generator) -> list[str]:
    said = []
    alike = Counter(tuple(sorted({i.color for i in box})) for box in boxes)
    for colors, count in alike.items():
        noun = "box" if count == 1 else "boxes"
        words = f"only {' and '.join(colors)} items" if len(colors) < 3 else "items of all 3 different colors"
        said.append(f"There {'is' if count == 1 else 'are'} {number(count, rng)} {noun} with {words}")
        if len(colors) == 1:
            said.append("There is a box with items of only one color")
    return said


def _shapes(boxes: list[list[Item]], rng: np.random.Generator) -> list[str]:
    said = []
    for (color, shape), count in Counter((i.color, i.shape) for box in boxes for i in box).items():
        said.append(_are(count, f"{color} {shape}", rng, how=str(rng.choice(["", "exactly "]))))
    for shape, count in Counter(i.shape for box in boxes for i in box).items():
        said.append(_are(count, shape, rng, how=str(rng.choice(["", "exactly "]))))
    for box in boxes:
        parts = Counter(f"{i.color} {i.shape}" for i in box)
        if len(parts) <= 3:
            said.append(f"There is a box with {_listed(parts, '', rng)}")
    return said


def _touching(boxes: list[list[Item]], rng: np.random.Generator) -> list[str]:
    said = []
    edge = str(rng.choice(["the edge", "the wall", "the side", "an edge"]))
    for touches, words in ((True, f"touching {edge}"), (False, "not touching any edge")):
        for (color, shape), count in Counter(
            (i.color, i.shape) for box in boxes for i in box if i.touches == touches
        ).items():
            said.append(f"{_are(count, f'{color} {shape}', rng)} {words}")
    return said


def _listed(parts: Counter[str], noun: str, rng: np.random.Generator) -> str:
    """ "a yellow block and two blue blocks"."""
    words = []
    for name, count in parts.items():
        thing = f"{name} {noun}".strip()
        words.append(_a(thing) if count == 1 else f"{number(count, rng)} {thing}s")
    return " and ".join(words)
