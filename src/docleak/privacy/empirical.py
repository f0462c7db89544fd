"""Lower bounds on epsilon, measured by attacks, and held against what the accountant claims.

An attack that tells members from others better than (epsilon, delta) allows shows that the true epsilon is higher.
Everything here is about adding or removing one unit, and holds with a stated confidence. ``lower_bound`` is the one way
in; what it may take for granted is said by its caller, and printed with every bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, gammaincinv, ndtri

from docleak.errors import ContradictionError, PrivacyError
from docleak.privacy.accounting import Guarantee, rounded_down
from docleak.privacy.lineage import Claim
from docleak.privacy.mechanism import Relation, Unit
from docleak.privacy.one_run import check_counts, curve_refuted, one_run_p_value, ordered_p_value
from docleak.privacy.ranks import Ranks
from docleak.privacy.tradeoff import LARGEST, AnyMechanism, Family, Gaussian, largest

#: What a bound is by.
STEINKE, CURVE = "one run (Steinke et al., 2023)", "one run, f-DP (Mahloujifar et al., 2024)"
ORDERED, FITTED, EXACT = "one run, order statistics", "Gaussian fit", "Clopper-Pearson"
RANKED = "order statistics of independent trials"
#: Of how many canaries f-DP guesses where nobody said, one in so many, both tried: few for weak traces, many for strong
#: ones. What is left to order statistics of the chance to be wrong; each of the others has an equal share of the rest.
ONE_IN, ORDERED_SHARE = (2, 7), 0.1
INDEPENDENT = "counted as if each were an independent trial"
COINS = "canaries included by independent fair coins"
NORMAL = "scores of canaries independent and normal, with one variance"
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

    ``evidence`` says what was counted, ``assumes`` what the confidence rests on, and ``method`` what it is by.
    """

    epsilon: float
    delta: float
    confidence: float
    evidence: str
    assumes: str
    unit: Unit = Unit.PROVIDER
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    method: str = EXACT

    @property
    def in_words(self) -> str:
        """ "at least 1.234 at delta 1e-05 per provider, 0.95 confidence"; "" where nothing is shown."""
        at = f"at delta {rounded_down(self.delta)} per {self.unit}, {in_digits(self.confidence)} confidence"
        return f"at least {rounded_down(self.epsilon)} {at}" if self.epsilon > 0 else ""

    def sentence(self) -> str:
        """The claim with everything it depends on."""
        return (
            f"epsilon at least {rounded_down(self.epsilon)} at delta {rounded_down(self.delta)} per {self.unit} "
            f"({self.relation}), {in_digits(self.confidence)} confidence, by {self.method}: {self.evidence}; "
            f"{self.assumes}."
        )


def in_digits(confidence: float) -> str:
    """A confidence with two digits of what is missing to 1, rounded down: 0.95, 0.983, 0.99999."""
    digits = 1 - math.floor(math.log10(1 - confidence) + 1e-9) if confidence < 1 else 2
    return f"{math.floor(confidence * 10**digits + 1e-6) / 10**digits:.{digits}f}".rstrip("0")


def jointly(bounds: Mapping[str, LowerBound]) -> dict[str, LowerBound]:
    """The same bounds, each with the confidence with which all of them hold: that of whichever is picked afterwards."""
    joint = 1 - sum(1 - bound.confidence for bound in bounds.values())
    return {name: replace(bound, confidence=joint) for name, bound in bounds.items()}


@dataclass(frozen=True)
class Guesses:
    """``right`` of ``guesses`` about ``canaries`` of one training, each included by a fair coin of its own.

    Their number was fixed before any score was seen.
    """

    canaries: int
    guesses: int
    right: int

    def __post_init__(self) -> None:
        check_counts(self.canaries, self.guesses, self.right)

    @property
    def text(self) -> str:
        """What was counted."""
        return f"{self.right} of {self.guesses} guesses right about {self.canaries} canaries of one training"


