"""A training by plain values, as Python and command lines say it, made into what is trained with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from docleak.errors import FederationError, PrivacyError
from docleak.privacy.plan import DpPlan
from docleak.privacy.planning import evaluations_of, plan_of
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import FedOpt
from docleak.training.federated.local import LocalPlan
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.wire import Compression
from docleak.training.private.record_run import RecordTrainingConfig
from docleak.training.private.records import RecordOptimiser

#: Settings that say nothing where neither epsilon nor noise asks for privacy.
OF_PRIVACY = ("delta", "clip_norm", "unit", "unit_rate", "denominator", "published_counting")
#: Setting -> the server optimisers that have it.
OF_SERVERS = {"beta1": ("fedavgm", "fedadam"), "beta2": ("fedadam",)}
#: What a training by DP-SGD over single questions takes besides ``OF_PRIVACY``.
OF_RECORDS = ("model", "rounds", "learning_rate", "weight_decay", "dropout", "holdout", "seed", "epsilon", "noise")


@dataclass(frozen=True)
class TrainingSettings:
    """What a training is, in numbers and words.

    A silo trains ``rounds`` rounds of ``epochs`` over its questions, ``max_steps`` optimiser steps at most (0: no
    limit), on ``objective`` ("qa", or tm, lm, tlm); it keeps a share ``holdout`` of its documents to evaluate on, after
    every ``evaluate_every`` rounds and the last (0: never). ``participation`` is the share of silos that train in a
    round, ``server`` fedavg, fedavgm or fedadam, ``compression`` none, fp16 or topk:SHARE; ``secure`` aggregates so
    that the server learns sums only.

    ``epsilon`` or ``noise`` (a multiplier) asks for differential privacy at ``delta``: each ``unit`` (provider,
    document, client; of a central training also record: one question, by DP-SGD) is drawn with probability
    ``unit_rate`` and clipped to ``clip_norm``; sums are divided by the public ``denominator``.
    """

    model: str = "vt5-start"
    rounds: int = 6
    epochs: int = 1
    max_steps: int = 35
    batch_size: int = 16
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    optimiser: str = "adamw"
    objective: str = "qa"
    dropout: bool = False
    holdout: float = 0.2
    evaluate_every: int = 1
    seed: int = 0
    participation: float = 1.0
    minimum: int = 0
    server: str = "fedavg"
    server_rate: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    compression: str = "none"
    secure: bool = False
    secure_threshold: int = 0
    secure_limit: float = 0.0
    epsilon: float | None = None
    noise: float | None = None
    delta: float = 1e-5
    clip_norm: float = 0.5
    unit: str = "provider"
    unit_rate: str = "1"
    denominator: int = 0
    published_counting: bool = False

    def plan(self, said: Collection[str] = ()) -> DpPlan | None:
        """The privacy plan, or None; PrivacyError where settings among ``said`` belong to one that is not asked for."""
        return plan_of(
            self.epsilon, self.noise, self.rounds, delta=self.delta, clip_norm=self.clip_norm, unit=self.unit,
            unit_rate=self.unit_rate, client_rate=self.participation, denominator=self.denominator,
            published_counting=self.published_counting, idle=[name for name in said if name in OF_PRIVACY],
        )  # fmt: skip

    def federation(self, said: Collection[str] = ()) -> Federation:
        """The federation; a central training is one of a single silo. FederationError where settings among ``said``
        mean nothing to it, and whatever its parts raise."""
        if not self.secure and (self.secure_threshold or self.secure_limit):
            raise FederationError(
                "secure_threshold and secure_limit belong to secure aggregation; ask for secure, or leave them out."
            )
        idle = [name for name, servers in OF_SERVERS.items() if name in said and self.server not in servers]
        if idle:
            raise FederationError(f"{', '.join(idle)}: nothing to the server optimiser {self.server}. Leave that out.")
        plan = self.plan(said)
        return Federation(
            self.model, self.rounds, self.participation, self.minimum, self.holdout, self.seed,
            LocalPlan(
                epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate,
                weight_decay=self.weight_decay, optimiser=self.optimiser, max_steps=self.max_steps,
                dropout=self.dropout, objective=self.objective,
            ),
            FedOpt(self.server, self.server_rate, self.beta1, self.beta2), Compression.of(self.compression), plan,
            SecurePlan(self.secure_threshold, self.secure_limit) if self.secure else None,
            evaluations_of(plan, self.rounds, self.evaluate_every),
        )  # fmt: skip

    def records(self, said: Collection[str] = (), *, start_is_public: bool = False) -> RecordTrainingConfig:
        """The training by DP-SGD over single questions; PrivacyError for settings among ``said`` that it has not."""
        if idle := [name for name in said if name not in (*OF_RECORDS, *OF_PRIVACY)]:
            raise PrivacyError(
                f"unit 'record' trains by DP-SGD (questions and answers, AdamW), which has no {', '.join(idle)}. Leave "
                "that out; rounds are its steps, and each draws its questions by coins (unit_rate)."
            )
        plan = self.plan(said)
        if plan is None:
            raise PrivacyError("unit 'record' is of a private training. Give epsilon or noise, too.")
        how = RecordOptimiser(self.learning_rate, self.weight_decay, self.dropout)
        return RecordTrainingConfig(plan, self.model, how, self.holdout, self.seed, start_is_public)
