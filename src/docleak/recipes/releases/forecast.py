"""About how long the rows of a release recipe would take, from one timed step of their model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from docleak.documents.issuers import FIRST, make_issuers
from docleak.models.loading import load_model
from docleak.recipes.releases.config import WITHOUT_MODEL, Target
from docleak.recipes.releases.experiment import ReleaseExperiment
from docleak.recipes.releases.presets import NONE
from docleak.recipes.releases.store import finished, folder_of
from docleak.recipes.runner import Forecast
from docleak.training.federated.local import batch_loss
from docleak.training.objectives.table import QUESTIONS, objective_of

#: Questions of a page (synthetic ones, and about PFL-DocVQA's), and pages of PFL-DocVQA that are trained on.
QUESTIONS_OF_PAGE, OFFICIAL_PAGES = 4, 71_794
#: Asking is about so many times as fast per question as training.
ASKING = 0.7
TIMED_TOGETHER = 8


def forecasts(planned: Sequence[ReleaseExperiment]) -> list[Forecast]:
    """A guess per row; a target is counted in the first row that needs it, and not at all where it is finished."""
    found, seen = [], set()
    for e in planned:
        target = e.config.released()
        words, seconds = f"{e.config.measure} of {target.name}", 0.0
        if e.config.measure not in WITHOUT_MODEL:
            each, key = _seconds_per_example(e.config.model), folder_of(target, e.store)
            if key not in seen and finished(target, e.store) is None:
                seconds += each * trained_examples(target)
                words += ", to be trained"
            again = 0.1 if key in seen else 1.0  # what was said is on disk, and only read again
            seconds += again * ASKING * each * asked_questions(target)
            seen.add(key)
        found.append(Forecast(e.row.name, e.model, 1, words, seconds, {"target": target.name}))
    return found


def trained_examples(target: Target) -> float:
    """About how many questions are trained on, over all rounds; a page of synthetic documents is one document."""
    data, plan, training = target.data, target.data.plan, target.training
    if target.kind == NONE:
        return 0.0
    kept = 1 - plan.red - plan.test - plan.validation
    pages = OFFICIAL_PAGES if data.official else data.providers * plan.inside * data.per_provider * kept
    share = training.participation * (training.unit_rate if target.epsilon else 1.0)
    return QUESTIONS_OF_PAGE * pages * share * training.rounds * training.epochs


def asked_questions(target: Target) -> float:
    """About how many questions a measure asks of target and public model together."""
    data = target.data
    pages = 2_600 if data.official else data.providers * data.per_provider * data.plan.red
    return 2 * QUESTIONS_OF_PAGE * pages


@lru_cache(maxsize=4)
def _seconds_per_example(source: str) -> float:
    """Seconds that a training example takes on one CPU thread; the first step of a process is slow."""
    torch.set_num_threads(1)
    model, task = load_model(source), objective_of(QUESTIONS)
    pages = list(make_issuers([FIRST, FIRST + 1, FIRST + 2], [1, 1, 1], seed=0))
    examples = task.examples(pages)[:TIMED_TOGETHER]
    taken = []
    for _ in range(2):
        began = time.perf_counter()
        batch_loss(model, pages, examples, task, np.random.default_rng(0)).backward()  # type: ignore[no-untyped-call]
        taken.append(time.perf_counter() - began)
    return min(taken) / len(examples)
