"""About how long the rows of an extraction recipe would take, from one timed step of their model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

import torch

from docleak.documents import load_pages
from docleak.models.encoders.loading import load_encoder
from docleak.models.encoders.vision import VisionConfig
from docleak.recipes.extraction.config import ExtractionConfig, Fitting
from docleak.recipes.extraction.experiment import ExtractionExperiment
from docleak.recipes.extraction.measures import attack_folder, fields_done
from docleak.recipes.extraction.store import card_of, folder_of
from docleak.recipes.runner import Forecast
from docleak.training.extraction.fit import FitConfig, fit

#: Guesses for what is only known when it was read: pages of a whole data set, fields, and tokens of a field.
PAGES, FIELDS, TOKENS = 500, 800, 6.6
#: A forward pass costs about so much of a training step; different prefixes that the attempts need, of all.
FORWARD, DISTINCT = 0.35, 0.5
TIMED = 8


def forecasts(planned: Sequence[ExtractionExperiment]) -> list[Forecast]:
    """A guess per row; a model or attack is counted in the first row that needs it, and not where it is finished."""
    found, seen = [], set()
    for e in planned:
        c, seconds, words = e.config, 0.0, "pages not given"
        if c.given:
            each = _seconds_per_page(c.model, c.bimodal, c.max_tokens, c.dropout)
            needed = [c.target()] if c.shows == "validation" else [c.target(), c.public()]
            missing = [f for f in needed if card_of(f, e.store) is None and folder_of(f, e.store) not in seen]
            seen |= {folder_of(f, e.store) for f in missing}
            seconds = sum(each * _steps(f) for f in missing)
            words = f"{c.task} of {c.data}, {len(missing)} models to be trained"
            folder = attack_folder(c, e.store)
            if c.shows != "validation" and folder not in seen:
                left = max(0, (c.fields or FIELDS) - fields_done(c, e.store))
                seconds += FORWARD * each * left * _calls(c)
                seen.add(folder)
        found.append(Forecast(e.row.name, e.model, int(c.given), words, seconds, {"target": c.target().name}))
    return found


def _steps(fitting: Fitting) -> float:
    """Pages that a training passes through the model: half of what validation leaves, each epoch."""
    pages = (fitting.data.pages or PAGES) * (1 - fitting.data.validation) / 2
    private = fitting.private
    return pages * (private.rounds * private.rate if private else fitting.training.epochs)


def _calls(config: ExtractionConfig) -> float:
    """Pages passed through the models to attack a field."""
    prefixes = TOKENS * (1 + DISTINCT * (config.attempts - 1))
    return prefixes * (2 if config.task == "mlm" else 2 + config.candidates)


@lru_cache(maxsize=8)
def _seconds_per_page(source: str, bimodal: bool, max_tokens: int, dropout: float) -> float:
    """Seconds of one page in training on one CPU thread, of synthetic invoices; the first step of a process is slow."""
    torch.set_num_threads(1)
    model = load_encoder(source, task="mlm", vision=VisionConfig() if bimodal else None)
    if max_tokens:
        model.max_tokens = min(model.max_tokens, max_tokens)
    pages = [model.encode(page) for page in load_pages("synthetic", count=TIMED, seed=0)]
    taken = []
    for _ in range(2):
        began = time.perf_counter()
        fit(model, pages, pages[:1], FitConfig(epochs=1), seed=0)
        taken.append(time.perf_counter() - began)
    return min(taken) / TIMED
