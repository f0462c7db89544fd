"""Both sides of a secure round in Flower.

A silo answers queries for the four small steps, and sends masked words where it trains. A step's state lies in the
node's own context, which Flower keeps at the silo. It is taken out before it is used and the next one put in before the
reply leaves, so that each step is answered once. The server exchanges keys and shares before the training, and has the
sum confirmed and unmasked after it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from flwr.app import Context, RecordDict
from numpy.typing import NDArray

from docleak.errors import FederationError, PrivacyError
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.flower.messages import arrays_in, config_record, settings_in
from docleak.training.federated.secure import silo as side
from docleak.training.federated.secure.fixed_point import Shapes, Words, from_words, to_words
from docleak.training.federated.secure.keys import Identity, Pinned, read_identity
from docleak.training.federated.secure.messages import Delivery, MaskedInput, Message, Session
from docleak.training.federated.secure.server import Aggregation, Ask

if TYPE_CHECKING:  # they bring scipy, which the small steps do without
    from docleak.privacy.plan import DpPlan
    from docleak.training.federated.secure.plan import SecurePlan

#: The steps that need no training, in their order -> the state that each goes on from.
STEPS: Mapping[str, type[side.Advertised | side.Masked | side.Confirmed] | None] = {
    "advertise": None, "share": side.Advertised, "confirm": side.Masked, "unmask": side.Confirmed,
}  # fmt: skip
#: The record that their payloads travel in.
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
    before = STEPS[step]
    state, reply = side.answer(None if before is None else _taken(context, before), data, identity)
    context.state.config_records.pop(KEPT, None)  # a round that was broken off is over
    if state is not None:
        _keep(context, state)
    return reply


class MaskedRound:
    """One silo's training under masks: the state of step 2 is taken before it trains, so that no other can use it."""

    def __init__(self, delivery: bytes, identity: Identity, context: Context) -> None:
        self._shared = _taken(context, side.Shared)
        self._delivery, self._identity, self._context = Delivery.from_bytes(delivery), identity, context

    @property
    def threshold(self) -> int:
        """How many silos' updates the sum is over at least."""
        return self._shared.keys.session.threshold

    def room(self, plan: DpPlan) -> float:
        """The largest number that can be sent under a privacy plan; PrivacyError where its noise would be rounded away:
        the fixed point is the server's choice."""
        from docleak.training.federated.secure.plan import too_coarse  # brings SciPy along

        fixed = self._shared.keys.session.fixed
        if fault := too_coarse(fixed, plan, self.threshold):
            raise PrivacyError(f"{fault}.")
        return fixed.limit

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


#: What the sum is called in place of a silo's name.
SUM = "(sum of {} silos)"


@dataclass
class SecureRound:
    """One sum. ``session`` is public; ``deliveries`` says what each silo that takes part needs to mask its update."""

    session: Session
    shapes: Shapes
    ask: Ask
    aggregation: Aggregation
    deliveries: Mapping[str, bytes]

    @classmethod
    def begin(
        cls, plan: SecurePlan, privacy: DpPlan | None, silos: Sequence[str], shapes: Shapes, *, round_number: int,
        pinned: Pinned, ask: Ask,
    ) -> SecureRound:  # fmt: skip
        """Exchange keys and shares. FederationError if fewer silos than the threshold answer, or one does not fit."""
        session = plan.session(silos, shapes, round_number=round_number, privacy=privacy, entropy=secrets.token_bytes)
        aggregation = Aggregation(session, pinned)
        return cls(session, shapes, ask, aggregation, aggregation.begin(ask))

    def add(self, silo: str, content: RecordDict) -> Words:
        """Take one silo's masked words into the sum, and give them back; FederationError if they do not fit."""
        message = MaskedInput.from_bytes(bytes(settings_in(content, RECORD)["data"]))
        if message.silo != silo:
            raise FederationError(f"sent the masked update of silo {message.silo!r}")
        words: Words = arrays_in(content)["words"]
        self.aggregation.add(message, words)
        return words

    def total(self, *, drawn: int, private: bool) -> ClientUpdate:
        """Confirm who is in it, unmask, decode: the mean update of the silos, weighted by their examples.

        Under a privacy plan it is the sum over the ``drawn`` silos, divided by their number, whoever fell silent.
        """
        words, silos = self.aggregation.finish(self.ask)
        summed, weight = from_words(words, self.shapes, self.session.fixed)
        if private and weight != len(silos):
            raise FederationError(f"{len(silos)} silos weigh {weight}; under a privacy plan they count alike.")
        by = drawn if private else weight
        for value in summed.values():
            value /= by
        return ClientUpdate(SUM.format(len(silos)), by, summed)