@dataclass(frozen=True, eq=False)
class Scores:
    """``scores`` (m,) of the canaries of one training, higher for likelier ones, and their coins ``included`` (m,)."""

    scores: NDArray[np.float64]
    included: NDArray[np.bool_]

    def __post_init__(self) -> None:
        _check_scores(self.scores, self.included)


@dataclass(frozen=True)
class Trials:
    """Independent trials, such as trainings: ``hits`` of ``members`` and ``alarms`` of ``others`` called members."""

    hits: int
    members: int
    alarms: int
    others: int


def lower_bound(
    observed: Guesses | Scores | Trials,
    delta: float,
    *,
    confidence: float = 0.95,
    family: Family | None = None,
    normal: bool = False,
    rng: np.random.Generator | None = None,
) -> LowerBound:
    """The tightest bound that holds with ``confidence`` for what was ``observed`` and what is taken for granted.

    Without ``family`` nothing is, and the bound holds for any mechanism. With it, the mechanism's trade-off curve is
    one of the family's, of unknown strength, and all its curves below that epsilon are refuted. Where the accountant
    claims a mechanism of the family, a bound above its epsilon contradicts the claim, whatever was done instead.
    ``normal`` grants besides that the canaries' scores are independent and normal with one variance.

    How taking the tightest stays valid: of Guesses, and Trials, all methods bound the chance of one and the same count,
    and the least of several upper bounds is one: nothing is split. Of Scores the method is fixed by what is granted:
    ``normal``: a fit; nothing: order statistics; ``family``: order statistics and f-DP with a half and a seventh of the
    canaries as guesses, which share 1 - ``confidence``. Ties of scores are ordered by ``rng``. Raises
    PrivacyError for what cannot be observed, and for Scores without ``rng`` unless ``normal``.
    """
    _check(delta, confidence)
    error = 1 - confidence
    if isinstance(observed, Trials):
        return _of_trials(observed, delta, confidence, family)
    if isinstance(observed, Guesses):
        return _of_guesses(observed, delta, confidence, family)
    if normal:
        return _fitted(observed, delta, confidence)
    if rng is None:
        raise PrivacyError("equal scores need a generator that orders them; give rng.")
    surest, called = _surest_first(observed.scores, rng)
    right = observed.included[surest] == called
    share = error * ORDERED_SHARE if family else error
    epsilon = largest(lambda e: ordered_p_value(right, e, delta) <= share, AnyMechanism(delta).most)
    evidence = f"{int(right.sum())} of {len(right)} canaries of one training right, the surest first"
    best = LowerBound(epsilon, delta, confidence, evidence, f"{COINS}; {AnyMechanism.text}", method=ORDERED)
    for one_in in ONE_IN if family else ():
        some = min(max(len(right) // one_in, 2), len(right))
        seen = Guesses(len(right), some, int(right[:some].sum()))
        by_curve = _of_guesses(seen, delta, 1 - (error - share) / len(ONE_IN), family)
        if by_curve.epsilon > best.epsilon:
            best = replace(by_curve, confidence=confidence)
    return best


def _of_guesses(seen: Guesses, delta: float, confidence: float, family: Family | None) -> LowerBound:
    """The highest epsilon at which some bound on the chance of so many right guesses is at most 1 - ``confidence``."""
    anything, error = AnyMechanism(delta), 1 - confidence
    plain = from_one_run(seen.canaries, seen.guesses, seen.right, delta, confidence=confidence)
    bounds = [replace(plain, assumes=f"{COINS}; {anything.text}")]
    for curves in (anything, family) if family else (anything,):
        strength = _refuted_up_to(curves, seen, error)
        epsilon, assumes = curves.epsilon(strength, delta) if strength else 0.0, f"{COINS}; {curves.text}"
        bounds.append(LowerBound(epsilon, delta, confidence, seen.text, assumes, method=CURVE))
    return max(bounds, key=lambda bound: bound.epsilon)


def _refuted_up_to(curves: Family, seen: Guesses, error: float) -> float:
    def refuted(strength: float) -> bool:
        return curve_refuted(seen.canaries, seen.guesses, seen.right, curves.inverse(strength), error)

    return largest(refuted, curves.most, width=curves.width)


def _of_trials(seen: Trials, delta: float, confidence: float, family: Family | None) -> LowerBound:
    """By exact intervals of both rates, and with a family by its curves through their worse ends."""
    plain = from_counts(seen.hits, seen.members, seen.alarms, seen.others, delta, confidence=confidence)
    if family is None:
        return plain
    tpr, fpr = _rates(seen.hits, seen.members, seen.alarms, seen.others, 1 - confidence)

    def refuted(strength: float) -> bool:
        inverse = family.inverse(strength)
        return bool(inverse(float(tpr)) > fpr or inverse(float(1 - fpr)) > 1 - tpr)

    strength = largest(refuted, family.most, width=family.width)
    epsilon = family.epsilon(strength, delta) if strength else 0.0
    if epsilon <= plain.epsilon:
        return plain
    assumes = f"{INDEPENDENT}; {family.text}"
    return LowerBound(epsilon, delta, confidence, plain.evidence, assumes, method=f"{EXACT}, f-DP")


def _fitted(seen: Scores, delta: float, confidence: float) -> LowerBound:
    """Two normal laws of one variance, their distance from below (after Agrawal et al., 2026, but for finite samples).

    The mean difference fails by its normal law, the standard deviation by its chi-squared one, each with half.
    """
    inside, outside = seen.scores[seen.included], seen.scores[~seen.included]
    if min(len(inside), len(outside)) < 2:
        raise PrivacyError(
            f"a coin for each of {len(seen.scores)} made {len(inside)} of them members, {len(outside)} not; a fit "
            "needs 2 of each. Take more of them (--canaries), or another --seed."
        )
    half, free = (1 - confidence) / 2, len(seen.scores) - 2
    squares = float(((inside - inside.mean()) ** 2).sum() + ((outside - outside.mean()) ** 2).sum())
    spread, apart = math.sqrt(squares / (2 * gammaincinv(free / 2, half))), float(inside.mean() - outside.mean())
    distance = math.inf if not spread and apart > 0 else apart / spread if apart > 0 else 0.0
    distance -= float(-ndtri(half)) * math.sqrt(1 / len(inside) + 1 / len(outside))
    epsilon = Gaussian().epsilon(min(distance, Gaussian().most), delta) if distance > 0 else 0.0
    evidence = f"scores of {len(inside)} included canaries and {len(outside)} others of one training"
    return LowerBound(epsilon, delta, confidence, evidence, f"{COINS}; {NORMAL}", method=FITTED)


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
    family: Family | None = None,
) -> LowerBound:
    """From scores (P,), higher for likelier members, with the thresholds that prove most; members (P,) bool.

    Thresholds are at ranks of the scores (``ranks``), so that none is chosen by looking, and nobody is set apart to
    choose it. Independent trials are granted, as in ``from_counts``; with ``family`` its curves, too. Raises
    PrivacyError for one class alone, and for a score that is not finite.
    """
    _check(delta, confidence)
    _check_scores(scores, members)
    inside, outside = scores[members], scores[~members]
    if not len(inside) or not len(outside):
        raise PrivacyError(f"{len(inside)} members and {len(outside)} others; expected at least one of each.")
    seen, curves = Ranks.of_scores(inside, outside, rng), family or AnyMechanism(delta)
    strength = largest(lambda s: seen.p_value(curves.inverse(s)) <= 1 - confidence, curves.most, width=1e-4)
    epsilon = curves.epsilon(strength, delta) if strength else 0.0
    evidence = f"scores of {len(inside)} members and {len(outside)} others, at {len(seen.rank)} ranks of them"
    return LowerBound(epsilon, delta, confidence, evidence, f"{INDEPENDENT}; {curves.text}", method=RANKED)


def from_one_run(canaries: int, guesses: int, right: int, delta: float, *, confidence: float = 0.95) -> LowerBound:
    """From one training in which each of ``canaries`` was included by an independent fair coin, unknown to the attack.

    The largest epsilon that ``one_run_p_value`` rejects (Steinke, Nasr & Jagielski, 2023, section 6). A proof, whatever
    the training does with its canaries, if the number of guesses was fixed before the scores were seen.
    """
    _check(delta, confidence)
    error = 1 - confidence
    low = largest(lambda epsilon: one_run_p_value(canaries, guesses, right, epsilon, delta) <= error, LARGEST)
    seen = Guesses(canaries, guesses, right)
    return LowerBound(low, delta, confidence, seen.text, COINS, method=STEINKE)


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
    scores, or the p-value is no p-value. Raises PrivacyError if there are not so many canaries, or a score is NaN.
    """
    if missing := int(np.isnan(scores).sum()):
        raise PrivacyError(
            f"{missing} of {len(scores)} scores are NaN, which no order ranks; expected a number for every canary. "
            "Leave out what has none, or look for weights that are not finite."
        )
    if called_in < 0 or called_out < 0 or called_in + called_out > len(scores) or scores.shape != included.shape:
        raise PrivacyError(
            f"{called_in} canaries called included and {called_out} excluded, of scores {scores.shape} and coins "
            f"{included.shape}; expected two vectors of one length, and no more guesses than canaries."
        )
    order = _lowest_first(scores, rng)
    lowest, highest = order[:called_out], order[len(order) - called_in :]
    return int(included[highest].sum() + (~included[lowest]).sum())


def _lowest_first(scores: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.intp]:
    return np.lexsort((rng.random(len(scores)), scores))


def _surest_first(scores: NDArray[np.float64], rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Highest, lowest, second highest, ...: the canaries in that order, and whether each is called included."""
    order, called = _lowest_first(scores, rng), np.arange(len(scores)) % 2 == 0
    surest = np.empty_like(order)
    surest[called], surest[~called] = order[::-1][: called.sum()], order[: (~called).sum()]
    return surest, called


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


def _epsilons(hits: Any, members: int, alarms: Any, others: int, delta: float, error: float) -> NDArray[np.float64]:
    """The bound of each operating point, perhaps below 0; the two intervals share ``error``."""
    tpr, fpr = _rates(hits, members, alarms, others, error)
    with np.errstate(divide="ignore"):
        called = np.log(np.maximum(tpr - delta, 0)) - np.log(fpr)
        left = np.log(np.maximum(1 - fpr - delta, 0)) - np.log1p(-tpr)
    return np.asarray(np.maximum(called, left))


def _rates(hits: Any, members: int, alarms: Any, others: int, error: float) -> tuple[Any, Any]:
    """The worse ends of both rates' exact intervals, each wrong with half of ``error``."""
    hits, alarms = np.asarray(hits), np.asarray(alarms)
    tpr = np.where(hits > 0, betaincinv(np.maximum(hits, 1), members - hits + 1, error / 2), 0.0)
    fpr = np.where(alarms < others, betaincinv(alarms + 1, np.maximum(others - alarms, 1), 1 - error / 2), 1.0)
    return tpr, fpr


def _check_scores(scores: NDArray[np.float64], members: NDArray[np.bool_]) -> None:
    if scores.shape != members.shape or scores.ndim != 1 or not np.isfinite(scores).all():
        raise PrivacyError(
            f"scores have shape {scores.shape} and members {members.shape}, and {(~np.isfinite(scores)).sum()} scores "
            "are not finite; expected two vectors of one length, and finite scores."
        )


def _check(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1 or not 0 < confidence < 1:
        raise PrivacyError(
            f"delta is {delta} and confidence {confidence}; expected a delta of 0 or more and a confidence, both below "
            "1, such as 1e-5 and 0.95."
        )
