"""Lower bounds on epsilon, measured by attacks, and held against what the accountant claims.

An attack that tells members from others better than (epsilon, delta) allows shows that the true epsilon is higher.
Everything here is about adding or removing one unit, and holds with a stated confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

from docleak.errors import ContradictionError, PrivacyError
from docleak.privacy.accounting import Guarantee
from docleak.privacy.lineage import Claim
from docleak.privacy.mechanism import Relation, Unit

#: A bound from one run is searched to this width, and its lower end taken.
WIDTH = 1e-6
INDEPENDENT = "counted as if each were an independent trial"
COINS = "canaries included by independent fair coins"
#: What can break such a claim.
CAUSES = (
    "updates weighted by their number of questions (n_k); a sum divided by how many were drawn instead of a constant; "
    "a tied weight counted twice; a canary that is not clipped; a provider in two clients; lost noise shares; an "
    "accounting for another sampling or adjacency; and, if the attack guessed about the providers of one model, that "
    "they are no random split: repeat it with canaries"
)


@dataclass(frozen=True)
class LowerBound:
    """With ``confidence``, no epsilon below this holds at ``delta`` for one ``unit`` added or removed.

    ``evidence`` says what was counted, and ``assumes`` what the confidence rests on.
    """

    epsilon: float
    delta: float
    confidence: float
    evidence: str
    assumes: str
    unit: Unit = Unit.PROVIDER
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def sentence(self) -> str:
        """The claim with everything it depends on."""
        return (
            f"epsilon at least {self.epsilon:.4g} at delta {self.delta:.3g} per {self.unit} ({self.relation}), "
            f"{self.confidence:.4g} confidence: {self.evidence}; {self.assumes}."
        )


def from_counts(
    hits: int, members: int, alarms: int, others: int, delta: float, *, confidence: float = 0.95
) -> LowerBound:
    """From one operating point that was fixed beforehand: ``hits`` members and ``alarms`` others called members.

    (epsilon, delta) implies TPR <= e^epsilon FPR + delta, and the same of the complements. Both rates are replaced by
    the end of their exact one-sided interval (Clopper & Pearson, 1934) that is worse for the attack, each failing with
    half of 1 - ``confidence``. The trials must be independent: either many trainings, or providers whose decisions do
    not depend on each other. Decisions on the providers of one model share it, so this is an estimate for them, and
    ``from_one_run`` a proof. Raises PrivacyError for counts that cannot be, or only one class.
    """
    _check(delta, confidence)
    if not (0 <= hits <= members and 0 <= alarms <= others and members and others):
        raise PrivacyError(
            f"{hits} of {members} members and {alarms} of {others} others called members; expected at least one of "
            "each, and no more called than there are."
        )
    epsilon = max(float(_epsilons(hits, members, alarms, others, delta, 1 - confidence)), 0.0)
    evidence = f"{hits} of {members} members and {alarms} of {others} others called members"
    return LowerBound(epsilon, delta, confidence, evidence, INDEPENDENT)


def from_scores(
    scores: NDArray[np.float64],
    members: NDArray[np.bool_],
    delta: float,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> LowerBound:
    """From scores (P,), higher for likelier members, with the best threshold; members (P,) bool.

    It is chosen on a random half of each class, and counted on the other. Raises PrivacyError as ``from_counts``, and
    for a score that is not finite.
    """
    _check(delta, confidence)
    if scores.shape != members.shape or scores.ndim != 1 or not np.isfinite(scores).all():
        raise PrivacyError(
            f"scores have shape {scores.shape} and members {members.shape}, and {(~np.isfinite(scores)).sum()} scores "
            "are not finite; expected two vectors of one length, and finite scores."
        )
    inside, outside = scores[members], scores[~members]
    if min(len(inside), len(outside)) < 2:
        raise PrivacyError(f"{len(inside)} members and {len(outside)} others; a held-out half needs 2 of each.")
    (choose_in, count_in), (choose_out, count_out) = (np.array_split(rng.permutation(x), 2) for x in (inside, outside))
    threshold = _best(choose_in, choose_out, delta, 1 - confidence)
    hits, alarms = int((count_in >= threshold).sum()), int((count_out >= threshold).sum())
    found = from_counts(hits, len(count_in), alarms, len(count_out), delta, confidence=confidence)
    evidence = f"{found.evidence}, at a threshold chosen on {len(choose_in)} and {len(choose_out)} other ones"
    return LowerBound(found.epsilon, delta, confidence, evidence, INDEPENDENT)


def from_one_run(canaries: int, guesses: int, right: int, delta: float, *, confidence: float = 0.95) -> LowerBound:
    """From one training in which each of ``canaries`` was included by an independent fair coin, unknown to the attack.

    The largest epsilon that ``one_run_p_value`` rejects (Steinke, Nasr & Jagielski, 2023, section 6). A proof, whatever
    the training does with its canaries, if the number of guesses was fixed before the scores were seen.
    """
    _check(delta, confidence)
    error = 1 - confidence

    def rejected(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) <= error

    low, high = 0.0, 1.0
    if rejected(0.0):
        while rejected(high):
            low, high = high, 2 * high
        while high - low > WIDTH:
            middle = (low + high) / 2
            low, high = (middle, high) if rejected(middle) else (low, middle)
    evidence = f"{right} of {guesses} guesses right about {canaries} canaries of one training"
    return LowerBound(low, delta, confidence, evidence, COINS)


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The chance, at most, of so many right guesses if the training is (epsilon, delta)-private.

    Steinke, Nasr & Jagielski (2023), theorem 5.2 for fair coins: epsilon alone allows a Binomial(r, q) of right
    guesses, q = 1 / (1 + e^-epsilon), and delta adds a number F of them whose mean is at most 2 m delta. Over all such
    F, P[Binomial + F >= v] is at most P[Binomial >= v] + 2 m delta max_i P[v - i <= Binomial < v] / i. Raises
    PrivacyError unless 0 <= v <= r <= m.
    """
    if not 0 <= right <= guesses <= canaries or not canaries:
        raise PrivacyError(
            f"{right} of {guesses} guesses right about {canaries} canaries; expected no more right than guessed, no "
            "more guessed than there are canaries, and at least one."
        )
    chance = 1 / (1 + math.exp(-epsilon))
    enough = float(binom.sf(right - 1, guesses, chance))
    if not delta or not right:
        return enough
    added = np.arange(1, right + 1)
    nearly = binom.cdf(right - 1, guesses, chance) - binom.cdf(right - 1 - added, guesses, chance)
    return min(enough + 2 * canaries * delta * float((nearly / added).max()), 1.0)


