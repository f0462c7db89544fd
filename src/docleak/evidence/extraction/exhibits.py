"""What the report of a game shows beside its numbers: copies of each field elsewhere, and pictures of scrubbed pages.

OUT/copies.json       field -> where else its value stands
OUT/exhibits.json     the fields that are shown
OUT/exhibits/N.png    the page of field N as the adversary has it, N-near.png the lines around the field
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw

from docleak.documents import Page, load_pages
from docleak.documents.copies import copies_of
from docleak.documents.page import Box, Field, Image
from docleak.documents.pages import LazyPages
from docleak.evidence.extraction.game import Game
from docleak.evidence.extraction.table import GameTable, Ranked
from docleak.files import reported, write_json
from docleak.models.encoders.scrubbing import SecretField
from docleak.runs.run import Run

COPIES, EXHIBITS = "copies.json", "exhibits.json"
#: Fields shown with their pages: the surest of the attack, and of the others those it read best.
SUREST, BEST = 4, 4
#: Pixels of a shown page's longer side, and of the lines around a field.
PAGE_SIDE, NEAR_WIDTH = 900, 640
PAPER, OUTLINE = (255, 255, 255), (156, 52, 40)


def save_exhibits(run: Run, game: Game, table: GameTable) -> None:
    """Write what a report of ``run`` needs of the pages, so that it can be written again from disk alone."""
    copies = {secret.name: _copies(game, secret) for secret in game.secrets}
    shown = [field.name for field in shown_fields(table.fields)]
    secrets = [secret for name in shown for secret in game.secrets if secret.name == name]
    originals = pages_named(game, {secret.page for secret in secrets})
    for number, secret in enumerate(secrets):
        page, near = scrubbed_pictures(originals[secret.page], _boxes(game, secret, originals[secret.page]))
        run.write_image(f"exhibits/{number}.png", page)
        run.write_image(f"exhibits/{number}-near.png", near)
    with reported(run.path):
        write_json(run.path / COPIES, copies)
        write_json(run.path / EXHIBITS, shown)


def shown_fields(fields: Sequence[Ranked]) -> list[Ranked]:
    """The SUREST first fields of the ranking, and the BEST read of the others; each reading once."""
    surest = list(fields[:SUREST])
    others = sorted(fields[SUREST:], key=lambda field: (-field.match.perfect, field.match.hamming))
    return surest + [field for field in others[:BEST] if field.match.hamming < 1]


def scrubbed_pictures(page: Page, boxes: Sequence[Box]) -> tuple[Image, Image]:
    """The page with white, outlined patches over ``boxes``: whole, and the lines around the first; uint8 RGB each."""
    image = Pillow.fromarray(page.image)
    draw = ImageDraw.Draw(image)
    line = max(1, round(max(image.size) / 500))
    for x0, y0, x1, y1 in boxes:
        draw.rectangle((x0 - line, y0 - line, x1 + line, y1 + line), fill=PAPER, outline=OUTLINE, width=line)
    top, bottom = min(box[1] for box in boxes), max(box[3] for box in boxes)
    around = 3 * max(bottom - top, 12)
    near = image.crop((0, max(0, math.floor(top - around)), image.width, min(image.height, math.ceil(bottom + around))))
    return _fitted(image, PAGE_SIDE / max(image.size)), _fitted(near, NEAR_WIDTH / near.width)


def pages_named(game: Game, names: Iterable[str]) -> dict[str, Page]:
    """The original pages of these names; only their pictures are decoded, where the format allows it."""
    wanted = set(names)
    found: dict[str, Page] = {}
    for source in game.config.sources():
        pages = load_pages(source, count=game.config.pages or None, seed=game.config.seed)
        there = [entry.name for entry in pages.entries] if isinstance(pages, LazyPages) else [p.name for p in pages]
        found |= {name: pages[i] for i, name in enumerate(there) if name in wanted - set(found)}
    return found


def _copies(game: Game, secret: SecretField) -> Mapping[str, Mapping[str, int]]:
    own = game.texts["private"][secret.page]
    return {part: asdict(copies_of(secret.value, own, list(pages.values()))) for part, pages in game.texts.items()}


def _boxes(game: Game, secret: SecretField, page: Page) -> list[Box]:
    """Where a patch is: over each line of the field's words, and of the repeats that were masked too."""
    hidden = (*secret.positions, *(secret.repeats if game.config.repeats else ()))
    words = tuple(dict.fromkeys(game.pages[secret.page].words[list(hidden)].tolist()))
    return list(page.field_boxes(Field(secret.key, secret.value, words)))


def _fitted(image: Pillow.Image, scale: float) -> Image:
    """``image`` at most at its own size."""
    if scale < 1:
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Pillow.Resampling.LANCZOS)
    return np.asarray(image, dtype=np.uint8)
