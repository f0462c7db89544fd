"""A model's lineage: every training that touched private data, and the one claim for all of them together."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Literal

from docleak.errors import PrivacyError
from docleak.files import json_values, shaped
from docleak.privacy.accounting import WHAT, Guarantee, guarantee, rounded_up
from docleak.privacy.distributions import epsilon_of, published
from docleak.privacy.mechanism import Mechanism, Relation, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.second import second_opinion
from docleak.spec import counted_words

#: What is known of the values that all training began with.
Origin = Literal["public", "declared public by the user", "unknown"]
PUBLIC: Origin = "public"
DECLARED: Origin = "declared public by the user"
UNKNOWN: Origin = "unknown"
#: What a claim is: a bound on epsilon, none, not known, or that nothing private was trained on.
BOUND, NO_GUARANTEE, NOT_KNOWN, NOTHING_PRIVATE = "bound", "no guarantee", "unknown", "nothing private"
#: What a claim takes for granted where silos' units were never seen together.
UNCHECKED = (
    " It holds for a {unit} that is in one silo only, which docleak cannot check over a network: one in k of them "
    "moves a sum up to k times as far."
)
#: Ways of having been trained on or kept that are looked at one by one.
MOST_WAYS = 16


@dataclass(frozen=True)
class Trained:
    """One training on private data. ``plan`` counts the rounds that were begun, and is None without privacy.

    ``identity`` tells trainings apart and says nothing else. ``providers`` is the digest of this training's
    ``Fingerprints``, which lie elsewhere: their number alone would tell of one provider; None where nobody knows whose
    data it was. ``ledger`` is the digest of the ledger, ``repeatable`` says that noise came from a known seed.
    ``scores`` is how far a unit that was kept to evaluate on can move all its noised scores together, in standard
    deviations of their noise; 0 where none were released. ``unchecked``: nobody saw whether a unit is in two silos.
    ``sessions`` are the processes that went on with it: how many rounds were begun before, and a random name, by which
    copies of one training that were both gone on with are told from states of one.
    """

    identity: str
    what: str
    plan: DpPlan | None
    epsilon: float | None = None
    accountant: str = ""
    providers: str | None = None
    ledger: str = ""
    repeatable: bool = False
    scores: float = 0.0
    unchecked: bool = False
    sessions: tuple[tuple[int, str], ...] = ()

    def spent(self) -> Guarantee | None:
        """What this training by itself guarantees."""
        return None if self.plan is None else self.plan.guarantee()


@dataclass(frozen=True)
class Lineage:
    """What a model's values come from: an origin, and the trainings since, oldest first.

    ``origin`` is PUBLIC, DECLARED or UNKNOWN, ``note`` says in words what it is.
    """

    origin: Origin
    note: str
    trainings: tuple[Trained, ...] = ()

    def after(self, training: Trained) -> Lineage:
        """With one training more; one with the same identity takes its place, so that nothing counts twice."""
        return replace(self, trainings=(*(t for t in self.trainings if t.identity != training.identity), training))

    def declared(self) -> Lineage:
        """The same, of which the user says that its origin is public. PrivacyError where it is known to be private."""
        if self.trainings:
            raise PrivacyError(
                f"the start cannot be declared public: its docleak.json lists "
                f"{counted_words(len(self.trainings), 'training')} on private data "
                f"({', '.join(t.what for t in self.trainings)}). Leave --start-is-public out."
            )
        return self if self.origin == PUBLIC else Lineage(DECLARED, self.note)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``from_dict`` reads it. An infinite epsilon is null."""
        return json_values(asdict(self), "a lineage")

    @classmethod
    def from_dict(cls, saved: Any) -> Lineage:
        """The inverse; PrivacyError for anything else."""
        return shaped(cls, saved, PrivacyError, "the lineage", "It is damaged.")


