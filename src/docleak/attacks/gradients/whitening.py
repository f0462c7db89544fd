"""Whitened matching (docleak's own): measure a gradient difference by what the unknown pixels could cause.

Plain distances are dominated by the few directions in which every filling of the private region moves
the gradient alike, so solvers crawl. Here the adversary draws K fillings around the current guess,
looks how each parameter's gradient varies, and measures differences in units of that variation: for a
matrix with difference R the distance is |A^-1/2 R B^-1/2|², A and B the covariances of its rows and
columns over the draws (a Kronecker-factored Mahalanobis distance, the metric in which a linear problem
with independent pixels is perfectly conditioned; the factors are those of Shampoo, Gupta et al., 2018,
taken over the data instead of the steps). It needs K first-order gradients and nothing but what the
adversary has.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from docleak.attacks.gradients.matching import Distance, Gradient

#: Sides longer than this (vocabularies) are scaled per row instead of rotated.
LONGEST_ROTATED = 2048
#: A parameter whose variation has less than this share of the largest power varies by rounding only (key biases).
NOISE = 1e-10
#: How much of a known noise's variance counts: all of it costs the solver 4 dB where noise is weak, none 3 dB where it
#: is strong (docs/log.md).
COUNTED = 0.1


@dataclass(frozen=True)
class WhiteningConfig:
    """``draws`` fillings, Gaussian noise of ``spread`` around the guess; eigenvalues damped relative to the largest.

    The scale of each parameter is set on ``scale_draws`` of the same draws (fresh ones weigh the directions
    that no draw had reached an order of magnitude less, and the solver then needs three times as long). ``noise`` is
    the standard deviation of Gaussian noise on every number of the observed gradient: part of its covariance (COUNTED)
    is added to that of the draws, so that directions in which noise drowns what pixels could cause count for less.
    """

    draws: int = 16
    spread: float = 0.2
    damping: float = 1e-4
    scale_draws: int = 4
    noise: float = 0.0


class Moments:
    """Running sums of D D^T and D^T D of one parameter's variations."""

    def __init__(self, shape: torch.Size) -> None:
        self.rows = shape[0] if len(shape) > 1 else 1
        self.columns = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
        self.left: Tensor | float = 0.0
        self.right: Tensor | float = 0.0

    def add(self, variation: Tensor) -> None:
        d = variation.reshape(self.rows, self.columns)
        self.left = self.left + _second_moment(d)
        self.right = self.right + (_second_moment(d.T) if self.rows > 1 else d[0].square())

    @property
    def power(self) -> float:
        """The sum of all squares."""
        if isinstance(self.left, float):  # of no draw
            return self.left
        return float((self.left if self.left.ndim == 1 else self.left.diagonal()).sum())


def _second_moment(d: Tensor) -> Tensor:
    """D D^T, or only its diagonal where a side is too long to rotate."""
    return d.square().sum(1) if d.shape[0] > LONGEST_ROTATED else d @ d.T


def _inverse_root(moment: Tensor, damping: float, noise: float) -> Tensor:
    """(M + damping · max eigenvalue + noise)^-1/2, a matrix, or a vector for a diagonal M."""
    if moment.ndim == 1:
        return (moment + damping * moment.max() + noise).rsqrt()
    values, vectors = torch.linalg.eigh(moment.double())
    values = values.clamp_min(0) + damping * values.max() + noise
    root: Tensor = (vectors * values.rsqrt()) @ vectors.T
    return root.to(moment.dtype)