def right_guesses(
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    called_in: int,
    called_out: int,
    *,
    rng: np.random.Generator,
) -> int:
    """How many guesses are right if the ``called_in`` highest scores are called included, and the lowest excluded.

    ``scores`` and ``included`` (m,); equal scores are ordered by ``rng``. Fix both numbers before looking at the
    scores, or the p-value is no p-value. Raises PrivacyError if there are not so many canaries.
    """
    if called_in < 0 or called_out < 0 or called_in + called_out > len(scores) or scores.shape != included.shape:
        raise PrivacyError(
            f"{called_in} canaries called included and {called_out} excluded, of scores {scores.shape} and coins "
            f"{included.shape}; expected two vectors of one length, and no more guesses than canaries."
        )
    order = np.lexsort((rng.random(len(scores)), scores))
    lowest, highest = order[:called_out], order[len(order) - called_in :]
    return int(included[highest].sum() + (~included[lowest]).sum())


def held_against(lower: LowerBound, upper: Guarantee | Claim) -> None:
    """Raises ContradictionError if an attack measured more than the accountant claims is possible.

    Raises PrivacyError if the two cannot be compared: of other units or relations, or the measured delta is below the
    claimed one (a claim at one delta holds at every larger).
    """
    of = upper if isinstance(upper, Claim) else upper.mechanism
    said = upper.sentence if isinstance(upper, Claim) else upper.sentence()
    if upper.epsilon is None or upper.delta is None:
        raise PrivacyError(f"there is no claimed epsilon to hold the measured one against: {said}")
    if (lower.unit, lower.relation) != (of.unit, of.relation) or lower.delta < upper.delta:
        raise PrivacyError(
            f"measured: delta {lower.delta:.3g} per {lower.unit}, {lower.relation}; claimed: delta {upper.delta:.3g} "
            f"per {of.unit}, {of.relation}. They cannot be compared; measure and account for the same "
            "unit and relation, at the same delta."
        )
    if lower.epsilon > upper.epsilon:
        raise ContradictionError(
            f"the attack contradicts the accounting. Measured: {lower.sentence()} Claimed: {said} "
            f"If what it assumes holds, chance does that in {1 - lower.confidence:.2g} of audits at most. "
            f"Look for: {CAUSES}."
        )


def _best(inside: NDArray[np.float64], outside: NDArray[np.float64], delta: float, error: float) -> float:
    """The threshold with the highest bound."""
    thresholds = np.unique(inside)
    hits = len(inside) - np.searchsorted(np.sort(inside), thresholds)
    alarms = len(outside) - np.searchsorted(np.sort(outside), thresholds)
    return float(thresholds[int(np.argmax(_epsilons(hits, len(inside), alarms, len(outside), delta, error)))])


def _epsilons(hits: Any, members: int, alarms: Any, others: int, delta: float, error: float) -> NDArray[np.float64]:
    """The bound of each operating point, perhaps below 0; the two intervals share ``error``."""
    hits, alarms = np.asarray(hits), np.asarray(alarms)
    tpr = np.where(hits > 0, beta.ppf(error / 2, np.maximum(hits, 1), members - hits + 1), 0.0)
    fpr = np.where(alarms < others, beta.ppf(1 - error / 2, alarms + 1, np.maximum(others - alarms, 1)), 1.0)
    with np.errstate(divide="ignore"):
        called = np.log(np.maximum(tpr - delta, 0)) - np.log(fpr)
        left = np.log(np.maximum(1 - fpr - delta, 0)) - np.log1p(-tpr)
    return np.asarray(np.maximum(called, left))


def _check(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1 or not 0 < confidence < 1:
        raise PrivacyError(
            f"delta is {delta} and confidence {confidence}; expected a delta of 0 or more and a confidence, both below "
            "1, such as 1e-5 and 0.95."
        )
