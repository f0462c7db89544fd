"""A page scaled as Pillow scales pictures of 8 bits, to the last grey level, and differentiable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from PIL.Image import Resampling
from torch import Tensor

from docleak.errors import ModelError

Floats = NDArray[np.float64]
#: Bits behind the point of Pillow's weights for pixels of 8 bits.
BITS = 22
#: Grey levels nearer to a whole one than this are that one.
SNAP = 1e-3


def _cubic(x: Floats) -> Floats:
    """Keys (1981) with a = -1/2."""
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


#: Pillow's filter -> how far it reaches, and its weight at distances >= 0 (a box is open on its left).
FILTERS: dict[Resampling, tuple[float, Callable[[Floats], Floats]]] = {
    Resampling.BOX: (0.5, lambda x: np.where(x <= 0.5, 1.0, 0.0)),
    Resampling.BILINEAR: (1.0, lambda x: np.clip(1 - x, 0, None)),
    Resampling.BICUBIC: (2.0, _cubic),
    Resampling.LANCZOS: (3.0, lambda x: np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0)),
}


@dataclass(frozen=True)
class Overview:
    """A page scaled to (height, width): ``rows`` (height, H) and ``columns`` (width, W) are Pillow's weights.

    Pillow rounds to whole grey levels after either direction, and which it takes first depends on the sizes. So does
    this, unless it does not ``rounds``; the derivative is that of the scaling in either case.
    """

    rows: Tensor
    columns: Tensor
    rows_first: bool = False
    rounds: bool = True

    @classmethod
    def of(cls, size: tuple[int, int], target: tuple[int, int], resample: int) -> Overview:
        """``size`` and ``target`` are (height, width), ``resample`` is of FILTERS; ModelError for another filter.

        The order is that which gives what Pillow itself makes of grey noise of that size.
        """
        noise = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
        made = np.array(PIL.Image.fromarray(noise).resize(target[::-1], resample=Resampling(resample)))
        wanted = torch.from_numpy(made)[None, None].double()
        given = torch.from_numpy(noise)[None, None].double() / 255
        (height, width), (high, wide) = size, target
        overview = cls(_weights(height, high, resample), _weights(width, wide, resample))
        orders = [replace(overview, rows_first=first) for first in (False, True)]
        return min(orders, key=lambda one: float((255 * one(given) - wanted).abs().mean()))

    def __call__(self, pixels: Tensor) -> Tensor:
        """Pixels (P, 3, H, W) in [0, 1] as (P, 3, height, width)."""
        levels = 255 * pixels
        for along_rows in (self.rows_first, not self.rows_first):
            levels = self._scaled(levels, self.rows) if along_rows else self._scaled(levels.mT, self.columns).mT
        return levels / 255

    def _scaled(self, levels: Tensor, weights: Tensor) -> Tensor:
        """``weights`` @ ``levels``, in float64 and to whole levels in 0..255, halves upwards."""
        if weights.shape[0] == weights.shape[1]:  # Pillow leaves that direction alone
            return levels
        smooth = weights.to(levels) @ levels
        if not self.rounds:
            return smooth
        given = levels.detach().double()
        whole = given.round()
        given = torch.where((given - whole).abs_() < SNAP, whole, given)  # x / 255 * 255 is x but for its last bits
        rounded = (weights.to(given) @ given).add_(0.5).floor_().clamp_(0, 255).to(levels)
        return smooth + (rounded - smooth.detach())


def _weights(count: int, target: int, resample: int) -> Tensor:
    """(target, count), float64: of the ``count`` old pixels in each new one, to Pillow's number of bits."""
    kind = Resampling(resample)
    if kind not in FILTERS:
        known = ", ".join(one.name for one in FILTERS)
        raise ModelError(f"overviews by Pillow's filter {kind.name} are not known here; expected one of {known}.")
    reach, weigh = FILTERS[kind]
    scale = count / target
    wide = max(scale, 1.0)  # pictures that grow are interpolated
    table = np.zeros((target, count))
    for new in range(target):
        middle = (new + 0.5) * scale
        first = max(0, int(middle - reach * wide + 0.5))
        last = min(count, int(middle + reach * wide + 0.5))
        away = (np.arange(first, last) - middle + 0.5) / wide
        if kind is Resampling.BOX:
            away = np.where(away == -0.5, math.inf, away)
        weights = weigh(np.abs(away))
        table[new, first:last] = weights / weights.sum()
    return torch.from_numpy(np.copysign(np.floor(np.abs(table) * 2**BITS + 0.5), table) / 2**BITS)
