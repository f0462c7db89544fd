"""The memorisation test held against the truth: Markdown like the paper's Tables 2, 7 and 8, and pictures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

from docleak.attacks.answers.asking import Spoken
from docleak.attacks.answers.disclosure import Disclosed
from docleak.attacks.answers.memorisation import Case
from docleak.documents.locate import letters
from docleak.documents.page import Image, Page
from docleak.documents.redaction import THOROUGH, Removal, blue, redact
from docleak.documents.visible import in_markdown
from docleak.files import reported, write_png
from docleak.metrics.memorisation import Outcome, Remembered, Share
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
    return [
        Outcome(
            case.provider,
            case.provider in members,
            accuracy(said.text, case.question.answers),
            anls(said.text, case.question.answers),
            said.confidence,
        )
        for case, said in zip(cases, spoken, strict=True)
    ]


def memorisation_table(rows: Mapping[str, tuple[Remembered, Remembered]]) -> str:
    """Markdown with two rows per model: over all its answers, and over those of confidence CONFIDENT or more.

    ``rows`` maps a title to these two. In percent with intervals; N_mem counts documents, providers in brackets.
    """
    head = ["model", "answers"]
    for name in ("positive", "negative"):
        head += [f"RED {name}: N_mem", "ACC", "ANLS"]
    head += ["ΔACC", "ΔANLS"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for title, both in rows.items():
        for kind, found in zip(("all", f"confidence ≥ {CONFIDENT}"), both, strict=True):
            cells = [title, kind]
            for side in (found.positive, found.negative):
                cells += [f"{side[0].questions} ({side[0].providers})", *map(percent, side)]
            cells += map(percent, found.difference)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def percent(share: Share) -> str:
    """``12.3 [8.1, 17.0]``; "none" where nothing was measured, no interval where one provider cannot give any."""
    if share.value is None:
        return "none"
    interval = "" if share.low is None or share.high is None else f" [{share.low:.1%}, {share.high:.1%}]"
    return f"{share.value:.1%}{interval}".replace("%", "")


def trained_values(pages: Sequence[Page]) -> list[Trained]:
    """Every answer and field value of the training pages, once per provider and key."""
    found: dict[Trained, None] = {}
    for page in pages:
        for question in page.questions:
            for answer in question.answers:
                found[Trained(page.provider, question.key or question.text, answer)] = None
        for field in page.fields:
            found[Trained(page.provider, field.key, field.value)] = None
    return list(found)


def training_answers(trained: Sequence[Trained], key: str) -> dict[str, tuple[str, ...]]:
    """Provider -> the spellings of its answer to a key: ``draw_cases``' ``training``."""
    found: dict[str, dict[str, None]] = {}
    for value in trained:
        if value.key == key and value.text.strip():
            found.setdefault(value.provider, {})[value.text] = None
    return {provider: tuple(texts) for provider, texts in found.items()}


def disclosure_table(found: Disclosed, control: Disclosed, trained: Sequence[Trained], *, count: int = 15) -> str:
    """Markdown of the most frequent answers to what no page showed (D.1.4), and whose training value each one is.

    ``control`` is what the public model said to the same questions: an answer that it gives too is not memory. A value
    of the training is equal if its letters and digits are.
    """
    owners: dict[str, list[Trained]] = {}
    for value in trained:
        if letters(value.text):
            owners.setdefault(letters(value.text), []).append(value)
    public = dict(control.answers)
    lines = ["| answer | target | public model | in the training as |", "|---|---|---|---|"]
    for text, times in found.top(count):
        whose = [f"{value.key} of {value.provider}" for value in owners.get(letters(text), [])]
        more = f" and {len(whose) - 3} more" if len(whose) > 3 else ""
        lines.append(f"| {cell(text)} | {times} | {public.get(text, 0)} | {cell('; '.join(whose[:3])) + more or '-'} |")
    lines += ["", f"Key `{found.key}`: {_skew('target', found)}; {_skew('public model', control)}."]
    return "\n".join(lines) + "\n"


def disclosed_values(found: Disclosed, control: Disclosed, trained: Sequence[Trained]) -> tuple[str, ...]:
    """Answers that are a training value of the key that was asked for, and that the public model (``control``) never
    gave; letters and digits are compared."""
    values = {letters(value.text) for value in trained if value.key == found.key} - {""}
    public = {letters(text) for text, _ in control.answers}
    return tuple(text for text, _ in found.answers if letters(text) in values - public)


def cell(text: str) -> str:
    """A text that cannot break a Markdown table."""
    return in_markdown(" ".join(text.split()))


def _skew(name: str, found: Disclosed) -> str:
    if found.share is None or found.entropy is None:
        return f"{name} said nothing to {found.asked} questions"
    different = len(found.answers)
    return (
        f"{name} gave {different} different answers to {found.asked} questions ({found.silent} silent), the commonest "
        f"{found.share:.1%} of the time, entropy {found.entropy:.2f} of {np.log(different):.2f} nats"
    )


def write_examples(
    folder: Path,
    pages: Sequence[Page],
    cases: Sequence[Case],
    spoken: Sequence[Spoken],
    *,
    removal: Removal = THOROUGH,
    count: int = 6,
) -> list[Path]:
    """Pictures of the first ``count`` cases for the owner, ``example-000.png`` and so on; returns their paths."""
    files = []
    for number, (case, said) in enumerate(zip(cases, spoken, strict=True)):
        if number == count:
            break
        page = pages[case.number]
        file = folder / f"example-{number:03d}.png"
        with reported(file):
            write_png(file, example(page, case, said, removal=removal))
        files.append(file)
    return files


def example(page: Page, case: Case, said: Spoken, *, removal: Removal = THOROUGH) -> Image:
    """The page before and as it was asked about (blurred places in blue), and under them question, truth and answer."""
    redacted = redact(page, case.question.answers, removal)
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
