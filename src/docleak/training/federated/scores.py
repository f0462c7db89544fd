"""What silos say of the documents they keep: exactly, or, under a privacy plan, in noised sums.

A unit is kept or trained on by a public coin of its own (``Federation.keeps``), so one that is taken away changes
either the models or these sums, never both: for a claim about one unit the two do not add up. A kept unit adds its mean
ANLS, in [0, 1], and 1 to the number of units; together that is a vector of length sqrt(2) at most. Its Gaussian noise
is such that all planned evaluations together cost no more than the plan's own epsilon, at its delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docleak.documents.page import Page
from docleak.metrics.estimate import Estimate, ratio_interval
from docleak.models.base import DocumentModel
from docleak.privacy.gaussian import epsilon_of, multiplier_for
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated.federation import Federation
from docleak.training.federated.local import set_parameters
from docleak.training.federated.party import DocumentScore
from docleak.training.federated.silo import Party
from docleak.training.federated.validation import answered
from docleak.training.private.units import units_of

#: How far one kept unit moves a silo's (sum of scores, number of units).
SENSITIVITY = math.sqrt(2)
#: Standard deviations either side of a 95 % interval.
WIDTH = 1.959964


@dataclass(frozen=True)
class SiloScore:
    """A silo's sum over its kept units of each one's mean ANLS, and their number; noise of ``std`` is in both."""

    source: str
    score: float
    units: float
    std: float


Scores = Sequence[DocumentScore | SiloScore]


@dataclass(frozen=True)
class Kept:
    """ANLS on what silos keep, without value where it cannot be told: of n questions, in groups that are documents.

    Its 95 % interval is over documents, or, for ``noised`` sums, of the noise alone; their ``accuracy``, questions and
    documents are not known.
    """

    anls: Estimate
    accuracy: float | None = None
    noised: bool = False

    def to_json(self) -> dict[str, Any]:
        """For machines; without the accuracy."""
        of = self.anls
        questions, documents = (None, None) if self.noised else (of.n, of.groups)
        return {"anls": of.value, "low": of.low, "high": of.high, "questions": questions, "documents": documents,
                "noised": self.noised}  # fmt: skip


def evaluate_privately(
    party: Party, model: DocumentModel, weights: Mapping[str, NDArray[np.float32]], federation: Federation, *,
    randomness: Randomness, on_note: Callable[[str], None] = lambda note: None,
) -> SiloScore:  # fmt: skip
    """The noised sums of one evaluation of the server's ``weights``; all that leaves of what the silo keeps.

    A unit that cannot be asked counts as if it were not there; ``on_note`` is told of it, at the silo.
    """
    plan = federation.privacy
    assert plan is not None
    set_parameters(model, dict(weights))
    units = units_of(party.kept, plan.mechanism.unit, client=party.name)
    means = [_mean_anls(model, pages, f"{plan.mechanism.unit} {name!r}", on_note) for name, pages in units.items()]
    known = [mean for mean in means if mean is not None]
    std = evaluation_noise(plan, federation.scores_at_most)
    noise = std * randomness.gaussian(2)
    return SiloScore(party.source, math.fsum(known) + float(noise[0]), len(known) + float(noise[1]), std)


def _mean_anls(
    model: DocumentModel, pages: Sequence[Page], called: str, on_note: Callable[[str], None]
) -> float | None:
    """A unit's mean over its questions, in [0, 1]; None without any."""
    try:
        said = [similarity for page in pages for similarity, _ in answered(model, page)]
    except Exception as error:  # any: an evaluation that fails because of one unit would tell the server of it
        on_note(f"{called} is not evaluated on: {error}")
        return None
    return min(max(math.fsum(said) / len(said), 0.0), 1.0) if said else None


@lru_cache(maxsize=16)
def evaluation_noise(plan: DpPlan, releases: int) -> float:
    """The standard deviation with which so many evaluations keep to the plan's epsilon and delta."""
    return SENSITIVITY * multiplier_for(plan.guarantee().epsilon, plan.delta, releases)


def evaluation_cost(federation: Federation, releases: int) -> float:
    """The epsilon, at the plan's delta, of so many evaluations for a unit that is kept."""
    assert federation.privacy is not None
    distance = evaluation_distance(federation, releases)
    return epsilon_of(distance, federation.privacy.delta) if distance else 0.0


def evaluation_distance(federation: Federation, releases: int) -> float:
    """How far a kept unit can move so many evaluations together, in standard deviations of their noise."""
    if federation.privacy is None or not releases:
        return 0.0
    std = evaluation_noise(federation.privacy, federation.scores_at_most)
    return math.sqrt(releases) * SENSITIVITY / std if std else math.inf


def kept_of(scores: Scores, *, rng: np.random.Generator | None = None) -> Kept | None:
    """What the silos' scores say together; None where there are none. The interval over documents needs ``rng``."""
    noised = [score for score in scores if isinstance(score, SiloScore)]
    if noised:
        return _ratio(noised)
    exact = [score for score in scores if isinstance(score, DocumentScore)]
    questions = sum(score.questions for score in exact)
    if not questions:
        return None
    sums, counts = np.array([score.anls for score in exact]), np.array([score.questions for score in exact])
    low, high = (None, None) if rng is None else ratio_interval(sums, counts, rng, 0.95, 2000, share=True)
    accuracy = sum(score.accuracy for score in exact) / questions
    anls = Estimate(float(sums.sum() / questions), low, high, questions, len(exact), of="questions")
    return Kept(anls, accuracy)


def _ratio(scores: Iterable[SiloScore]) -> Kept:
    """Sum over number, both with normal noise of known size: Fieller's interval, cut to [0, 1]."""
    rows = list(scores)
    total, units = math.fsum(row.score for row in rows), math.fsum(row.units for row in rows)
    noise = WIDTH**2 * math.fsum(row.std**2 for row in rows)
    a, b, c = units**2 - noise, total * units, total**2 - noise
    if units <= 0 or a <= 0:  # the number of units cannot be told from none
        return Kept(Estimate(None, 0.0, 1.0), noised=True)
    half = math.sqrt(max(b * b - a * c, 0.0))
    low, high = (b - half) / a, (b + half) / a
    if low > 1 or high < 0:  # no share fits: such noise is rare, and tells nothing
        return Kept(Estimate(None, 0.0, 1.0), noised=True)
    return Kept(Estimate(min(max(total / units, 0.0), 1.0), max(low, 0.0), min(high, 1.0)), noised=True)
