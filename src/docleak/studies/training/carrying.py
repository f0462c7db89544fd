"""One training: self-pretraining, if any, then fine-tuning, then the test questions; resumable after every round.

UNIT/pretraining/, UNIT/finetuning/     runs of a federated training each (see ``training.federated.record``)
UNIT/validation/finetuning-0003.json    loss and scores of round 3 on the validation documents, by data set
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from operator import truediv
from pathlib import Path

import numpy as np

from docleak.documents.loaders import load_pages
from docleak.documents.silos import read_silo
from docleak.errors import RunError
from docleak.files import read_stored, reported, shaped, write_json
from docleak.models.base import DocumentModel
from docleak.models.loading import load_model
from docleak.runs.run import Run
from docleak.studies.study import Tell, with_tuples
from docleak.studies.training.config import FINETUNING, TrainingConfig
from docleak.studies.training.data import CENTRAL, Places
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.local import parameters_of, set_parameters
from docleak.training.federated.party import evaluate, model_of
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.silo import Party
from docleak.training.federated.summary import save_model
from docleak.training.federated.validation import ANSWERED_TOGETHER, document_losses, metric_of
from docleak.training.objectives.tasks import QUESTIONS

VALIDATION = "validation"
#: Draws the masks of every validation, so that losses compare.
MASKS = 13


@dataclass(frozen=True)
class SetScores:
    """A data set's test documents, in order: sums of ANLS, accuracy and loss over the questions of each.

    ``metric`` says which of the first two the set is scored by.
    """

    metric: str
    anls: tuple[float, ...]
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    questions: tuple[int, ...]

    @property
    def sums(self) -> tuple[float, ...]:
        """The sums that count for this set."""
        return self.accuracy if self.metric == "accuracy" else self.anls


@dataclass(frozen=True)
class Point:
    """A round of a phase on the validation documents of one data set; loss per example, ``score`` in 0..1 by its metric
    (None while the objective is no answering).

    ``losses`` and ``scores`` are the documents' means, (D,) each, ``scores`` () where ``score`` is None; ``trained``
    says whether a client that holds documents of this data set took part in the round.
    """

    phase: str
    round: int
    source: str
    loss: float
    score: float | None
    losses: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    trained: bool = False


@dataclass(frozen=True)
class Result:
    """What one training came to. Bytes are those of the messages as serialised, both ways, of all clients and phases;
    ``seconds`` are by phase, with averaging and without evaluation."""

    scores: Mapping[str, SetScores]
    bytes: int
    seconds: Mapping[str, float]
    seconds_testing: float
    #: What holds for the model by its whole lineage; empty where nothing was trained.
    claim: str = ""

    @property
    def average(self) -> float:
        """The mean over data sets of their means over questions."""
        return float(np.mean([np.sum(of.sums) / np.sum(of.questions) for of in self.scores.values()]))


def run_training(
    config: TrainingConfig, seed: int, places: Places, out: Path, device: str, tell: Tell = lambda rounds: None
) -> Result:
    """Train in ``out`` and test; rounds that are on disk already are not computed again. ``tell`` is told how many
    there are."""
    source, before = config.model, 0
    runs: dict[str, FederatedRun] = {}
    for phase, federation in config.phases(seed).items():
        run = FederatedRun.open(out / phase, replace(federation, model=source))
        watch = Watch(config, phase, run, places, out / VALIDATION, device, before, tell)
        watch.look()  # at the last round, which a killed process may have left unscored
        train_embedded(run, places.silos, device=device, evaluate_every=0, on_round=watch)
        source, runs[phase], before = str(save_model(run, device).absolute()), run, before + federation.rounds
    began, last = time.perf_counter(), next(reversed(runs.values()), None)
    scores = score(load_model(source, device=device), places.test)
    rows = {phase: run.rows() for phase, run in runs.items()}
    sent = sum(client.up + client.down for of in rows.values() for row in of for client in row.clients)
    seconds = {phase: sum(row.seconds_training + row.seconds_averaging for row in of) for phase, of in rows.items()}
    claim = last.claim().sentence if last else ""
    return Result(scores, sent, seconds, time.perf_counter() - began, claim)


def rounds_done(config: TrainingConfig, out: Path) -> int:
    """How many rounds of all phases are on disk."""
    return sum(FederatedRun(out / phase).last_round() for phase in config.rounds_of)


def results_in(run: Run) -> list[Result]:
    """What the finished trainings of a run came to, in the order of their seeds."""
    records = sorted(run.units(), key=lambda record: int(record["seed"]))
    names = [item.name for item in fields(Result)]
    saved = [{name: record.get(name) for name in names} for record in records]
    return shaped(list[Result], saved, RunError, f"{run.path}: what its trainings came to", "Delete the unit.")


def score(model: DocumentModel, places: Mapping[str, Path]) -> dict[str, SetScores]:
    """What the model answers on every document of every data set, and what the right answers would have cost it."""
    weights = parameters_of(model)
    scores = {}
    for name, folder in places.items():
        pages = load_pages(f"folder:{folder}", seed=0)
        documents = evaluate(Party(name, name, (), pages), model, weights)
        rng = np.random.default_rng(0)  # answering draws nothing
        losses = document_losses(model, pages, QUESTIONS, batch_size=ANSWERED_TOGETHER, rng=rng)
        scores[name] = SetScores(
            metric_of(pages),
            tuple(d.anls for d in documents),
            tuple(d.accuracy for d in documents),
            tuple(total for total, _ in losses.values()),
            tuple(d.questions for d in documents),
        )
    return scores


@dataclass(frozen=True)
class Watch:
    """Scores the validation documents after the rounds of one phase that ask for it; ``before`` it were so many."""

    config: TrainingConfig
    phase: str
    run: FederatedRun
    places: Places
    out: Path
    device: str
    before: int
    tell: Tell

    def __call__(self, row: object, scores: object) -> None:
        """A round is on disk."""
        self.look()
        self.tell(self.before + self.run.last_round())

    def look(self) -> None:
        """Score the model of the last round, if there is one that asks for it and is not scored yet."""
        number = self.run.last_round()
        every, file = self.config.evaluate_every, self.out / f"{self.phase}-{number:04d}.json"
        if not (every and number) or file.is_file() or (number % every and number != self.run.federation.rounds):
            return
        state = self.run.state()
        assert state is not None  # a round is done
        model = model_of(self.run.federation, self.device)
        set_parameters(model, {name: value.astype(np.float32) for name, value in state.parameters.items()})
        sources = {read_silo(self.places.silos[client.silo]).source for client in self.run.rows()[-1].clients}
        points = [self._point(model, name, number, not sources.isdisjoint({name, CENTRAL}))
                  for name in self.places.validation]  # fmt: skip
        with reported(self.out):
            write_json(file, [asdict(point) for point in points])

    def _point(self, model: DocumentModel, name: str, number: int, trained: bool) -> Point:
        folder = self.places.validation[name]
        if self.phase == FINETUNING:
            of = score(model, {name: folder})[name]
            losses, sums, counts = of.loss, of.sums, of.questions
        else:
            by_document = document_losses(
                model, load_pages(f"folder:{folder}", seed=0), self.run.federation.local.objective,
                batch_size=self.config.batch_size, rng=np.random.default_rng((self.config.seed, MASKS)),
            ).values()  # fmt: skip
            losses, sums = tuple(total for total, _ in by_document), ()
            counts = tuple(count for _, count in by_document)
        scored = sum(sums) / sum(counts) if sums else None
        per_loss, per_score = (tuple(map(truediv, totals, counts)) for totals in (losses, sums))
        return Point(self.phase, number, name, sum(losses) / sum(counts), scored, per_loss, per_score, trained)


def read_points(out: Path) -> list[Point]:
    """Every validation of a unit, phase by phase and round by round."""
    files = sorted((out / VALIDATION).glob("*.json"))
    return [Point(**with_tuples(point)) for file in files for point in read_stored(file)]
