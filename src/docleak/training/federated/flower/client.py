"""A silo's answers that need its pages and its model: who it is, a round of training, an evaluation."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from docleak.errors import FederationError, PrivacyError
from docleak.models.base import DocumentModel
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated.federation import Federation
from docleak.training.federated.flower.discretion import answered, keep_of
from docleak.training.federated.flower.guard import GUARDED, inspect_first
from docleak.training.federated.flower.messages import (
    array_record,
    arrays_in,
    config_record,
    metric_record,
    settings_in,
)
from docleak.training.federated.flower.secure_round import RECORD, Identities, MaskedRound
from docleak.training.federated.party import evaluate, introduce, model_of, private_round, train_round
from docleak.training.federated.scores import SENSITIVITY, evaluate_privately, evaluation_noise
from docleak.training.federated.silo import Party, open_party
from docleak.training.federated.silo_ledger import SiloLedger, begin
from docleak.training.federated.silo_limits import SiloLimits, has_limits
from docleak.training.federated.wire import pack, relative_error

#: What a silo says of each document it keeps, and, under a privacy plan, of all of them together.
SCORE_NUMBERS = ("anls", "accuracy", "questions")
NOISED_NUMBERS = ("score", "units", "std")
#: Where a node of a silo without limits counts the evaluations that it answered under a privacy plan, in one run.
EVALUATED = "docleak-evaluated"
#: Where a node keeps how many rounds its silo's ledger has, as long as it runs.
COUNTED = "docleak-counted"


@dataclass(frozen=True)
class Asked:
    """A message to a silo, and what its answer needs; ``randomness`` and ``identities`` as in ``client_app``."""

    message: Message
    context: Context
    party: Party
    federation: Federation
    model: DocumentModel
    randomness: Callable[[], Randomness]
    identities: Identities

    @property
    def config(self) -> dict[str, Any]:
        """What the server says of the round."""
        return settings_in(self.message.content, "config")

    def weights(self) -> dict[str, NDArray[Any]]:
        """The global model, in arrays of its own each time."""
        return arrays_in(self.message.content)

    def note(self, text: str) -> None:
        """What only whoever runs the silo may read."""
        print(f"docleak: silo {self.party.name!r}: {text}", file=sys.stderr)

    def reply(self, records: Mapping[str, ArrayRecord | ConfigRecord | MetricRecord]) -> RecordDict:
        """The records, with the silo's name."""
        return RecordDict({**records, "silo": config_record({"name": self.party.name})})


def answer(
    message: Message, context: Context, *, kind: str, device: str, randomness: Callable[[], Randomness],
    identities: Identities, threads: int = 0,
) -> Message:  # fmt: skip
    """The reply to a message of a kind ("query", "train", "evaluate"); otherwise as ``client_app``."""
    config = context.node_config

    def work() -> RecordDict:
        if threads:
            torch.set_num_threads(threads)
        federation = Federation.from_json(str(settings_in(message.content, "config")["federation"]))
        if "silo" not in config:
            raise FederationError(
                "this node's configuration names no silo; start it with --node-config 'silo=\"DIR\"'."
            )
        keep = _limited(context)
        if keep is not None and kind != "train":  # a round is looked at as it is counted
            refused = SiloLimits.load(keep).refusals(federation, kind=kind)
            if refused:
                raise PrivacyError("refused by this silo's own limits: " + "; ".join(refused) + ".")
        party = open_party(Path(str(config["silo"])), federation, name=str(config.get("name", "")))
        model = model_of(federation, device, str(config.get("model", "")))
        handle = {"query": introduced, "train": trained, "evaluate": evaluated}[kind]
        return handle(Asked(message, context, party, federation, model, randomness, identities))

    return answered(message, context, work)


def introduced(asked: Asked) -> RecordDict:
    """Who the silo is, before the first round."""
    for note in asked.party.notes:
        asked.note(note)
    said = introduce(asked.party, asked.model, asked.federation)
    return RecordDict({"introduction": config_record(asdict(said))})


