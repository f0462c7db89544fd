"""What silos and server of a secure aggregation say to each other, as values and as bytes (one JSON object each).

The masked update itself travels beside its ``MaskedInput`` as an array of uint32 words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar, get_type_hints

from docleak.errors import FederationError
from docleak.training.federated.secure.fixed_point import FixedPoint
from docleak.training.federated.secure.primitives import digest, frame
from docleak.training.federated.secure.shamir import Entropy

PROTOCOL = "docleak secure aggregation 1"


class Message:
    """A frozen dataclass of numbers, text, bytes, tuples of text, mappings of bytes and other messages."""

    def to_bytes(self) -> bytes:
        """The message for ``from_bytes``; equal messages give equal bytes."""
        return json.dumps(_plain(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The message of these bytes. Raises FederationError where they are none of this kind."""
        try:
            message: Self = _read(json.loads(data), cls)
        except (ValueError, TypeError, RecursionError) as fault:
            raise FederationError(f"{len(data)} bytes are no {cls.__name__} of {PROTOCOL} ({fault}).") from fault
        return message


M = TypeVar("M", bound=Message)


def pack_all(messages: Iterable[Message]) -> bytes:
    """Several messages of a kind as bytes, for ``unpack_all``."""
    return json.dumps([_plain(message) for message in messages], sort_keys=True).encode()


def unpack_all(kind: type[M], data: bytes) -> list[M]:
    """The messages of ``pack_all``. Raises FederationError where the bytes are none of this kind."""
    try:
        entries = json.loads(data)
        if not isinstance(entries, list):
            raise ValueError("expected a list")
        return [_read(value, kind) for value in entries]
    except (ValueError, TypeError, RecursionError) as fault:
        raise FederationError(f"{len(data)} bytes are no list of {kind.__name__} of {PROTOCOL} ({fault}).") from fault


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _read(value: object, kind: Any) -> Any:
    """A field's value from JSON, if it has the type the dataclass says."""
    if isinstance(kind, type) and issubclass(kind, Message):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or set(value) != set(hints):
            raise ValueError(f"expected an object with {', '.join(hints)}")
        return kind(**{name: _read(value[name], hint) for name, hint in hints.items()})
    if kind is bytes and isinstance(value, str):
        return bytes.fromhex(value)
    if kind == tuple[str, ...] and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if kind == Mapping[str, bytes] and isinstance(value, dict):
        return {key: _read(item, bytes) for key, item in value.items()}
    if kind in (int, str) and type(value) is kind:
        return value
    raise ValueError(f"{str(value)[:40]!r} where {kind} was expected")


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
        faults = []
        if not re.fullmatch("[0-9a-f]{32}", self.run):
            faults.append(f"the run's id is {self.run[:40]!r}; expected 32 hexadecimal digits")
        if list(self.silos) != sorted(set(self.silos)) or "" in self.silos:
            faults.append("the silos are not sorted, or a name is empty or comes twice")
        if count < 2:
            faults.append(f"{count} silos; expected at least 2, since the sum of one is that silo's own update")
        elif not count // 2 < self.threshold <= count:
            faults.append(
                f"the threshold is {self.threshold} of {count} silos; expected {count // 2 + 1} to {count}: with half "
                "of them or fewer, two groups could be told different stories"
            )
        if self.words < 1 or self.round < 0:
            faults.append(f"{self.words} words in round {self.round}; expected at least 1, in round 0 or later")
        if faults:
            raise FederationError("; ".join(faults) + ".")
        FixedPoint(self.fraction_bits, count)

    @classmethod
    def new(
        cls,
        silos: tuple[str, ...] | list[str],
        *,
        round_number: int,
        words: int,
        fixed: FixedPoint,
        threshold: int = 0,
        entropy: Entropy,
    ) -> Session:
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
