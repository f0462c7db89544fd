"""Gaussian noise on the gradient that a client sends (the LDP of GI-DQA's Table 8).

Without clipping it has no sensitivity and so no epsilon; ``docleak budget`` plans differential privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from docleak.defenses.defense import Gradient, require
from docleak.models.base import DocumentModel


@dataclass(frozen=True)
class GradientNoise:
    """N(0, sigma^2) on every coordinate, once per round."""

    sigma: float

    def __post_init__(self) -> None:
        require(self.sigma >= 0, "noise", "sigma", self.sigma, "a standard deviation of 0 or more")

    @property
    def summary(self) -> str:
        return f"Gaussian noise of {self.sigma:g} on every number sent"

    @property
    def noise_std(self) -> float:
        return self.sigma

    def protect(self, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator) -> dict[str, Tensor]:
        return {
            name: value + self.sigma * torch.randn(value.shape, generator=generator).to(value)
            for name, value in gradient.items()
        }

    def imitate(self, dummy: Gradient, observed: Gradient) -> Gradient:
        return dummy