def united(parts: Sequence[Lineage]) -> Lineage:
    """The lineage of a model that is put together of several: the least known origin, and all trainings; of copies of
    one that were gone on with also what each spent by itself."""
    order: tuple[Origin, ...] = (UNKNOWN, DECLARED, PUBLIC)
    origin = min((part.origin for part in parts), key=order.index)
    trainings: list[Trained] = []
    every = [training for part in parts for training in part.trainings]
    for identity in dict.fromkeys(training.identity for training in every):
        same = [training for training in every[::-1] if training.identity == identity]
        longest, *others = sorted(same, key=_rounds, reverse=True)
        trainings.append(longest)
        counted = [longest]
        for copy in others:
            if rounds := min(_beyond(copy, one) for one in counted):
                counted.append(copy)
                trainings.append(_apart(copy, rounds))
    return Lineage(origin, " and ".join(dict.fromkeys(part.note for part in parts)), tuple(trainings))


def _rounds(training: Trained) -> int:
    return training.plan.mechanism.rounds if training.plan else 0


def _beyond(copy: Trained, other: Trained) -> int:
    """How many rounds of a training's copy are not the other's: those since one of the two was gone on with alone."""
    shared = 0
    while copy.sessions[: shared + 1] == other.sessions[: shared + 1] and shared < len(copy.sessions):
        shared += 1
    parted = [of.sessions[shared][0] for of in (copy, other) if len(of.sessions) > shared]
    return _rounds(copy) - min([*parted, _rounds(copy), _rounds(other)])


def _apart(copy: Trained, rounds: int) -> Trained:
    """What a copy spent by itself, as a training of its own."""
    plan = copy.plan and replace(copy.plan, mechanism=replace(copy.plan.mechanism, rounds=rounds))
    what = f"{copy.what}, of which {counted_words(rounds, 'round')} in a copy that was gone on with"
    name = "-".join([copy.identity, *(session for _, session in copy.sessions[-1:]), "copy"])
    return replace(copy, identity=name, what=what, plan=plan, epsilon=None)


