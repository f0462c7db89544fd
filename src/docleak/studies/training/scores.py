"""From the scores of test documents to a row of the table: the two-stage average with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from docleak.metrics import Estimate
from docleak.metrics.estimate import ratio
from docleak.studies.training.carrying import Result


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
