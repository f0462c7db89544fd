"""From scores of test documents to a row of the table, the two-stage average with its interval; and what validations
come to: columns that a table has where a row was validated after its rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from docleak.metrics import Estimate
from docleak.metrics.estimate import ratio
from docleak.report.table import Column
from docleak.studies.training.carrying import Point, Result
from docleak.studies.training.config import FINETUNING, PRETRAINING

COLUMNS = {
    "pretraining_loss": Column("validation loss of self-pretraining", 2),
    "swing": Column("score after its own round", 1, percent=True),
    "loss_swing": Column("loss after its own round", 2),
    "fluctuation": Column("fluctuation of the score", 1, percent=True),
    "loss_fluctuation": Column("fluctuation of the loss", 2),
}
EXPLAINED = (
    "Of validation documents: the loss of self-pretraining after its last round; how much more score and loss "
    "change to a validated round that a client of the document's own data set took part in than to the others, each "
    "from the validated round before; and how far a document's score and loss lie from its own parabola through the "
    "validated rounds of fine-tuning (a residual standard deviation), whoever took part."
)
#: The degree of the regression that fluctuations are told from.
PARABOLA = 2
#: Data set -> a number of each of its validation documents, (D,), the mean over the trainings.
ByDocument = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class RowScores:
    """A row over its trainings: each data set's mean over questions, and their mean.

    ``loss`` is the mean over data sets of the mean loss of a question's right answer.
    """

    sets: Mapping[str, Estimate]
    average: Estimate
    loss: Estimate


def row_scores(results: Sequence[Result], *, rng: np.random.Generator) -> RowScores:
    """The scores of one or more trainings with the same test documents.

    A document counts with the mean over the trainings of what it reached, so intervals are over documents; how much
    trainings differ is in ``Result.average`` of each.
    """
    names = list(results[0].scores)
    counts = {name: np.array(results[0].scores[name].questions) for name in names}
    reached = {name: np.array([result.scores[name].sums for result in results]) for name in names}
    losses = {name: np.mean([result.scores[name].loss for result in results], axis=0) for name in names}
    sets = {name: ratio(reached[name].mean(axis=0), counts[name], rng) for name in names}
    loss = two_stage({name: ratio(losses[name], counts[name], rng, share=False) for name in names}, top=math.inf)
    return RowScores(sets, two_stage(sets), loss)


def two_stage(sets: Mapping[str, Estimate], *, bottom: float = 0.0, top: float = 1.0) -> Estimate:
    """The mean over data sets of their means (Nguyen and Karatzas, 2024, section 5.1), and its 95 % interval.

    The data sets are independent, so the limits of the mean are found from those of each (Zou and Donner, 2008: squared
    distances from value to limit add up, here over the number of sets squared), and kept in ``bottom``..``top``. No
    interval if one of the sets has none.
    """
    values = [e.value for e in sets.values() if e.value is not None]
    fields, documents = (sum(getattr(e, name) for e in sets.values()) for name in ("n", "groups"))
    mean = sum(values) / len(values)
    distances = [(e.value - e.low, e.high - e.value) for e in sets.values()
                 if e.value is not None and e.low is not None and e.high is not None]  # fmt: skip
    if len(distances) < len(sets):
        return Estimate(mean, None, None, fields, documents)
    down, up = (math.hypot(*side) / len(sets) for side in zip(*distances, strict=True))
    return Estimate(mean, max(bottom, mean - down), min(top, mean + up), fields, documents)


def validated(trainings: Sequence[Sequence[Point]]) -> dict[str, ByDocument]:
    """Column -> what it is the mean of, of those that these trainings have."""
    columns: dict[str, Callable[[Sequence[Point]], ByDocument]] = {
        "pretraining_loss": last_losses, "swing": partial(swings, scores=True),
        "loss_swing": partial(swings, scores=False), "fluctuation": partial(fluctuations, scores=True),
        "loss_fluctuation": partial(fluctuations, scores=False),
    }  # fmt: skip
    means = {name: _means([of(points) for points in trainings]) for name, of in columns.items()}
    return {name: documents for name, documents in means.items() if documents}


def last_losses(points: Sequence[Point]) -> ByDocument:
    """The losses after the last round of self-pretraining."""
    of = [point for point in points if point.phase == PRETRAINING]
    last = max((point.round for point in of), default=0)
    return {point.source: np.array(point.losses) for point in of if point.round == last}


def swings(points: Sequence[Point], *, scores: bool) -> ByDocument:
    """How much more a document's score (else its loss) changes in a round of fine-tuning that a client of its data set
    took part in than in one that none did, from the validated round before; means over rounds.

    Data sets whose clients take part in all rounds after the first, or in none, are left out.
    """
    swung = {}
    for name, here in _curves(points).items():
        changes = np.diff([point.scores if scores else point.losses for point in here], axis=0)  # (rounds - 1, D)
        took = np.array([point.trained for point in here[1:]], dtype=bool)
        if took.any() and not took.all():
            swung[name] = changes[took].mean(axis=0) - changes[~took].mean(axis=0)
    return swung


def fluctuations(points: Sequence[Point], *, scores: bool) -> ByDocument:
    """The residual standard deviation, of n - 3 degrees of freedom, of a document's scores (else its losses) about its
    own parabola in the round, over the n validated rounds of fine-tuning; of data sets with four or more of them.

    Nguyen and Karatzas (2024), Figure 3, draws the curves of all documents together through such a regression and
    prints no number; documents that move against one another fluctuate here, though their mean may not.
    """
    spread = {}
    for name, here in _curves(points).items():
        if len(here) > PARABOLA + 1:
            curves = np.array([point.scores if scores else point.losses for point in here])  # (rounds, D)
            powers = np.vander(np.array([point.round for point in here], dtype=float), PARABOLA + 1)
            residuals = curves - powers @ np.linalg.lstsq(powers, curves, rcond=None)[0]
            spread[name] = np.sqrt((residuals**2).sum(axis=0) / (len(here) - PARABOLA - 1))
    return spread


def _curves(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Data set -> its validations in the rounds of fine-tuning, in their order."""
    rounds = sorted((point for point in points if point.phase == FINETUNING), key=lambda point: point.round)
    names = dict.fromkeys(point.source for point in rounds)
    return {name: [point for point in rounds if point.source == name] for name in names}


def average(documents: ByDocument) -> Estimate:
    """The mean over data sets of their means over documents, of any sign, every time with the same interval."""
    rng = np.random.default_rng(0)
    sets = {name: ratio(of, np.ones(len(of), dtype=np.int64), rng, share=False) for name, of in documents.items()}
    return two_stage(sets, bottom=-math.inf, top=math.inf)


def _means(trainings: Sequence[ByDocument]) -> ByDocument:
    """Means over the trainings that have the data set."""
    names = dict.fromkeys(name for of in trainings for name in of)
    return {name: np.mean([of[name] for of in trainings if name in of], axis=0) for name in names}