@dataclass(frozen=True)
class Fingerprints:
    """Whose data each training saw: keyed hashes of providers' names by the training's identity, all with one key.

    Whoever has the key can test a name. So this is private to those who hold the data, and never beside the weights.
    ``idle`` are those of a federated training's ``hashes`` whose clients no round drew: they could have been trained
    on, which is what a privacy claim counts, and were not.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    idle: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def with_names(self, identity: str, names: Iterable[str]) -> Fingerprints:
        """With providers of one training more, beside those that it is known to have; names as spellings share them."""
        together = self.hashes.get(identity, frozenset()).union(map(self._hash, names))
        return replace(self, hashes={**self.hashes, identity: together})

    def with_idle(self, identity: str, names: Iterable[str]) -> Fingerprints:
        """With these of a training's providers as those whose clients no round has drawn, and no others."""
        return replace(self, idle={**self.idle, identity: frozenset(map(self._hash, names))})

    def drawn(self) -> Fingerprints:
        """Of every training those that it was trained on: without the idle ones."""
        left = {name: of - self.idle.get(name, frozenset()) for name, of in self.hashes.items()}
        return replace(self, hashes=left, idle={})

    def knows(self, name: str) -> bool:
        """Whether any of the trainings saw, or could have seen, data of that provider."""
        digest = self._hash(name)
        return any(digest in of for of in self.hashes.values())

    def _hash(self, name: str) -> str:
        return hmac.new(self.key, name.encode("utf-8", "backslashreplace"), hashlib.sha256).hexdigest()

    def digest(self, identity: str) -> str:
        """What ties the hashes of a training to its entry in the lineage; it hides them, and their number."""
        text = "\n".join(sorted(self.hashes[identity]))
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    def of(self, training: Trained) -> frozenset[str] | None:
        """The hashes of a training, where they are known and are those that it had."""
        there = training.identity in self.hashes and training.providers == self.digest(training.identity)
        return self.hashes[training.identity] if there else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``from_dict`` reads it."""
        groups = {"hashes": self.hashes, **({"idle": self.idle} if self.idle else {})}
        return {"key": self.key.hex(), **{of: {n: sorted(h) for n, h in g.items()} for of, g in groups.items()}}

    @classmethod
    def from_dict(cls, saved: Any) -> Fingerprints:
        """The inverse; PrivacyError for anything else."""
        try:
            hashes, idle = (
                {str(k): frozenset(map(str, v)) for k, v in of.items()}
                for of in (saved["hashes"], saved.get("idle", {}))
            )
            return cls(bytes.fromhex(saved["key"]), hashes, idle)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PrivacyError("the fingerprints of providers are damaged; expected a key and hashes.") from error


@dataclass(frozen=True)
class Claim:
    """What holds for a model, in a ``sentence`` that says all it depends on.

    ``kind`` is BOUND, NO_GUARANTEE, NOT_KNOWN or NOTHING_PRIVATE; numbers are there for BOUND only. ``parts`` says what
    each training by itself costs.
    """

    kind: str
    sentence: str
    epsilon: float | None = None
    delta: float | None = None
    unit: str = ""
    relation: str = ""
    parts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "parts": list(self.parts)}


def claim_of(lineage: Lineage, known: Fingerprints | None = None) -> Claim:
    """The claim for a model: the only place where trainings are composed.

    ``known`` are the fingerprints of its trainings, as far as there are any: without them, trainings count as if all
    of them had seen the same providers.
    """
    private = [t for t in lineage.trainings if t.plan is not None]
    open_ = [t for t in lineage.trainings if t.plan is None]
    parts = tuple(f"{t.what}: {_alone(t)}" for t in lineage.trainings)
    if lineage.origin == UNKNOWN:
        more = f" {_addition(private)}" if private else ""
        also = f" It was also trained without privacy: {_names(open_)}." if open_ else ""
        return Claim(NOT_KNOWN, f"unknown: nothing says what its start saw ({lineage.note}).{also}{more}", parts=parts)
    start = f"Its start is {lineage.origin}: {lineage.note}."
    if not lineage.trainings:
        return Claim(NOTHING_PRIVATE, f"no training on private pages is recorded. {start}", parts=parts)
    if not private:
        return Claim(
            NO_GUARANTEE, f"no differential privacy: trained without it ({_names(open_)}). {start}", parts=parts
        )
    beside = ""
    if open_:
        fault, beside = _unprotected(private, open_, known, lineage.trainings[-1].plan is not None)
        if fault:
            return Claim(NO_GUARANTEE, f"no guarantee: {fault} {_addition(private)} {start}", parts=parts)
    return _bound(private, known, f"{beside}{start}", parts)


def _bound(private: Sequence[Trained], known: Fingerprints | None, start: str, parts: tuple[str, ...]) -> Claim:
    """The composition of trainings with privacy, whose start gives nothing away."""
    plans = [t.plan for t in private if t.plan is not None]
    mechanisms, delta = [plan.mechanism for plan in plans], plans[-1].delta
    if any(published(m) for m in mechanisms):
        said = "no bound: clients drawn whole were counted as published, as if each unit were drawn on its own"
        text = _alone(private[0]) if len(private) == 1 else f"{said}. {' '.join(parts)}"
        return Claim(NO_GUARANTEE, f"{text} {start}", parts=parts)
    if silent := [t for t in private if t.plan and t.plan.mechanism.noise_multiplier == 0]:
        return Claim(NO_GUARANTEE, f"no differential privacy: no noise in {_names(silent)}. {start}", parts=parts)
    if len(kinds := {(m.unit, m.relation) for m in mechanisms}) > 1:
        said = " and ".join(sorted(f"per {unit} ({relation})" for unit, relation in kinds))
        return Claim(
            NOT_KNOWN,
            f"unknown: what its trainings guarantee {said} does not add up to one epsilon. {' '.join(parts)} {start}",
            parts=parts,
        )
    unit, relation = mechanisms[0].unit, mechanisms[0].relation
    seeded = " Noise came from a seed: this holds against nobody who knows it." * any(t.repeatable for t in private)
    seeded += UNCHECKED.format(unit=unit) * any(t.unchecked for t in private)
    if len(private) == 1:
        alone = guarantee(mechanisms[0], delta)
        text = f"{alone.sentence()}{seeded} {start}"
        return Claim(BOUND, text, alone.epsilon, delta, unit, relation, parts)
    one = guarantee(mechanisms[-1], delta)
    if _disjoint(private, known, mechanisms[0]):
        worst = max(mechanisms, key=lambda m: guarantee(m, delta).epsilon)
        epsilon, counted = guarantee(worst, delta).epsilon, [worst]
        how = f"the largest of {len(private)} trainings, as no provider is in two of them (parallel composition)"
    else:
        epsilon, counted = epsilon_of(mechanisms, delta), mechanisms
        how = f"{len(private)} trainings composed, as if each {unit} were in all of them"
    change = "replaced by another's" if relation == "replace-one" else "added or removed"
    text = (
        f"epsilon {rounded_up(epsilon)} at delta {rounded_up(delta)} per {unit} ({WHAT[unit]} {change}): {how}; "
        f"{one.accountant.upper()} accountant of dp-accounting {one.version}{second_opinion(counted, delta, epsilon)}. "
        "By themselves:"
        + "".join(f"\n  - {part}" for part in parts) + f"\n{seeded.strip()}{' ' * bool(seeded)}{start}"
    )  # fmt: skip
    return Claim(BOUND, text, epsilon, delta, unit, relation, parts)


def epsilon_with_scores(lineage: Lineage, delta: float) -> float:
    """Epsilon of a BOUND claim's lineage and of all noised scores that its trainings released besides.

    In each training a unit is trained on or kept to evaluate on, never both: the worst of these ways, each composed.
    With more than MOST_WAYS of them, as if every unit were trained on and kept in all.
    """
    private = [t for t in lineage.trainings if t.plan is not None]
    ways = [[t.plan.mechanism, *([_of_scores(t)] if t.scores else [])] for t in private if t.plan is not None]
    if math.prod(map(len, ways)) > MOST_WAYS:
        return epsilon_of([mechanism for way in ways for mechanism in way], delta)
    return max(epsilon_of(list(way), delta) for way in product(*ways))


def _of_scores(training: Trained) -> Mechanism:
    """A training's noised scores as one Gaussian release."""
    assert training.plan is not None
    return replace(
        training.plan.mechanism, noise_multiplier=1 / training.scores, rounds=1, unit_rate=1.0, client_rate=1.0
    )


