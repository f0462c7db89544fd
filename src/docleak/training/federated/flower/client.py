"""What every silo runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

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


def client_app(device: str = "cpu", randomness: Callable[[], Randomness] = Randomness.fresh) -> ClientApp:
    """What every silo runs. A node's configuration says ``silo`` (its folder), and may say ``name`` and ``model``.

    ``randomness`` makes the streams of a private round; anything else than fresh ones is for tests.
    """
    app = ClientApp()

    @app.query()
    def meet(message: Message, context: Context) -> Message:
        return _answered(message, context, device, _introduced)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _answered(message, context, device, partial(_trained, randomness=randomness))

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
        content = RecordDict({"fault": config_record({"silo": name or "unnamed", "message": said})})
    return Message(content, reply_to=message)


def _introduced(message: Message, party: Party, federation: Federation, model: Any) -> RecordDict:
    said = introduce(party, model, private=federation.privacy is not None)
    return RecordDict({"introduction": config_record(asdict(said))})


def _trained(
    message: Message, party: Party, federation: Federation, model: Any, *, randomness: Callable[[], Randomness]
) -> RecordDict:
    config = settings_in(message.content, "config")
    if federation.privacy is not None:
        update = private_round(
            party, model, arrays_in(message.content), federation, clients_drawn=int(config["clients"]),
            randomness=randomness(),
        )  # fmt: skip
        metrics = {
            "num-examples": update.examples,
            "compression-error": relative_error(update.delta, federation.compression),
        }
        return _sent(party, federation, update, metrics)
    number = int(config["round"])
    done = train_round(party, model, arrays_in(message.content), federation, number)
    update = done.trained.update
    metrics = {
        "num-examples": update.examples,
        "steps": done.trained.steps,
        "loss": done.trained.loss,
        "seconds": done.seconds,
        "compression-error": relative_error(update.delta, federation.compression),
    }
    return _sent(party, federation, update, metrics)


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
