"""The silo's side of a secure round in Flower: queries for the four small steps, and the masked words of a training.

A step's state lies in the node's own context, which Flower keeps at the silo. It is taken out before it is used and the
next one put in before the reply leaves, so that each step is answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from docleak.errors import FederationError
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.flower.messages import config_record, settings_in
from docleak.training.federated.secure import silo as side
from docleak.training.federated.secure.fixed_point import to_words
from docleak.training.federated.secure.key_files import read_identity
from docleak.training.federated.secure.keys import Identity
from docleak.training.federated.secure.messages import (
    Advert,
    Confirmation,
    Delivery,
    Message,
    Session,
    Survivors,
    unpack_all,
)  # fmt: skip

#: The steps that need no training, in their order, and the record that their payloads travel in.
STEPS = ("advertise", "share", "confirm", "unmask")
RECORD = "secure"
#: Where a node keeps what it needs for the next step.
KEPT = "docleak-secure"

S = TypeVar("S", bound=Message)
#: Who a node is, by its configuration.
Identities = Callable[[Mapping[str, Any]], Identity]


def identity_of_node(config: Mapping[str, Any]) -> Identity:
    """The identity whose private key, and folder of pinned keys, a node's configuration names."""
    missing = [key for key in ("secure-key", "secure-pinned") if not config.get(key)]
    if missing:
        raise FederationError(
            f"this node's configuration lacks {' and '.join(missing)}, which secure aggregation needs: the path of the "
            "silo's private Ed25519 key, and the folder with every silo's public key."
        )
    least = int(config.get("secure-threshold", 2))
    return read_identity(Path(str(config["secure-key"])), Path(str(config["secure-pinned"])), least_threshold=least)


def answer_step(step: str, data: bytes, identity: Identity, context: Context) -> bytes:
    """The reply to one of STEPS; raises FederationError out of turn, or where the message does not fit."""
    if step == "advertise":
        session = Session.from_bytes(data)
        advertised, advert = side.advertise(session, identity)
        context.state.config_records.pop(KEPT, None)  # a round that was broken off is over
        _keep(context, advertised)
        return advert.to_bytes()
    if step == "share":
        shared, parcels = side.share(_taken(context, side.Advertised), unpack_all(Advert, data), identity)
        _keep(context, shared)
        return parcels.to_bytes()
    if step == "confirm":
        confirmed, reply = side.confirm(_taken(context, side.Masked), Survivors.from_bytes(data), identity)
        _keep(context, confirmed)
        return reply.to_bytes()
    return side.unmask(_taken(context, side.Confirmed), unpack_all(Confirmation, data), identity).to_bytes()


class MaskedRound:
    """One silo's training under masks: the state of step 2 is taken before it trains, so that no other can use it."""

    def __init__(self, delivery: bytes, identity: Identity, context: Context) -> None:
        self._shared = _taken(context, side.Shared)
        self._delivery, self._identity, self._context = Delivery.from_bytes(delivery), identity, context

    @property
    def threshold(self) -> int:
        """How many silos' updates the sum is over at least."""
        return self._shared.keys.session.threshold

    def masked(self, update: ClientUpdate, *, cut: bool = False) -> tuple[bytes, NDArray[np.uint32]]:
        """What is sent instead of the update, weighted by its examples.

        ``cut`` brings values beyond the agreed limit back to it: under a privacy plan a refusal would tell of them.
        """
        fixed, delta = self._shared.keys.session.fixed, update.delta
        if cut:
            most = fixed.limit / max(update.examples, 1)
            delta = {name: np.clip(value, -most, most) for name, value in delta.items()}
        words = to_words(delta, update.examples, fixed)
        state, message, masked = side.mask(self._shared, self._delivery, words, self._identity)
        _keep(self._context, state)
        return message.to_bytes(), masked


def _keep(context: Context, state: Message) -> None:
    context.state[KEPT] = config_record({"step": type(state).__name__, "data": state.to_bytes()})


def _taken(context: Context, kind: type[S]) -> S:
    """What the step before left, which is gone then."""
    if KEPT not in context.state.config_records:
        raise FederationError(
            "there is no secure aggregation to go on with here: the silo was restarted, or the server repeats a step. "
            "Start the round again."
        )
    saved = settings_in(context.state, KEPT)
    del context.state[KEPT]
    if saved["step"] != kind.__name__:
        raise FederationError(f"the server asks for another step than the one that follows {saved['step']!r}.")
    return kind.from_bytes(bytes(saved["data"]))