def _disjoint(private: Sequence[Trained], known: Fingerprints | None, like: Mechanism) -> bool:
    """Whether no provider is in two trainings. Clients are no part of that: one may hold others' documents later. Nor
    is replacing one: whoever takes a provider's place may be trained on in another training."""
    if known is None or like.unit is Unit.CLIENT or like.relation is Relation.REPLACE_ONE:
        return False
    sets = [known.of(t) for t in private]
    if any(one is None for one in sets):
        return False
    there = [one for one in sets if one is not None]
    return sum(map(len, there)) == len(frozenset().union(*there))


def _unprotected(
    private: Sequence[Trained], open_: Sequence[Trained], known: Fingerprints | None, before: bool
) -> tuple[str, str]:
    """Why trainings without privacy leave nothing of the others' guarantee; or, where it stays, whom it leaves out.

    ``before``: the last training is private, so that the others are its start's.
    """
    when = f"{'its start was' if before else 'it was also'} trained"
    without = f"without privacy ({_names(open_)})"
    if any(t.plan is not None and t.plan.mechanism.unit is Unit.CLIENT for t in private):  # as in _disjoint
        return f"{when} {without}, and nothing shows that this was of other clients.", ""
    protected = [known.of(t) if known else None for t in private]
    exposed = [known.of(t) if known else None for t in open_]
    if any(one is None for one in (*protected, *exposed)):
        return f"{when} {without}, and nothing shows that this was on other providers.", ""
    first: frozenset[str] = frozenset().union(*(one for one in protected if one is not None))
    second: frozenset[str] = frozenset().union(*(one for one in exposed if one is not None))
    if first & second:  # how many is not said: a number tells of one provider
        return f"{when} on some of these providers {without}.", ""
    return "", (
        f"This covers the providers that were trained on with privacy, not those others that "
        f"were trained on without ({_names(open_)}). "
    )


def _alone(training: Trained) -> str:
    spent = training.spent()
    return "without privacy." if spent is None else spent.sentence()


def _addition(private: Sequence[Trained]) -> str:
    """What private trainings add to whatever was there before."""
    said = "; ".join(f"{t.what} by itself: {_alone(t)}" for t in private)
    return f"What was added since, taken alone: {said}"


def _names(trainings: Sequence[Trained]) -> str:
    return ", ".join(t.what for t in trainings)
