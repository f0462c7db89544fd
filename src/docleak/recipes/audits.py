"""Recipes of the kind ``audit``: every row x model x page is a unit, one attack on what one client sends.

A row's folder is a run directory (see ``evidence.run``). Settings are the fields of ``AuditConfig`` (attack instead of
attacks, to which attack_options are added) and of ``Exposure``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from docleak.errors import RecipeError
from docleak.evidence.audit import AuditConfig, Unit, open_audit, planned_units, run_unit, units_of
from docleak.evidence.case import Exposure
from docleak.models.base import STAGES
from docleak.recipes.recipe import Recipe, Row
from docleak.recipes.runner import Job, Planned, places
from docleak.runs.run import Run

EXPOSURE = frozenset(f.name for f in fields(Exposure))
SETTINGS = (EXPOSURE | {f.name for f in fields(AuditConfig)} | {"attack", "attack_options"}) - {
    "models",
    "attacks",
    "exposure",
}
METRICS = ("binary", "fuzz_ratio", "psnr", "fft2d", "mse")
#: What the command line may change.
OPTIONS = ("models", "image_sizes", "documents", "pages", "budget", "seed")


@dataclass(frozen=True)
class AuditJob(Job):
    """One attack on one page."""

    config: AuditConfig
    unit: Unit

    @property
    def id(self) -> str:
        return self.unit.id

    @property
    def turn(self) -> int:
        return self.unit.page

    @property
    def file_name(self) -> str:
        return self.run.folder(self.id).name

    @property
    def run(self) -> Run:
        """The run directory that the unit belongs to."""
        return Run(self.folder)

    def finished(self) -> bool:
        return self.run.has(self.id)

    def compute(self) -> None:
        run_unit(self.run, self.config, self.unit, self.device, lambda *event: None)


@dataclass(frozen=True)
class AuditExperiment:
    """One row on one model: its config and where its results are."""

    row: Row
    model: str
    config: AuditConfig
    folder: Path

    def open(self, *, device: str, command: str) -> None:
        """Begin or resume the run directory."""
        open_audit(self.config, self.folder, device=device, command=command)

    def jobs(self, device: str) -> list[AuditJob]:
        """A job per page."""
        return [AuditJob(self.folder, device, self.config, unit) for unit in planned_units(self.config, device)]


def experiments(recipe: Recipe, scale: str, out: Path, changes: Mapping[str, Any]) -> list[AuditExperiment]:
    """Every row on each of its models."""
    return [
        AuditExperiment(row, model, config_of(recipe, row, model, scale, changes), folder)
        for row, model, folder in places(recipe, scale, out)
    ]


def config_of(recipe: Recipe, row: Row, model: str, scale: str, changes: Mapping[str, Any]) -> AuditConfig:
    """What one row runs on one model; ``changes`` come from the command line and win.

    ``changes["models"]`` maps names of models to checkpoints, ``changes["image_sizes"]`` to page sizes;
    ``changes["documents"]`` holds one data set.
    """
    source, settings = recipe.settings(row, model, scale, changes)
    if size := settings.pop("image_sizes", {}).get(model):
        settings["image_size"] = size
    if isinstance(documents := settings.get("documents", ""), tuple):
        if len(documents) != 1:
            raise RecipeError(f"recipe {recipe.name!r} attacks pages of one data set, and was given {len(documents)}.")
        settings["documents"] = documents[0]
    if unknown := [stage for stage in settings.get("stages", ()) if stage not in STAGES]:
        raise RecipeError(f"unknown stage {', '.join(map(str, unknown))}; expected some of {', '.join(STAGES)}.")
    exposed = {key: settings.pop(key) for key in list(settings) if key in EXPOSURE}
    if "stages" in exposed:
        exposed["stages"] = tuple(exposed["stages"])
    attack, options = settings.pop("attack", "gi-dqa"), settings.pop("attack_options", "")
    attack = f"{attack}:{options}" if options else attack
    return AuditConfig(models=(source,), attacks=(attack,), exposure=Exposure(**exposed), **settings)


def plan(planned: Sequence[AuditExperiment]) -> list[Planned]:
    """Documents and gradient evaluations."""
    found = []
    for e in planned:
        units, budget = len(units_of(e.config)), e.config.budget
        words = f"{units} documents x {budget} evaluations"
        found.append(Planned(e.row.name, e.config.models[0], units, words, {"evaluations": budget}))
    return found


def facts_of(planned: Sequence[AuditExperiment]) -> dict[str, str]:
    """What is the same in all rows: models as in their signatures, seed and documents."""
    done = [Run(e.folder) for e in planned if (e.folder / "run.json").is_file()]
    signatures = dict.fromkeys(str(run.info.get("signature", "")).split(" | ")[3] for run in done)
    first = done[0].config
    return {"Models": ", ".join(signatures), "Seed": str(first["seed"]), "Documents": str(first["documents"])}
