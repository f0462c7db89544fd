"""What a silo has really sent under privacy plans: its own ledger, written before anything of a round leaves.

    ledger.json    a line per round or evaluation that was begun, in order: what it was, whatever plan it was said to
                   belong to
    witness.json   how many there were, and a hash of them: written after the ledger, so that one that went missing or
                   back is noticed

All files deleted together, or both put back together to an older state while the node is stopped, cannot be noticed.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from docleak.errors import PrivacyError
from docleak.files import read_json_object, shaped, write_json
from docleak.privacy.accounting import WHAT, guarantee, rounded_up
from docleak.privacy.distributions import epsilon_of
from docleak.privacy.mechanism import MOST_NOISE, Mechanism, Relation, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.second import second_opinion
from docleak.runs.claim import claimed
from docleak.spec import counted_words
from docleak.training.federated.federation import Federation
from docleak.training.federated.silo_limits import LEDGER, LIMITS, MARGIN, WITNESS, SiloLimits, has_limits

LOST = "Rounds may have been run that are not counted. Put the file back from a copy, or begin with new data."


#: What a line of the ledger is of.
Kind = Literal["train", "evaluate"]
ROUND: Kind = "train"
EVALUATION: Kind = "evaluate"
WORDS: Mapping[Kind, str] = {ROUND: "round", EVALUATION: "evaluation"}


@dataclass(frozen=True)
class BegunRound:
    """One round that this silo began: its noise multiplier is that of the sum over all ``shares``, of which the silo
    adds one. An evaluation has the noise multiplier of its own noise, over how far one unit moves its answer."""

    at: str
    round: int
    noise_multiplier: float
    unit_rate: float
    unit: Unit
    relation: Relation
    clip_norm: float
    denominator: int
    shares: int
    secure: bool
    kind: Kind

    @property
    def mechanism(self) -> Mechanism:
        """What the round is to this silo's units, towards who sees the sum over all shares."""
        return Mechanism(self.noise_multiplier, 1, self.unit_rate, 1.0, self.unit, self.relation)

    @property
    def alone(self) -> Mechanism:
        """The same towards who sees this silo's own update: a share of the noise is all that hides it."""
        return self.mechanism.of_noise(1 / self.shares)


