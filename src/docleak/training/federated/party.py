"""A silo's side of a federation, without any engine: open its folder, introduce itself, train, evaluate."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from docleak.documents.loaders import load_pages
from docleak.documents.page import Page
from docleak.documents.pages import document_names, provider_names
from docleak.documents.silos import MANIFEST, read_silo
from docleak.errors import FederationError
from docleak.metrics.text import accuracy, anls
from docleak.models.base import DocumentModel, pixels_of, trainable
from docleak.models.loading import load_model
from docleak.privacy.mechanism import Unit
from docleak.privacy.randomness import Randomness
from docleak.training.federated.federation import Federation, kept_documents
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.local import LocalRound, set_parameters, train_locally
from docleak.training.objectives.table import objective_of
from docleak.training.private.rounds import client_round
from docleak.training.private.units import check_owners

#: Questions about one page that are answered at once.
ANSWERED_TOGETHER = 16


class Chosen(Sequence[Page]):
    """Some of the pages, by number; each is read when it is asked for."""

    def __init__(self, pages: Sequence[Page], numbers: Sequence[int]) -> None:
        self._pages, self._numbers = pages, tuple(numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Page:  # type: ignore[override]
        return self._pages[self._numbers[index]]

    def names(self, of: Callable[[Sequence[Page]], Sequence[str]]) -> list[str]:
        """``provider_names`` or ``document_names`` of the chosen pages, none of which is read."""
        every = of(self._pages)
        return [every[number] for number in self._numbers]


@dataclass(frozen=True)
class Party:
    """One silo with its pages: those it trains on, and those it keeps to evaluate on.

    ``source`` names the data set that its pages come from.
    """

    name: str
    source: str
    training: Sequence[Page]
    kept: Sequence[Page]


@dataclass(frozen=True)
class Introduction:
    """What a silo tells the server before the first round: its name, its counts, and whose weights it has room for."""

    name: str
    source: str
    pages: int
    kept: int
    model: str


@dataclass(frozen=True)
class DocumentScore:
    """Sums over the ``questions`` of one document that were asked, so that any average can be made of them."""

    source: str
    anls: float
    accuracy: float
    questions: int


@dataclass(frozen=True)
class PartyRound:
    """What a silo did in a round, and the seconds it took."""

    trained: LocalRound
    seconds: float


def open_party(directory: Path, federation: Federation, *, name: str = "") -> Party:
    """A silo's folder as ``docleak data make --partition`` writes it, or any folder that docleak reads as pages.

    Raises DocumentError for a folder that cannot be read, FederationError for one without pages or with too few
    documents to keep some.
    """
    silo = read_silo(directory) if (directory / MANIFEST).is_file() else None
    called = name or (silo.name if silo else directory.name)
    pages = load_pages(f"folder:{directory}", seed=0)
    if not len(pages):
        raise FederationError(f"silo {called!r}: {directory} has no pages. Give the silo pages, or leave it out.")
    documents = _apart(pages, federation)
    kept = kept_documents(documents, federation.holdout, seed=federation.seed, silo=called)
    return Party(
        called,
        silo.source if silo else "folder",
        Chosen(pages, [i for i, document in enumerate(documents) if document not in kept]),
        Chosen(pages, [i for i, document in enumerate(documents) if document in kept]),
    )


def private_units(silos: Mapping[str, Path], federation: Federation) -> int:
    """How many units the federation's privacy plan protects, over all silos' folders, without reading a picture.

    Only where one process has all silos: what a silo holds is its own. PrivacyError for a unit in two silos.
    """
    assert federation.privacy is not None
    unit = federation.privacy.mechanism.unit
    if unit is Unit.CLIENT:
        return len(silos)
    of = provider_names if unit is Unit.PROVIDER else document_names
    training = {name: open_party(path, federation, name=name).training for name, path in silos.items()}
    owned = {name: set(pages.names(of)) - {""} for name, pages in training.items() if isinstance(pages, Chosen)}
    check_owners(owned, unit)
    return sum(len(names) for names in owned.values())


def _apart(pages: Sequence[Page], federation: Federation) -> list[str]:
    """What each page is kept or trained on with: its document, or its provider where a plan protects providers."""
    by_provider = federation.privacy is not None and federation.privacy.mechanism.unit is Unit.PROVIDER
    names = provider_names(pages) if by_provider else document_names(pages)
    return [name or f"page {i}" for i, name in enumerate(names)]


def model_of(federation: Federation, device: str, source: str = "") -> DocumentModel:
    """The model of this process, ready for the federation's objective: silos that share a process take turns with it.

    ``source`` is where this party has the model, if the federation's name of it means nothing here.
    """
    return _model(source or federation.model, federation.local.objective, federation.seed, device)


def fresh_model_of(federation: Federation, device: str) -> DocumentModel:
    """``model_of`` with the checkpoint's own weights, whatever was trained in this process before."""
    _model.cache_clear()
    return model_of(federation, device)


