"""What every silo runs: which message is answered by what.

A deployed silo starts a process for each message. The four small steps of a secure round need neither pages nor model,
so that what does (``client``, and with it PyTorch, which takes seconds) is imported for the messages that need it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from docleak.privacy.randomness import Randomness
from docleak.training.federated.flower.discretion import answered
from docleak.training.federated.flower.messages import config_record, settings_in
from docleak.training.federated.flower.secure_round import RECORD, STEPS, Identities, answer_step, identity_of_node


def client_app(
    device: str = "cpu", randomness: Callable[[], Randomness] = Randomness.fresh,
    identities: Identities = identity_of_node, threads: int = 0,
) -> ClientApp:  # fmt: skip
    """What every silo runs. A node's configuration says ``silo`` (its folder), and may say ``name`` and ``model``, and
    ``keep``, the folder with the silo's own limits, ledger and log.

    ``randomness`` makes the streams of a private round; anything else than fresh ones is for tests. ``identities`` has
    the keys of secure aggregation, by a node's configuration. ``threads`` are PyTorch's (0: as many as it has).
    """
    app = ClientApp()
    for step in STEPS:
        app.query(step)(partial(_stepped, step=step, identities=identities))

    for kind, register in (("query", app.query), ("train", app.train), ("evaluate", app.evaluate)):
        register()(
            partial(_answered, kind=kind, device=device, randomness=randomness, identities=identities, threads=threads)
        )
    return app


def _answered(message: Message, context: Context, **how: Any) -> Message:
    """The reply to a message that needs pages and model."""
    from docleak.training.federated.flower import client

    return client.answer(message, context, **how)


def _stepped(message: Message, context: Context, *, step: str, identities: Identities) -> Message:
    """The reply to a step of secure aggregation that needs neither pages nor model."""

    def work() -> RecordDict:
        data = bytes(settings_in(message.content, RECORD)["data"])
        reply = answer_step(step, data, identities(context.node_config), context)
        return RecordDict({RECORD: config_record({"data": reply})})

    return answered(message, context, work)
