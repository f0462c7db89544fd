"""What the gradient at the input of an embedding's LayerNorm tells of that input.

The backward pass of a LayerNorm returns a gradient that is orthogonal to the vector that was normalised (its mean
taken off), because rescaling the input changes nothing, and to the constant vector, because shifting it changes
nothing; both up to the norm's epsilon. A position embedding that is added right before the norm has that gradient,
position by position, as its own. If the vector is one of V known candidates, one dot product tests each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from docleak.errors import AttackError

#: Rounding of a zero, relative to the length of the gradient, and the share of epsilon / variance that the norm's
#: epsilon leaves of it: medians over the shipped Donuts.
ROUNDING = 1e-7
EPSILON_SHARE = 0.03
#: A row rises above the noise if its squared norm exceeds the expected one by this many standard deviations.
VISIBLE = 6.0
#: The median of a squared standard normal variable.
MEDIAN_SQUARE = 0.455
#: Candidates tested at a time.
BLOCK = 8192


@dataclass(frozen=True)
class NormInputs:
    """The gradient at a LayerNorm's input for the T positions in use: ``deltas`` (T, d), float64, centred.

    ``noise`` is the standard deviation per coordinate of what was added to the gradient, seen in the rows of unused
    positions. ``rounding`` is that of further errors, relative to a delta's length, seen along the constant vector.
    """

    deltas: Tensor
    noise: float
    rounding: float
    unused: int

    @classmethod
    def of(cls, rows: Tensor, always_zero: Tensor, count: int | None = None) -> NormInputs:
        """Read ``rows`` (positions, d), the gradient of a position table without its ``always_zero`` rows (n, d).

        Without ``count`` the last row that rises above the noise is the last position in use. Raises AttackError
        if there is none.
        """
        rows, always_zero = rows.detach().double(), always_zero.detach().double()
        width = rows.shape[1]
        noise = _root_mean_square(always_zero)
        seen = rows.square().sum(1) > noise**2 * (width + VISIBLE * math.sqrt(2 * width))
        if not bool(seen.any()):
            raise AttackError(
                f"no row of the position table's gradient rises above the noise ({noise:.1e} per coordinate), so there "
                "is no text to read. Was the table frozen, or does the defence add more noise than there is signal?"
            )
        count = count or int(seen.nonzero().max()) + 1
        noise = _root_mean_square(torch.cat([always_zero, rows[count:]]))
        used = rows[:count]
        shifts = used[seen[:count]].sum(1) / math.sqrt(width)
        excess = max(float(shifts.square().median()) / MEDIAN_SQUARE - noise**2, 0.0)
        length = float(used[seen[:count]].norm(dim=1).median())
        return cls(centred(used), noise, ROUNDING + math.sqrt(excess) / length, len(rows) - count)

    @property
    def count(self) -> int:
        """T."""
        return len(self.deltas)

    @property
    def blur(self) -> float:
        """Variance per coordinate of the deltas, by noise and rounding."""
        lengths = self.deltas.norm(dim=1)
        return self.noise**2 + (self.rounding * float(lengths[lengths > 0].median())) ** 2

    def costs(self, candidates: Tensor, places: Tensor, *, scale: float, epsilon: float) -> Tensor:
        """Negative log-likelihood (T, V), up to a constant per position, that scale * candidate + place was normed.

        ``candidates`` (V, d); ``places`` (T, d) is what else is added at each position; ``epsilon`` the norm's.
        Under noise the dot products are Gaussian; without, rounding and epsilon leave heavier tails (Cauchy).
        """
        places = centred(places.double())
        length = self.deltas.square().sum(1, keepdim=True)  # (T, 1), squared
        blocks = []
        for block in torch.split(candidates, BLOCK):
            words = centred(block.double() * scale)
            dot = self.deltas @ words.T + (self.deltas * places).sum(1, keepdim=True)
            norm = words.square().sum(1) + 2 * places @ words.T + places.square().sum(1, keepdim=True)
            share = epsilon / (norm / words.shape[1] + epsilon)
            smallest = length * (self.rounding + EPSILON_SHARE * share) ** 2
            odds = dot.square() / norm.clamp_min(1e-30) / (self.noise**2 + smallest).clamp_min(1e-60)
            blocks.append(torch.where(self.noise**2 > 100 * smallest, odds / 2, odds.log1p()))
        return torch.cat(blocks, 1)


def centred(rows: Tensor) -> Tensor:
    """Rows (n, d) less their mean."""
    return rows - rows.mean(1, keepdim=True)


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0
