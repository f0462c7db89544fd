"""Synthetic invoices, or slips: small, legible, and remade exactly from (seed, split, index, size)."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import numpy as np

from docleak.documents.fonts import set_line
from docleak.documents.page import Field, Page, Question
from docleak.documents.pages import LazyPages, PageEntry, grouped
from docleak.documents.phrasings import PHRASINGS
from docleak.documents.ranges import MOST_PIXELS
from docleak.documents.synthetic_layouts import Template
from docleak.documents.synthetic_providers import PROVIDERS, provider
from docleak.documents.synthetic_slips import SMALLEST_SLIP, build_slip
from docleak.documents.synthetic_templates import build_template
from docleak.documents.synthetic_values import GROUPS, pick
from docleak.errors import DocumentError

#: Where these pages are said to lie.
SYNTHETIC = Path("synthetic")
#: Width x height, in pixels.
DEFAULT_SIZE = (192, 256)
#: Below this width or height, some provider has no room for four legible fields: such pages are slips.
MINIMUM_SIZE = (192, 224)
SPLITS = ("train", "validation", "audit")
#: Draws of a value before giving up on its slot; a slot takes at least half of all draws.
ATTEMPTS = 400


def _generator(seed: int, split: str, index: int, size: tuple[int, int]) -> np.random.Generator:
    """The page's own stream, the same on every machine."""
    name = int.from_bytes(hashlib.sha256(split.encode()).digest()[:4], "big")
    return np.random.default_rng(np.random.SeedSequence((seed, name, index, *size)))


def _provider_of(rng: np.random.Generator) -> int:
    """The number of a page's provider, which its stream draws first."""
    return int(rng.integers(PROVIDERS))


def _draw_values(template: Template, rng: np.random.Generator) -> dict[str, str]:
    """Values for all slots, each group redrawn until it fits."""
    slots = {slot.key: slot for slot in template.slots}
    values: dict[str, str] = {}
    for keys, draw in GROUPS:
        wanted = [slots[key] for key in keys if key in slots]
        if not wanted:
            continue
        for _ in range(ATTEMPTS):
            drawn = draw(template.provider.formats, rng)
            if all(slot.holds(drawn[slot.key]) for slot in wanted):
                break
        else:
            raise DocumentError(
                f"provider {template.provider.index}: no value for {[s.key for s in wanted]} fits its place on a page "
                f"of {template.size[0]} x {template.size[1]} pixels. Use a larger size."
            )
        values.update({slot.key: drawn[slot.key] for slot in wanted})
    return values


def _holds(size: tuple[int, int], least: tuple[int, int]) -> bool:
    """Whether neither side is shorter than that of ``least``."""
    return size[0] >= least[0] and size[1] >= least[1]


def _check(seed: int, split: str, size: tuple[int, int]) -> None:
    faults = []
    if split not in SPLITS:
        faults.append(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
    if seed < 0:
        faults.append(f"seed is {seed}; expected 0 or more")
    if len(size) != 2 or not _holds(size, SMALLEST_SLIP):
        least = " x ".join(map(str, SMALLEST_SLIP))
        faults.append(f"size is {size}; expected (width, height) of at least {least} pixels, to be legible")
    elif size[0] * size[1] > MOST_PIXELS:
        faults.append(f"size is {size}; expected at most {MOST_PIXELS:,} pixels in all")
    if faults:
        raise DocumentError("synthetic pages: " + "; ".join(faults))


def make_page(
    index: int, *, seed: int, size: tuple[int, int] = DEFAULT_SIZE, split: str = "audit", filled: bool = True
) -> Page:
    """Page ``index`` of a split; ``filled=False`` gives its public template: same page without the private values.

    An invoice of four fields or more, or below MINIMUM_SIZE a slip of one to three. Raises DocumentError for an unknown
    split or a size too small for a legible field.
    """
    _check(seed, split, size)
    rng = _generator(seed, split, index, size)
    build = build_template if _holds(size, MINIMUM_SIZE) else build_slip
    template = build(_provider_of(rng), size)
    return fill_template(template, rng, f"{split}-{seed}-{index:06d}", filled=filled)


def fill_template(template: Template, rng: np.random.Generator, name: str, *, filled: bool = True) -> Page:
    """A page of the template with values drawn for its slots and a question for each; not ``filled``: without them."""
    values = _draw_values(template, rng) if filled else {}
    image = template.image()
    words, owners = list(template.words), [""] * len(template.words)
    baselines = list(template.baselines)
    for slot in template.slots if filled else ():
        value = values[slot.key]
        new = list(set_line(image, value, slot.type, slot.start(value), slot.baseline, (0, 0, 0)))
        words += new
        owners += [slot.key] * len(new)
        baselines += [slot.baseline] * len(new)
    order = sorted(range(len(words)), key=lambda i: (baselines[i], words[i].box[0]))
    members = grouped(range(len(order)), lambda place: owners[order[place]])
    fields = tuple(
        Field(key, values[key], tuple(members[key])) for key in (s.key for s in template.slots) if key in values
    )
    return Page(
        name=name,
        image=image,
        words=tuple(words[i] for i in order),
        fields=fields,
        questions=tuple(Question(pick(rng, PHRASINGS[f.key]), (f.value,), f.key) for f in fields),
        document=name,
        provider=template.provider.name,
        template=template.layout.name,
    )


def make_pages(
    count: int, *, seed: int, size: tuple[int, int] = DEFAULT_SIZE, first: int = 0, split: str = "audit"
) -> LazyPages:
    """``count`` pages of ``size`` (width, height) from number ``first`` on, made lazily.

    A page depends on (seed, split, first + its place, size) only, and on the installed font packages.
    The splits "train", "validation" and "audit" hold different documents of the same providers.
    """
    _check(seed, split, size)
    if count < 0 or first < 0:
        raise DocumentError(f"synthetic pages: count is {count} and first is {first}; expected 0 or more")
    if count:
        make_page(first, seed=seed, size=size, split=split)  # a size too small is refused here, not later
    entries = []
    for index in range(first, first + count):
        name = f"{split}-{seed}-{index:06d}"
        owner = provider(_provider_of(_generator(seed, split, index, size)))
        make = partial(make_page, index, seed=seed, size=size, split=split)
        entries.append(PageEntry(name, SYNTHETIC, make, name, owner.name))
    return LazyPages(SYNTHETIC, entries)
