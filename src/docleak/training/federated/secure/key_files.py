"""A silo's key pair and the folder of pinned public keys, in OpenSSH's formats, as ``ssh-keygen -t ed25519`` writes.

NAME       the private key, readable by its owner alone; it never leaves the silo
NAME.pub   the public key, one line; every silo and the server keep everyone's in one folder, compared beforehand
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from docleak.errors import FederationError
from docleak.training.federated.secure.keys import Identity
from docleak.training.federated.secure.primitives import KEY_BYTES, openssh_pair, read_private_key, read_public_key


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
