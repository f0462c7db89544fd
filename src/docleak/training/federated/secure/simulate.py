"""A whole secure aggregation in one process: embedded runs, tests, benchmarks. Every message goes through its bytes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from docleak.errors import FederationError
from docleak.training.federated.secure import silo as side
from docleak.training.federated.secure.fixed_point import Words
from docleak.training.federated.secure.keys import Identity
from docleak.training.federated.secure.messages import (
    Advert,
    Confirmation,
    Delivery,
    MaskedInput,
    Parcels,
    Session,
    Survivors,
    Unmasking,
)
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
    session: Session,
    inputs: Mapping[str, Words],
    identities: Mapping[str, Identity],
    *,
    drop: Mapping[str, str] | None = None,
    entropy: Entropy = secrets.token_bytes,
) -> Outcome:
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

    def present(step: str) -> list[str]:
        return [s for s in session.silos if s not in gone or STEPS.index(gone[s]) > STEPS.index(step)]

    def upload(silo: str, data: bytes) -> bytes:
        sent[silo] += len(data)
        return data

    keys, adverts = {}, []
    for silo in present("advertise"):
        keys[silo], advert = side.advertise(session, identities[silo], entropy=entropy)
        adverts.append(Advert.from_bytes(upload(silo, advert.to_bytes())))
    told = [advert.to_bytes() for advert in server.adverts(adverts)]
    shared, parcels = {}, []
    for silo in present("share"):
        others = [Advert.from_bytes(data) for data in told]
        shared[silo], parcel = side.share(keys[silo], others, identities[silo], entropy=entropy)
        parcels.append(Parcels.from_bytes(upload(silo, parcel.to_bytes())))
    deliveries = {silo: delivery.to_bytes() for silo, delivery in server.deliveries(parcels).items()}
    masked = {}
    for silo in present("mask"):
        delivery = Delivery.from_bytes(deliveries[silo])
        masked[silo], message, words = side.mask(shared[silo], delivery, inputs[silo], identities[silo])
        sent[silo] += words.nbytes
        server.add(MaskedInput.from_bytes(upload(silo, message.to_bytes())), words)
    survivors = server.survivors().to_bytes()
    confirmed, signed = {}, []
    for silo in present("confirm"):
        confirmed[silo], reply = side.confirm(masked[silo], Survivors.from_bytes(survivors), identities[silo])
        signed.append(Confirmation.from_bytes(upload(silo, reply.to_bytes())))
    lists = [reply.to_bytes() for reply in server.confirmations(signed)]
    shares = []
    for silo in present("unmask"):
        unmasking = side.unmask(confirmed[silo], [Confirmation.from_bytes(data) for data in lists], identities[silo])
        shares.append(Unmasking.from_bytes(upload(silo, unmasking.to_bytes())))
    return Outcome(server.total(shares), Survivors.from_bytes(survivors).silos, sent)
