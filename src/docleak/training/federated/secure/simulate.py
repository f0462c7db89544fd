"""A whole secure aggregation in one process: embedded runs, tests, benchmarks. Every message goes through its bytes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from docleak.errors import FederationError
from docleak.training.federated.secure import silo as side
from docleak.training.federated.secure.fixed_point import Words
from docleak.training.federated.secure.keys import Identity
from docleak.training.federated.secure.messages import Delivery, MaskedInput, Session
from docleak.training.federated.secure.server import Aggregation
from docleak.training.federated.secure.shamir import Entropy

STEPS = ("advertise", "share", "mask", "confirm", "unmask")


@dataclass(frozen=True)
class Outcome:
    """The sum of the survivors' words modulo 2^32, who they are, and the bytes each silo sent."""

    total: Words
    survivors: tuple[str, ...]
    uploaded: Mapping[str, int]


def simulate(
    session: Session, inputs: Mapping[str, Words], identities: Mapping[str, Identity], *,
    drop: Mapping[str, str] | None = None, entropy: Entropy = secrets.token_bytes,
) -> Outcome:  # fmt: skip
    """Sum the silos' words. ``drop`` says before which of STEPS a silo falls silent.

    ``identities`` has every silo of the session; the server pins what the first of them does. Raises FederationError
    where the silos left are too few, or a name or step is unknown.
    """
    gone = dict(drop or {})
    faults = [
        f"{silo!r} before {step!r}" for silo, step in gone.items() if silo not in session.silos or step not in STEPS
    ]
    if faults or set(inputs) != set(session.silos) or not set(session.silos) <= set(identities):
        raise FederationError(
            f"inputs of {sorted(inputs)}, identities of {sorted(identities)}, drops {faults}; expected every silo of "
            f"{', '.join(session.silos)}, and drops of them before {', '.join(STEPS)}."
        )
    server = Aggregation(session, identities[session.silos[0]].pinned)
    sent = dict.fromkeys(session.silos, 0)
    states: dict[str, Any] = dict.fromkeys(session.silos)

    def present(silo: str, step: str) -> bool:
        return silo not in gone or STEPS.index(gone[silo]) > STEPS.index(step)

    def ask(step: str, payloads: Mapping[str, bytes]) -> dict[str, bytes]:
        replies = {}
        for silo in (silo for silo in payloads if present(silo, step)):
            states[silo], replies[silo] = side.answer(states[silo], payloads[silo], identities[silo], entropy=entropy)
            sent[silo] += len(replies[silo])
        return replies

    for silo, data in server.begin(ask).items():
        if present(silo, "mask"):
            delivery = Delivery.from_bytes(data)
            states[silo], message, words = side.mask(states[silo], delivery, inputs[silo], identities[silo])
            sent[silo] += words.nbytes + len(message.to_bytes())
            server.add(MaskedInput.from_bytes(message.to_bytes()), words)
    return Outcome(*server.finish(ask), sent)
