"""Updates as 32-bit words in fixed point, whose sum modulo 2^32 is the sum of the updates.

A value x becomes round(x 2^f), f the ``fraction_bits``, as a two's complement word. Scaling by a power of two is exact,
so one silo's error is at most 2^-(f+1) per value, and the sum's over S silos at most S 2^-(f+1) (``error``). With K
silos invited, a word may be at most (2^31 - 1) / K in size: no sum of K of them can wrap. A larger one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from docleak.errors import FederationError

Words = NDArray[np.uint32]
Floats = NDArray[np.float64]
Shapes = Mapping[str, tuple[int, ...]]

#: Values handled at once, so that they stay in the cache.
CHUNK = 1 << 15


@dataclass(frozen=True)
class FixedPoint:
    """Words with ``fraction_bits`` bits after the point (negative: before it), for sums over up to ``silos`` silos."""

    fraction_bits: int
    silos: int

    def __post_init__(self) -> None:
        if not (-64 <= self.fraction_bits <= 64 and 1 <= self.silos < 2**31):
            raise FederationError(
                f"fixed point with {self.fraction_bits} bits after the point for {self.silos} silos; expected -64 to "
                "64 bits and at least one silo."
            )

    @classmethod
    def for_limit(cls, limit: float, silos: int) -> FixedPoint:
        """The finest fixed point in which values of up to ``limit`` in size fit."""
        if not 0 < limit < math.inf:
            raise FederationError(f"the limit of a silo's values is {limit}; expected a positive number.")
        coarsest = cls(-64, silos)
        bits = math.floor(math.log2(coarsest.steps) - math.log2(limit)) + 1  # the logarithms may round down
        while bits > 64 or limit * 2.0**bits > coarsest.steps:
            bits -= 1
        return cls(bits, silos)

    @property
    def steps(self) -> int:
        """The largest word of one silo, as a signed number."""
        return (2**31 - 1) // self.silos

    @property
    def limit(self) -> float:
        """The largest value of one silo."""
        return math.ldexp(self.steps, -self.fraction_bits)

    def error(self, survivors: int) -> float:
        """The most by which a decoded value may differ from the exact sum of ``survivors`` silos' values."""
        return math.ldexp(survivors, -self.fraction_bits - 1)

    def encode(self, values: NDArray[np.floating], *, weight: float = 1.0) -> Words:
        """``weight`` times ``values``, of any shape, as (n,) words.

        The product is exact for float32 values and whole weights below 2^29, and rounded once in float64 otherwise.

        Raises FederationError for a value that is not finite or exceeds ``limit``; engines pass errors on to the
        server, so the message does not say by how much.
        """
        flat = np.ravel(values)
        words = np.empty(flat.size, np.uint32)
        scale = 2.0**self.fraction_bits
        for start in range(0, flat.size, CHUNK):
            with np.errstate(over="ignore", invalid="ignore"):  # both end in the refusal below
                scaled = np.rint(flat[start : start + CHUNK].astype(np.float64) * weight * scale)
            largest = max(scaled.max(), -scaled.min())
            if not largest <= self.steps:  # so, not ">": NaN too
                raise FederationError(
                    f"a value of the update, once weighted, is larger than {self.limit:.10g} or not finite, and this "
                    "round's fixed point cannot hold it. Clip the update, or agree on fewer fraction bits."
                )
            words[start : start + CHUNK] = scaled.astype(np.int32).view(np.uint32)
        return words

    def decode(self, total: Words) -> Floats:
        """The values of a sum of words, exactly."""
        return total.view(np.int32).astype(np.float64) * 2.0**-self.fraction_bits


def words_of(shapes: Shapes) -> int:
    """How many words an update has: one per parameter, and one for the weight."""
    return sum(math.prod(shape) for shape in shapes.values()) + 1


def to_words(delta: Mapping[str, NDArray[np.floating]], weight: int, fixed: FixedPoint) -> Words:
    """``weight`` times an update, its arrays in order of their names, then the weight: (words_of,) words.

    The weight is n_k for FedAvg's mean (it stays hidden; the server learns the sum of all n_k), and 1 where updates are
    only added up, as under provider-level differential privacy: the last word of the sum then counts silos.
    """
    counts = FixedPoint(0, fixed.silos)
    if not 1 <= weight <= counts.steps:
        raise FederationError(f"an update of weight {weight}; expected 1 to {counts.steps} with {fixed.silos} silos.")
    parts = [fixed.encode(delta[name], weight=weight) for name in sorted(delta)]
    return np.concatenate([*parts, np.array([weight], np.uint32)])


def from_words(total: Words, shapes: Shapes, fixed: FixedPoint) -> tuple[dict[str, Floats], int]:
    """The sum of the weighted updates by name, and the sum of the weights. Divide the first by the second for a mean.

    Raises FederationError if the words do not fit the shapes.
    """
    if total.size != words_of(shapes):
        raise FederationError(f"a sum of {total.size} words; these parameters need {words_of(shapes)}.")
    sums: dict[str, Floats] = {}
    start = 0
    for name in sorted(shapes):
        size = math.prod(shapes[name])
        sums[name] = fixed.decode(total[start : start + size]).reshape(shapes[name])
        start += size
    return sums, int(total[-1])
