"""What the benchmark consists of: tracks of cases, and the pages behind each, remade exactly from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from docleak.documents import Page, blank_template, private_mask
from docleak.documents.issuers import FIRST, LAST, make_issuers
from docleak.documents.page import Image, Word
from docleak.models.base import DocumentModel, Encoded
from docleak.studies.gradient.case import MADE_UP, blank_page, pages_for, question_of
from docleak.studies.updates.words import tokens_of

#: Of pages, models, protocol and scores; answers to one version are refused by another.
VERSION = 1
#: The adapters are public, so the seed that draws them is too.
ADAPTERS_SEED = 0


@dataclass(frozen=True)
class Track:
    """Cases of one kind. ``sent`` is "gradient", "delta" (theta_0 - theta_K) or "answers" of a finished model.

    A case has ``clients`` with so many ``pages`` of one question each. A delta is of ``steps`` SGD steps on one page
    each, in each of ``rounds``; ``noise`` is the standard deviation added to every number, ``rank`` that of LoRA.
    Answers are those of a model trained for so many ``epochs`` on ``documents`` of half of the ``providers``.
    """

    name: str
    model: str
    about: str
    sent: str = "gradient"
    cases: int = 4
    clients: int = 1
    pages: int = 1
    noise: float = 0.0
    steps: int = 1
    rounds: int = 1
    learning_rate: float = 0.0
    rank: int = 0
    providers: int = 0
    documents: int = 3
    asked: int = 2
    epochs: int = 16

    @property
    def trained(self) -> int:
        """Epochs that making a case takes."""
        return self.epochs if self.sent == "answers" else 0

    def names(self) -> tuple[str, ...]:
        """Of its cases."""
        return tuple(f"{self.name}-{number}" for number in range(self.cases))


TRACKS = (
    Track("gradient-donut", "donut-start", "the gradient of one page, Donut"),
    Track("gradient-layoutlmv3", "layoutlmv3-start", "the gradient of one page, LayoutLMv3"),
    Track("noised-layoutlmv3", "layoutlmv3-start", "the same with Gaussian noise of 1e-3 on every number", noise=1e-3),
    Track("sum-layoutlmv3", "layoutlmv3-start", "a secure sum: the gradients of three clients added up", clients=3),
    Track("steps-layoutlmv3", "layoutlmv3-start", "a weight delta of four SGD steps on two pages", "delta",
          pages=2, steps=4, learning_rate=0.1),
    Track("lora-llava", "llava-trained", "LoRA adapters of rank 8 after each of six rounds of one SGD step", "delta",
          rounds=6, learning_rate=1.0, rank=8),
    Track("answers-vt5", "vt5-public", "what a fine-tuned VT5 answers about 40 providers, half of them members",
          "answers", cases=1, providers=40, asked=3),
)  # fmt: skip


def drawn(seed: int, *purpose: object) -> int:
    """A number of 63 bits for one purpose, which tells nothing of ``seed`` or of the numbers for others."""
    text = "\0".join(map(str, (VERSION, seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def pages_behind(model: DocumentModel, track: Track, case: str, seed: int) -> list[Page]:
    """The pages of a case's clients at the model's size, with one question each."""
    pages = pages_for(model, "synthetic", count=track.clients * track.pages, seed=drawn(seed, case))
    return [replace(page, questions=(question_of(page),)) for page in pages]


def public_side(page: Page) -> tuple[Image, Image, tuple[Word, ...]]:
    """What everybody may know of a page: the blank form, a mask that is white where it is filled in, printed words."""
    mask = np.repeat(private_mask(page)[:, :, None].astype(np.uint8) * 255, 3, axis=2)
    return blank_template(page), mask, blank_page(page).words


def form_of(template: Image, words: Sequence[Word]) -> Page:
    """The blank form as a page."""
    return Page("form", template, tuple(words), questions=(MADE_UP,))


def encoded_form(model: DocumentModel, form: Page) -> Encoded:
    """A made-up question on the blank form: what an attack that knows no text may put in its place."""
    return model.encode(form, MADE_UP)


def public_tokens(model: DocumentModel, forms: Sequence[Page]) -> set[int]:
    """Token ids that say nothing of the clients: those of made-up questions on the blank forms."""
    return set().union(*(tokens_of(model, encoded_form(model, form)) for form in forms))


def secret_tokens(model: DocumentModel, pages: Sequence[Page], public: set[int]) -> set[int]:
    """Ids that the clients' text has beside the ``public`` ones."""
    return set().union(*(tokens_of(model, model.encode(page, page.questions[0])) for page in pages)) - public


@dataclass(frozen=True)
class Release:
    """Behind a track of answers: ``members`` by provider, the pages trained on, and those asked about."""

    members: Mapping[str, bool]
    trained: Sequence[Page]
    asked: Sequence[Page]


def release_behind(track: Track, case: str, seed: int) -> Release:
    """Half of the providers are members; documents that are asked about were trained on by nobody."""
    rng = np.random.default_rng(drawn(seed, case, "members"))
    chosen = [int(one) for one in rng.choice(np.arange(FIRST, LAST), track.providers, replace=False)]
    per_provider = track.documents + track.asked
    pages = list(make_issuers(chosen, [per_provider] * len(chosen), seed=drawn(seed, case, "pages")))
    inside = set(rng.permutation(len(chosen))[: len(chosen) // 2].tolist())
    members = {pages[place * per_provider].provider: place in inside for place in range(len(chosen))}
    groups = [pages[place * per_provider : (place + 1) * per_provider] for place in range(len(chosen))]
    trained = [page for place in sorted(inside) for page in groups[place][: track.documents]]
    return Release(members, trained, [page for group in groups for page in group[track.documents :]])


def generator_of(seed: int, *purpose: object) -> torch.Generator:
    """A stream of its own."""
    return torch.Generator().manual_seed(drawn(seed, *purpose))
