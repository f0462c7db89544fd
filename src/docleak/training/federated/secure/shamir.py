"""Shamir's secret sharing (1979) over the field of the integers modulo 2^521 - 1, a Mersenne prime and P-521's field.

Plain arithmetic on Python's integers: its time may depend on the secrets, which only the silo itself can watch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from docleak.errors import FederationError

PRIME = 2**521 - 1
SECRET_BYTES = 32
SHARE_BYTES = 66

#: ``entropy(n)`` gives n random bytes; ``secrets.token_bytes`` is the one to use outside of tests.
Entropy = Callable[[int], bytes]


def split(secret: bytes, threshold: int, points: Sequence[int], *, entropy: Entropy) -> dict[int, bytes]:
    """Shares of a 32-byte secret at ``points`` (distinct, 1 or more), any ``threshold`` of which give it back."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(points):
        raise FederationError(
            f"cannot share a secret of {len(secret)} bytes among {len(points)} with threshold {threshold}; "
            f"expected {SECRET_BYTES} bytes and a threshold from 1 to {len(points)}."
        )
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise FederationError(f"shares at {list(points)}: expected distinct points from 1.")
    coefficients = [int.from_bytes(secret), *(_element(entropy) for _ in range(threshold - 1))]
    return {point: _value(coefficients, point).to_bytes(SHARE_BYTES) for point in points}


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret of ``threshold`` of the shares (point -> share), or None if they are none of a 32-byte secret.

    Wrong shares mostly give None, but may give a wrong secret: the caller must hold it against something it knows.
    """
    points = sorted(shares)[:threshold]
    if len(points) < threshold or any(len(shares[point]) != SHARE_BYTES for point in points):
        return None
    total = 0
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        total += int.from_bytes(shares[point]) * above * pow(below, -1, PRIME)
    secret = total % PRIME
    return secret.to_bytes(SECRET_BYTES) if secret < 2 ** (8 * SECRET_BYTES) else None


def _element(entropy: Entropy) -> int:
    """A uniform field element: 521 random bits, drawn again in the one case that is none."""
    while True:
        drawn = int.from_bytes(entropy(SHARE_BYTES)) >> (8 * SHARE_BYTES - 521)
        if drawn < PRIME:
            return drawn


def _value(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value
