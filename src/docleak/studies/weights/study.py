"""The study of weights: scrubbed fields read back out of a trained extraction model, field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from docleak.attacks.weights import METRICS, WeightsAttack, plausibility
from docleak.documents.page import Image
from docleak.errors import AttackError
from docleak.models.loading import short_name
from docleak.models.shipped import SHIPPED_ENCODERS
from docleak.options import said_idle
from docleak.report.page import Reading
from docleak.report.table import Value
from docleak.runs.artefact import card_of
from docleak.runs.identity import digest_of
from docleak.runs.run import Run
from docleak.studies.study import (
    PLACEHOLDER,
    Done,
    Needed,
    Picture,
    Settings,
    TableRow,
    TableStudy,
    Tell,
    Unit,
    one_of,
    plain,
)
from docleak.studies.weights import rows as weights_rows
from docleak.studies.weights.calibrating import calibrate
from docleak.studies.weights.config import HERE, WeightsConfig, trainings
from docleak.studies.weights.exhibits import save_exhibits
from docleak.studies.weights.factors import Found
from docleak.studies.weights.game import attack_field, game_of, ready, shadow_of, trained, view_of
from docleak.studies.weights.reading import read_run
from docleak.studies.weights.saw import saw
from docleak.studies.weights.table import SCORE, attempt_of, fields_of, read_table
from docleak.studies.weights.tuning import settings_of, sought, tuned
from docleak.training.extraction.kept import BEST, divided

#: Where the games and models of tables are, beside their folders; and the models of a single game, in its own.
STORE, MODELS = "docleak-extraction", "models"
#: The unit that seeks a row's settings.
SETTINGS = "settings"
#: Fields of a row that are attacked before those of the next row, whose models have to be loaded.
AT_ONCE = 10
#: Turns that come after all trainings, and after all fields of the game itself.
LATER, LAST = 10_000, 20_000
#: Pages of each data set in a rehearsal, and an attack's candidates per token, by its setting's name.
REHEARSED = 20
CANDIDATES, FEW = "candidates", 8


class WeightsStudy(TableStudy[WeightsConfig]):
    """A unit is one private field, or the training of a model that all fields need; the game that the adversary plays
    by itself, to learn how sure it can be, has units of its own. Rows of tables that ask for the same share a run."""

    kind = "weights"
    Config = WeightsConfig
    permissions = ("calibrate",)
    columns, parts = weights_rows.COLUMNS, "documents"
    extra: ClassVar = {**weights_rows.EXTRA, "preset": "str"}
    options = ("documents", "pages", "seed")
    checkpoints = ("resnet", "tuned_on")
    footnote = (
        "Ours with 95 % intervals over documents in square brackets; the paper's value in round brackets. IpF is "
        "dominated by its first term, exact readings, where public data alone read nothing, and may be smaller there "
        "than all of its interval, since no resample shows that they may read some: the column behind it leaves that "
        "term out. A share of the surest fields is one of few fields: 1 % of 60 is a single one."
    )
    #: Of a recipe's row: its settings, its model, and how many rows before it need the same target.
    asked: Mapping[str, Any] = {"shows": ""}
    model = ""
    rank = 0
    #: The number of the settings that a search chose, by the run that was looked at last; None before.
    chosen: int | None = None

    @classmethod
    def of_options(cls, given: Settings, fixed: Settings) -> WeightsConfig:
        """Epochs are by task; all pages of a finished target are played, and its public model is found by its
        vocabulary."""
        said = dict(given)
        epochs, rate = said.pop("target_training.epochs", 0), said.pop("target_training.learning_rate", 1e-3)
        target, public = trainings(said.get("task", "mlm"), epochs=epochs, learning_rate=rate)
        if epochs and said.get("target"):
            raise AttackError(said_idle(["--epochs"], HERE.what))
        finished = {"pages": 0, "model": ""} if said.get("target") else {}
        return super().of_options({**finished, "target_training": target, "public_training": public, **said}, fixed)

    @cached_property
    def games(self) -> list[WeightsConfig]:
        """The game, then the adversary's own one, if it is to be played and can be."""
        alone = shadow_of(self.config, self.device)[0] if self.config.calibrate else None
        return [self.config, alone] if alone else [self.config]

    @cached_property
    def names(self) -> list[list[str]]:
        """The fields of each game."""
        return [[secret.name for secret in game_of(config, self.device).secrets] for config in self.games]

    def units(self) -> list[Unit]:
        """Both models' trainings and every field, game by game; of a row that shows no attack the target's training."""
        if self.missing():
            return []
        if self.asked["shows"] == "validation":
            return [Unit("target", self.config.target_training.epochs, self.rank, ("target", 0))]
        units = []
        for number, (config, names) in enumerate(zip(self.games, self.names, strict=True)):
            prefix, turn = ("", "shadow-")[number], number * LAST
            epochs = {"target": config.target_training.epochs, "public": config.public_training.epochs}
            units += [
                Unit(prefix + model, size, turn + self.rank, (model, number))
                for model, size in epochs.items()
                if model == "public" or not config.target
            ]
            if config.tuning is not None:
                units.append(Unit(prefix + SETTINGS, len(settings_of(config)), turn + LATER - 1, (SETTINGS, number)))
            units += [
                Unit(prefix + name, 1, turn + LATER + field // AT_ONCE, (field, number))
                for field, name in enumerate(names)
            ]
        return units

    def facts(self) -> dict[str, Any]:
        """What the adversary is given, how many fields there are, and which are not played."""
        if self.asked["shows"] == "validation":
            return {}
        told = []
        for config in self.games:
            game = game_of(config, self.device)
            told.append({"threat": view_of(game, game.secrets[0]).text, "secrets": len(game.secrets),
                         "split": game.split, "left_out": game.left_out})  # fmt: skip
        told[0]["attack"] = self.config.attack.name
        if self.config.target:
            told[0]["saw"] = saw(self.config, self.device)
        if len(told) > 1:
            return {**told[0], "shadow": {**told[1], "config": plain(self.games[1])}}
        return told[0] | ({"uncalibrated": shadow_of(self.config, self.device)[1]} if self.config.calibrate else {})

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """A model's card, or the attempts at one field."""
        what, number = unit.what
        config, store = self.games[number], models_of(run)
        if what == SETTINGS:
            return sought(config, store, device=self.device, tell=tell), {}
        if isinstance(what, str):
            return card_of(trained(config, what, store, device=self.device, tell=tell)), {}
        game = ready(tuned(config, store, device=self.device), store, device=self.device)
        record = attack_field(game, what)
        if not METRICS.plain(config.metric):
            for attempt in record["attempts"]:
                attempt[SCORE] = plausibility(attempt_of(attempt), config.metric)
        return {**record, "shadow": number > 0}, {}

    def finish(self, run: Run, say: Any) -> None:
        """Pictures of some fields, and what the adversary can state of each."""
        table = read_table(run, rng=np.random.default_rng(self.config.seed))
        save_exhibits(run, game_of(self.config, self.device), table)
        if fields_of(run, shadow=True):
            calibrate(run, rng=np.random.default_rng(self.config.seed))

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """The verdict, and the fields to look at."""
        return read_run(one_of(runs), rng, beside=beside)

    # -- rows of tables

    @classmethod
    def changes_of(cls, settings: Sequence[Settings], changes: Settings, scale: str) -> dict[str, Any]:
        """Pages by data set: those that no name gives stand in for data sets that no pages are given of."""
        wanted = sorted({name for asked in settings for name in weights_rows.needs(asked)}, reverse=True)
        specs = changes.get("documents") or ([] if scale == "paper" else [weights_rows.SYNTHETIC])
        return {**changes, "documents": weights_rows.assigned(wanted, specs)}

    @classmethod
    def of_row(cls, source: str, settings: Settings, changes: Settings, *, device: str) -> WeightsStudy:
        """The game of a row on the model ``source``."""
        asked = weights_rows.asked_of(source, settings, changes.get("documents") or {})
        study = cls(weights_rows.game_asked(asked), device=device)
        study.asked, study.model = asked, str(changes.get("model", source))
        return study

    def needed(self, model: str) -> list[Needed]:
        """The model, and the pages of the row's data sets."""
        pages = self.asked["documents"]
        eyes = [Needed("model", self.config.resnet, "--model resnet=DIR")] if self.config.resnet else []
        if self.config.tuning:
            eyes.append(Needed("model", self.config.tuning.model, "--model tuned_on=DIR"))
        return [Needed("model", self.config.model, f"--model {model}=DIR"), *eyes] + [
            Needed("pages", pages.get(name, f"{name}:{PLACEHOLDER}"), f"--documents {name}:DIR")
            for name in weights_rows.needs(self.asked)
        ]

    def least(self) -> WeightsStudy:
        """An epoch of each training on some pages, and one attempt at one field with few candidates."""
        c = self.config
        target, public = (
            replace(training, epochs=1, validate_every=1) for training in (c.target_training, c.public_training)
        )
        pages = min(REHEARSED, c.pages or REHEARSED)
        tuning = replace(c.tuning, fields=1, most=1) if c.tuning else None
        private = replace(c.private, rounds=1) if c.private else None
        config = replace(
            c, pages=pages, fields=1, first=0, tuning=tuning, private=private, attempts=1, keep_every=0,
            target_training=target, public_training=public, attack=_cheapened(c.attack),
            criterion=c.criterion if c.criterion in BEST else "last",
        )  # fmt: skip
        study = WeightsStudy(config, device=self.device)
        study.asked, study.model = self.asked, self.model
        return study

    def work(self) -> dict[str, int]:
        """Epochs of each training, and attempts at fields where their number is set."""
        c = self.config
        epochs = {"epochs of the target": c.target_training.epochs}
        if c.private:
            epochs = {"private rounds of the target": c.private.rounds}
        if self.asked["shows"] == "validation":
            return epochs
        attempts = {"attempts at fields": c.fields * c.attempts} if c.fields else {}
        tried = {"settings tried on all fields": len(settings_of(c))} if c.tuning else {}
        return {**epochs, "epochs of the public model": c.public_training.epochs, **tried, **attempts}

    def done(self, unit: Unit, run: Run, seconds: float) -> dict[str, Done]:
        """Passes over a page of each training, validation and loading included (a private round draws a share of the
        pages), and attempts at fields, whose time goes with their candidates."""
        c, (what, _) = self.config, unit.what
        more = getattr(c.attack, CANDIDATES, 1) / getattr(_cheapened(c.attack), CANDIDATES, 1)
        if isinstance(what, int):
            spent, fields = run.record(unit.id)["seconds"], len(game_of(c, self.device).secrets)
            return {"attempts at fields": Done(1, spent * more, fields * c.attempts)}
        if what == SETTINGS:
            fields = len(game_of(c, self.device).secrets)
            return {"settings tried on a field": Done(1, seconds * more, len(settings_of(c)) * fields)}
        fitting, passes = c.public_fitting(), c.public_training.epochs
        if what == "target":
            fitting, passes = c.target_fitting(), c.private.rounds if c.private else c.target_training.epochs
        trained_on = run.record(unit.id)["pages"]["train"]
        whole = len(divided(fitting.data).part(fitting.part, fitting.task))
        words = "target" if what == "target" else "public model"
        return {f"pages seen by the {words}": Done(trained_on, seconds, passes * whole)}

    def folder(self, out: Path) -> Path:
        """Beside the folders of all tables, so that rows of any table that ask for the same share it."""
        return out.absolute().parent / STORE / f"attack-{digest_of(self.settings())}"

    def numbers(self, run: Run) -> dict[str, Value]:
        """Validation, and the numbers of the attack; {} while there is no target."""
        findings = self.found(run)
        if findings is None:
            return {}
        more = {"examples": weights_rows.examples(run, findings)} if self.asked["shows"] == "examples" else {}
        return {**findings.estimates, **more}

    def measured(self, run: Run, column: str) -> dict[str, float]:
        """A document's mean over its fields."""
        findings = self.found(run)
        return weights_rows.by_document(findings, column) if findings and findings.table else {}

    def found(self, run: Run) -> Found | None:
        """What the run says, computed anew only where there is more of it."""
        count = sum(1 for _ in (run.path / "units").glob("*/unit.json"))
        if self.config.tuning is not None and run.has(SETTINGS):
            self.chosen = int(run.record(SETTINGS)["best"])
        if getattr(self, "_found", (None, -1))[1] != count:
            self._found = weights_rows.found_in(run, self.config, self.asked["shows"]), count
        return self._found[0]

    def shown(self) -> tuple[str, ...]:
        """What the recipe's rows show."""
        return weights_rows.SHOWS[self.asked["shows"]]

    def missing(self) -> str:
        """Why a row cannot be computed: pages that were not given."""
        if self.config.documents and (self.config.public_documents or not self.asked.get("public_data")):
            return ""
        return "pages not given"

    def title(self) -> str:
        """The backbone."""
        return SHIPPED_ENCODERS.get(self.config.model, short_name(self.config.model))

    def planned(self) -> str:
        """What the row computes."""
        words = f"{self.config.task} of {self.asked['data']}"
        return self.missing() or f"{words}, {len(self.units())} fields and trainings, where they are not shared"

    def row_values(self, run: Run) -> dict[str, Any]:
        """Fields, model calls and seconds."""
        findings = self.found(run)
        if findings is None or findings.table is None:
            return {}
        return {"fields": len(findings.table.fields), "calls": findings.table.calls, "seconds": findings.table.seconds}

    @classmethod
    def check_rows(cls, rows: Sequence[TableRow]) -> None:
        """RecipeError for rows that make no table, or lack models or all pages."""
        weights_rows.check([row.study for row in rows])  # type: ignore[misc]
        seen: dict[Any, int] = {}
        for row in rows:
            target = row.study.config.target_fitting()
            row.study.rank = seen[target] = seen.get(target, -1) + 1  # type: ignore[attr-defined]

    @classmethod
    def row_facts(cls, rows: Sequence[TableRow]) -> dict[str, str]:
        """Means by factor, what is the same in all rows, and what each private training claims."""
        return weights_rows.facts_of(_told(rows))

    @classmethod
    def picture(cls, rows: Sequence[TableRow]) -> Picture:
        """Numbers beside the paper's, curves, or numbers along the training."""
        told, several = _told(rows), len({row.model for row in rows}) > 1
        named = {
            f"{row.model}, {row.name}" if several else row.name: (findings, row.printed)
            for row, (_, _, findings, _) in zip(rows, told, strict=True)
        }
        return weights_rows.draw(told[0][1].asked["shows"], named, weights_rows.means(told))


def _cheapened(attack: WeightsAttack) -> WeightsAttack:
    """The attack with few candidates, where that is a setting of its: the model is asked about each of them."""
    if not (is_dataclass(attack) and hasattr(attack, CANDIDATES)):
        return attack
    return replace(attack, **{CANDIDATES: min(max(FEW, getattr(attack, "beam", 1)), getattr(attack, CANDIDATES))})


def models_of(run: Run) -> Path:
    """Where the models of a run's game are: in the run's folder, or with the others of tables."""
    return run.path.parent if run.path.parent.name == STORE else run.path / MODELS


def _told(rows: Sequence[TableRow]) -> list[tuple[str, Any, Found | None, float | None]]:
    """Name, study, what was found and the paper's improvement factor of each row."""
    return [(row.name, row.study, row.study.found(row.run), row.printed.get("ipf")) for row in rows]  # type: ignore[attr-defined]
