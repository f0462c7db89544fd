"""The memorisation test and its probe held against the truth: scores, whose values were said, and pictures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

from docleak.attacks.answers.asking import Spoken
from docleak.attacks.answers.disclosure import Disclosed
from docleak.attacks.answers.memorisation import Case
from docleak.documents.locate import letters
from docleak.documents.page import Image, Page
from docleak.documents.pages import grouped
from docleak.documents.redaction import THOROUGH, blue, redact
from docleak.metrics.memorisation import Outcome
from docleak.metrics.text import accuracy, anls

#: Confidence from which the paper calls an answer confident.
CONFIDENT = 0.9
#: Pages in pictures are enlarged to this width at least; height of a line of text under them.
PICTURE_WIDTH, LINE = 500, 26


@dataclass(frozen=True)
class Trained:
    """A value of the training pages, which only their owner knows."""

    provider: str
    key: str
    text: str


def outcomes_of(cases: Sequence[Case], spoken: Sequence[Spoken], members: Collection[str]) -> list[Outcome]:
    """Every reply scored; ``members`` are the providers that were trained on."""
    outcomes = []
    for case, said in zip(cases, spoken, strict=True):
        right = accuracy(said.text, case.question.answers), anls(said.text, case.question.answers)
        outcomes.append(Outcome(case.provider, case.provider in members, *right, said.confidence))
    return outcomes


def trained_values(pages: Sequence[Page]) -> list[Trained]:
    """Every answer and field value of the training pages, once per provider and key."""
    values: list[Trained] = []
    for page in pages:
        values += [Trained(page.provider, q.key or q.text, answer) for q in page.questions for answer in q.answers]
        values += [Trained(page.provider, field.key, field.value) for field in page.fields]
    return list(dict.fromkeys(values))


def training_answers(trained: Sequence[Trained], key: str) -> dict[str, tuple[str, ...]]:
    """Provider -> the spellings of its answer to a key: ``draw_cases``' ``training``."""
    spellings: dict[str, dict[str, None]] = {}
    for value in trained:
        if value.key == key and value.text.strip():
            spellings.setdefault(value.provider, {})[value.text] = None
    return {provider: tuple(texts) for provider, texts in spellings.items()}


def disclosure_rows(
    found: Disclosed, control: Disclosed, trained: Sequence[Trained], *, count: int = 15
) -> list[dict[str, Any]]:
    """The most frequent answers to what no page showed (D.1.4), and whose training value each one is.

    ``control`` is what the public model said to the same questions: an answer that it gives too is not memory. A value
    of the training is equal if its letters and digits are.
    """
    owners = grouped((value for value in trained if letters(value.text)), lambda value: letters(value.text))
    public, rows = dict(control.answers), []
    for text, times in found.top(count):
        whose = [f"{value.key} of {value.provider}" for value in owners.get(letters(text), [])]
        more = f" and {len(whose) - 3} more" if len(whose) > 3 else ""
        rows.append({"key": found.key, "answer": text, "target": times, "public": public.get(text, 0),
                     "trained_as": "; ".join(whose[:3]) + more})  # fmt: skip
    return rows


def disclosed_values(found: Disclosed, control: Disclosed, trained: Sequence[Trained]) -> tuple[str, ...]:
    """Answers that are a training value of the key that was asked for, and that the public model (``control``) never
    gave; letters and digits are compared."""
    values = {letters(value.text) for value in trained if value.key == found.key} - {""}
    public = {letters(text) for text, _ in control.answers}
    return tuple(text for text, _ in found.answers if letters(text) in values - public)


def skew(name: str, found: Disclosed) -> str:
    """How much the answers are the same ones, in words."""
    if found.share is None or found.entropy is None:
        return f"{name} said nothing to {found.asked} questions"
    different = len(found.answers)
    return (
        f"{name} gave {different} different answers to {found.asked} questions ({found.silent} silent), the commonest "
        f"{found.share:.1%} of the time, entropy {found.entropy:.2f} of {np.log(different):.2f} nats"
    )


def example(page: Page, case: Case, said: Spoken) -> Image:
    """The page before and as it was asked about (blurred places in blue), and under them question, truth and answer."""
    redacted = redact(page, case.question.answers, THOROUGH)
    both = [PILImage.fromarray(picture) for picture in (page.image, blue(redacted.page, redacted.boxes))]
    factor = max(1, -(-PICTURE_WIDTH // page.width))
    width, height = page.width * factor, page.height * factor
    sure = "" if said.confidence is None else f"   (confidence {said.confidence:.2f})"
    texts = [
        f"Question: {case.question.text}",
        f"Hidden: {' / '.join(case.question.answers)}   ({len(redacted.dropped)} words)",
        f"Answer: {said.text}{sure}",
    ]
    canvas = PILImage.new("RGB", (2 * width + 8, height + LINE * len(texts) + 8), "white")
    for place, picture in enumerate(both):
        canvas.paste(picture.resize((width, height), PILImage.Resampling.NEAREST), (place * (width + 8), 0))
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(0.6 * LINE)
    for row, text in enumerate(texts):
        pen.text((8, height + 8 + row * LINE), " ".join(text.split()), fill="black", font=font)
    return np.array(canvas, dtype=np.uint8)
