"""Synthetic invoices whose issuers can be asked for: several documents per provider, with facts of its own on each.

Made for provider-level privacy (Tito et al., 2024): what a model remembers of a provider is its name, e-mail address,
tax number and registration id, which are printed on its documents and asked for. Providers from number FIRST on appear
in no other synthetic page, so that no shipped checkpoint has seen them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from docleak.documents.fonts import NARROW, Type, set_line
from docleak.documents.locate import WordStream
from docleak.documents.page import Field, Page, Question, Word
from docleak.documents.pages import LazyPages, PageEntry
from docleak.documents.phrasings import PHRASINGS
from docleak.documents.redaction import traces, without_words
from docleak.documents.synthetic import DEFAULT_SIZE, MINIMUM_SIZE, fill_template
from docleak.documents.synthetic_layouts import default_unit
from docleak.documents.synthetic_providers import PROVIDERS, Provider, provider, provider_rng
from docleak.documents.synthetic_templates import build_template
from docleak.documents.synthetic_values import fill_digits, listed, pick
from docleak.errors import DocumentError

#: The facts of a provider that are on all of its documents.
PROVIDER_KEYS = ("provider_name", "provider_email", "provider_tax_number", "registration_id")
#: The first provider that no shipped checkpoint was trained on, and the number after the last: provider 868 does not
#: fit the page, and all before it have names of their own.
FIRST, LAST = PROVIDERS, 868
#: The numbers of all providers that documents can be asked of here, those before LAST first: up to 2,596 only provider
#: 868 does not fit the page, and all have names of their own.
NUMBERS = (*range(FIRST, LAST), *range(LAST + 1, 2597))
#: Height in pixels, on the page of default size, of the strip at the bottom for tax number and registration id.
STRIP = 30
#: What share of the providers prints a tax number, a registration id.
PRINTS_TAX, PRINTS_REGISTRATION = 0.6, 0.4
#: Questions of a page: these are asked for with their own chance, the others fill up to QUESTIONS.
ASKED = {"provider_name": 0.6, "provider_email": 0.35, "provider_tax_number": 0.25, "registration_id": 0.25}
QUESTIONS = 4
#: Keeps what OCR misses apart from other draws of the same seed.
MISSED = 0x0C12
LABELS = {"provider_tax_number": ("VAT", "Tax No", "VAT ID"), "registration_id": ("Reg.", "Reg. No", "Reg. ID")}


@cache
def facts(index: int) -> dict[str, str]:
    """What is asked of provider ``index`` by key; without the numbers it does not print."""
    owner, rng = provider(index), provider_rng(index, 11)
    answers = {"provider_name": owner.name, "provider_email": owner.contact}
    numbers = {
        "provider_tax_number": (PRINTS_TAX, fill_digits(pick(rng, listed("formats", "tax")), rng)),
        "registration_id": (PRINTS_REGISTRATION, fill_digits(pick(rng, listed("formats", "registration")), rng)),
    }
    return answers | {key: value for key, (share, value) in numbers.items() if rng.random() < share}


def issuer_page(
    index: int, number: int, *, seed: int, size: tuple[int, int] = DEFAULT_SIZE, missed: float = 0.0
) -> Page:
    """Document ``number`` of provider ``index``: the same facts each time, other values, some of its questions.

    The fields of PROVIDER_KEYS are public ones (they are on the blank template). Each fact of the provider is, with
    probability ``missed``, one that OCR missed: its words, and those that give it away, are in the picture alone, and
    it may be asked for all the same. DocumentError for an unknown provider or a size too small.
    """
    strip = round(STRIP * default_unit(size))
    if (
        not (0 <= index < LAST or index in NUMBERS)
        or number < 0
        or size[0] < MINIMUM_SIZE[0]
        or size[1] < MINIMUM_SIZE[1] + STRIP
    ):
        raise DocumentError(
            f"document {number} of provider {index} at {size[0]} x {size[1]} pixels: expected providers 0 to "
            f"{NUMBERS[-1]} (not {LAST}) and at least {MINIMUM_SIZE[0]} x {MINIMUM_SIZE[1] + STRIP} pixels."
        )
    rng = np.random.default_rng(np.random.SeedSequence((seed, 0x155EE, index, number, *size)))
    template = build_template(index, (size[0], size[1] - strip))
    name = f"issuer-{index:04d}-{seed}-{number:03d}"
    page = fill_template(template, rng, name)
    image = np.full((size[1], size[0], 3), 255, np.uint8)
    image[: page.height] = page.image
    printed = facts(index)
    words = (*page.words, *_numbers(image, index, printed, page.height))
    stream = WordStream.of([word.text for word in words])
    fields = (*(Field(key, printed[key], stream.find(printed[key]), private=False) for key in printed), *page.fields)
    made = Page(
        name=name,
        image=image,
        words=words,
        fields=fields,
        questions=_questions(fields, rng),
        document=name,
        provider=page.provider,
        template=page.template,
    )
    if not missed:
        return made
    chance = np.random.default_rng(np.random.SeedSequence((seed, MISSED, index, number)))
    gone = {word for text in printed.values() if chance.random() < missed for word in traces(made, [text])}
    return without_words(made, sorted(gone))


def _numbers(image: np.ndarray, index: int, printed: dict[str, str], top: int) -> list[Word]:
    """Print tax number and registration id below the invoice, a line each, in the smallest type that is legible."""
    rng, unit = provider_rng(index, 12), default_unit((image.shape[1], image.shape[0]))
    type_ = Type(NARROW.regular, round(NARROW.sizes[0] * unit))
    words: list[Word] = []
    baseline = top + type_.ascent
    for key, labels in LABELS.items():
        text = f"{pick(rng, labels)} {printed.get(key, '')}"
        if key in printed:
            words += set_line(image, text, type_, round(5 * unit), baseline, (60, 60, 60))
            baseline += type_.ascent + type_.descent
    return words


def _questions(fields: Sequence[Field], rng: np.random.Generator) -> tuple[Question, ...]:
    """Some facts of the provider, each with its own chance, and other fields up to QUESTIONS in all."""
    asked = [f for f in fields if f.key in ASKED and rng.random() < ASKED[f.key]]
    others = [f for f in fields if f.key not in ASKED]
    order = rng.permutation(len(others)).tolist()
    asked += [others[i] for i in order[: max(1, QUESTIONS - len(asked))]]
    return tuple(Question(pick(rng, PHRASINGS[f.key]), (f.value,), f.key) for f in asked)


def make_issuers(
    providers: Sequence[int], documents: Sequence[int], *, seed: int, size: tuple[int, int] = DEFAULT_SIZE,
    missed: float = 0.0,
) -> LazyPages:  # fmt: skip
    """``documents[i]`` pages of ``providers[i]``, provider by provider, made when they are asked for.

    ``missed``: see ``issuer_page``. DocumentError for other lengths, a provider twice, one that does not exist, or a
    share outside 0..1.
    """
    if not 0 <= missed <= 1:
        raise DocumentError(f"missed is {missed}; expected the share, 0 to 1, of the issuer's facts that OCR missed.")
    if len(providers) != len(documents) or len(set(providers)) != len(providers):
        raise DocumentError(
            f"{len(providers)} providers ({len(set(providers))} different) with {len(documents)} numbers of documents; "
            "expected as many of each, and every provider once."
        )
    owners: dict[int, Provider] = {index: provider(index) for index in providers}
    return LazyPages(
        Path("synthetic issuers"),
        [
            PageEntry(
                f"issuer-{index:04d}-{seed}-{number:03d}",
                Path("synthetic issuers"),
                partial(issuer_page, index, number, seed=seed, size=size, missed=missed),
                f"issuer-{index:04d}-{seed}-{number:03d}",
                owners[index].name,
            )
            for index, count in zip(providers, documents, strict=True)
            for number in range(count)
        ],
    )


def draw_counts(providers: int, *, mean: float, least: int, rng: np.random.Generator) -> tuple[int, ...]:
    """How many documents each provider has: ``least`` and a geometric number on top, so that a few have very many."""
    if mean < least or least < 1:
        raise DocumentError(
            f"a mean of {mean} documents per provider with at least {least}; expected 1 <= least <= mean."
        )
    more = rng.geometric(1 / (mean - least + 1), size=providers) - 1
    return tuple((least + more).tolist())
