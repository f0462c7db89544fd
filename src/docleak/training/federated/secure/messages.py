"""What silos and server of a secure aggregation say to each other, as values and as bytes (one JSON object each).

The masked update itself travels beside its ``MaskedInput`` as an array of uint32 words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, TypeVar

from docleak.errors import FederationError, refuse, those
from docleak.files import parse_json, shaped
from docleak.training.federated.secure.fixed_point import FixedPoint
from docleak.training.federated.secure.primitives import digest, frame
from docleak.training.federated.secure.shamir import Entropy

PROTOCOL = "docleak secure aggregation 1"

T = TypeVar("T")


class Message:
    """A frozen dataclass of numbers, text, bytes, tuples of text, mappings of bytes and other messages."""

    __pydantic_config__: ClassVar[Any] = {"val_json_bytes": "hex"}

    def to_bytes(self) -> bytes:
        """The message for ``from_bytes``; equal messages give equal bytes."""
        return _written(asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The message of these bytes. Raises FederationError where they are none of this kind."""
        return _read(cls, data, cls.__name__)


def pack_all(messages: Iterable[Message]) -> bytes:
    """Several messages of a kind as bytes, for ``unpack_all``."""
    return _written([asdict(message) for message in messages])  # type: ignore[call-overload]


def unpack_all(kind: type[T], data: bytes) -> list[T]:
    """The messages of ``pack_all``. Raises FederationError where the bytes are none of this kind."""
    return _read(list[kind], data, f"list of {kind.__name__}")  # type: ignore[valid-type]


def _written(value: object) -> bytes:
    return json.dumps(value, default=bytes.hex, sort_keys=True).encode()


def _read(kind: Callable[..., T], data: bytes, name: str) -> T:
    what = f"{len(data)} bytes are no {name} of {PROTOCOL} and"
    try:
        value = parse_json(data.decode())
    except ValueError as fault:
        raise FederationError(f"{what} cannot be read ({fault}).") from fault
    return shaped(kind, value, FederationError, what, "Every party must run the same docleak.")


@dataclass(frozen=True)
class Session(Message):
    """What is public and agreed on for one sum; every key, signature and ciphertext is bound to it.

    ``run`` is drawn anew for every session (32 hexadecimal digits). ``silos`` are the invited ones, sorted; the sum is
    over at least ``threshold`` of them. Each sends ``words`` words with ``fraction_bits`` bits after the point.
    """

    run: str
    round: int
    silos: tuple[str, ...]
    threshold: int
    words: int
    fraction_bits: int

    def __post_init__(self) -> None:
        count = len(self.silos)
        refuse(FederationError, those(
            (not re.fullmatch("[0-9a-f]{32}", self.run),
             f"the run's id is {self.run[:40]!r}; expected 32 hexadecimal digits"),
            (list(self.silos) != sorted(set(self.silos)) or "" in self.silos,
             "the silos are not sorted, or a name is empty or comes twice"),
            (count < 2, f"{count} silos; expected at least 2, since the sum of one is that silo's own update"),
            (count >= 2 and not count // 2 < self.threshold <= count,
             f"the threshold is {self.threshold} of {count} silos; expected {count // 2 + 1} to {count}: with half "
             "of them or fewer, two groups could be told different stories"),
            (self.words < 1 or self.round < 0,
             f"{self.words} words in round {self.round}; expected at least 1, in round 0 or later"),
        ))  # fmt: skip
        FixedPoint(self.fraction_bits, count)

    @classmethod
    def new(
        cls, silos: tuple[str, ...] | list[str], *, round_number: int, words: int, fixed: FixedPoint,
        threshold: int = 0, entropy: Entropy,
    ) -> Session:  # fmt: skip
        """A session with an id of its own. ``threshold`` 0 is the paper's for active servers, floor(2K / 3) + 1."""
        chosen = threshold or 2 * len(silos) // 3 + 1
        if fixed.silos != len(silos):
            raise FederationError(f"the fixed point is made for {fixed.silos} silos; this session has {len(silos)}.")
        return cls(entropy(16).hex(), round_number, tuple(sorted(silos)), chosen, words, fixed.fraction_bits)

    @property
    def fixed(self) -> FixedPoint:
        """How this session's words are read."""
        return FixedPoint(self.fraction_bits, len(self.silos))

    def point(self, silo: str) -> int:
        """Where a silo's Shamir shares are taken."""
        return self.silos.index(silo) + 1

    def statement(self, kind: str, *parts: bytes | str | int) -> bytes:
        """Bytes to sign, authenticate or derive a key for: of this protocol, session and kind, and no other."""
        return frame(PROTOCOL, digest(self.to_bytes()), kind, len(parts), *parts)


@dataclass(frozen=True)
class Advert(Message):
    """Step 1, silo to server to all: the silo's X25519 keys of this session, for shares and for masks, signed."""

    silo: str
    share_key: bytes
    mask_key: bytes
    signature: bytes

    def statement(self, session: Session) -> bytes:
        """What the silo signs."""
        return session.statement("advert", self.silo, self.share_key, self.mask_key)


@dataclass(frozen=True)
class Parcels(Message):
    """Step 2, silo to server: an encrypted pair of shares for every other silo, and its self mask's check value."""

    silo: str
    check: bytes
    sealed: Mapping[str, bytes]
    signature: bytes

    def statement(self, session: Session) -> bytes:
        """What the silo signs."""
        pairs = (part for recipient in sorted(self.sealed) for part in (recipient, self.sealed[recipient]))
        return session.statement("parcels", self.silo, self.check, *pairs)


@dataclass(frozen=True)
class Delivery(Message):
    """Step 2, server to one silo: what the others sealed for it, by sender. Their names are its partners."""

    sealed: Mapping[str, bytes]


@dataclass(frozen=True)
class MaskedInput(Message):
    """Step 3, silo to server, beside its masked words: with whom (itself included) it masked them, signed."""

    silo: str
    partners: tuple[str, ...]
    signature: bytes

    def statement(self, session: Session, words_digest: bytes) -> bytes:
        """What the silo signs; ``words_digest`` is that of the masked words."""
        return session.statement("masked", self.silo, words_digest, *self.partners)


@dataclass(frozen=True)
class Survivors(Message):
    """Step 4, server to all of them: whose masked words arrived."""

    silos: tuple[str, ...]


@dataclass(frozen=True)
class Confirmation(Message):
    """Step 4, silo to server to all survivors: its signature of the list of survivors it was told."""

    silo: str
    signature: bytes

    def statement(self, session: Session, survivors: tuple[str, ...]) -> bytes:
        """What the silo signs: the list, so that a server cannot tell two."""
        return session.statement("survivors", self.silo, *survivors)


@dataclass(frozen=True)
class Unmasking(Message):
    """Step 5, silo to server: of every partner one share, of its seed if it survived, else of its mask key."""

    silo: str
    shares: Mapping[str, bytes]
    signature: bytes

    def statement(self, session: Session) -> bytes:
        """What the silo signs."""
        pairs = (part for partner in sorted(self.shares) for part in (partner, self.shares[partner]))
        return session.statement("unmasking", self.silo, *pairs)
