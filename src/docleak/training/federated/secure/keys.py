"""Who a silo is, whose keys it has pinned, and the keys of a pair of silos. Nothing here is sent.

A silo's key pair and the folder of pinned keys are files in OpenSSH's formats, as ``ssh-keygen -t ed25519`` writes:

NAME       the private key, readable by its owner alone; it never leaves the silo
NAME.pub   the public key, one line; every silo and the server keep everyone's in one folder, compared beforehand
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docleak.errors import FederationError, refuse
from docleak.training.federated.secure.messages import Advert, Session
from docleak.training.federated.secure.primitives import (
    KEY_BYTES,
    agree,
    agreement_public_key,
    derive,
    digest,
    is_signed,
    openssh_pair,
    read_private_key,
    read_public_key,
    signing_public_key,
)
from docleak.training.federated.secure.shamir import Entropy

#: Silo -> Ed25519 public key, compared beforehand over a channel the server does not control.
Pinned = Mapping[str, bytes]


@dataclass(frozen=True)
class Identity:
    """A silo's name, its Ed25519 private key (raw), everyone's pinned public keys (its own among them).

    It takes part in no sum over fewer than ``least_threshold`` silos, whatever the server proposes.
    """

    silo: str
    private_key: bytes = field(repr=False)
    pinned: Pinned
    least_threshold: int = 2

    def __post_init__(self) -> None:
        if len(self.private_key) != KEY_BYTES:
            raise FederationError(f"silo {self.silo!r}: its Ed25519 key has {len(self.private_key)} bytes, not 32.")
        if self.pinned.get(self.silo) != signing_public_key(self.private_key):
            raise FederationError(
                f"silo {self.silo!r}: the key pinned under its own name is not that of its private key. Its name or "
                "its key file is another silo's."
            )


def make_identities(silos: Sequence[str], *, entropy: Entropy) -> dict[str, Identity]:
    """Identities of silos that live in one process, each with all the others' keys pinned."""
    private = {silo: entropy(KEY_BYTES) for silo in silos}
    pinned = {silo: signing_public_key(key) for silo, key in private.items()}
    return {silo: Identity(silo, key, pinned) for silo, key in private.items()}


def fingerprint(public_key: bytes) -> str:
    """A public key for people to compare, in groups of four of its SHA-256's first 32 hexadecimal digits."""
    digits = digest(public_key).hex()[:32]
    return " ".join(digits[start : start + 4] for start in range(0, 32, 4))


def checked_adverts(session: Session, adverts: Iterable[Advert], pinned: Pinned) -> dict[str, Advert]:
    """The adverts by silo, sorted. FederationError, naming the silos, unless all are theirs and enough."""
    by_silo: dict[str, Advert] = {}
    faults = []
    for advert in adverts:
        if advert.silo not in session.silos:
            faults.append(f"silo {advert.silo!r} was not invited")
        elif advert.silo in by_silo:
            faults.append(f"silo {advert.silo!r} comes twice")
        elif not is_signed(pinned.get(advert.silo, b""), advert.statement(session), advert.signature):
            faults.append(
                f"the keys of silo {advert.silo!r} are not signed for this session with the key pinned for it: "
                "someone between the silos changed or replayed them, or the pinned key is out of date"
            )
        by_silo[advert.silo] = advert
    keys = [key for advert in by_silo.values() for key in (advert.share_key, advert.mask_key)]
    if len(set(keys)) < len(keys):
        faults.append("a key comes twice")
    refuse(FederationError, faults)
    enough(session, by_silo, "sent keys")
    return dict(sorted(by_silo.items()))


def enough(session: Session, silos: Iterable[str], what: str) -> None:
    """FederationError if fewer silos than the threshold are left."""
    left = sorted(silos)
    if len(left) < session.threshold:
        lost = sorted(set(session.silos) - set(left))
        raise FederationError(
            f"round {session.round}: {len(left)} of {len(session.silos)} silos {what}, expected at least the threshold "
            f"{session.threshold}; missing: {', '.join(lost)}. There is no sum; start the round again."
        )


def pair_key(session: Session, purpose: str, secret: bytes, silo: str, other: Advert) -> bytes:
    """The key of two silos for ``purpose`` ("share" or "mask"), the same for both; bound to names, keys and session."""
    public = other.share_key if purpose == "share" else other.mask_key
    ends = sorted([(silo, agreement_public_key(secret)), (other.silo, public)])
    return agree(secret, public, session.statement(purpose, *(part for end in ends for part in end)))


def self_mask_key(session: Session, silo: str, seed: bytes) -> bytes:
    """The key of a silo's mask of its own."""
    return derive(seed, session.statement("self mask", silo))


def check_value(session: Session, silo: str, seed: bytes) -> bytes:
    """What shows a recovered seed to be the right one, and says nothing about its mask."""
    return derive(seed, session.statement("check", silo))


def mask_keys(session: Session, secret: bytes, silo: str, others: Iterable[Advert]) -> tuple[list[bytes], list[bytes]]:
    """Keys of the pairwise masks that ``silo`` adds (of silos after it), and of those it takes off."""
    plus: list[bytes] = []
    minus: list[bytes] = []
    for other in others:
        (plus if silo < other.silo else minus).append(pair_key(session, "mask", secret, silo, other))
    return plus, minus


def write_key_pair(folder: Path, silo: str) -> Path:
    """A new key pair of ``silo`` in ``folder``; the path of its private key. Existing keys are never replaced."""
    private, public = openssh_pair(secrets.token_bytes(KEY_BYTES), silo)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / silo
    if path.parent != folder or path.with_name(silo + ".pub").exists():
        raise FederationError(f"{path}.pub exists already, or {silo!r} is no file name; keys are not written over.")
    _write_new(path, private, 0o600)
    _write_new(path.with_name(silo + ".pub"), public + b"\n", 0o644)
    return path


def read_pinned(folder: Path) -> dict[str, bytes]:
    """Silo -> public key, of every NAME.pub in ``folder``. FederationError for none, or one that is no Ed25519 key."""
    keys = {}
    for path in sorted(folder.glob("*.pub")):
        key = read_public_key(path.read_bytes())
        if key is None:
            raise FederationError(f"{path} is no OpenSSH Ed25519 public key; make one with ssh-keygen -t ed25519.")
        keys[path.stem] = key
    if not keys:
        raise FederationError(f"{folder} has no NAME.pub files; put every silo's public key there.")
    return keys


def read_identity(private_key: Path, pinned: Path, *, least_threshold: int = 2) -> Identity:
    """The identity of the silo whose private key this is; its name is the file's."""
    try:
        key = read_private_key(private_key.read_bytes())
    except OSError as fault:
        raise FederationError(f"the private key {private_key} cannot be read ({fault.strerror}).") from fault
    if key is None:
        raise FederationError(
            f"{private_key} is no OpenSSH Ed25519 private key without a passphrase; make one with ssh-keygen -t "
            "ed25519."
        )
    return Identity(private_key.name, key, read_pinned(pinned), least_threshold)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Atomically, and only if nothing is there: a link to a whole file, or FederationError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        os.link(part, path)
    except FileExistsError as fault:
        raise FederationError(f"{path} exists already; keys are not written over.") from fault
    finally:
        part.unlink(missing_ok=True)