@lru_cache(maxsize=1)
def _model(source: str, objective: str, seed: int, device: str) -> DocumentModel:
    model = load_model(source, device=device)
    objective_of(objective).prepare(model, generator=torch.Generator().manual_seed(seed))
    return model


def fingerprint(model: DocumentModel) -> str:
    """A hash of architecture, names and shapes of what is trained, equal where weights can be exchanged."""
    shapes = [(name, tuple(p.shape)) for name, p in trainable(model.module)]
    return hashlib.sha256(repr((model.architecture, shapes)).encode()).hexdigest()[:16]


def introduce(party: Party, model: DocumentModel, *, private: bool = False) -> Introduction:
    """What the server must know before it trusts a round to this silo; no counts where a plan protects them."""
    pages, kept = len(party.training), len(party.kept)
    if private:
        pages, kept = min(pages, 1), min(kept, 1)
    return Introduction(party.name, party.source, pages, kept, fingerprint(model))


def private_round(
    party: Party,
    model: DocumentModel,
    weights: Mapping[str, NDArray[np.float32]],
    federation: Federation,
    *,
    clients_drawn: int,
    randomness: Randomness,
) -> ClientUpdate:
    """A round under the federation's privacy plan, from the server's ``weights``: the update, which is all that leaves.

    ``randomness`` is the silo's own and fresh: the federation's seed is known to the server.
    """
    assert federation.privacy is not None
    return client_round(
        model, party.training, federation.privacy, federation.local, weights=weights, client=party.name,
        clients_drawn=clients_drawn, randomness=randomness,
    ).update  # fmt: skip


def train_round(
    party: Party, model: DocumentModel, weights: Mapping[str, NDArray[np.float32]], federation: Federation, number: int
) -> PartyRound:
    """Round ``number`` of this silo, from the server's ``weights``."""
    began = time.perf_counter()
    set_parameters(model, dict(weights))
    del weights  # a copy of the model less while it trains, where the caller keeps none
    rng = federation.client_rng(party.name, number)
    trained = train_locally(model, party.training, federation.local, client=party.name, rng=rng)
    return PartyRound(trained, time.perf_counter() - began)


def evaluate(
    party: Party, model: DocumentModel, weights: Mapping[str, NDArray[np.float32]]
) -> tuple[DocumentScore, ...]:
    """ANLS and accuracy of the server's ``weights`` on the pages this silo keeps, document by document."""
    set_parameters(model, dict(weights))
    found: dict[str, DocumentScore] = {}
    for number in range(len(party.kept)):
        page = party.kept[number]
        document = page.document or f"page {number}"
        for similarity, right in _answered(model, page):
            before = found.get(document, DocumentScore(party.source, 0.0, 0.0, 0))
            found[document] = DocumentScore(
                party.source, before.anls + similarity, before.accuracy + right, before.questions + 1
            )
    return tuple(found.values())


def _answered(model: DocumentModel, page: Page) -> Iterator[tuple[float, float]]:
    """ANLS and accuracy per question of the page that has an answer."""
    questions = [question for question in page.questions if question.answers]
    fitted = model.fit(page)
    pixels = pixels_of(fitted.image, next(model.module.parameters()).device)
    training = model.module.training
    model.module.eval()
    for start in range(0, len(questions), ANSWERED_TOGETHER):
        asked = questions[start : start + ANSWERED_TOGETHER]
        with torch.no_grad():
            answers = model.answer(
                pixels.expand(len(asked), *pixels.shape), [model.encode(fitted, question) for question in asked]
            )
        for question, answer in zip(asked, answers, strict=True):
            yield anls(answer.text, question.answers), accuracy(answer.text, question.answers)
    model.module.train(training)
