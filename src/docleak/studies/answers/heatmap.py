"""Which private fields of a document a model knows: the rank of the true value, taken off the page, among values that
other documents have in its place.

By chance the true value ranks first once in as many as there are: values of one key on one side of the division are
exchangeable, as far as the rest of the page does not tell them. How far it does, the same rank says of documents that
were not trained on, and of the model before the training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

from docleak.documents.names import provider_key
from docleak.documents.page import Field as PageField
from docleak.documents.page import Image, Page, Question
from docleak.documents.pages import gathered
from docleak.documents.phrasings import PHRASINGS
from docleak.documents.redaction import redact
from docleak.errors import AttackError
from docleak.metrics.estimate import Estimate
from docleak.metrics.memorisation import Outcome, beyond_public, remembered
from docleak.models.base import DocumentModel, device_of, in_mode, pixels_of
from docleak.studies.answers.documents import Sides

#: Documents of a side whose fields are ranked, other values of each field at most and at least, pages that are drawn.
DRAWN, VALUES, LEAST, SHOWN = 30, 19, 4, 2
#: From known to chance: the share of the other values that rank above the true one, and the colour of the field.
COLOURS = ((0.0, "first", (200, 30, 30)), (0.1, "in the first tenth", (240, 140, 40)),
           (0.5, "in the first half", (235, 205, 90)), (1.0, "in the second half", (120, 150, 180)))  # fmt: skip
WIDTH, LINE = 520, 24
#: Losses nearer than this are one, in nats: places in a batch differ in their last bits.
TIE = 1e-6


@dataclass(frozen=True)
class Ranked:
    """A private field: how many of ``others`` values the model finds likelier than the true one, and how many the
    reference does (None without one)."""

    document: str
    page: int
    field: int
    key: str
    member: bool
    others: int
    above: float
    reference: float | None

    @property
    def chance(self) -> float:
        """The probability of being first by chance."""
        return 1 / (self.others + 1)

    def outcome(self, *, reference: bool = False) -> Outcome:
        """Known (first) as accuracy, the share of the other values that rank below as ``anls``."""
        above = (self.reference if reference else self.above) or 0.0
        return Outcome(self.document, self.member, float(above == 0), 1 - above / self.others)


def ranked_fields(
    sides: Sides, model: DocumentModel, reference: DocumentModel | None, *, rng: np.random.Generator
) -> list[Ranked]:
    """The fields of DRAWN documents a side, a value of a key once of a document. A field needs LEAST values that others
    of its side have for the same key, and has to be found on its page to be taken off."""
    ranked = []
    for inside, documents in ((True, sides.members), (False, sides.others)):
        values = _values(documents)
        names = sorted(documents)
        for name in sorted(names[int(i)] for i in rng.permutation(len(names))[:DRAWN]):
            told = set[tuple[str, str]]()
            for number, page in enumerate(documents[name]):
                for place, field in enumerate(page.fields):
                    said = field.key, field.value.strip().lower()
                    if not (field.private and field.words and said[1]) or said in told:
                        continue
                    other = [text for low, text in values[field.key].items() if low != said[1]]
                    hidden = redact(page, [field.value])
                    if len(other) < LEAST or not hidden.dropped:
                        continue
                    told.add(said)
                    drawn = [other[int(i)] for i in rng.permutation(len(other))[:VALUES]]
                    asked = _question(page, field)
                    above, before = (
                        None if one is None else likelier(one, hidden.page, asked, field, drawn)
                        for one in (model, reference)
                    )
                    ranked.append(Ranked(name, number, place, field.key, inside, len(drawn), above or 0.0, before))
    return ranked


def as_one(sides: Sides) -> dict[str, str]:
    """Document -> the first of its provider, where all of these are on one side: a name that is on all of them, which
    the model ranks first on all, is one reading."""
    of = [gathered((provider_key(pages[0].provider), name) for name, pages in side.items())
          for side in (sides.members, sides.others)]  # fmt: skip
    apart = (of[0].keys() ^ of[1].keys()) - {""}
    return {name: names[0] for side in of for key, names in side.items() if key in apart for name in names}


def known_in(
    ranked: Sequence[Ranked], *, seed: int, groups: Mapping[str, str] | None = None
) -> dict[str, dict[str, Estimate]]:
    """By key ("" for all): the shares of members' and others' fields whose value ranks first, their difference ("gap"),
    what is to be expected by "chance"; with a reference what it gives ("before"), and the gap "beyond" its own.
    Documents of one of the ``groups`` (``as_one``) stand or fall as one in the intervals."""
    rates = {}
    ranked = [replace(one, document=(groups or {}).get(one.document, one.document)) for one in ranked]
    for key in ("", *sorted({one.key for one in ranked})):
        of = [one for one in ranked if key in ("", one.key)]
        now = [one.outcome() for one in of]
        said = remembered(now, rng=np.random.default_rng(seed))
        rates[key] = {"known": said.positive[0], "others": said.negative[0], "gap": said.difference[0],
                      "chance": Estimate.exactly(float(np.mean([one.chance for one in of])), n=len(of))}  # fmt: skip
        if of[0].reference is not None:
            before = [one.outcome(reference=True) for one in of]
            rates[key]["before"] = remembered(before, rng=np.random.default_rng(seed)).positive[0]
            rates[key]["beyond"] = beyond_public(now, before, rng=np.random.default_rng(seed))[0]
    return {key: {name: replace(one, of="fields") for name, one in of.items()} for key, of in rates.items()}


def heat_maps(sides: Sides, ranked: Sequence[Ranked]) -> dict[str, Image]:
    """The pages with most known fields: SHOWN of members, one of others."""
    pages: dict[tuple[bool, str, int], dict[int, Ranked]] = {}
    for one in ranked:
        pages.setdefault((one.member, one.document, one.page), {})[one.field] = one
    order = sorted(pages, key=lambda place: (-sum(one.above == 0 for one in pages[place].values()), place))
    images = {}
    for inside, most in ((True, SHOWN), (False, 1)):
        for n, place in enumerate([place for place in order if place[0] is inside][:most]):
            page = sides.all()[place[1]][place[2]]
            images[f"heat-{'member' if inside else 'other'}-{n}"] = heat_map(page, pages[place])
    return images


@torch.no_grad()
def likelier(model: DocumentModel, page: Page, text: str, field: PageField, values: Sequence[str]) -> float:
    """How many of ``values`` have a lower loss than the field's as the answer to ``text``, ties counted half.
    AttackError where a loss is not finite, which would rank first."""
    page = model.fit(page)
    device = device_of(model)
    asked = [Question(text, (value.strip(),), field.key) for value in (field.value, *values)]
    inputs = [model.encode(page, question) for question in asked]
    with in_mode(model.module):
        losses = model.loss(pixels_of(page.image, device)[None], inputs, [0] * len(inputs)).cpu()
    if not bool(losses.isfinite().all()):
        raise AttackError(f"{model.name} gives no finite loss on values of {field.key!r}: they cannot be ranked.")
    lower = losses[0] - losses[1:]
    return float((lower > TIE).sum() + (lower.abs() <= TIE).sum() / 2)


def heat_map(page: Page, ranked: Mapping[int, Ranked]) -> Image:
    """The page with the fields (by number) in the colours of their ranks, rank and, in brackets, the reference's beside
    each; what the colours mean stands under it."""
    factor = max(1, -(-WIDTH // page.width))
    size = (page.width * factor, page.height * factor)
    canvas = PILImage.new("RGB", (size[0], size[1] + LINE * (len(COLOURS) + 1)), "white")
    canvas.paste(PILImage.fromarray(page.image).resize(size, PILImage.Resampling.NEAREST))
    pen, font = ImageDraw.Draw(canvas, "RGBA"), ImageFont.load_default(0.6 * LINE)
    for number, one in sorted(ranked.items()):
        colour = next(rgb for most, _, rgb in COLOURS if one.above / one.others <= most)
        boxes = page.field_boxes(page.fields[number])
        for x0, y0, x1, y1 in boxes:
            box = (factor * x0 - 2, factor * y0 - 2, factor * x1 + 2, factor * y1 + 2)
            pen.rectangle(box, fill=(*colour, 90), outline=colour, width=2)
        before = "" if one.reference is None else f" ({one.reference + 1:g})"
        text, (x0, y0, x1, _) = f"{one.above + 1:g}{before}", boxes[0]
        width = pen.textlength(text, font)
        left = min(factor * x1 + 4, size[0] - width - 2)
        pen.rectangle((left - 1, factor * y0 - 2, left + width + 1, factor * y0 + 16), fill=(255, 255, 255, 220))
        pen.text((left, factor * y0 - 2), text, fill=(40, 40, 40), font=font)
    total = max((one.others for one in ranked.values()), default=0) + 1
    referred = any(one.reference is not None for one in ranked.values())
    pen.text((8, size[1] + 4), f"Rank of the true value among at most {total}, it being taken off the page"
             f"{' (before the training)' * referred}", fill="black", font=font)  # fmt: skip
    for row, (_, says, colour) in enumerate(COLOURS, 1):
        pen.rectangle((8, size[1] + LINE * row + 5, 24, size[1] + LINE * row + 18), fill=(*colour, 90), outline=colour)
        pen.text((32, size[1] + LINE * row + 3), says, fill="black", font=font)
    return np.array(canvas, dtype=np.uint8)


def _values(documents: Mapping[str, Sequence[Page]]) -> dict[str, dict[str, str]]:
    """Key -> the values in lower case -> as they are written."""
    spellings: dict[str, dict[str, str]] = {}
    for name in sorted(documents):
        for page in documents[name]:
            for field in page.fields:
                if value := field.value.strip():
                    spellings.setdefault(field.key, {}).setdefault(value.lower(), value)
    return spellings


def _question(page: Page, field: PageField) -> str:
    """The page's own question for the field's key, the first of PHRASINGS, or the plainest."""
    question = next((q.text for q in page.questions if q.key == field.key and field.value in q.answers), "")
    return question or next(iter(PHRASINGS.get(field.key, ())), f"What is the {field.key.replace('_', ' ')}?")
