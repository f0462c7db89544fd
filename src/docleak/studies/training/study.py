"""The study of trainings: what models answer after a training over silos, on documents that no silo held.

OUT/data/             the documents, divided (see ``data``), and
OUT/models/           models that read less than their checkpoint says: beside all rows of a table, or in a lone run
RUN/units/seed-0/     one training (see ``carrying``)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from docleak.documents.loaders import load_pages
from docleak.documents.page import Image
from docleak.errors import RecipeError, RunError
from docleak.files import drafted_folder
from docleak.metrics.estimate import Estimate
from docleak.models.base import DocumentModel
from docleak.models.loading import config_of, load_model, short_name, title_of
from docleak.models.t5 import T5Reader
from docleak.report.page import Reading
from docleak.report.pictures import decoded, picture
from docleak.report.table import Column, Row, Table, Value
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.study import (
    PLACEHOLDER,
    STEP,
    Done,
    Needed,
    Picture,
    Settings,
    TableRow,
    TableStudy,
    Tell,
    Unit,
    one_of,
    table_of,
    with_tuples,
)
from docleak.studies.training.carrying import Point, Result, read_points, results_in, rounds_done, run_training
from docleak.studies.training.config import TrainingConfig, optimiser_said, rounds_said
from docleak.studies.training.curves import Drawn, draw
from docleak.studies.training.data import divide, divided, require_all_pages
from docleak.studies.training.rounds import reading_of
from docleak.studies.training.scores import COLUMNS as VALIDATED
from docleak.studies.training.scores import EXPLAINED, ByDocument, RowScores, average, row_scores, validated
from docleak.training.federated.federation import drawn
from docleak.training.federated.summary import Cost
from docleak.training.lineage import lineage_of, write_lineage
from docleak.training.objectives.objective import objective_of

DATA, MODELS = "data", "models"
SPREAD = ("lowest", "highest")
#: Pages of each data set in a rehearsal.
REHEARSED = 8
#: Of a training whose record does not say it.
UNNOTED = (
    "Where test and validation pages come from is not noted: an older docleak, which held them out of the pages to "
    "train on unless --test-documents were given, trained this."
)


class TrainingStudy(TableStudy[TrainingConfig]):
    """A unit is one training, from its first round to its test; those of a study differ in their seeds."""

    kind, about = "trainings", "trainings over silos"
    Config = TrainingConfig
    columns: ClassVar = {
        "score": Column("average", 1, percent=True), "lowest": Column("lowest training", 1, percent=True),
        "highest": Column("highest training", 1, percent=True), "loss": Column("loss", 2), **VALIDATED,
        "trainings": Column("trainings", 0), "mib": Column("MiB", 0), "seconds": Column("s", 0),
    }  # fmt: skip
    of_model, options = ("model",), ("documents", "test_documents", "pages", "rounds", "seed")
    parts, shares, repeatable = "test documents", ("score",), True
    wanted_at = "docs/reproduce.md"
    footnote = (
        "Ours with 95 % intervals over test documents in square brackets; the paper's value in round brackets. The "
        "average is that of the data sets' means (ANLS, or accuracy where all answers are verdicts). Of several "
        "trainings of a row each document counts with its mean, and the lowest and highest average is given. Loss is "
        f"that of the right answers, averaged likewise. {EXPLAINED} MiB and seconds are those of one training, both "
        "phases, all clients one after the other, without evaluation."
    )

    def units(self) -> list[Unit]:
        """A training per seed; its size counts its rounds, and the test as one more."""
        c = self.config
        size = sum(c.rounds_of.values()) + 1
        return [Unit(f"seed-{c.seed + number}", size, number, c.seed + number) for number in range(c.seeds)]

    def prepare(self, run: Run, say: Any) -> None:
        """Divide the documents and cut the model, unless that is done."""
        divide(self.config, table_of(run) / DATA)
        start = self._start(run)
        if self.config.max_tokens and not (start / "config.json").is_file():
            with drafted_folder(start) as draft:
                reads_less(load_model(self.config.model), self.config.max_tokens).save(str(draft))
                write_lineage(draft, lineage_of(self.config.model))

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """Train, or go on, and test."""
        config = replace(self.config, model=str(self._start(run))) if self.config.max_tokens else self.config
        places = divided(config, table_of(run) / DATA)
        result = run_training(config, unit.what, places, run.folder(unit.id), self.device, tell)
        return {"seed": unit.what, "said": list(places.said), **asdict(result)}, {}

    def progress(self, unit: Unit, run: Run) -> str:
        """Rounds that are done."""
        return f"-{rounds_done(self.config, run.folder(unit.id))}"

    def _start(self, run: Run) -> Path:
        """Where the model is that reads ``max_tokens`` at most."""
        name = f"{short_name(self.config.model)}-{self.config.max_tokens}"
        return (table_of(run) / MODELS / name).absolute()

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """The trainings' scores and curves, and what holds for their models."""
        run = one_of(runs)
        settings = {item.name: run.config.get(item.name) for item in fields(TrainingConfig)}
        study = cls(TrainingConfig(**with_tuples(settings)))
        results = results_in(run)
        if not results:
            raise RunError(f"{run.path} has no finished training yet. Go on with the same command.")
        row = TableRow("all trainings", "", study, run)
        shown = Row(row.name, study.numbers(run), failed=run.failures(), facts=study.row_values(run))
        table = Table(study.title(), cls.columns_of([row]), [shown], caption=cls.footnote)
        curves = picture(decoded(cls.picture([row]).png), "Scores, and curves over rounds")
        claim = results[0].claim or f"{study.config.model} as it is: nothing was trained."
        claim += f" It is said of one model; there are {len(results)}." if len(results) > 1 else ""
        said = said_in(run)
        body = render("training.html.j2", curves=curves, table=table, said=said)
        return reading_of(
            run, claim, "\n".join([table.to_text(), *said, claim]), table.to_json()[0], {"trainings": table}, body
        )

    # -- rows of tables

    @classmethod
    def of_row(cls, source: str, settings: Settings, changes: Settings, *, device: str) -> TrainingStudy:
        """Of the command line's changes documents and test_documents are those of all data sets; rounds are for both
        phases, and leave a phase out that the row leaves out."""
        given = {key: changes[key] for key in ("documents", "test_documents") if changes.get(key)}
        chosen = with_tuples({**settings, **given})
        if "rounds" in changes:
            rounds = changes["rounds"]
            chosen |= {"pretraining_rounds": rounds, "rounds": rounds if chosen.get("rounds", 1) else 0}
        return cls(TrainingConfig(model=source, **chosen), device=device)

    def numbers(self, run: Run) -> dict[str, Value]:
        """Scores on the test documents, and what a training cost."""
        results = results_in(run)
        if not results:
            return {"trainings": f"0 of {self.config.seeds}"}
        scores, averages = scored(results), [result.average for result in results]
        spread = (min(averages), max(averages)) if len(results) > 1 else ()
        cost: dict[str, float] = {
            "trainings": len(results),
            "mib": float(np.mean([result.bytes for result in results])) / 2**20,
            "seconds": float(np.mean([sum(result.seconds.values()) for result in results])),
        }
        return {
            "score": scores.average,
            **{name: Estimate.exactly(value) for name, value in zip(SPREAD, spread, strict=False)},
            **{f"score_{name}": estimate for name, estimate in scores.sets.items()},
            "loss": scores.loss,
            **{name: average(documents) for name, documents in self._validated(run).items()},
            **{name: Estimate.exactly(value) for name, value in cost.items()},
        }

    def measured(self, run: Run, column: str) -> dict[str, float]:
        """A test document's mean over its questions and the trainings: its score, or the loss of the right answers; or
        a validation document's number."""
        results = results_in(run)
        if column in VALIDATED:
            means = self._validated(run).get(column, {})
            return {f"{name} {number}": float(mean) for name, of in means.items() for number, mean in enumerate(of)}
        if not results or not (column in ("score", "loss") or column.startswith("score_")):
            return {}
        by_document: dict[str, float] = {}
        for name, of in results[0].scores.items():
            if column in ("score", "loss", f"score_{name}"):
                reached = [r.scores[name].loss if column == "loss" else r.scores[name].sums for r in results]
                means = np.mean(reached, axis=0) / np.array(of.questions)
                by_document |= {f"{name} {number}": float(mean) for number, mean in enumerate(means)}
        return by_document

    def parts_of(self, column: str) -> str:
        """Test documents, or those of the validation."""
        return "validation documents" if column in VALIDATED else self.parts

    @classmethod
    def columns_of(cls, rows: Sequence[TableRow]) -> dict[str, Column]:
        """The average, how far trainings differ where rows have several, each data set with its metric, and costs."""
        results = [results_in(row.run) for row in rows]
        sets = {
            f"score_{name}": Column(f"{name} ({of.metric})", 1, percent=True)
            for trainings in results
            for result in trainings
            for name, of in result.scores.items()
        }
        alone = all(len(trainings) < 2 for trainings in results)
        there = {name for row in rows if isinstance(row.study, cls) for name in row.study._validated(row.run)}
        first = {name: column for name, column in cls.columns.items() if name == "score" or name in SPREAD}
        columns = {**first, **sets, **cls.columns}
        left_out = {*(SPREAD if alone else ()), *(name for name in VALIDATED if name not in there)}
        return {name: column for name, column in columns.items() if name not in left_out}

    def row_values(self, run: Run) -> dict[str, Any]:
        """Of each training its average, bytes, seconds and claim; the points of the first one's curves."""
        results = results_in(run)
        return {
            "by_training": [result.average for result in results],
            "metrics": {name: of.metric for result in results for name, of in result.scores.items()},
            "bytes": [result.bytes for result in results],
            "seconds": [dict(result.seconds) for result in results],
            "claims": [result.claim for result in results],
            "said": said_in(run),
            "points": [asdict(replace(point, losses=(), scores=())) for point in self.points(run)],
        }

    def _validated(self, run: Run) -> dict[str, ByDocument]:
        """Column -> numbers of validation documents, of those that this run has."""
        return validated([read_points(run.folder(unit.id)) for unit in self.units()])

    def points(self, run: Run) -> list[Point]:
        """The curves of the first training that has some."""
        curves = (read_points(run.folder(unit.id)) for unit in self.units())
        return next(filter(None, curves), [])

    def title(self) -> str:
        """The model's."""
        return title_of(self.config.model)

    def planned(self) -> str:
        """Rounds, clients, and the bytes that are sent."""
        c, sent = self.config, self.planned_facts()["bytes"]
        phases = [f"{counted_words(c.pretraining_rounds, 'round')} of {c.pretraining}"] if c.pretraining else []
        phases += [counted_words(c.rounds, "round")] if c.rounds else []
        return f"{c.seeds} x {' + '.join(phases) or 'no training'}, K = {c.clients}, {sent / 2**20:,.0f} MiB"

    def planned_facts(self) -> dict[str, Any]:
        """Clients, rounds by phase, and the bytes of one training."""
        c = self.config
        # What self-pretraining adds to the model stays in it.
        costs = [
            (cost_of(c.model, c.max_tokens, c.pretraining or federation.local.objective, c.seed), federation)
            for federation in c.phases(c.seed).values()
        ]
        return {
            "clients": c.clients,
            "rounds": list(c.rounds_of.values()),
            "bytes": sum(cost.sent(federation, c.clients) for cost, federation in costs),
            "bytes_as_published": sum(cost.as_published(federation, c.clients) for cost, federation in costs),
        }

    def needed(self, model: str) -> list[Needed]:
        """The model, and the data sets."""
        c = self.config
        options = {"documents": c.documents, "test-documents": c.test_documents}
        named = [Needed("model", c.model, f"--model {model}=DIR")]
        return named + [
            Needed("pages", spec, f"--{option} {spec.replace(PLACEHOLDER, 'DIR')}")
            for option, specs in options.items()
            for spec in specs
        ]

    def least(self) -> TrainingStudy:
        """A round of each phase with one step of a few examples of one client per data set, on the first pages of each
        data set; an epsilon takes all pages."""
        c = self.config
        config = replace(
            c, pages=0 if c.epsilon else min(REHEARSED, c.pages or REHEARSED), clients=min(c.clients, len(c.documents)),
            participation=1.0, pretraining_participation=0.0, rounds=min(1, c.rounds),
            pretraining_rounds=min(1, c.pretraining_rounds), max_steps=1, evaluate_every=0, validation_share=0.0,
            seeds=1, batch_size=min(STEP, c.batch_size),
        )  # fmt: skip
        return TrainingStudy(config, device=self.device)

    def work(self) -> dict[str, int]:
        """Rounds of clients."""
        return {f"rounds of a client, {phase}": count for phase, count in self._client_rounds().items()}

    def _client_rounds(self) -> dict[str, int]:
        """Phase -> how often a client trains, over all its rounds and trainings."""
        c = self.config
        return {
            phase: c.seeds * federation.rounds * drawn(federation, c.clients)
            for phase, federation in c.phases(c.seed).items()
        }

    def done(self, unit: Unit, run: Run, seconds: float) -> dict[str, Done]:
        """Steps of each phase (private: rounds, with a step of every unit drawn), and the test, at as much a page."""
        c, result, least = self.config, results_in(run)[0], self.least().config
        places = divided(least, table_of(run) / DATA)
        silos = [load_pages(f"folder:{folder}", seed=0) for folder in places.silos.values()]
        whole = sum(len(load_pages(spec, count=c.pages or None, seed=c.seed)) for spec in c.documents)
        trained = whole * (1 - c.validation_share - (0 if c.test_documents else c.test_share))
        work, rounds = {}, self._client_rounds()
        for phase, federation in c.phases(c.seed).items():
            if federation.privacy:
                work[f"rounds of {phase}"] = Done(1, result.seconds[phase], math.ceil(rounds[phase] / c.clients))
                continue
            objective = objective_of(federation.local.objective)
            density = sum(len(objective.examples(pages)) for pages in silos) / sum(map(len, silos))
            per_round = c.epochs * math.ceil(trained * density / c.clients / c.batch_size)
            of = rounds[phase] * (min(per_round, c.max_steps) if c.max_steps else per_round)
            work[f"steps of {phase}"] = Done(len(silos) * least.batch_size / c.batch_size, result.seconds[phase], of)
        tested = sum(sum(scores.questions) for scores in result.scores.values())
        pages = sum(len(load_pages(f"folder:{folder}", seed=0)) for folder in places.test.values())
        asked = c.seeds * (1.0 if c.test_documents else c.test_share) * whole * tested / max(1, pages)
        return {**work, "questions of the test": Done(tested, result.seconds_testing, round(asked))}

    @classmethod
    def check_rows(cls, rows: Sequence[TableRow]) -> None:
        """RecipeError for paths that are not given and an epsilon over some pages, ModelError for lacking models."""
        super().check_rows(rows)
        for row in rows:
            require_all_pages(row.study.config)
        for model in dict.fromkeys(row.study.config.model for row in rows):
            config_of(model)

    @classmethod
    def row_facts(cls, rows: Sequence[TableRow]) -> dict[str, str]:
        """Model, data sets, seeds, the clients' optimisers and how many train in a round, and what each private row's
        model claims."""
        c = rows[0].study.config
        facts = {
            "Models": ", ".join(dict.fromkeys(row.study.config.model for row in rows)),
            "Seed": f"{c.seed}" + (f" to {c.seed + c.seeds - 1}" if c.seeds > 1 else ""),
            "Documents": ", ".join(c.documents),
            "Optimiser of the clients": "; ".join(dict.fromkeys(optimiser_said(row.study.config) for row in rows)),
        }
        if parts := dict.fromkeys(said for row in rows for said in rounds_said(row.study.config)):
            facts["Clients in a round"] = f"C x K without its fraction, at least one: {'; '.join(parts)}"
        if said := dict.fromkeys(sentence for row in rows for sentence in said_in(row.run)):
            facts["Test and validation pages"] = " ".join(said)
        private = [(row.name, results_in(row.run)) for row in rows if row.study.config.epsilon]
        return facts | {f"Privacy of {name}": results[0].claim for name, results in private if results}

    @classmethod
    def picture(cls, rows: Sequence[TableRow]) -> Picture:
        """Scores of every row beside the paper's, and curves over rounds where there are some."""
        drawn = []
        for row in rows:
            assert isinstance(row.study, TrainingStudy)
            results = results_in(row.run)
            average = scored(results).average if results else None
            drawn.append(Drawn(row.name, average, row.printed.get("score"), row.study.points(row.run)))
        shows = "Scores of every row beside the paper's, and curves over rounds"
        return Picture(draw(drawn), "The same as a picture", shows)


