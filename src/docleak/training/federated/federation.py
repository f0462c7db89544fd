"""A federation: what every party of a federated training agrees on, and what follows from it alone."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from docleak.errors import FederationError
from docleak.privacy.mechanism import Unit
from docleak.privacy.plan import DpPlan
from docleak.training.federated.fedopt import FedOpt
from docleak.training.federated.local import LocalPlan
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.wire import Compression

#: Keep the streams of one seed apart: which silos are sampled, a client's round, what a silo keeps to itself.
SAMPLING, TRAINING, HOLDOUT = 1, 2, 3


@dataclass(frozen=True)
class Federation:
    """Everything that changes a number of a federated training, and nothing else.

    ``model`` is a name of a shipped checkpoint, a directory or a hub name, as each party has it. ``participation`` is
    C, the share of the silos that train in a round (at least one). Each silo keeps the ``holdout`` share of its
    documents to evaluate on. A round needs the update of every sampled silo, unless ``minimum`` says how many will do.
    With a ``privacy`` plan silos train by FL-PROVIDER-DP, on what it protects, and say nothing of their own besides.
    With a ``secure`` plan the server learns sums of updates only, and no counts or losses of a silo.
    """

    model: str = "vt5-start"
    rounds: int = 3
    participation: float = 1.0
    minimum: int = 0
    holdout: float = 0.2
    seed: int = 0
    local: LocalPlan = field(default_factory=LocalPlan)
    server: FedOpt = field(default_factory=FedOpt)
    compression: Compression = field(default_factory=Compression)
    privacy: DpPlan | None = None
    secure: SecurePlan | None = None

    def __post_init__(self) -> None:
        faults = []
        if self.rounds < 1:
            faults.append(f"rounds is {self.rounds}; expected at least 1")
        if not 0 < self.participation <= 1:
            faults.append(f"participation is {self.participation}; expected more than 0 and at most 1")
        if self.minimum < 0 or self.seed < 0:
            faults.append(f"minimum is {self.minimum} and seed {self.seed}; expected 0 or more")
        if not 0 <= self.holdout < 1:
            faults.append(f"holdout is {self.holdout}; expected 0 or more and less than 1")
        if self.privacy is not None:
            faults += _private_faults(self, self.privacy)
        if self.secure is not None:
            faults += _secure_faults(self)
        if faults:
            raise FederationError("; ".join(faults) + ".")

    def to_json(self) -> str:
        """One line that ``from_json`` reads; what the server sends to its silos."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Federation:
        """The inverse of ``to_json``; FederationError names every unknown key and the nearest right one."""
        try:
            saved = json.loads(text)
        except ValueError as error:
            raise FederationError(f"the federation's settings are no JSON ({error}).") from error
        if not isinstance(saved, dict):
            raise FederationError(f"the federation's settings are a {type(saved).__name__}; expected an object.")
        parts = {"local": LocalPlan, "server": FedOpt, "compression": Compression}
        known = _checked(cls, saved, "the federation")
        if known.get("privacy") is not None:
            known["privacy"] = DpPlan.from_dict(known["privacy"])
        if known.get("secure") is not None:
            known["secure"] = SecurePlan(**_checked(SecurePlan, known["secure"], "secure"))
        return cls(
            **{
                name: parts[name](**_checked(parts[name], value, name)) if name in parts else value
                for name, value in known.items()
            }
        )

    @property
    def reticent(self) -> bool:
        """Whether silos say nothing of their own besides what the federation is for: no counts, losses or steps."""
        return self.privacy is not None or self.secure is not None

    def sampled(self, silos: Sequence[str], round_number: int) -> tuple[str, ...]:
        """The silos of a round, max(round(C K), 1) of the K, drawn without replacement from the seed; sorted."""
        count = max(1, round(self.participation * len(silos)))
        rng = np.random.default_rng((self.seed, SAMPLING, round_number))
        return tuple(sorted(rng.choice(sorted(silos), size=count, replace=False).tolist()))

    def client_rng(self, silo: str, round_number: int) -> np.random.Generator:
        """What a silo draws from in a round: the same in every engine, and after a resume."""
        return np.random.default_rng((self.seed, TRAINING, round_number, zlib.crc32(silo.encode())))

    def needed(self, sampled: int) -> int:
        """Updates without which a round is not averaged."""
        return min(self.minimum, sampled) if self.minimum else sampled


def _private_faults(federation: Federation, plan: DpPlan) -> list[str]:
    faults = []
    if plan.mechanism.unit is Unit.RECORD:
        faults.append(
            "the plan protects records (single questions), which FL-PROVIDER-DP does not draw; choose unit provider, "
            "document or client, or train centrally (docleak train central --unit record)"
        )
    if federation.rounds > plan.mechanism.rounds:
        faults.append(f"rounds is {federation.rounds}, and the privacy plan accounts for {plan.mechanism.rounds}")
    if plan.mechanism.client_rate < federation.participation:
        faults.append(
            f"participation is {federation.participation}, and the privacy plan accounts for a client rate of "
            f"{plan.mechanism.client_rate}"
        )
    if federation.server.divide_by_clients:
        faults.append("divide_by_clients divides the noise twice; leave it off under a privacy plan")
    return faults


def _secure_faults(federation: Federation) -> list[str]:
    faults = []
    if federation.minimum:
        faults.append(f"minimum is {federation.minimum}; with secure aggregation its threshold says how many will do")
    if federation.compression.kind != "none":
        faults.append(f"compression is {federation.compression}; masked words cannot be compressed")
    if federation.server.divide_by_clients:
        faults.append("divide_by_clients needs to know the silos one by one; leave it off with secure aggregation")
    return faults


def kept_documents(names: Sequence[str], share: float, *, seed: int, silo: str) -> frozenset[str]:
    """The documents a silo evaluates on and does not train on, drawn from the seed; at least one where share > 0.

    Raises FederationError for a silo with too few documents to keep one and train on another.
    """
    documents = sorted(set(names))
    if not share:
        return frozenset()
    if len(documents) < 2:
        raise FederationError(
            f"silo {silo!r} has {len(documents)} documents; expected at least 2, to train on one and keep another to "
            "evaluate on. Give it more, or set the holdout to 0."
        )
    count = min(max(1, round(share * len(documents))), len(documents) - 1)
    rng = np.random.default_rng((seed, HOLDOUT, zlib.crc32(silo.encode())))
    return frozenset(rng.choice(documents, size=count, replace=False).tolist())


def same_training(first: Federation, second: Federation) -> bool:
    """Whether a run of one may be continued as the other: they may differ in the number of rounds."""
    return replace(first, rounds=1) == replace(second, rounds=1)


def _checked(kind: type, saved: Mapping[str, Any], what: str) -> dict[str, Any]:
    known = [field.name for field in fields(kind)]
    if not isinstance(saved, Mapping):
        raise FederationError(f"{what} is a {type(saved).__name__}; expected an object with {', '.join(known)}.")
    faults = []
    for key in sorted(set(saved) - set(known)):
        near = get_close_matches(key, known, n=1, cutoff=0.5)
        faults.append(f"{what} has the unknown setting {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if faults:
        raise FederationError("; ".join(faults))
    return dict(saved)
