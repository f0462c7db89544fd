"""Recipes of the kind ``release``: every row is a unit, and rows that attack the same target share it.

OUT/rows/03-vt5/result.json            what was measured (see ``measures``)
OUT/../docleak-releases/               the targets and what they said (see ``store``), beside the folder of the table
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docleak.files import read_stored, reported, write_json
from docleak.recipes.manifest import note_row
from docleak.recipes.recipe import Recipe, Row
from docleak.recipes.releases.config import WITHOUT_MODEL, ReleaseConfig, named_by_user
from docleak.recipes.releases.measures import Measured, from_json, measured, to_json
from docleak.recipes.releases.presets import NONE
from docleak.recipes.releases.store import finished, folder_of, rounds_done
from docleak.recipes.runner import Job, Planned, places

#: What the command line may change.
OPTIONS = ("documents", "rounds", "seed")
STORE = "docleak-releases"
RESULT = "result.json"


@dataclass(frozen=True)
class ReleaseJob(Job):
    """One row. ``number`` rows before it attack the same target."""

    config: ReleaseConfig
    store: Path
    number: int

    @property
    def id(self) -> str:
        return self.config.measure

    @property
    def turn(self) -> int:
        return self.number

    def progress(self) -> str:
        return f"-{rounds_done(self.config.released(), self.store)}"

    def finished(self) -> bool:
        return (self.folder / RESULT).is_file()

    def compute(self) -> None:
        found = measured(self.config, self.store, self.folder, self.device)
        with reported(self.folder):
            write_json(self.folder / RESULT, to_json(found))


@dataclass(frozen=True)
class ReleaseExperiment:
    """One row on one model. ``store`` holds the targets of all tables."""

    row: Row
    model: str
    config: ReleaseConfig
    folder: Path
    store: Path
    number: int

    def open(self, *, device: str, command: str) -> None:
        """Note the settings; RunError for a folder of others."""
        note_row(self.folder, self.config.to_json(), command)

    def jobs(self, device: str) -> list[ReleaseJob]:
        """The row's only unit."""
        return [ReleaseJob(self.folder, device, self.config, self.store, self.number)]

    def result(self) -> Measured | None:
        """What was measured, or None while it is not."""
        file = self.folder / RESULT
        return from_json(read_stored(file)) if file.is_file() else None


def experiments(recipe: Recipe, scale: str, out: Path, changes: Mapping[str, Any]) -> list[ReleaseExperiment]:
    """Every row on each of its models; of rows with the same target, one comes first and trains it."""
    found: list[ReleaseExperiment] = []
    seen: dict[str, int] = {}
    store = out.absolute().parent / STORE
    for row, model, folder in places(recipe, scale, out):
        config = config_of(recipe, row, model, scale, changes)
        key = str(folder_of(config.released(), store))
        seen[key] = seen.get(key, -1) + 1
        found.append(ReleaseExperiment(row, model, config, folder, store, seen[key]))
    return found


def config_of(recipe: Recipe, row: Row, model: str, scale: str, changes: Mapping[str, Any]) -> ReleaseConfig:
    """What one row measures; ``changes`` come from the command line and win. RecipeError where paths are missing."""
    given = {key: value for key, value in changes.items() if key not in ("documents", "rounds")}
    source, settings = recipe.settings(row, model, scale, given)
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    if specs := changes.get("documents"):
        settings["data"] = {**settings.get("data", {}), "documents": specs[0]}
    if rounds := changes.get("rounds"):
        settings["training"] = {**settings.get("training", {}), "rounds": rounds}
    return named_by_user(ReleaseConfig(model=source, **settings), recipe.name)


def plan(planned: Sequence[ReleaseExperiment]) -> list[Planned]:
    """What each row measures; a target is trained by the first row that needs it, unless it is there."""
    found, seen = [], set()
    for e in planned:
        target = e.config.released()
        words, key = f"{e.config.measure} of {target.name}", folder_of(target, e.store)
        if e.config.measure not in WITHOUT_MODEL and key not in seen and finished(target, e.store) is None:
            words += ", to be trained"
        seen.add(key)
        found.append(Planned(e.row.name, e.model, 1, words, {"target": target.name}))
    return found


def facts_of(planned: Sequence[ReleaseExperiment]) -> dict[str, str]:
    """Model, documents, where the targets are, and how each was trained."""
    first = planned[0].config.released()
    data = first.data
    documents = data.documents if data.documents != "issuers" else (
        f"synthetic invoices of {data.providers} providers, {data.per_provider:g} documents each on average"
    )  # fmt: skip
    facts = {"Models": ", ".join(dict.fromkeys(e.config.model for e in planned)), "Seed": f"{first.seed}",
             "Documents": documents}  # fmt: skip
    if all(e.config.measure in WITHOUT_MODEL for e in planned):
        return facts
    facts["Targets"] = f"in {planned[0].store.name}, beside this folder, for all tables"
    for e in planned:
        target = e.config.released()
        done = finished(target, e.store)
        if target.kind != NONE:
            took = f"; {done.seconds:.0f} s" if done else ""
            facts[target.name] = target.training.sentence(bool(target.epsilon)) + took
    return facts
