"""Recipes of the kind ``extraction``: every row is a unit, and rows that need the same model or attack share it.

OUT/rows/03-layoutlm/result.json       what was measured (see ``measures``)
OUT/../docleak-extraction/             models and attacks (see ``store``), beside the folder of the table
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from docleak.errors import RecipeError
from docleak.files import read_stored, reported, write_json
from docleak.metrics.extraction import EPSILON
from docleak.recipes.extraction.config import PLACEHOLDER, SYNTHETIC, ExtractionConfig, assigned, config_of
from docleak.recipes.extraction.measures import Measured, attack_folder, fields_done, from_json, measured, to_json
from docleak.recipes.extraction.store import card_of, folder_of
from docleak.recipes.manifest import note_row
from docleak.recipes.recipe import Recipe, Row
from docleak.recipes.runner import Job, Planned, places

#: What the command line may change.
OPTIONS = ("documents", "pages", "seed")
STORE = "docleak-extraction"
RESULT = "result.json"


@dataclass(frozen=True)
class ExtractionJob(Job):
    """One row. ``number`` rows before it need the same target."""

    config: ExtractionConfig
    store: Path
    number: int

    @property
    def id(self) -> str:
        return self.config.shows

    @property
    def turn(self) -> int:
        return self.number

    def progress(self) -> str:
        return f"-{fields_done(self.config, self.store)}"

    def finished(self) -> bool:
        return (self.folder / RESULT).is_file()

    def compute(self) -> None:
        found = measured(self.config, self.store, self.device)
        with reported(self.folder):
            write_json(self.folder / RESULT, to_json(found))


@dataclass(frozen=True)
class ExtractionExperiment:
    """One row on one model. ``store`` holds the models and attacks of all tables."""

    row: Row
    model: str
    config: ExtractionConfig
    folder: Path
    store: Path
    number: int

    def open(self, *, device: str, command: str) -> None:
        """Note the settings; RunError for a folder of others. A row without pages leaves nothing."""
        if not self.config.given:
            return
        note_row(self.folder, self.config.to_json(), command)

    def jobs(self, device: str) -> list[ExtractionJob]:
        """The row's only unit, if its pages are given."""
        return [ExtractionJob(self.folder, device, self.config, self.store, self.number)] if self.config.given else []

    def result(self) -> Measured | None:
        """What was measured, or None while it is not."""
        file = self.folder / RESULT
        return from_json(read_stored(file)) if file.is_file() else None


def experiments(recipe: Recipe, scale: str, out: Path, changes: Mapping[str, Any]) -> list[ExtractionExperiment]:
    """Every row on each of its models; rows of data sets without pages are there, and not computed.

    RecipeError where no row would be, or a model's directory is missing.
    """
    store = out.absolute().parent / STORE
    found: list[ExtractionExperiment] = []
    seen: dict[Path, int] = {}
    given = {key: value for key, value in changes.items() if key != "documents"}
    asked = [(*place, *recipe.settings(*place[:2], scale, given)) for place in places(recipe, scale, out)]
    bare = [config_of(source, settings) for *_, source, settings in asked]
    wanted = sorted({name for config in bare for name in config.needs()}, reverse=True)
    specs = changes.get("documents") or ([SYNTHETIC] if scale == "tiny" else [])
    documents = assigned(wanted, specs)
    for (row, model, folder, *_), config in zip(asked, bare, strict=True):
        config = replace(config, documents={**config.documents, **documents})
        key = folder_of(config.target(), store)
        seen[key] = seen.get(key, -1) + 1
        found.append(ExtractionExperiment(row, model, config, folder, store, seen[key]))
    _check(recipe, found, wanted)
    return found


def _check(recipe: Recipe, planned: Sequence[ExtractionExperiment], wanted: Sequence[str]) -> None:
    missing = sorted({e.model for e in planned if PLACEHOLDER in e.config.model})
    asked = [f"--model {model}=DIR" for model in missing]
    if not any(e.config.given for e in planned):
        asked += [f"--documents {name}:DIR" for name in wanted]
    if asked:
        raise RecipeError(f"recipe {recipe.name!r} needs {' '.join(asked)}; docs/cdmi.md says what they are.")


