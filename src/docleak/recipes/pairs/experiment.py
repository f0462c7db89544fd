"""Recipes of the kind ``pairs``: every row x model x batch is a unit, one attack on one client's two gradients.

A row's folder is a run of ``evidence.pairs``. Settings are the fields of ``PairConfig``, of which a model's checkpoint
"IMAGE+TEXT" gives both networks, and ``attack`` stands for ``attacks``; ``show`` names the columns of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from docleak.errors import RecipeError
from docleak.evidence.pairs.play import PairConfig, attack_batch, open_pairs, privacy_of, setting_of, unit_id
from docleak.files import read_stored, reported, write_json
from docleak.recipes.recipe import Recipe, Row
from docleak.recipes.runner import Job, Planned, places
from docleak.runs.run import Run

SETTINGS = ({f.name for f in fields(PairConfig)} | {"attack", "show"}) - {"attacks", "image", "text"}
#: What the command line may change.
OPTIONS = ("documents", "pages", "budget", "seed")
#: What stands in a recipe where the user's own directory belongs.
PLACEHOLDER = "PATH"
PRIVACY = "privacy.json"


@dataclass(frozen=True)
class PairJob(Job):
    """The attack on one batch."""

    config: PairConfig
    number: int

    @property
    def id(self) -> str:
        return unit_id(self.config.attacks[0], self.number)

    @property
    def turn(self) -> int:
        return self.number

    def finished(self) -> bool:
        return Run(self.folder).has(self.id)

    def compute(self) -> None:
        attack_batch(Run.load(self.folder), setting_of(self.config), self.config.attacks[0], self.number)


@dataclass(frozen=True)
class PrivacyJob(Job):
    """What the row's noise guarantees and costs."""

    config: PairConfig

    @property
    def id(self) -> str:
        return "privacy"

    @property
    def turn(self) -> int:
        return 0

    def finished(self) -> bool:
        return (self.folder / PRIVACY).is_file()

    def compute(self) -> None:
        with reported(self.folder):
            write_json(self.folder / PRIVACY, privacy_of(setting_of(self.config)))


@dataclass(frozen=True)
class PairExperiment:
    """One row on one model."""

    row: Row
    model: str
    config: PairConfig
    show: tuple[str, ...]
    folder: Path

    def open(self, *, device: str, command: str) -> None:
        """Begin or resume the run directory; its facts are in its configuration."""
        run = open_pairs(self.config, self.folder)
        run.write_info("command", command)

    def jobs(self, device: str) -> list[Job]:
        """A job per batch, and one for the privacy where there is some to tell of."""
        batches = range(self.config.count // self.config.batch_size)
        found: list[Job] = [PairJob(self.folder, device, self.config, number) for number in batches]
        if self.config.epsilon or self.config.utility:
            found.append(PrivacyJob(self.folder, device, self.config))
        return found

    def privacy(self) -> dict[str, Any]:
        """What ``PrivacyJob`` wrote, {} while it has not."""
        file = self.folder / PRIVACY
        return dict(read_stored(file)) if file.is_file() else {}


def experiments(recipe: Recipe, scale: str, out: Path, changes: Mapping[str, Any]) -> list[PairExperiment]:
    """Every row on each of its models that the scale has a checkpoint of."""
    found = []
    sources = recipe.scales.get(scale, {}).get("models", {})
    for row, model, folder in places(recipe, scale, out):
        if model not in sources:
            continue
        config, show = config_of(recipe, row, model, scale, changes)
        found.append(PairExperiment(row, model, config, show, folder))
    return found


def config_of(
    recipe: Recipe, row: Row, model: str, scale: str, changes: Mapping[str, Any]
) -> tuple[PairConfig, tuple[str, ...]]:
    """What one row attacks, and the columns it shows; ``changes`` come from the command line and win.

    RecipeError for a model that is not "IMAGE+TEXT", and where a path of the user's is missing.
    """
    given = {key: value for key, value in changes.items() if key not in ("documents", "pages")}
    source, settings = recipe.settings(row, model, scale, given)
    image, plus, text = source.partition("+")
    if not plus or not image or not text:
        raise RecipeError(f"recipe {recipe.name!r} names {source!r} for {model!r}; expected IMAGE+TEXT.")
    if specs := changes.get("documents"):
        settings["pairs"] = specs[0]
    if count := changes.get("pages"):
        settings["count"] = count
    show = tuple(settings.pop("show", ("ssim", "rouge_l")))
    attack = str(settings.pop("attack", "mmgia"))
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    config = PairConfig(image=image, text=text, attacks=(attack,), **settings)
    if PLACEHOLDER in config.pairs:
        raise RecipeError(
            f"recipe {recipe.name!r} needs its pairs: --documents {config.pairs.replace(PLACEHOLDER, 'DIR')}; "
            "docs/pairs.md says which layouts are read."
        )
    return config, show


def plan(planned: Sequence[PairExperiment]) -> list[Planned]:
    """Batches and gradient evaluations."""
    found = []
    for e in planned:
        units, budget = e.config.count // e.config.batch_size, e.config.budget
        words = f"{units} batches x {budget} evaluations of each modality"
        found.append(Planned(e.row.name, e.model, units, words, {"evaluations": budget}))
    return found


def facts_of(planned: Sequence[PairExperiment]) -> dict[str, str]:
    """What is the same in all rows, and what each privacy guarantee is."""
    first = planned[0].config
    facts = {
        "Models": ", ".join(dict.fromkeys(f"{e.config.image}+{e.config.text}" for e in planned)),
        "Pairs": f"{first.count} of {first.pairs.split(':')[0]}, pictures of {first.image_size[0]} x "
        f"{first.image_size[1]} pixels",
        "Budget": f"{first.budget} gradient evaluations of each modality per batch",
        "Aligner": first.aligner,
        "Seed": str(first.seed),
    }
    for e in planned:
        if claim := e.privacy().get("claim"):
            facts[e.row.name] = str(claim)
    return facts
