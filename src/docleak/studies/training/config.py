"""What a study of trainings runs: the data sets and how they are divided, and its one or two federations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from docleak import spec
from docleak.errors import FederationError, RecipeError, refuse, those
from docleak.privacy.mechanism import Mechanism, Unit, choice
from docleak.privacy.phases import Phase, mechanisms, noise_for_phases
from docleak.privacy.plan import DpPlan
from docleak.training.federated.federation import Federation, drawn
from docleak.training.federated.fedopt import FedOpt
from docleak.training.federated.local_plan import LocalPlan

PRETRAINING, FINETUNING = "pretraining", "finetuning"
#: Nguyen and Karatzas (2024), section 5.2.
SERVERS = {
    "fedavg": FedOpt(),
    "fedavgm": FedOpt("fedavgm", beta1=0.9),
    "fedadam": FedOpt("fedadam", learning_rate=1e-3, beta1=0.9, beta2=0.99, epsilon=1e-5),
}
OPTIMISER_NAMES = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}


@dataclass(frozen=True)
class TrainingConfig:
    """Trainings that differ in their seeds. Defaults are those of Nguyen and Karatzas (2024), section 5.1,
    but for ``optimiser``, which is Adam there (docs/fidelity.md).

    ``documents`` are data sets as ``load_pages`` takes them, at most the first ``pages`` of each split (0: all).
    ``test_documents``, if any, are their test pages in the same order. Else, and for validation, a set's own
    splits are taken where it has some, and the ``test_share`` and ``validation_share`` of its documents are held out
    where it has none (``documents.splits``). The rest is divided among ``clients`` (K), one data set each; with one
    client it holds all of them.

    ``rounds`` (T) of fine-tuning, 0 for none, with the share ``participation`` (C) of the clients, follow
    ``pretraining_rounds`` of self-pretraining with the objective ``pretraining`` ("" for none), in which the share
    ``pretraining_participation`` takes part (0: as in fine-tuning). Servers are "fedavg", "fedavgm" or "fedadam" with
    the paper's values, or others, as in "fedadam:learning_rate=0.01". ``evaluate_every`` so many rounds of a phase, and
    after its last, the validation documents are scored; 0 never.

    With an ``epsilon`` above 0 both phases together keep to it, at ``delta`` per ``unit``: they have the same noise,
    every client takes part in every round, each of its units with ``unit_rate``, clipped to ``clip_norm`` (C) and
    divided by ``denominator`` (M).

    The model reads ``max_tokens`` at most (0: its checkpoint's number). ``seeds`` trainings with seeds from ``seed`` on
    differ in sampling, orders and masks; documents are divided by ``seed`` in all of them.
    """

    model: str
    documents: tuple[str, ...] = ("synthetic",)
    test_documents: tuple[str, ...] = ()
    pages: int = 0
    test_share: float = 0.3
    validation_share: float = 0.0
    clients: int = 3
    participation: float = 1.0
    rounds: int = 10
    epochs: int = 1
    batch_size: int = 16
    max_steps: int = 0
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    optimiser: str = "adamw"
    dropout: bool = True
    server: str = "fedavg"
    pretraining: str = ""
    pretraining_rounds: int = 10
    pretraining_participation: float = 0.0
    pretraining_server: str = "fedavg"
    epsilon: float = 0.0
    delta: float = 1e-3
    unit: str = "document"
    unit_rate: float = 1.0
    clip_norm: float = 0.5
    denominator: int = 1
    evaluate_every: int = 0
    max_tokens: int = 0
    seed: int = 0
    seeds: int = 1

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {getattr(self, name)}; expected {least} or more"
            for name, least in (("pages", 0), ("clients", 1), ("rounds", 0), ("evaluate_every", 0), ("max_tokens", 0),
                                ("seed", 0), ("seeds", 1))
            if getattr(self, name) < least
        ]  # fmt: skip
        shares = (self.test_share, self.validation_share)
        tests, sets = (len(self.test_documents), len(self.documents)) if self.test_documents else (0, 0)
        faults += those(
            (not all(0 <= share < 1 for share in shares) or sum(shares) >= 1,
             f"test_share and validation_share are {shares}; expected shares that leave some to train on"),
            (not self.test_share and not self.test_documents,
             "test_share is 0 and there are no test_documents; expected one of them"),
            (tests != sets, f"{tests} test_documents for {sets} data sets"),
            (not self.documents, "there are no documents"),
            (self.evaluate_every and not self.validation_share,
             "evaluate_every is set, but validation_share is 0: there is nothing to evaluate on"),
            (self.epsilon and (self.participation, self.pretraining_participation or 1.0) != (1.0, 1.0),
             "participation is below 1 under an epsilon; draw units instead (unit_rate)"),
        )  # fmt: skip
        refuse(RecipeError, faults, "a training cannot be run like this: ")
        self.phases(0)  # refuses what a federation refuses

    @property
    def rounds_of(self) -> dict[str, int]:
        """Phase -> its rounds, in order."""
        pretraining = {PRETRAINING: self.pretraining_rounds} if self.pretraining else {}
        return pretraining | ({FINETUNING: self.rounds} if self.rounds else {})

    def phases(self, seed: int) -> dict[str, Federation]:
        """The federations of one training, in order; each begins with the model that the one before ends with."""
        local = LocalPlan(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate,
            weight_decay=self.weight_decay, max_steps=self.max_steps, dropout=self.dropout,
            optimiser=self.optimiser,
        )  # fmt: skip
        before = replace(local, objective=self.pretraining) if self.pretraining else local
        apart = {
            PRETRAINING: (self.pretraining_participation or self.participation, before, self.pretraining_server),
            FINETUNING: (self.participation, local, self.server),
        }
        federations, plans = {}, self.plans()
        for phase, rounds in self.rounds_of.items():
            share, steps, server = apart[phase]
            federations[phase] = Federation(
                self.model, rounds, share, holdout=0.0, seed=seed, local=steps, server=server_of(server),
                privacy=plans.get(phase),
            )  # fmt: skip
        return federations

    def plans(self) -> dict[str, DpPlan]:
        """The privacy plan of each phase, whose noise is found for all of them together; empty without privacy."""
        if not self.epsilon:
            return {}
        phases = [Phase(name, rounds, self.unit_rate) for name, rounds in self.rounds_of.items() if rounds]
        like = Mechanism(1.0, 1, unit=choice(Unit, self.unit, what="unit"))
        noise = noise_for_phases(phases, like, self.epsilon, self.delta)
        per_phase = mechanisms(phases, replace(like, noise_multiplier=noise))
        return {
            phase.name: DpPlan(mechanism, self.clip_norm, self.denominator, self.delta)
            for phase, mechanism in zip(phases, per_phase, strict=True)
        }


def server_of(text: str) -> FedOpt:
    """``name`` or ``name:key=value,key=value`` over the values of SERVERS; RecipeError for other names and keys."""
    name, rest = spec.split_name(text)
    if name not in SERVERS:
        raise RecipeError(spec.unknown("server optimiser", name, tuple(SERVERS)))
    try:
        server: FedOpt = spec.told(SERVERS[name], rest, what=f"server optimiser {name!r}", error=RecipeError)
    except FederationError as fault:
        raise RecipeError(f"server optimiser {text!r}: {fault}") from fault
    return server


def optimiser_said(config: TrainingConfig) -> str:
    """The clients' optimiser with its settings."""
    return (
        f"{OPTIMISER_NAMES[config.optimiser]}, learning rate {config.learning_rate:g}, weight decay "
        f"{config.weight_decay:g}"
    )


def rounds_said(config: TrainingConfig) -> list[str]:
    """How many clients train in a round of each phase, where it is not all of them."""
    return [
        f"K = {config.clients}, C = {federation.participation:g}: {drawn(federation, config.clients)}"
        for federation in config.phases(config.seed).values()
        if federation.participation < 1
    ]
