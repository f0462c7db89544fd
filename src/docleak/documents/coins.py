"""Coins and streams by name: each follows from a key, a purpose and one name alone.

A draw from a list moves for everybody when one name leaves the list. These do not: whoever is taken away changes
nothing for the others, which is what a guarantee about one provider, document or record counts on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

#: A public seed, or secret bytes.
Key = int | bytes


def coin(key: Key, purpose: str, name: str) -> float:
    """A number in [0, 1) that is uniform over keys, on multiples of 2^-53: below p it is a coin of probability p."""
    return (int.from_bytes(_digest(key, purpose, name)[:8], "big") >> 11) * 2.0**-53


def stream(key: Key, purpose: str, name: str) -> np.random.Generator:
    """A stream of one name's own."""
    return np.random.default_rng(list(_digest(key, purpose, name)))


def told_apart(names: Iterable[str]) -> list[str]:
    """The names, the second of two equal ones with a number: the same names whichever of the equal ones goes."""
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        labels.append(name if seen[name] == 1 else f"{name}\0{seen[name]}")
    return labels


def _digest(key: Key, purpose: str, name: str) -> bytes:
    secret = key if isinstance(key, bytes) else str(key).encode()
    hashed = hashlib.blake2b(key=hashlib.sha256(secret).digest(), digest_size=32)
    hashed.update(len(purpose).to_bytes(4, "big") + purpose.encode() + name.encode("utf-8", "surrogatepass"))
    return hashed.digest()
