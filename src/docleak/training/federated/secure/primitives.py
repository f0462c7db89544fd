"""The primitives of secure aggregation, each a call into ``cryptography``: Ed25519, X25519, HKDF, AES-GCM, AES-CTR.

Keys, secrets and signatures are raw bytes. Nothing here is a scheme of our own; they are composed as in Bonawitz et al.
(2017), section 7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from docleak.errors import FederationError, MissingExtraError
from docleak.training.federated.secure.fixed_point import Words
from docleak.training.federated.secure.shamir import Entropy

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as fault:
    raise MissingExtraError("secure aggregation needs cryptography: pip install 'docleak[federated]'.") from fault

KEY_BYTES = 32
NONCE_BYTES = 12
KINDS: dict[type, bytes] = {bytes: b"b", str: b"s", int: b"i"}
#: Words masked at once, so that they stay in the cache.
CHUNK = 1 << 16


def frame(*fields: bytes | str | int) -> bytes:
    """The fields in one string of bytes that no other list of fields gives: each after its kind and length."""
    parts = []
    for value in fields:
        data = value if isinstance(value, bytes) else str(value).encode()
        parts.append(KINDS[type(value)] + len(data).to_bytes(8) + data)
    return b"".join(parts)


def digest(data: bytes | Words) -> bytes:
    """SHA-256; of words in their order in memory on a little-endian machine."""
    hasher = hashes.Hash(hashes.SHA256())
    hasher.update(data if isinstance(data, bytes) else np.ascontiguousarray(data, "<u4").data.cast("B"))
    return hasher.finalize()


def signing_public_key(private_key: bytes) -> bytes:
    """The Ed25519 public key of a private one."""
    return Ed25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def sign(private_key: bytes, statement: bytes) -> bytes:
    """An Ed25519 signature, 64 bytes."""
    return Ed25519PrivateKey.from_private_bytes(private_key).sign(statement)


def is_signed(public_key: bytes, statement: bytes, signature: bytes) -> bool:
    """Whether this is the key's signature of this statement."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def openssh_pair(private_key: bytes, comment: str) -> tuple[bytes, bytes]:
    """A private key's OpenSSH file, without passphrase, and its public key's line."""
    key = Ed25519PrivateKey.from_private_bytes(private_key)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return key.private_bytes(*form), line + b" " + comment.encode()


def read_private_key(data: bytes) -> bytes | None:
    """The raw key of an OpenSSH file; None if it is no Ed25519 key, or has a passphrase."""
    try:
        key = serialization.load_ssh_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key.private_bytes_raw() if isinstance(key, Ed25519PrivateKey) else None


def read_public_key(data: bytes) -> bytes | None:
    """The raw key of an OpenSSH line; None if it is no Ed25519 key."""
    try:
        key = serialization.load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else None


def agreement_public_key(secret: bytes) -> bytes:
    """The X25519 public key of a secret one."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, public_key: bytes, info: bytes) -> bytes:
    """A 32-byte key from X25519 and HKDF-SHA-256. Raises FederationError for a public key that is none."""
    try:
        shared = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public_key))
    except ValueError as fault:
        raise FederationError(f"a key of the round is no X25519 public key ({fault}).") from fault
    return derive(shared, info)


def derive(secret: bytes, info: bytes) -> bytes:
    """HKDF-SHA-256, 32 bytes; those of different ``info`` tell nothing about each other."""
    return HKDF(hashes.SHA256(), KEY_BYTES, None, info).derive(secret)


def seal(key: bytes, plaintext: bytes, context: bytes, *, entropy: Entropy) -> bytes:
    """AES-256-GCM with a random nonce, which goes in front; ``context`` is authenticated with it."""
    nonce = entropy(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes | None:
    """What was sealed with this key and context; None if this was not."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except (InvalidTag, ValueError):
        return None


def add_masks(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add the masks of the keys ``plus`` to ``words`` in place and take off those of ``minus``, modulo 2^32.

    A key's mask is its AES-256-CTR stream from counter 0, as little-endian words; a key must not be used for more.
    """
    signed = [*((key, True) for key in plus), *((key, False) for key in minus)]
    streams = [
        (Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), positive)  # one key, one stream
        for key, positive in signed
    ]
    zeros = bytes(4 * CHUNK)
    buffer = bytearray(4 * CHUNK + 16)
    mask = np.frombuffer(buffer, "<u4")
    for start in range(0, words.size, CHUNK):
        part = words[start : start + CHUNK]
        for stream, positive in streams:
            stream.update_into(zeros[: 4 * part.size], buffer)
            if positive:
                part += mask[: part.size]
            else:
                part -= mask[: part.size]