def said_in(run: Run) -> list[str]:
    """Where test and validation pages come from, in sentences, as the finished trainings of a run noted it."""
    told = [record.get("said", [UNNOTED]) for record in run.units()]
    return list(dict.fromkeys(sentence for sentences in told for sentence in sentences))


def scored(results: Sequence[Result]) -> RowScores:
    """The scores of trainings, every time with the same intervals."""
    return row_scores(results, rng=np.random.default_rng(0))


def reads_less(model: DocumentModel, max_tokens: int) -> T5Reader:
    """The model, which now reads ``max_tokens`` of a page at most; RecipeError for one that cannot be told."""
    if not isinstance(model, T5Reader):
        raise RecipeError(
            f"max_tokens is {max_tokens}, but {model.name!r} is a {model.architecture}; expected vt5 or fedocvqa. "
            "Leave max_tokens out."
        )
    model.config = replace(model.config, max_tokens=min(max_tokens, model.config.max_tokens))
    return model


@lru_cache(maxsize=8)
def cost_of(source: str, max_tokens: int, objective: str, seed: int) -> Cost:
    """What of the model travels, once it is ready for the objective."""
    model = load_model(source)
    model = reads_less(model, max_tokens) if max_tokens else model
    objective_of(objective).prepare(model, generator=torch.Generator().manual_seed(seed))
    return Cost.of(model.module)
