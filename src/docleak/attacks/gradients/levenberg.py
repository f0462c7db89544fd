"""Levenberg-Marquardt without matrices: Marquardt (1963), on the Krylov subspace of Golub and Kahan (1965).

The distance is a sum of squared residuals |r(x)|², so that J v and Jᵀ u, J = dr/dx, tell more of it than its gradient
does. From one point a few such products span a subspace in which the damped problem min |r + J p|² + damping |p|² is
small and dense, for every damping alike: a step that fails is damped further at the cost of one evaluation, without a
new product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from docleak.attacks.gradients.solvers import require_above_zero

#: A direction that is this much smaller than the first is rounding.
NEGLIGIBLE = 1e-6
#: A step that is to gain no larger share of the distance than this ends the search.
ROUNDING = 1e-14
#: Share of the foreseen gain from which a step is taken, below which the next is damped more, above which less.
TAKEN, POOR, GOOD = 1e-3, 0.25, 0.6
MORE, LESS = 8.0, 0.25


class Linear(Protocol):
    """Residuals r (m,) at one point x (n,), and J = dr/dx there."""

    @property
    def residual(self) -> Tensor: ...

    def slope(self) -> Tensor:
        """Jᵀ r (n,), a part of the evaluation that made this."""

    def push(self, direction: Tensor) -> Tensor:
        """J v (m,) of a direction (n,)."""

    def pull(self, residual: Tensor) -> Tensor:
        """Jᵀ u (n,) of u (m,)."""


#: Unknowns (n,) -> what is linear there. Each call is one gradient evaluation, and so is each push and each pull.
Linearise = Callable[[Tensor], Linear]


@dataclass(frozen=True)
class LevenbergMarquardt:
    """At most ``inner`` directions a step; ``damping`` is relative to the largest squared singular value met.

    Unknowns stay in [0, 1]: those at a bound that the slope pushes outwards are held, the others are cut off at the
    bounds after the step. The damping follows the share of the foreseen gain (of the uncut step) that came true.
    """

    inner: int = 8
    damping: float = 1e-2

    def __post_init__(self) -> None:
        require_above_zero(self, inner=self.inner, damping=self.damping)

    def minimise_squares(self, linearise: Linearise, start: Tensor, *, budget: int) -> Tensor:
        """The last unknowns taken, after at most ``budget`` evaluations and products."""
        x = start.detach().clamp(0, 1)
        here, used, damping = linearise(x), 1, self.damping
        while (directions := min(self.inner, (budget - used) // 2)) > 0:
            subspace = Subspace.grown(here, _free(x, here.slope()), directions)
            if subspace is None:
                return x
            used += subspace.products
            while used < budget:
                step, foreseen = subspace.step(damping)
                if foreseen <= ROUNDING * subspace.residual_square:
                    return x
                there = linearise((x + step).clamp(0, 1))
                used += 1
                gain = (subspace.residual_square - _square(there.residual)) / foreseen
                damping *= LESS if gain > GOOD else 1.0 if gain > POOR else MORE
                if gain > TAKEN:
                    x, here = (x + step).clamp(0, 1), there
                    break
        return x


@dataclass(frozen=True)
class Subspace:
    """J V = U B with orthonormal V (n, k) and U (m, k + 1), B (k + 1, k) lower bidiagonal, and r = -|r| U e1."""

    directions: Tensor  # V
    bidiagonal: Tensor  # B, float64
    residual_square: float
    products: int

    @classmethod
    def grown(cls, here: Linear, free: Tensor, directions: int) -> Subspace | None:
        """Of unknowns that are ``free`` (n,), with at most so many pushes and one pull less; None without a way."""
        slope = here.slope() * free
        size, steepness = float(here.residual.norm()), float(slope.norm())
        if not (size > 0 and 0 < steepness < float("inf")):
            return None
        left, vectors, alpha = -here.residual / size, [-slope / steepness], steepness / size
        columns: list[tuple[float, float]] = []
        pulls = 0
        while True:
            left = here.push(vectors[-1]) - alpha * left
            beta = float(left.norm())
            columns.append((alpha, beta))
            if len(vectors) == directions or beta <= NEGLIGIBLE * columns[0][0]:
                break
            left = left / beta
            right = here.pull(left) * free - beta * vectors[-1]
            pulls += 1
            basis = torch.stack(vectors, dim=1)
            for _ in range(2):  # twice is enough (Giraud et al., 2005)
                right = right - basis @ (basis.T @ right)
            alpha = float(right.norm())
            if alpha <= NEGLIGIBLE * columns[0][0]:
                break
            vectors.append(right / alpha)
        bidiagonal = torch.zeros(len(columns) + 1, len(columns), dtype=torch.float64)
        for k, (diagonal, below) in enumerate(columns):
            bidiagonal[k, k], bidiagonal[k + 1, k] = diagonal, below
        if not bool(bidiagonal.isfinite().all()):
            return None
        return cls(torch.stack(vectors, dim=1), bidiagonal, _square(here.residual), len(columns) + pulls)

    def step(self, damping: float) -> tuple[Tensor, float]:
        """p = V y (n,), with y that minimises ||r| e1 - B y|² + damping s² |y|², s the largest singular value of B;
        and by how much |r|² falls if r is linear.
        """
        k = self.bidiagonal.shape[1]
        u, s, vt = torch.linalg.svd(self.bidiagonal, full_matrices=False)
        target = self.residual_square**0.5 * u[0]  # Uᵀ |r| e1
        y = vt.T @ (s / (s.square() + damping * s[0].square()) * target)
        misfit = torch.zeros(k + 1, dtype=torch.float64)
        misfit[0] = self.residual_square**0.5
        foreseen = self.residual_square - _square(misfit - self.bidiagonal @ y)
        return self.directions @ y.to(self.directions), foreseen


def _free(x: Tensor, slope: Tensor) -> Tensor:
    """1 where an unknown may move, 0 where it is at a bound and the slope of the distance pushes it outwards."""
    return ~(((x <= 0) & (slope > 0)) | ((x >= 1) & (slope < 0)))


def _square(residual: Tensor) -> float:
    return float(residual.square().sum())