def plan(planned: Sequence[ExtractionExperiment]) -> list[Planned]:
    """The models that each row has to train; those of an earlier row, or that are there, are not counted."""
    found, seen = [], set()
    for e in planned:
        c, words = e.config, "pages not given"
        if c.given:
            needed = [c.target()] if c.shows == "validation" else [c.target(), c.public()]
            missing = [f for f in needed if card_of(f, e.store) is None and folder_of(f, e.store) not in seen]
            seen |= {folder_of(f, e.store) for f in missing}
            words = f"{c.task} of {c.data}, {len(missing)} models to be trained"
        found.append(Planned(e.row.name, e.model, int(c.given), words, {"target": c.target().name}))
    return found


def facts_of(planned: Sequence[ExtractionExperiment]) -> dict[str, str]:
    """Models, documents, trainings and the attack's settings."""
    computed = [e for e in planned if e.config.given]
    missing = sorted({name for e in planned for name in e.config.needs() if not e.config.documents.get(name)})
    how = " ".join(f"--documents {name}:DIR" for name in missing)
    left = {"Left out": f"{len(planned) - len(computed)} rows, whose pages were not given ({how})"} if missing else {}
    if not computed:
        return left
    first = computed[0].config
    named = dict.fromkeys((name, e.config.documents[name]) for e in computed for name in e.config.needs())
    documents = [spec if spec.startswith(name) else f"{spec} for {name}" for name, spec in named]
    facts = {
        "Models": ", ".join(dict.fromkeys(e.config.model for e in computed)),
        "Seed": f"{first.seed}",
        "Documents": "; ".join(documents) + (f"; the first {first.pages} pages of each" if first.pages else ""),
        "Training": _training(computed),
    }
    if first.shows != "validation":
        facts["Attack"] = _attack(computed)
    return facts | _defences(computed) | left


def _defences(computed: Sequence[ExtractionExperiment]) -> dict[str, str]:
    """What each privately trained row claims, and how many near-duplicates each other one found."""
    facts: dict[str, str] = {}
    for e in computed:
        card = card_of(e.config.target(), e.store) or {}
        if "claim" in card:
            facts[f"Claim, {e.row.name}"] = (
                f"{card['claim']} {card['units']} units; coins and noise follow from the seed, so that the table can "
                "be repeated"
            )
        if e.config.deduplicate and card:
            left = card["pages"]["train"]
            facts[f"Near-duplicates, {e.row.name}"] = f"{card['duplicates']} pages taken out, {left} trained on"
    return facts


def _training(computed: Sequence[ExtractionExperiment]) -> str:
    c = computed[0].config
    parts = [
        f"epochs: {c.epochs_mlm} for mlm, {c.epochs} for the other tasks, {c.public_epochs} for the public models",
        f"batches of {c.batch_size}",
        f"learning rate {c.learning_rate:g}",
        f"validated every {c.validate_every} epochs",
    ]
    parts += [f"dropout {c.dropout:g}"] if c.dropout >= 0 else []
    parts += [f"pages cut behind {c.max_tokens} tokens"] if c.max_tokens else []
    return "; ".join(parts)


def _attack(computed: Sequence[ExtractionExperiment]) -> str:
    """The settings that all rows share; those in which they differ are named."""
    settings = {"fields": "fields", "attempts": "attempts (the first is the one-shot variant)", "candidates":
                "candidates", "weight": "weight of the target", "top_p": "top-p", "temperature": "temperature",
                "metric": "ranked by"}  # fmt: skip
    parts = []
    for key, words in settings.items():
        values = list(dict.fromkeys(getattr(e.config, key) for e in computed))
        told = "varies" if len(values) > 1 else ("all" if key == "fields" and not values[0] else f"{values[0]}")
        parts.append(f"{words} {told}")
    runs = {attack_folder(e.config, e.store) for e in computed}
    return f"{', '.join(parts)}; epsilon of IpF {EPSILON:g}; {len(runs)} games, kept in {computed[0].store.name}"
