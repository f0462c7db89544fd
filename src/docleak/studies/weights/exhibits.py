"""Pictures of scrubbed pages, as the adversary has them, and the fields that a report shows with them.

OUT/units/FIELD/page.png    the page of a field that is shown, near.png the lines around the field
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw

from docleak.documents import Page
from docleak.documents.page import Box, Field, Image
from docleak.models.encoders.scrubbing import SecretField
from docleak.report.pictures import shrunk
from docleak.runs.run import Run
from docleak.studies.weights.game import Game
from docleak.studies.weights.table import GameTable, Ranked
from docleak.training.extraction.kept import divided

WHOLE, NEAR = "page.png", "near.png"
#: Fields shown with their pages: the surest of the attack, and of the others those it read best.
SUREST, BEST = 4, 4
#: Pixels of a shown page's longer side, and of the lines around a field.
PAGE_SIDE, NEAR_WIDTH = 900, 640
PAPER, OUTLINE = (255, 255, 255), (156, 52, 40)


def save_exhibits(run: Run, game: Game, table: GameTable) -> None:
    """Write what a report of ``run`` needs of the pages, so that it can be written again from disk alone."""
    secrets = {secret.name: secret for secret in game.secrets}
    originals = {page.name: page for page in divided(game.config.data()).pages}
    for secret in [secrets[field.name] for field in shown_fields(table.fields)]:
        folder, original = run.folder(secret.name).relative_to(run.path), originals[secret.page]
        pictures = scrubbed_pictures(original, _boxes(game, secret, original))
        for file, image in zip((WHOLE, NEAR), pictures, strict=True):
            run.write_image((folder / file).as_posix(), image)


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
    side = max(NEAR_WIDTH, math.ceil(near.height * NEAR_WIDTH / near.width))
    return shrunk(np.asarray(image), PAGE_SIDE), shrunk(np.asarray(near), side)


def _boxes(game: Game, secret: SecretField, page: Page) -> list[Box]:
    """Where a patch is: over each line of the field's words, and of the repeats that were masked too."""
    hidden = (*secret.positions, *(secret.repeats if game.config.repeats else ()))
    words = tuple(dict.fromkeys(game.pages[secret.page].words[list(hidden)].tolist()))
    return list(page.field_boxes(Field(secret.key, secret.value, words)))
