"""A silo's answers that need its pages and its model: who it is, a round of training, an evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from docleak.errors import FederationError, PrivacyError
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import ClientUpdate
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
from docleak.training.federated.silo_ledger import begin_evaluation, begin_round
from docleak.training.federated.silo_limits import SiloLimits, has_limits
from docleak.training.federated.wire import pack, relative_error

#: What a silo says of each document it keeps, and, under a privacy plan, of all of them together.
SCORE_NUMBERS = ("anls", "accuracy", "questions")
NOISED_NUMBERS = ("score", "units", "std")
#: Where a node of a silo without limits counts the evaluations that it answered under a privacy plan, in one run.
EVALUATED = "docleak-evaluated"
#: Where a node keeps how many rounds its silo's ledger has, as long as it runs.
COUNTED = "docleak-counted"


def answered_by(
    message: Message,
    context: Context,
    device: str,
    kind: str,
    handle: Callable[[Message, Party, Federation, Any], RecordDict],
    *,
    threads: int = 0,
) -> Message:
    """The reply of ``handle``, which is given the silo's pages and model; ``threads`` as in ``client_app``."""
    config = context.node_config

    def work() -> RecordDict:
        if threads:
            torch.set_num_threads(threads)
        federation = Federation.from_json(str(settings_in(message.content, "config")["federation"]))
        if "silo" not in config:
            raise FederationError(
                "this node's configuration names no silo; start it with --node-config 'silo=\"DIR\"'."
            )
        keep = keep_of(config)
        if keep is not None and has_limits(keep) and kind != "train":  # a round is looked at as it is counted
            refused = SiloLimits.load(keep).refusals(federation, kind=kind)
            if refused:
                raise PrivacyError("refused by this silo's own limits: " + "; ".join(refused) + ".")
        party = open_party(Path(str(config["silo"])), federation, name=str(config.get("name", "")))
        model = model_of(federation, device, str(config.get("model", "")))
        return handle(message, party, federation, model)

    return answered(message, context, work)


def introduced(message: Message, party: Party, federation: Federation, model: Any) -> RecordDict:
    """Who the silo is, before the first round."""
    for note in party.notes:
        _tell(party, note)
    said = introduce(party, model, federation)
    return RecordDict({"introduction": config_record(asdict(said))})


def trained(
    message: Message,
    party: Party,
    federation: Federation,
    model: Any,
    *,
    randomness: Callable[[], Randomness],
    context: Context,
    identities: Identities,
) -> RecordDict:
    """The update of a round, as the plan has it: clipped and noised, masked, compressed."""
    config = settings_in(message.content, "config")
    masking = None
    if federation.secure is not None:
        delivery = bytes(settings_in(message.content, RECORD)["data"])
        masking = MaskedRound(delivery, identities(context.node_config), context)
    # The sum is over the threshold of silos at least, so that many shares make the whole noise.
    shares = masking.threshold if masking else int(config["clients"])
    if folder := context.node_config.get(GUARDED):
        inspect_first(
            Path(str(folder)), arrays_in(message.content), party, model, federation, on_note=partial(_tell, party)
        )
    _counted(context, federation, number=int(config["round"]), shares=shares)
    metrics: dict[str, float] = {}
    if federation.privacy is not None:
        update = private_round(
            party, model, arrays_in(message.content), federation, clients_drawn=shares, randomness=randomness(),
            on_note=partial(_tell, party),
        )  # fmt: skip
    else:
        done = train_round(party, model, arrays_in(message.content), federation, int(config["round"]))
        update = done.trained.update
        metrics = {"steps": done.trained.steps, "loss": done.trained.loss, "seconds": done.seconds}
    if masking is not None:
        return _sent_masked(party, *masking.masked(update, cut=federation.privacy is not None))
    metrics |= {
        "num-examples": update.examples,
        "compression-error": relative_error(update.delta, federation.compression),
    }
    return _sent(party, federation, update, metrics)


def _counted(context: Context, federation: Federation, *, number: int, shares: int) -> None:
    """Count the round in the silo's own ledger, where it keeps one; PrivacyError for one that its limits forbid."""
    keep = keep_of(context.node_config)
    if keep is None or not has_limits(keep):
        return
    begun = begin_round(keep, federation, number=number, shares=shares, known=_known(context))
    context.state[COUNTED] = config_record({"rounds": begun})


def _known(context: Context) -> int:
    """How many lines the silo's ledger had when this node counted last."""
    return int(settings_in(context.state, COUNTED)["rounds"]) if COUNTED in context.state else 0


def _sent_masked(party: Party, said: bytes, words: NDArray[np.uint32]) -> RecordDict:
    return RecordDict(
        {
            "arrays": array_record({"words": words}),
            RECORD: config_record({"data": said}),
            "silo": config_record({"name": party.name}),
        }
    )


def _sent(party: Party, federation: Federation, update: ClientUpdate, metrics: Mapping[str, float]) -> RecordDict:
    return RecordDict(
        {
            "arrays": array_record(pack(update.delta, federation.compression)),
            "metrics": metric_record(metrics),
            "silo": config_record({"name": party.name}),
        }
    )


def _tell(party: Party, note: str) -> None:
    """What only whoever runs the silo may read."""
    print(f"docleak: silo {party.name!r}: {note}", file=sys.stderr)


def evaluated(
    message: Message,
    party: Party,
    federation: Federation,
    model: Any,
    *,
    randomness: Callable[[], Randomness],
    context: Context,
) -> RecordDict:
    """Scores on the documents that the silo keeps: of each, or, under a privacy plan, of all, noised."""
    if federation.privacy is not None:
        _count_evaluation(context, federation, federation.privacy, int(settings_in(message.content, "config")["round"]))
        score = evaluate_privately(
            party, model, arrays_in(message.content), federation, randomness=randomness(),
            on_note=partial(_tell, party),
        )  # fmt: skip
        numbers = {name: float(getattr(score, name)) for name in NOISED_NUMBERS}
        return RecordDict({"metrics": metric_record(numbers), "silo": config_record({"name": party.name})})
    scores = evaluate(party, model, arrays_in(message.content))
    columns = {name: [float(getattr(score, name)) for score in scores] for name in SCORE_NUMBERS}
    return RecordDict({"metrics": metric_record(columns), "silo": config_record({"name": party.name})})


def _count_evaluation(context: Context, federation: Federation, plan: DpPlan, number: int) -> None:
    """Before anything is answered: PrivacyError for an evaluation that the silo's own limits forbid, and, where it has
    none, FederationError for one more than the noise is planned for."""
    keep = keep_of(context.node_config)
    if keep is not None and has_limits(keep):
        noise = evaluation_noise(plan, federation.scores_at_most)
        begun = begin_evaluation(
            keep, federation, number=number, noise=noise, sensitivity=SENSITIVITY, known=_known(context)
        )
        context.state[COUNTED] = config_record({"rounds": begun})
        return
    done = int(settings_in(context.state, EVALUATED)["answered"]) if EVALUATED in context.state.config_records else 0
    if done >= federation.scores_at_most:
        raise FederationError(
            f"{done} evaluations were answered, and the noise of their scores is planned for "
            f"{federation.scores_at_most}. Evaluate less often."
        )
    context.state[EVALUATED] = config_record({"answered": done + 1})