def trained(asked: Asked) -> RecordDict:
    """The update of a round, as the plan has it: clipped and noised, masked, compressed."""
    context, party, model, federation, config = asked.context, asked.party, asked.model, asked.federation, asked.config
    masking = None
    if federation.secure is not None:
        delivery = bytes(settings_in(asked.message.content, RECORD)["data"])
        masking = MaskedRound(delivery, asked.identities(context.node_config), context)
    # The sum is over the threshold of silos at least, so that many shares make the whole noise.
    shares, number = masking.threshold if masking else int(config["clients"]), int(config["round"])
    if folder := context.node_config.get(GUARDED):
        inspect_first(Path(str(folder)), asked.weights(), party, model, federation, on_note=asked.note)
    if (keep := _limited(context)) is not None:
        _count(context, keep, lambda ledger: ledger.with_round(federation, number=number, shares=shares))
    metrics: dict[str, float] = {}
    if federation.privacy is not None:
        update = private_round(
            party, model, asked.weights(), federation, clients_drawn=shares, randomness=asked.randomness(),
            on_note=asked.note, most=masking.room(federation.privacy) if masking else math.inf,
        )  # fmt: skip
    else:
        done = train_round(party, model, asked.weights(), federation, number)
        update = done.update
        metrics = {"steps": done.steps, "loss": done.loss, "seconds": done.seconds}
    if masking is not None:
        said, words = masking.masked(update, cut=federation.privacy is not None)
        return asked.reply({"arrays": array_record({"words": words}), RECORD: config_record({"data": said})})
    metrics |= {
        "num-examples": update.examples,
        "compression-error": relative_error(update.delta, federation.compression),
    }
    packed = pack(update.delta, federation.compression)
    return asked.reply({"arrays": array_record(packed), "metrics": metric_record(metrics)})


def evaluated(asked: Asked) -> RecordDict:
    """Scores on the documents that the silo keeps: of each, or, under a privacy plan, of all, noised."""
    party, model, federation = asked.party, asked.model, asked.federation
    numbers: dict[str, float | list[float]]
    if federation.privacy is not None:
        _count_evaluation(asked.context, federation, federation.privacy, int(asked.config["round"]))
        score = evaluate_privately(
            party, model, asked.weights(), federation, randomness=asked.randomness(), on_note=asked.note
        )
        numbers = {name: float(getattr(score, name)) for name in NOISED_NUMBERS}
    else:
        scores = evaluate(party, model, asked.weights())
        numbers = {name: [float(getattr(score, name)) for score in scores] for name in SCORE_NUMBERS}
    return asked.reply({"metrics": metric_record(numbers)})


def _limited(context: Context) -> Path | None:
    """The folder in which a silo keeps limits of its own, and its ledger; None for one without any."""
    keep = keep_of(context.node_config)
    return keep if has_limits(keep) else None


def _count(context: Context, keep: Path, counted: Callable[[SiloLedger], SiloLedger]) -> None:
    """Count what is begun in the silo's own ledger; PrivacyError for what its limits forbid."""
    known = int(settings_in(context.state, COUNTED)["rounds"]) if COUNTED in context.state else 0
    context.state[COUNTED] = config_record({"rounds": begin(keep, counted, known=known)})


def _count_evaluation(context: Context, federation: Federation, plan: DpPlan, number: int) -> None:
    """Before anything is answered: PrivacyError for an evaluation that the silo's own limits forbid, and, where it has
    none, FederationError for one more than the noise is planned for."""
    if (keep := _limited(context)) is not None:
        about = {"noise": evaluation_noise(plan, federation.scores_at_most), "sensitivity": SENSITIVITY}
        _count(context, keep, lambda ledger: ledger.with_evaluation(federation, number=number, **about))
        return
    done = int(settings_in(context.state, EVALUATED)["answered"]) if EVALUATED in context.state.config_records else 0
    if done >= federation.scores_at_most:
        raise FederationError(
            f"{done} evaluations were answered, and the noise of their scores is planned for "
            f"{federation.scores_at_most}. Evaluate less often."
        )
    context.state[EVALUATED] = config_record({"answered": done + 1})
