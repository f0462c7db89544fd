"""Recipes of the kind ``training``: every row x model x seed is a unit.

OUT/data/                     the documents, divided (see ``data``)
OUT/models/                   models that read less than their checkpoint says
OUT/rows/03-fedocvqa/         row.json, and a folder per unit (see ``unit``)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from docleak.errors import RecipeError
from docleak.files import drafted_folder
from docleak.models.base import DocumentModel
from docleak.models.loading import load_model, short_name
from docleak.models.t5 import T5Reader
from docleak.recipes.manifest import note_row, require_same
from docleak.recipes.recipe import Recipe, Row
from docleak.recipes.runner import Job, Planned, places
from docleak.recipes.trainings.config import PRETRAINING, TrainingConfig, named_by_user
from docleak.recipes.trainings.data import find, prepare
from docleak.recipes.trainings.unit import RESULT, run_training
from docleak.training.federated.cost import Cost
from docleak.training.federated.record import FederatedRun
from docleak.training.lineage import lineage_of, write_lineage
from docleak.training.objectives.table import objective_of

#: What the command line may change.
OPTIONS = ("documents", "test_documents", "pages", "rounds", "seed")


@dataclass(frozen=True)
class TrainingJob(Job):
    """One training. ``data`` and ``config.model`` are as ``TrainingExperiment.open`` left them."""

    config: TrainingConfig
    number: int
    data: Path

    @property
    def id(self) -> str:
        return f"seed-{self.config.seed + self.number}"

    @property
    def turn(self) -> int:
        return self.number

    @property
    def path(self) -> Path:
        """The unit's folder."""
        return self.folder / self.id

    def progress(self) -> str:
        return f"-{sum(FederatedRun(self.path / phase).last_round() for phase in self.config.phases(0))}"

    def finished(self) -> bool:
        return (self.path / RESULT).is_file()

    def compute(self) -> None:
        run_training(self.config, self.config.seed + self.number, find(self.config, self.data), self.path, self.device)


@dataclass(frozen=True)
class TrainingExperiment:
    """One row on one model. ``out`` is the folder of the whole table."""

    row: Row
    model: str
    config: TrainingConfig
    folder: Path
    out: Path

    def open(self, *, device: str, command: str) -> None:
        """Divide the documents and cut the model, if nobody did; RunError for a folder of other settings."""
        asked = self.config.to_json()
        require_same(self.folder, asked)
        prepare(self.config, self.out / "data")
        self._cut_model()
        note_row(self.folder, asked, command)

    def jobs(self, device: str) -> list[TrainingJob]:
        """A job per seed."""
        config = replace(self.config, model=str(self._cut) if self.config.max_tokens else self.config.model)
        return [TrainingJob(self.folder, device, config, n, self.out / "data") for n in range(self.config.seeds)]

    @property
    def _cut(self) -> Path:
        return (self.out / "models" / f"{short_name(self.config.model)}-{self.config.max_tokens}").absolute()

    def _cut_model(self) -> None:
        if self.config.max_tokens and not (self._cut / "config.json").is_file():
            with drafted_folder(self._cut) as draft:
                reads_less(load_model(self.config.model), self.config.max_tokens).save(str(draft))
                write_lineage(draft, lineage_of(self.config.model))


def reads_less(model: DocumentModel, max_tokens: int) -> T5Reader:
    """The model, which now reads ``max_tokens`` of a page at most; RecipeError for one that cannot be told."""
    if not isinstance(model, T5Reader):
        raise RecipeError(
            f"max_tokens is {max_tokens}, but {model.name!r} is a {model.architecture}; expected vt5 or fedocvqa. "
            "Leave max_tokens out."
        )
    model.config = replace(model.config, max_tokens=min(max_tokens, model.config.max_tokens))
    return model


def plan(planned: Sequence[TrainingExperiment]) -> list[Planned]:
    """Rounds, clients, and the bytes that are sent."""
    found = []
    for e in planned:
        config, phases = e.config, e.config.phases(e.config.seed)
        costs = [(_cost(config, federation.local.objective), federation) for federation in phases.values()]
        sent = sum(cost.sent(federation, config.clients) for cost, federation in costs)
        published = sum(cost.as_published(federation, config.clients) for cost, federation in costs)
        phrases = [f"{config.pretraining_rounds} rounds of {config.pretraining}"] if PRETRAINING in phases else []
        phrases += [f"{config.rounds} rounds"] if config.rounds else []
        words = (
            f"{config.seeds} x {' + '.join(phrases) or 'no training'}, K = {config.clients}, {sent / 2**20:,.0f} MiB"
        )
        facts = {"clients": config.clients, "rounds": [federation.rounds for federation in phases.values()],
                 "bytes": sent, "bytes_as_published": published}  # fmt: skip
        found.append(Planned(e.row.name, short_name(config.model), config.seeds, words, facts))
    return found


def _cost(config: TrainingConfig, objective: str) -> Cost:
    """What of the model travels; what self-pretraining adds to it stays in it."""
    return _cost_of(config.model, config.max_tokens, config.pretraining or objective, config.seed)


@lru_cache(maxsize=8)
def _cost_of(source: str, max_tokens: int, objective: str, seed: int) -> Cost:
    model = load_model(source)
    model = reads_less(model, max_tokens) if max_tokens else model
    objective_of(objective).prepare(model, generator=torch.Generator().manual_seed(seed))
    return Cost.of(model.module)


def experiments(recipe: Recipe, scale: str, out: Path, changes: Mapping[str, Any]) -> list[TrainingExperiment]:
    """Every row on each of its models."""
    return [
        TrainingExperiment(row, model, config_of(recipe, row, model, scale, changes), folder, out)
        for row, model, folder in places(recipe, scale, out)
    ]


def config_of(recipe: Recipe, row: Row, model: str, scale: str, changes: Mapping[str, Any]) -> TrainingConfig:
    """What one row trains; ``changes`` come from the command line and win.

    ``changes["rounds"]`` is for both phases, and leaves a phase out that the recipe leaves out. RecipeError if the
    recipe waits for paths that the command line does not give.
    """
    rounds = changes.get("rounds")
    source, settings = recipe.settings(row, model, scale, {k: v for k, v in changes.items() if k != "rounds"})
    if rounds:
        settings |= {"pretraining_rounds": rounds, "rounds": rounds if settings.get("rounds", 1) else 0}
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    return named_by_user(TrainingConfig(model=source, **settings), recipe.name)


def facts_of(planned: Sequence[TrainingExperiment]) -> dict[str, str]:
    """What is the same in all rows: model, data sets and seeds."""
    config = planned[0].config
    return {
        "Models": ", ".join(dict.fromkeys(e.config.model for e in planned)),
        "Seed": f"{config.seed}" + (f" to {config.seed + config.seeds - 1}" if config.seeds > 1 else ""),
        "Documents": ", ".join(config.documents),
    }
