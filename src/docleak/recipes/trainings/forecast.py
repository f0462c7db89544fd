"""What the rows of a training recipe would send, and about how long they would take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import numpy as np
import torch

from docleak.documents.loaders import load_pages
from docleak.documents.page import Page
from docleak.models.base import DocumentModel
from docleak.models.loading import load_model, short_name
from docleak.recipes.runner import Forecast
from docleak.recipes.trainings.config import PRETRAINING, TrainingConfig
from docleak.recipes.trainings.experiment import TrainingExperiment, reads_less
from docleak.training.federated.cost import Cost
from docleak.training.federated.local import batch_loss
from docleak.training.objectives.objective import Example, Objective
from docleak.training.objectives.table import objective_of

#: So many pages of each data set are looked at, and a step of so many examples is timed.
LOOKED_AT, TIMED_TOGETHER = 8, 4


def forecasts(planned: Sequence[TrainingExperiment]) -> list[Forecast]:
    """Bytes, and a guess of the time from one timed step and the questions of each data set's first pages."""
    return [_forecast(e) for e in planned]


def _forecast(e: TrainingExperiment) -> Forecast:
    config = e.config
    phases = config.phases(config.seed)
    sent = published = 0
    seconds = 0.0
    for federation in phases.values():
        objective = federation.local.objective
        layout = config.pretraining or objective  # what self-pretraining adds to a model stays in it
        cost, each = _timed(config.model, config.max_tokens, objective, layout, config.documents, config.seed)
        sent += cost.sent(federation, config.clients)
        published += cost.as_published(federation, config.clients)
        examples = _examples(config, objective) * federation.participation * federation.local.epochs
        seconds += federation.rounds * examples * each
    phrases = [f"{config.pretraining_rounds} rounds of {config.pretraining}"] if PRETRAINING in phases else []
    phrases += [f"{config.rounds} rounds"] if config.rounds else []
    words = f"{config.seeds} x {' + '.join(phrases) or 'no training'}, K = {config.clients}, {sent / 2**20:,.0f} MiB"
    facts = {"clients": config.clients, "rounds": [federation.rounds for federation in phases.values()],
             "bytes": sent, "bytes_as_published": published}  # fmt: skip
    return Forecast(e.row.name, short_name(config.model), config.seeds, words, config.seeds * seconds, facts)


@lru_cache(maxsize=8)
def _first_pages(documents: tuple[str, ...], seed: int) -> tuple[tuple[Page, ...], ...]:
    """The first pages of each data set."""
    opened = (load_pages(spec, count=LOOKED_AT, seed=seed + number) for number, spec in enumerate(documents))
    return tuple(tuple(pages[i] for i in range(len(pages))) for pages in opened)


def _examples(config: TrainingConfig, objective: str) -> float:
    """About how many examples all clients together have."""
    kept = config.validation_share + (0.0 if config.test_documents else config.test_share)
    total = 0.0
    for number, first in enumerate(_first_pages(config.documents, config.seed)):
        count = len(load_pages(config.documents[number], count=config.pages or None, seed=config.seed + number))
        total += count * (1 - kept) * len(objective_of(objective).examples(first)) / len(first)
    return total


@lru_cache(maxsize=8)
def _timed(
    source: str, max_tokens: int, objective: str, prepared: str, documents: tuple[str, ...], seed: int
) -> tuple[Cost, float]:
    """What of the model travels, ``prepared`` for another objective, and the seconds that an example takes on one CPU
    thread."""
    task, model = objective_of(objective), load_model(source)
    model = reads_less(model, max_tokens) if max_tokens else model
    objective_of(prepared).prepare(model, generator=torch.Generator().manual_seed(seed))
    pages = list(chain(*zip(*_first_pages(documents, seed), strict=False)))
    examples = task.examples(pages)
    chosen = [examples[i] for i in np.random.default_rng(seed).permutation(len(examples))[:TIMED_TOGETHER]]
    torch.set_num_threads(1)
    return Cost.of(model.module), min(_step_seconds(model, pages, chosen, task) for _ in range(2)) / len(chosen)


def _step_seconds(model: DocumentModel, pages: Sequence[Page], examples: Sequence[Example], task: Objective) -> float:
    """One forward and backward pass; the first one of a process is slow."""
    began = time.perf_counter()
    batch_loss(model, pages, examples, task, np.random.default_rng(0)).backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - began