class Whitener:
    """The map R -> A^-1/2 R B^-1/2 of one parameter, scaled so that a draw has squared norm min(rows, columns).

    Rows and columns that no draw moves (table rows nothing looked up) are left out: pixels cannot change them.
    """

    def __init__(self, moments: Moments, config: WhiteningConfig) -> None:
        assert isinstance(moments.left, Tensor) and isinstance(moments.right, Tensor)
        damping, variance = config.damping, COUNTED * config.noise**2
        noise = config.draws * variance  # per number, summed over the draws as the moments are
        self.whole = (moments.rows, moments.columns)
        left, self.rows = _alive(moments.left)
        right, self.columns = _alive(moments.right)
        self.shape = (len(self.rows), len(self.columns))
        rows, columns = self.shape
        self.left = _inverse_root(left, damping, noise * columns) if moments.rows > 1 else None
        self.right = _inverse_root(right, damping, noise * rows)
        self.scale = 1.0
        self.noise_power = variance * _power(self.left) * _power(self.right)

    def __call__(self, difference: Tensor) -> Tensor:
        r = difference.reshape(self.whole)
        if self.shape != self.whole:
            r = r[self.rows][:, self.columns]
        if self.left is not None:
            r = self.left @ r if self.left.ndim == 2 else self.left[:, None] * r
        r = r @ self.right if self.right.ndim == 2 else r * self.right
        return r * self.scale

    def rescale(self, mean_square: float) -> None:
        """Set the scale by the mean whitened squared norm of a draw; what noise adds to it counts like a draw's."""
        if mean_square > 0:
            self.scale *= math.sqrt(min(self.shape) / (mean_square + self.noise_power))


def _power(root: Tensor | None) -> float:
    return 1.0 if root is None else float(root.square().sum())


def _alive(moment: Tensor) -> tuple[Tensor, Tensor]:
    """A second moment (or its diagonal) without its zero rows, and the indices that are left."""
    diagonal = moment if moment.ndim == 1 else moment.diagonal()
    index = (diagonal > 0).nonzero().flatten()
    return (moment[index] if moment.ndim == 1 else moment[index][:, index]), index


def fit_whiteners(
    gradient_at: Callable[[Tensor], Gradient], guess: Tensor, config: WhiteningConfig, generator: torch.Generator
) -> dict[str, Whitener]:
    """Whiteners around ``guess`` (flat unknowns in [0, 1]); ``gradient_at`` gives first-order gradients.

    Costs ``1 + draws`` first-order gradients. Parameters that do not vary are left out.
    """
    centre = gradient_at(guess)
    moments = {name: Moments(value.shape) for name, value in centre.items()}
    remembered: deque[dict[str, Tensor]] = deque(maxlen=max(1, config.scale_draws))
    for variation in _variations(gradient_at, centre, guess, config, generator):
        remembered.append(variation)
        for name, value in variation.items():
            moments[name].add(value)
    top = max((m.power for m in moments.values()), default=0.0)
    kept = {name: m for name, m in moments.items() if m.power > NOISE * top}
    whiteners = {name: Whitener(m, config) for name, m in kept.items()}
    for name, whitener in whiteners.items():
        squares = [float(whitener(variation[name]).square().sum()) for variation in remembered]
        whitener.rescale(sum(squares) / len(squares))
    return whiteners


def _variations(
    gradient_at: Callable[[Tensor], Gradient],
    centre: Gradient,
    guess: Tensor,
    config: WhiteningConfig,
    generator: torch.Generator,
) -> Iterator[dict[str, Tensor]]:
    for _ in range(config.draws):
        noise = torch.randn(guess.shape, generator=generator).to(guess.device)
        other = gradient_at((guess + config.spread * noise).clamp(0, 1))
        yield {name: other[name] - value for name, value in centre.items()}


def residuals(whiteners: Mapping[str, Whitener], *, share: float = 1.0) -> Callable[[Gradient], Tensor]:
    """The linear map of a difference of gradients to numbers (m,) whose squares are ``share`` times its distance."""
    scale = math.sqrt(share / sum(min(w.shape) for w in whiteners.values()))

    def of(difference: Gradient) -> Tensor:
        return torch.cat([w(difference[name]).flatten() for name, w in whiteners.items()]) * scale

    return of


def whitened(observed: Mapping[str, Tensor], whiteners: Mapping[str, Whitener]) -> Distance:
    """Mean over matched directions of the whitened squared difference; about 1 for a random filling."""
    directions = sum(min(w.shape) for w in whiteners.values())

    def distance(dummy: Gradient) -> Tensor:
        terms = [w(dummy[name] - observed[name]).square().sum() for name, w in whiteners.items()]
        return torch.stack(terms).sum() / directions

    return distance
