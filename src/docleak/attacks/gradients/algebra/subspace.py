"""Which candidate vectors lie in the space that a layer's gradients span, with a cut-off chosen blind.

The gradient of a linear layer's weight is a sum of outer products, sum_t e_t x_tᵀ, so its rows lie in the span of
what went into the layer: known since Petrov et al. (DAGER, 2024) for whole gradients. The rows of LoRA's A do the
same, r at a time; docleak's own is to add them up over rounds where the layer's inputs stay the same, and to choose
rank and cut-off blind: a direction counts where it rises above the rounding of what was sent, and a candidate where
fewer than CHANCE of all vocabularies like this one would have a single vector so near the span by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import betainccinv
from torch import Tensor

#: Probability that any candidate of a whole vocabulary is taken that is not in the span.
CHANCE = 0.01
#: Shares of the rank above the noise that are tried, so that weak directions need not spoil the strong ones.
SHARES = (1.0, 0.9, 0.75, 0.5, 0.25)
#: The nearest candidate left out must be this many times further from the span than the furthest one taken, ...
GAP = 3.0
#: ... and that one nearer than this, for the cut to count as exact.
NEAR = 0.1
#: A vector counts as one of those that were read if it is at most this many times as far as its rounding explains.
SLACK = 10.0
#: And no further than this, whatever that is: weak directions are uncertain.
FAR = 1e-3
EPSILON = float(torch.finfo(torch.float32).eps)


@dataclass(frozen=True)
class Rows:
    """Vectors (n, d) of the span, each number of which has an error of standard deviation ``noise`` (n,) or a float,
    beside the rounding of a sum in float32, which is added."""

    values: Tensor
    noise: Tensor | float = 0.0

    def whitened(self) -> Tensor:
        """The rows that are not zero, float64, in units of their noise."""
        values = self.values.detach().cpu().double()
        size = values.square().mean(1).sqrt()
        noise = torch.as_tensor(self.noise, dtype=torch.float64).expand(len(values))
        kept = size > 0
        return values[kept] / (noise.square() + (EPSILON * size).square()).sqrt()[kept, None]


@dataclass(frozen=True)
class Subspace:
    """Orthonormal ``directions`` (r, d), strongest first; ``rows`` is how many vectors they are of, and ``sizes`` (r,)
    the directions' singular values in units of the noise."""

    directions: Tensor
    rows: int
    sizes: Tensor

    @classmethod
    def of(cls, blocks: Sequence[Rows]) -> Subspace:
        """The directions that rise above the largest singular value of noise alone (Marchenko and Pastur, 1967)."""
        width = blocks[0].values.shape[1] if blocks else 0
        rows = torch.cat([torch.zeros(0, width, dtype=torch.float64), *(block.whitened() for block in blocks)])
        if not len(rows):
            return cls(rows, 0, rows.new_zeros(0))
        _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
        rank = int((sizes > math.sqrt(len(rows)) + math.sqrt(width)).sum())
        return cls(directions[:rank], len(rows), sizes[:rank])

    @property
    def rank(self) -> int:
        return len(self.directions)

    @property
    def width(self) -> int:
        return int(self.directions.shape[1])

    @property
    def covered(self) -> bool:
        """Whether more vectors came than they span: nothing new was in the last ones."""
        return self.rank < self.rows

    def residual(self, vectors: Tensor) -> Tensor:
        """(n,): the share of each vector's length that is outside the span; 1 for vectors of zeros."""
        vectors = _directions_of(vectors)
        outside: Tensor = (vectors - vectors @ self.directions.T @ self.directions).norm(dim=1)
        return outside + (vectors == 0).all(1)

    def tolerance(self, vectors: Tensor) -> Tensor:
        """(n,): how far outside of the span noise leaves a vector that was read, and the rounding of sums of so many
        numbers in float32, SLACK times over."""
        along = _directions_of(vectors) @ self.directions.T
        tilt = (self.width - self.rank) * (along / self.sizes).square().sum(1)
        return (SLACK * (EPSILON**2 * self.width + tilt).sqrt()).clamp_max(FAR)


@dataclass(frozen=True)
class Members:
    """Which of V candidates are in a span: ``taken`` (V,) and the ``residuals`` (V,) at the ``rank`` that was chosen.

    ``cutoff`` is the largest residual that counts; ``furthest`` taken and ``nearest`` left out stand on its two sides.
    """

    taken: Tensor
    residuals: Tensor
    rank: int
    cutoff: float
    covered: bool

    @property
    def furthest(self) -> float:
        return float(self.residuals[self.taken].max()) if bool(self.taken.any()) else 0.0

    @property
    def nearest(self) -> float:
        left = self.residuals[~self.taken]
        return float(left.min()) if len(left) else 1.0

    @property
    def clear(self) -> bool:
        """Whether a gap separates what was taken from what was not."""
        return bool(self.taken.any()) and self.furthest <= NEAR and self.nearest >= GAP * self.furthest

    @property
    def exact(self) -> bool:
        """The adversary's own belief that these are all, and no others."""
        return self.covered and self.clear


def members(space: Subspace, candidates: Tensor) -> Members:
    """The candidates (V, d) that are nearer to the span than chance explains, at the rank where most are.

    By chance the share of a foreign row's squared length that is inside is about Beta distributed, with the mean of all
    candidates and the variance of the quadratic form of a Gaussian that has the candidates' mean and covariance.
    """
    vectors = _directions_of(candidates)
    count = len(vectors)
    ranks = sorted({max(1, round(share * space.rank)) for share in SHARES if space.rank}, reverse=True)
    best = Members(torch.zeros(count, dtype=torch.bool), torch.ones(count, dtype=torch.float64), 0, 0.0, False)
    for rank in ranks:
        part = Subspace(space.directions[:rank], space.rows, space.sizes[:rank])
        residuals = part.residual(vectors)
        cutoff = _cutoff(part.directions, vectors, CHANCE / (count * len(ranks)))
        taken = residuals < cutoff
        if int(taken.sum()) > int(best.taken.sum()) or not best.rank:
            best = Members(taken, residuals, rank, cutoff, space.covered)
    return best


def _cutoff(directions: Tensor, vectors: Tensor, chance: float) -> float:
    """The residual below which a foreign row falls with probability ``chance``."""
    there = vectors[(vectors != 0).any(1)]
    mean = there.mean(0)
    scatter = (there - mean).T @ (there - mean) / max(1, len(there))
    inside = float((there @ directions.T).square().sum()) / max(1, len(there))
    form = directions.T @ directions - inside * torch.eye(len(mean), dtype=mean.dtype)
    spread = form @ scatter
    variance = 2 * float((spread * spread.T).sum()) + 4 * float(mean @ spread @ form @ mean)
    known = inside * (1 - inside) / variance - 1 if variance > 0 else 0.0
    if known <= 0:
        return 0.0
    return math.sqrt(1 - float(betainccinv(inside * known, (1 - inside) * known, chance)))


def _directions_of(vectors: Tensor) -> Tensor:
    vectors = vectors.detach().cpu().double()
    size: Tensor = vectors.norm(dim=1, keepdim=True)
    return vectors / size.clamp_min(1e-300)
