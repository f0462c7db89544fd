"""A silo's side of a federation, without any engine: introduce itself, train, evaluate."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from docleak.errors import FederationError
from docleak.models.base import DocumentModel, trainable
from docleak.models.loading import load_model
from docleak.privacy.randomness import Randomness
from docleak.spec import counted_words
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.local import LocalRound, set_parameters, train_locally
from docleak.training.federated.silo import Party
from docleak.training.federated.validation import answered
from docleak.training.objectives.objective import objective_of
from docleak.training.private.moving import require_moving
from docleak.training.private.rounds import client_round


@dataclass(frozen=True)
class Introduction:
    """What a silo tells the server before the first round: its name, its counts, and whose weights it has room for.

    No update of it may count more ``examples`` than these.
    """

    name: str
    source: str
    pages: int
    kept: int
    model: str
    examples: int = 0


@dataclass(frozen=True)
class DocumentScore:
    """Sums over the ``questions`` of one document that were asked, so that any average can be made of them."""

    source: str
    anls: float
    accuracy: float
    questions: int


def model_of(federation: Federation, device: str, source: str = "") -> DocumentModel:
    """The model of this process, ready for the federation's objective: silos that share a process take turns with it.

    ``source`` is where this party has the model, if the federation's name of it means nothing here.
    """
    return _model(source or federation.model, federation.local.objective, federation.seed, device)


def fresh_model_of(federation: Federation, device: str) -> DocumentModel:
    """``model_of`` with the checkpoint's own weights, whatever was trained in this process before.

    PrivacyError for adapters that a private training could not move."""
    _model.cache_clear()
    model = model_of(federation, device)
    if federation.privacy is not None:
        require_moving(model)
    return model


@lru_cache(maxsize=1)
def _model(source: str, objective: str, seed: int, device: str) -> DocumentModel:
    model = load_model(source, device=device, seed=seed)
    objective_of(objective).prepare(model, generator=torch.Generator().manual_seed(seed))
    return model


def fingerprint(model: DocumentModel) -> str:
    """A hash of architecture, names and shapes of what is trained, equal where weights can be exchanged."""
    shapes = [(name, tuple(p.shape)) for name, p in trainable(model.module)]
    return hashlib.sha256(repr((model.architecture, shapes)).encode()).hexdigest()[:16]


def introduce(party: Party, model: DocumentModel, federation: Federation) -> Introduction:
    """What the server must know before it trusts a round to this silo; constants instead of counts where it is to say
    nothing of its own. FederationError where it says them and has nothing to train on."""
    pages, kept, examples = len(party.training), len(party.kept), 1
    if federation.privacy is not None:
        pages, kept = 1, int(federation.holdout > 0)
    elif federation.reticent:
        pages, kept = min(pages, 1), min(kept, 1)
    else:
        objective = objective_of(federation.local.objective)
        if not (examples := len(objective.examples(party.training))):
            raise FederationError(
                f"it has {counted_words(pages, 'page')} and no {objective.needs} to train on. Give it some "
                "(docs/data-format.md), or train without it."
            )
    return Introduction(party.name, party.source, pages, kept, fingerprint(model), examples)


def private_round(
    party: Party, model: DocumentModel, weights: Mapping[str, NDArray[np.float32]], federation: Federation, *,
    clients_drawn: int, randomness: Randomness, on_note: Callable[[str], None] = lambda note: None,
    most: float = math.inf,
) -> ClientUpdate:  # fmt: skip
    """A round under the federation's privacy plan, from the server's ``weights``: the update, which is all that leaves,
    and whose numbers can be ``most`` in size.

    ``randomness`` is the silo's own and fresh: the federation's seed is known to the server. ``on_note`` is told, at
    the silo, what did not go as planned.
    """
    assert federation.privacy is not None
    done = client_round(
        model, party.training, federation.privacy, federation.local, weights=weights, client=party.name,
        clients_drawn=clients_drawn, randomness=randomness, most=most,
    )  # fmt: skip
    for note in done.notes:
        on_note(note)
    return done.update


def train_round(
    party: Party, model: DocumentModel, weights: Mapping[str, NDArray[np.float32]], federation: Federation, number: int
) -> LocalRound:
    """Round ``number`` of this silo, from the server's ``weights``, and the seconds it took."""
    began = time.perf_counter()
    set_parameters(model, dict(weights))
    del weights  # a copy of the model less while it trains, where the caller keeps none
    rng = federation.client_rng(party.name, number)
    trained = train_locally(model, party.training, federation.local, client=party.name, rng=rng)
    return replace(trained, seconds=time.perf_counter() - began)


def evaluate(
    party: Party, model: DocumentModel, weights: Mapping[str, NDArray[np.float32]]
) -> tuple[DocumentScore, ...]:
    """ANLS and accuracy of the server's ``weights`` on the pages this silo keeps, document by document."""
    set_parameters(model, dict(weights))
    scores: dict[str, DocumentScore] = {}
    for number in range(len(party.kept)):
        page = party.kept[number]
        document = page.document or f"page {number}"
        for similarity, right in answered(model, page):
            before = scores.get(document, DocumentScore(party.source, 0.0, 0.0, 0))
            scores[document] = DocumentScore(
                party.source, before.anls + similarity, before.accuracy + right, before.questions + 1
            )
    return tuple(scores.values())
