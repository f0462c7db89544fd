"""A silo's own floor: what it takes part in, whatever the server sends. Kept in the silo's own folder."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from docleak.errors import PrivacyError, refuse, those
from docleak.files import read_json_object, shaped, write_json
from docleak.privacy.accounting import guarantee
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.training.federated.federation import Federation, noise_shares

LIMITS, LEDGER, WITNESS = "limits.json", "ledger.json", "witness.json"
#: So that a plan is not refused for the last digit of the limits that were made for it.
MARGIN = 1e-6


@dataclass(frozen=True)
class SiloLimits:
    """What a silo asks of every plan. A plan, the number of clients and the round arrive with each message, so none of
    them is believed: they are held against these, and what was really run is counted in the silo's own ledger.

    epsilon      the most that everything in the silo's ledger may cost together, per ``unit`` at ``delta``: rounds, and
                 answers on kept documents
    noise_std    the least standard deviation of the noise this silo adds to its sum, z C / sqrt(shares), before the
                 division by M
    clients      the most silos that may share the noise
    clip_norm    the largest C: with ``noise_std`` it bounds the noise relative to what one unit can change
    denominator  the smallest M
    evaluation   whether the silo answers questions on the documents it keeps; the ledger counts each time
    """

    epsilon: float
    delta: float
    noise_std: float
    clients: int
    unit: Unit
    clip_norm: float
    denominator: int
    evaluation: bool = False

    def __post_init__(self) -> None:
        above = {"epsilon": self.epsilon, "noise_std": self.noise_std, "clip_norm": self.clip_norm}
        faults = [
            f"{name} is {value}; expected a finite number above 0"
            for name, value in above.items()
            if not 0 < value < math.inf
        ]
        if not 0 < self.delta < 1:
            faults.append(f"delta is {self.delta}; expected a probability above 0 and below 1")
        counts = {"clients": self.clients, "denominator": self.denominator}
        faults += [f"{name} is {value}; expected 1 or more" for name, value in counts.items() if value < 1]
        refuse(PrivacyError, faults, "a silo's limits: ")

    @classmethod
    def of(cls, federation: Federation, silos: int, *, rounds: int) -> SiloLimits:
        """The limits that just let one of so many silos take part in ``rounds`` rounds, without evaluations."""
        plan = federation.privacy
        assert plan is not None
        shares = noise_shares(federation, silos)
        # Which silos are drawn is the server's affair, so nothing is granted for not being drawn.
        m = plan.mechanism
        taking_part = Mechanism(m.noise_multiplier, rounds, m.unit_rate, 1.0, m.unit, m.relation, m.sampler)
        cost = guarantee(taking_part, plan.delta).epsilon
        return cls(
            cost * (1 + MARGIN), plan.delta, plan.noise_std(shares) * (1 - MARGIN), shares, plan.mechanism.unit,
            plan.clip_norm, plan.denominator,
        )  # fmt: skip

    def refusals(self, federation: Federation, *, kind: str, shares: int = 1) -> list[str]:
        """Why a message of ``kind`` ("train", "evaluate", "query") is refused, in the words of the silo's own log."""
        plan = federation.privacy
        if plan is None:
            return ["the server sends no privacy plan, and this silo takes part under one only"]
        if kind == "evaluate" and not self.evaluation:
            return ["the server asks for answers on kept documents, and this silo gives none (evaluation)"]
        mechanism = plan.mechanism
        faults = those(
            (mechanism.unit is not self.unit, f"the plan protects {mechanism.unit}s; expected {self.unit}s"),
            (plan.clip_norm > self.clip_norm,
             f"the plan clips to {plan.clip_norm:g}; expected at most {self.clip_norm:g}"),
            (plan.denominator < self.denominator,
             f"the plan divides by {plan.denominator}; expected at least {self.denominator}"),
        )  # fmt: skip
        if kind != "train":
            return faults
        if shares > 1 and federation.compression.kind != "none":
            faults.append(f"its sum would be compressed by {federation.compression}, one of {shares} shares of noise")
        if not 1 <= shares <= self.clients:
            faults.append(f"{shares} silos share the noise; expected 1 to {self.clients}")
        elif plan.noise_std(shares) < self.noise_std:
            faults.append(
                f"this silo's noise would have the standard deviation {plan.noise_std(shares):.3g}; expected at least "
                f"{self.noise_std:.3g}"
            )
        return faults

    def save(self, folder: Path) -> None:
        """To the silo's own folder, readable by its owner alone."""
        write_json(folder / LIMITS, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> SiloLimits:
        """What ``save`` wrote; PrivacyError where it is gone, damaged, or no choice."""
        advice = "Nothing is sent until it is there again."
        saved = read_json_object(folder / LIMITS, error=PrivacyError, advice=advice)
        return shaped(cls, saved, PrivacyError, str(folder / LIMITS), advice)


def has_limits(folder: Path | None) -> bool:
    """Whether a silo has limits of its own, or had: a ledger or its witness says that it did."""
    return folder is not None and any((folder / name).exists() for name in (LIMITS, LEDGER, WITNESS))
