"""What the tests of secure aggregation share: entropy that repeats itself, a session, its silos and their words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from docleak.training.federated.secure.fixed_point import FixedPoint, Words
from docleak.training.federated.secure.keys import Identity, make_identities
from docleak.training.federated.secure.messages import Advert, Delivery, MaskedInput, Session
from docleak.training.federated.secure.server import Aggregation
from docleak.training.federated.secure.silo import Masked, Shared, advertise, mask, share

Entropy = Callable[[int], bytes]


def seeded(seed: object) -> Entropy:
    """SHAKE-256 of the seed and a counter."""
    calls = 0

    def entropy(count: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_256(f"{seed!r} {calls}".encode()).digest(count)

    return entropy


@dataclass(frozen=True)
class Round:
    """A session, who its silos are, and words to sum; steps for tests that stop in between."""

    session: Session
    identities: Mapping[str, Identity]
    inputs: Mapping[str, Words]
    entropy: Entropy

    @property
    def pinned(self) -> Mapping[str, bytes]:
        return self.identities[self.session.silos[0]].pinned

    def plain_sum(self, silos: Iterable[str]) -> list[int]:
        """The oracle: Python's integers, and one remainder at the end."""
        rows = [self.inputs[silo].tolist() for silo in silos]
        return [sum(column) % 2**32 for column in zip(*rows, strict=True)]

    def until_shared(self) -> tuple[Aggregation, dict[str, Shared], dict[str, Delivery]]:
        """Steps 1 and 2 with every silo."""
        server = Aggregation(self.session, self.pinned)
        keys, adverts = {}, []
        for silo, identity in self.identities.items():
            keys[silo], advert = advertise(self.session, identity, entropy=self.entropy)
            adverts.append(advert)
        told: tuple[Advert, ...] = server.adverts(adverts)
        shared, parcels = {}, []
        for silo, identity in self.identities.items():
            shared[silo], parcel = share(keys[silo], told, identity, entropy=self.entropy)
            parcels.append(parcel)
        return server, shared, server.deliveries(parcels)

    def until_masked(self) -> tuple[Aggregation, dict[str, Masked], dict[str, tuple[MaskedInput, Words]]]:
        """Steps 1 to 3 with every silo; nothing is added up yet."""
        server, shared, deliveries = self.until_shared()
        masked, sent = {}, {}
        for silo, identity in self.identities.items():
            masked[silo], message, words = mask(shared[silo], deliveries[silo], self.inputs[silo], identity)
            sent[silo] = message, words
        return server, masked, sent


def make(silos: int, *, threshold: int = 0, words: int = 7, seed: int = 0, round_number: int = 1) -> Round:
    entropy = seeded((silos, threshold, words, seed, round_number))
    session = Session.new(
        [f"silo-{k}" for k in range(silos)],
        round_number=round_number,
        words=words,
        fixed=FixedPoint(16, silos),
        threshold=threshold,
        entropy=entropy,
    )
    rng = np.random.default_rng(seed)
    most = session.fixed.steps
    signed = {silo: rng.integers(-most, most + 1, words, dtype=np.int32) for silo in session.silos}
    for values in signed.values():
        values[0], values[-1] = most, -most  # the sum's last word, or its only one, is as far out as it goes
    inputs = {silo: values.view(np.uint32) for silo, values in signed.items()}
    return Round(session, make_identities(session.silos, entropy=seeded("identities")), inputs, entropy)


@pytest.fixture(scope="session")
def make_round() -> Callable[..., Round]:
    """A round of ``silos`` silos, the same for the same arguments; identities are the same in all of them."""
    return make


@pytest.fixture(scope="session")
def altered() -> Callable[..., object]:
    """A message with one bit of one of its fields of bytes turned over."""

    def turn(message: object, name: str, key: str = "") -> object:
        value = getattr(message, name)
        if key:
            return replace(message, **{name: {**value, key: flip(value[key])}})  # type: ignore[type-var]
        return replace(message, **{name: flip(value)})  # type: ignore[type-var]

    return turn


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