@dataclass(frozen=True)
class SiloLedger:
    """The rounds and evaluations that a silo began, under ``limits`` that it keeps in the same folder."""

    limits: SiloLimits
    begun: tuple[BegunRound, ...] = ()

    def __post_init__(self) -> None:
        if others := [one.unit for one in self.begun if one.unit is not self.limits.unit]:
            raise PrivacyError(
                f"{counted_words(len(others), 'line')} of its ledger protect{'s' * (len(others) == 1)} {others[0]}s, "
                f"and its limits {self.limits.unit}s, of whom nothing was counted. Keep the unit (docleak deploy silo "
                "--unit), or begin in another folder."
            )

    @property
    def rounds(self) -> int:
        """How many rounds were begun."""
        return sum(one.kind == ROUND for one in self.begun)

    @property
    def evaluations(self) -> int:
        """How many evaluations were begun."""
        return len(self.begun) - self.rounds

    def counted(self) -> str:
        """How many rounds, and evaluations where there are any, in words."""
        evaluations = f" and {counted_words(self.evaluations, 'evaluation')}" if self.evaluations else ""
        return counted_words(self.rounds, "private round") + evaluations

    def epsilon(self) -> float:
        """What all of it costs together at the limits' delta, towards who sees sums over all shares; 0 for none.

        Rounds and evaluations add up: which units are kept follows from each plan's seed, which is the server's, so one
        may be trained on under one plan and kept under the next.
        """
        return composed_epsilon(self._seen(alone=False), self.limits.delta)

    def epsilon_alone(self) -> float:
        """The same towards who sees this silo's updates; those of secure rounds are seen in sums only."""
        return composed_epsilon(self._seen(alone=True), self.limits.delta)

    def _seen(self, *, alone: bool) -> list[Mechanism]:
        return [one.alone if alone and not one.secure else one.mechanism for one in self.begun]

    def _second(self, *, alone: bool) -> str:
        """What a second accountant says of either epsilon."""
        epsilon = self.epsilon_alone() if alone else self.epsilon()
        return second_opinion(_counted(self._seen(alone=alone)), self.limits.delta, epsilon)

    def facts(self) -> dict[str, object]:
        """For machines: the limits, and what is spent of them."""
        return {
            "limits": asdict(self.limits), "rounds_begun": self.rounds, "evaluations_begun": self.evaluations,
            "epsilon_of_sums": self.epsilon(), "epsilon_of_updates": self.epsilon_alone(),
        }  # fmt: skip

    def sentence(self) -> str:
        """For people: what is spent, towards whom and under which assumption, and the limits."""
        limits = self.limits
        spent = "No private round was begun."
        if self.begun:
            change = "replaced by another's" if self.begun[0].relation is Relation.REPLACE_ONE else "added or removed"
            secure = any(one.secure for one in self.begun)
            spent = (
                f"{self.counted()} {'was' if len(self.begun) == 1 else 'were'} begun. Towards who sees sums over all "
                f"shares of the noise, if the other silos add theirs: "
                f"epsilon {rounded_up(self.epsilon())} at delta {rounded_up(limits.delta)} "
                f"per {limits.unit} of this silo ({WHAT[limits.unit]} {change}; "
                f"PLD accountant of dp-accounting {version('dp-accounting')}{self._second(alone=False)}). "
                f"Towards who sees this silo's own updates{' (of secure rounds, sums alone)' * secure}: "
                f"{rounded_up(self.epsilon_alone())}{self._second(alone=True)}."
            )
        answers = "answers, counted like a round," if limits.evaluation else "does not answer"
        return (
            f"{spent}\nRefused, whatever the server sends: a round or answer with which they cost more than "
            f"{limits.epsilon:.6g}; a unit other than {limits.unit}; noise of its own with a standard deviation below "
            f"{limits.noise_std:.4g} (z C / sqrt(shares), before M), shared by more than {limits.clients}; C above "
            f"{limits.clip_norm:g}; M below {limits.denominator}. It {answers} questions on the documents it keeps."
        )

    def with_round(self, federation: Federation, *, number: int, shares: int) -> SiloLedger:
        """One round more. PrivacyError, with every reason, for one that the limits do not allow."""
        plan = self._allowed(federation, ROUND, number, shares)
        m, secure = plan.mechanism, federation.secure is not None
        return self._with(
            BegunRound(
                _now(), number, m.noise_multiplier, m.unit_rate, m.unit, m.relation, plan.clip_norm, plan.denominator,
                shares, secure, ROUND,
            )
        )  # fmt: skip

    def with_evaluation(self, federation: Federation, *, number: int, noise: float, sensitivity: float) -> SiloLedger:
        """One evaluation more, whose answer one kept unit moves by ``sensitivity`` at most, under noise of the standard
        deviation ``noise``. PrivacyError, with every reason, for one that the limits do not allow."""
        m, relative = self._allowed(federation, EVALUATION, number).mechanism, min(noise / sensitivity, MOST_NOISE)
        return self._with(
            BegunRound(_now(), number, relative, 1.0, m.unit, m.relation, sensitivity, 1, 1, False, EVALUATION)
        )

    def _allowed(self, federation: Federation, kind: Kind, number: int, shares: int = 1) -> DpPlan:
        """The plan of what is begun next; PrivacyError, with every reason, where the limits do not allow it."""
        if faults := self.limits.refusals(federation, kind=kind, shares=shares):
            raise PrivacyError(f"{WORDS[kind]} {number} is refused by this silo's own limits: {'; '.join(faults)}.")
        assert federation.privacy is not None  # the limits ask for one
        return federation.privacy

    def _with(self, row: BegunRound) -> SiloLedger:
        """PrivacyError for a line with which everything costs more than the limits' epsilon."""
        after = SiloLedger(self.limits, (*self.begun, row))
        if (cost := after.epsilon()) > self.limits.epsilon * (1 + MARGIN):
            raise PrivacyError(
                f"{WORDS[row.kind]} {row.round} is refused by this silo's own ledger: with it, {after.counted()} cost "
                f"epsilon {rounded_up(cost)} at delta {rounded_up(self.limits.delta)}; expected at most "
                f"{self.limits.epsilon:.6g}. Raise the limit (docleak deploy silo) only if the owners of the pages "
                "agree."
            )
        return after

    def save(self, folder: Path) -> None:
        """The ledger, then its witness; each whole or not at all."""
        write_json(folder / LEDGER, {"begun": _rows(self.begun)})
        write_json(folder / WITNESS, {"rounds": len(self.begun), "digest": _digest(self.begun)})

    @classmethod
    def load(cls, folder: Path, changes: Mapping[str, object] = MappingProxyType({})) -> SiloLedger:
        """What ``save`` wrote, under ``changes`` of its limits; PrivacyError for a ledger that is gone, damaged, or
        shorter than it was."""
        limits = SiloLimits.load(folder)
        if changes:
            limits = _limits_of({**asdict(limits), **changes})
        begun = _read_rows(folder / LEDGER)
        witness = read_json_object(folder / WITNESS, error=PrivacyError, advice=LOST)
        count = witness.get("rounds")
        if type(count) is not int or not 0 <= count <= len(begun) or witness.get("digest") != _digest(begun[:count]):
            raise PrivacyError(
                f"{folder / LEDGER} has {len(begun)} rounds and is not the ledger of {count} rounds that "
                f"{WITNESS} knows. {LOST}"
            )
        return cls(limits, begun)


