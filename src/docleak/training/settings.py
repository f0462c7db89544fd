"""A training by plain values, as Python and command lines say it, made into what is trained with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING

from docleak.documents import ranges
from docleak.documents.ranges import COUNT, DELTA, NOISE, SEED, SOME, Range
from docleak.documents.typed import typed
from docleak.errors import FederationError, PrivacyError
from docleak.options import Need, option, options_of, refuse_idle

if TYPE_CHECKING:
    from docleak.privacy.plan import DpPlan
    from docleak.training.federated.federation import Federation
    from docleak.training.private.records import RecordTrainingConfig

#: Panels of help, in which the settings stand: those of FEDERATED mean nothing to a central training.
LOCAL, FEDERATED, PRIVATE = "A silo's steps", "Silos and server", "Differential privacy"
#: Settings that say nothing where neither epsilon nor noise asks for privacy.
OF_PRIVACY = ("delta", "clip_norm", "unit", "unit_rate", "denominator", "published_counting")
#: What a training by DP-SGD over single questions takes besides ``OF_PRIVACY``.
OF_RECORDS = (
    "model", "lora", "rounds", "learning_rate", "weight_decay", "dropout", "holdout", "seed", "epsilon", "noise",
)  # fmt: skip
#: Where nobody knows which settings were given.
UNSAID: Mapping[str, str] = MappingProxyType({})
_BELOW_ONE = Range(0, 0.999999)
_SECURE = Need(lambda settings: settings.secure, "--secure")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What a training is, in numbers and words; the fields' help says what each means.

    ``secure`` and its settings, ``participation``, ``minimum``, ``compression`` and those of the server are of a
    training over silos; a central one is of a single silo, whose optimiser begins anew each round. ``epsilon`` or
    ``noise`` asks for differential privacy: each ``unit`` is drawn with probability ``unit_rate`` and clipped to
    ``clip_norm``, and sums are divided by the public ``denominator``.
    """

    model: str = option("vt5-start", "Shipped name, directory or hub name; with --dry-run also vt5-base.")
    lora: str = option(
        "", "Freeze the model and train low-rank adapters on it: r=8,alpha=16,targets=q_proj+v_proj; without targets "
        "every linear layer.",
    )  # fmt: skip
    rounds: int = option(6, "Rounds in all; a run that has fewer is continued.", range=SOME)
    holdout: float = option(0.2, "Share of its documents that a silo keeps to evaluate on.", range=_BELOW_ONE)
    evaluate_every: int = option(1, "Evaluate after every so many rounds, and the last; 0 never.", range=COUNT)
    seed: int = option(
        0, "Seed of sampling, orders, dropout, what is kept, and of what a checkpoint does not bring.", range=SEED
    )
    epochs: int = option(1, "Local epochs of a round.", group=LOCAL, range=ranges.EPOCHS)
    max_steps: int = option(
        35, "At most so many optimiser steps of a silo in a round; 0 for no limit.", group=LOCAL,
        range=Range(0, 10_000_000),
    )  # fmt: skip
    batch_size: int = option(16, "Questions in a step.", group=LOCAL, range=ranges.BATCH_SIZE)
    learning_rate: float = option(
        2e-3, "Learning rate of the silos' optimiser, which begins anew each round.", group=LOCAL, range=ranges.RATE
    )
    weight_decay: float = option(0.01, "Weight decay of the silos' optimiser.", group=LOCAL, range=ranges.RATE)
    optimiser: str = option(
        "adamw", "The silos' optimiser: adamw, adam (whose decay is part of the gradient), sgd.", group=LOCAL
    )
    objective: str = option("qa", "What is learnt: qa, or a self-pretraining objective: tm, lm, tlm.", group=LOCAL)
    dropout: bool = option(False, "Train with the model's dropout.", group=LOCAL, both=True)
    participation: float = option(
        1.0,
        "Share C of the K silos that train in a round: C x K without its fraction.",
        group=FEDERATED,
        range=Range(0, 1, above=True),
    )
    minimum: int = option(
        0, "Average a round with so many updates; 0: every sampled silo's.", group=FEDERATED, range=Range(0, 1_000)
    )
    server: str = option("fedavg", "Server optimiser: fedavg, fedavgm, fedadam.", group=FEDERATED)
    server_rate: float = option(1.0, "Learning rate of the server.", group=FEDERATED, range=Range(0, 1e3, above=True))
    beta1: float = option(
        0.9, "Momentum of fedavgm and fedadam.", group=FEDERATED, range=_BELOW_ONE,
        need=Need(lambda settings: settings.server != "fedavg", "--server fedavgm or fedadam"),
    )  # fmt: skip
    beta2: float = option(
        0.999, "Second moment of fedadam.", group=FEDERATED, range=_BELOW_ONE,
        need=Need(lambda settings: settings.server not in ("fedavg", "fedavgm"), "--server fedadam"),
    )  # fmt: skip
    compression: str = option("none", "How updates are sent: none, fp16, topk:SHARE.", group=FEDERATED)
    secure: bool = option(False, "Secure aggregation: the server learns sums of updates only.", group=FEDERATED)
    secure_threshold: int = option(
        0, "Silos that a sum needs; 0: two thirds and one, under --epsilon all.", group=FEDERATED,
        range=ranges.SECURE_THRESHOLD, need=_SECURE,
    )  # fmt: skip
    secure_limit: float = option(
        0.0, "Largest value a silo may send, times its questions; public. 0: 1000, under --epsilon by its noise.",
        group=FEDERATED, range=ranges.SECURE_LIMIT, need=_SECURE,
    )  # fmt: skip
    published_counting: bool = option(
        False, "Count drawn clients (--participation) as Tito et al. (2024) do. No bound.", group=FEDERATED
    )
    epsilon: float | None = option(
        None, "Train with differential privacy of this epsilon.", group=PRIVATE, range=ranges.EPSILON
    )
    noise: float | None = option(None, "The same by its noise multiplier (docleak budget).", group=PRIVATE, range=NOISE)
    delta: float = option(1e-5, "Delta that belongs to epsilon; far below 1/providers.", group=PRIVATE, range=DELTA)
    clip_norm: float = option(
        0.5, "C: each provider's difference is clipped to this norm.", group=PRIVATE, range=ranges.CLIP_NORM
    )
    unit: str = option(
        "provider", "Whose presence is hidden: provider, document, client; central also record: one question, by "
        "DP-SGD.", group=PRIVATE,
    )  # fmt: skip
    unit_rate: str = option(
        "1", "Probability that a provider trains in a round, such as 0.2 or 1000/4149.", group=PRIVATE
    )
    denominator: int = option(
        0, "M: a public constant that sums are divided by; every silo has as many.", group=PRIVATE,
        range=ranges.DENOMINATOR,
    )  # fmt: skip

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in typed(type(self), given, what="the training", error=FederationError).items():
            object.__setattr__(self, name, value)

    @property
    def start(self) -> str:
        """The model that is trained, with its adapters where it is to have some: a source of ``load_model``."""
        if not self.lora:
            return self.model
        drawn = "" if "seed=" in self.lora else f",seed={self.seed}"
        return f"lora:{self.model},{self.lora}{drawn}"

    def plan(self, said: Mapping[str, str] = UNSAID) -> DpPlan | None:
        """The privacy plan, or None. ``said`` are the settings that were given, by name as they were written:
        PrivacyError for those that belong to a private training where none is asked for."""
        from docleak.privacy.planning import plan_of

        return plan_of(
            self.epsilon, self.noise, self.rounds, delta=self.delta, clip_norm=self.clip_norm, unit=self.unit,
            unit_rate=self.unit_rate, client_rate=self.participation, denominator=self.denominator,
            published_counting=self.published_counting,
            idle=[written for name, written in said.items() if name in OF_PRIVACY],
        )  # fmt: skip

    def federation(self, said: Mapping[str, str] = UNSAID) -> Federation:
        """The federation; a central training is one of a single silo. DocleakError where settings mean nothing beside
        the others, and whatever its parts raise."""
        from docleak.privacy.planning import evaluations_of
        from docleak.training.federated.federation import Federation
        from docleak.training.federated.fedopt import FedOpt
        from docleak.training.federated.local_plan import LocalPlan
        from docleak.training.federated.secure.plan import SecurePlan
        from docleak.training.federated.wire import Compression

        plan = self.plan(said)
        asked = options_of(type(self)).items()
        told = [one for name, one in asked if name in said or getattr(self, name) != one.default]
        refuse_idle(self, told, flags=False)
        return Federation(
            self.start, self.rounds, self.participation, self.minimum, self.holdout, self.seed,
            LocalPlan(
                epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate,
                weight_decay=self.weight_decay, optimiser=self.optimiser, max_steps=self.max_steps,
                dropout=self.dropout, objective=self.objective,
            ),
            FedOpt(self.server, self.server_rate, self.beta1, self.beta2), Compression.of(self.compression), plan,
            SecurePlan(self.secure_threshold, self.secure_limit) if self.secure else None,
            evaluations_of(plan, self.rounds, self.evaluate_every),
        )  # fmt: skip

    def records(self, said: Mapping[str, str] = UNSAID, *, start_is_public: bool = False) -> RecordTrainingConfig:
        """The training by DP-SGD over single questions; PrivacyError for what was ``said`` and it has not."""
        from docleak.training.private.records import RecordOptimiser, RecordTrainingConfig

        plan = self.plan(said)
        if idle := [written for name, written in said.items() if name not in (*OF_RECORDS, *OF_PRIVACY)]:
            raise PrivacyError(
                f"unit 'record' trains by DP-SGD (questions and answers, AdamW), which has no {', '.join(idle)}. Leave "
                "that out; rounds are its steps, and each draws its questions by coins (unit_rate)."
            )
        if plan is None:
            raise PrivacyError("unit 'record' is of a private training. Give epsilon or noise, too.")
        how = RecordOptimiser(self.learning_rate, self.weight_decay, self.dropout)
        return RecordTrainingConfig(plan, self.start, how, self.holdout, self.seed, start_is_public)
