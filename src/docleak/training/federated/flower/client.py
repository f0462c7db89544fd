"""What every silo runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from docleak.errors import DocleakError, FederationError
from docleak.privacy.randomness import Randomness
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.flower.messages import (
    array_record,
    arrays_in,
    config_record,
    metric_record,
    settings_in,
)
from docleak.training.federated.flower.secure_silo import (
    RECORD,
    STEPS,
    Identities,
    MaskedRound,
    answer_step,
    identity_of_node,
)
from docleak.training.federated.party import (
    Party,
    evaluate,
    introduce,
    model_of,
    open_party,
    private_round,
    train_round,
)
from docleak.training.federated.wire import pack, relative_error

#: What a silo says of each document it keeps.
SCORE_NUMBERS = ("anls", "accuracy", "questions")


def client_app(
    device: str = "cpu",
    randomness: Callable[[], Randomness] = Randomness.fresh,
    identities: Identities = identity_of_node,
) -> ClientApp:
    """What every silo runs. A node's configuration says ``silo`` (its folder), and may say ``name`` and ``model``.

    ``randomness`` makes the streams of a private round; anything else than fresh ones is for tests. ``identities`` has
    the keys of secure aggregation, by a node's configuration.
    """
    app = ClientApp()
    for step in STEPS:
        app.query(step)(partial(_stepped, step=step, identities=identities))

    @app.query()
    def meet(message: Message, context: Context) -> Message:
        return _answered(message, context, device, _introduced)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        handle = partial(_trained, randomness=randomness, context=context, identities=identities)
        return _answered(message, context, device, handle)

    @app.evaluate()
    def score(message: Message, context: Context) -> Message:
        return _answered(message, context, device, _evaluated)

    return app


def _answered(
    message: Message, context: Context, device: str, handle: Callable[[Message, Party, Federation, Any], RecordDict]
) -> Message:
    """The reply of ``handle``; what docleak raises on purpose travels to the server in words."""
    name = str(context.node_config.get("name", ""))
    federation: Federation | None = None
    try:
        if "silo" not in context.node_config:
            raise FederationError(
                "this node's configuration names no silo; start it with --node-config 'silo=\"DIR\"'."
            )
        federation = Federation.from_json(str(settings_in(message.content, "config")["federation"]))
        party = open_party(Path(str(context.node_config["silo"])), federation, name=name)
        name = party.name
        model = model_of(federation, device, str(context.node_config.get("model", "")))
        content = handle(message, party, federation, model)
    except DocleakError as error:
        said = str(error)
        if federation is not None and federation.privacy is not None:  # a message may name what the plan protects
            print(f"docleak: silo {name!r}: {error}", file=sys.stderr)
            said = "it could not take part; its own log says why"
        content = _refusal(name, said)
    return Message(content, reply_to=message)


def _refusal(name: str, said: str) -> RecordDict:
    return RecordDict({"fault": config_record({"silo": name or "unnamed", "message": said})})


def _stepped(message: Message, context: Context, *, step: str, identities: Identities) -> Message:
    """The reply to a step of secure aggregation that needs neither pages nor model."""
    try:
        data = bytes(settings_in(message.content, RECORD)["data"])
        reply = answer_step(step, data, identities(context.node_config), context)
        content = RecordDict({RECORD: config_record({"data": reply})})
    except DocleakError as error:
        content = _refusal(str(context.node_config.get("name", "")), str(error))
    return Message(content, reply_to=message)


def _introduced(message: Message, party: Party, federation: Federation, model: Any) -> RecordDict:
    said = introduce(party, model, private=federation.reticent)
    return RecordDict({"introduction": config_record(asdict(said))})


def _trained(
    message: Message,
    party: Party,
    federation: Federation,
    model: Any,
    *,
    randomness: Callable[[], Randomness],
    context: Context,
    identities: Identities,
) -> RecordDict:
    config = settings_in(message.content, "config")
    masking = None
    if federation.secure is not None:
        delivery = bytes(settings_in(message.content, RECORD)["data"])
        masking = MaskedRound(delivery, identities(context.node_config), context)
    metrics: dict[str, float] = {}
    if federation.privacy is not None:
        # The sum is over the threshold of silos at least, so that many shares make the whole noise.
        shares = masking.threshold if masking else int(config["clients"])
        update = private_round(
            party, model, arrays_in(message.content), federation, clients_drawn=shares, randomness=randomness()
        )
    else:
        done = train_round(party, model, arrays_in(message.content), federation, int(config["round"]))
        update = done.trained.update
        metrics = {"steps": done.trained.steps, "loss": done.trained.loss, "seconds": done.seconds}
    if masking is not None:
        return _sent_masked(party, *masking.masked(update))
    metrics |= {
        "num-examples": update.examples,
        "compression-error": relative_error(update.delta, federation.compression),
    }
    return _sent(party, federation, update, metrics)


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


def _evaluated(message: Message, party: Party, federation: Federation, model: Any) -> RecordDict:
    scores = evaluate(party, model, arrays_in(message.content))
    columns = {name: [float(getattr(score, name)) for score in scores] for name in SCORE_NUMBERS}
    return RecordDict({"metrics": metric_record(columns), "silo": config_record({"name": party.name})})
