"""Where a private training draws from: secret coins, and noise of a cryptographic stream of its own.

Both must stay unknown to whoever sees the model: a known coin takes the amplification away, known noise everything. A
stream whose state can be computed from its outputs (Mersenne Twister, PCG) is no good for noise: entries whose true
difference is known, such as unused rows of an embedding, show outputs. Noise comes from AES-256 in counter mode.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docleak.errors import MissingExtraError

#: Normal numbers made at once; bounds the memory.
CHUNK = 1 << 18
#: Random bits of a uniform number; no normal number is then beyond 8.6 standard deviations (probability 1e-17).
BITS = 53


class Randomness:
    """Two streams that share nothing: ``coins`` (who takes part, order, dropout) and ``gaussian`` (noise).

    ``fresh`` seeds both from the operating system. ``seeded`` is for tests and experiments that must be repeatable: a
    guarantee then does not hold against whoever knows the seed, and ``secret`` is False.
    """

    def __init__(self, coins_key: bytes, noise_key: bytes, *, secret: bool) -> None:
        self.coins = np.random.default_rng(list(coins_key))
        self.secret = secret
        self._stream = _stream(noise_key)

    @classmethod
    def fresh(cls) -> Randomness:
        """Streams nobody can repeat. Make new ones in every process; never store them."""
        return cls(secrets.token_bytes(32), secrets.token_bytes(32), secret=True)

    @classmethod
    def seeded(cls, *seed: int | str) -> Randomness:
        """Streams that follow from the seed."""
        return cls(*(hashlib.sha256(f"docleak {use} {seed!r}".encode()).digest() for use in ("coins", "noise")),
                   secret=False)  # fmt: skip

    def gaussian(self, count: int) -> NDArray[np.float64]:
        """``count`` independent standard normal numbers (Box and Muller, 1958)."""
        numbers = np.empty(count)
        for start in range(0, count, CHUNK):
            part = numbers[start : start + CHUNK]
            half = (len(part) + 1) // 2
            uniform = self._uniform(2 * half)
            radius = np.sqrt(-2.0 * np.log(uniform[:half]))
            angle = 2.0 * np.pi * uniform[half:]
            part[:half] = radius * np.cos(angle)
            part[half:] = (radius * np.sin(angle))[: len(part) - half]
        return numbers

    def _uniform(self, count: int) -> NDArray[np.float64]:
        """In (0, 1], on multiples of 2^-53."""
        words = np.frombuffer(self._stream.update(bytes(8 * count)), dtype=np.uint64)
        return ((words >> np.uint64(64 - BITS)).astype(np.float64) + 1.0) * 2.0**-BITS


def _stream(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError as error:
        raise MissingExtraError("private training needs cryptography: pip install 'docleak[privacy]'.") from error
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