def change_limits(folder: Path, changes: Mapping[str, object]) -> SiloLedger:
    """Set limits of a silo's own folder, all of them if it has none yet; the ledger under them.

    PrivacyError for limits that make no sense, for some of them where there are none, and for a folder without any.
    """
    if not folder.is_dir():
        raise PrivacyError(f"{folder} is no folder; give the silo's own.")
    with claimed(folder, wait=True):
        kept = has_limits(folder) and not _only_begun_to_set(folder)
        if kept:
            ledger = SiloLedger.load(folder, changes)
        else:
            settings = {"evaluation": False, **changes}
            if missing := [field.name for field in fields(SiloLimits) if field.name not in settings]:
                options = " ".join(f"--{name.replace('_', '-')}" for name in missing)
                too = ", too" if changes else ""
                raise PrivacyError(f"{folder} has no limits yet; to set them, give {options}{too}.")
            ledger = SiloLedger(_limits_of(settings))
            ledger.save(folder)
        if not kept or changes:
            ledger.limits.save(folder)
    return ledger


def _limits_of(settings: Mapping[str, object]) -> SiloLimits:
    return shaped(SiloLimits, settings, PrivacyError, "a silo's limits", "Give what the silo's owner allows.")


def _only_begun_to_set(folder: Path) -> bool:
    """Whether limits were being set for the first time when that was stopped: an empty ledger, and no limits yet."""
    if (folder / LIMITS).exists() or not (folder / LEDGER).exists() or _read_rows(folder / LEDGER):
        return False
    if not (folder / WITNESS).exists():
        return True
    return read_json_object(folder / WITNESS, error=PrivacyError, advice=LOST).get("rounds") == 0


def begin(folder: Path, counted: Callable[[SiloLedger], SiloLedger], *, known: int = 0) -> int:
    """Count a round or an evaluation (``counted`` is ``with_round`` or ``with_evaluation`` of it) in the silo's own
    ledger before anything of it leaves; how many there are then.

    ``known`` is how many lines the running node has counted. PrivacyError for what the silo's limits do not allow, and
    where the ledger has fewer lines than that.
    """
    with claimed(folder, wait=True):
        ledger = SiloLedger.load(folder)
        if len(ledger.begun) < known:
            raise PrivacyError(f"{folder / LEDGER} has {len(ledger.begun)} rounds; this node has begun {known}. {LOST}")
        after = counted(ledger)
        after.save(folder)
    return len(after.begun)


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def _rows(begun: Sequence[BegunRound]) -> list[dict[str, object]]:
    return [asdict(one) for one in begun]


def _digest(begun: Sequence[BegunRound]) -> str:
    return hashlib.sha256(json.dumps(_rows(begun), sort_keys=True).encode()).hexdigest()


def _read_rows(file: Path) -> tuple[BegunRound, ...]:
    rows = read_json_object(file, error=PrivacyError, advice=LOST).get("begun")
    return shaped(tuple[BegunRound, ...], rows, PrivacyError, str(file), LOST)


def composed_epsilon(rounds: Sequence[Mechanism], delta: float) -> float:
    """Epsilon at ``delta`` of single rounds one after the other, by the PLD accountant; 0 for none."""
    if any(one.noise_multiplier == 0 for one in rounds):
        return math.inf
    parts = _counted(rounds)
    if len(parts) <= 1:
        return sum(guarantee(part, delta).epsilon for part in parts)
    return epsilon_of(parts, delta)


def _counted(rounds: Sequence[Mechanism]) -> list[Mechanism]:
    """Equal rounds as one mechanism of so many."""
    return [replace(one, rounds=count) for one, count in Counter(rounds).items()]
