"""Clipping a client's gradient to a norm: on its own no protection, and a part of differential privacy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from docleak.defenses.defense import Gradient, require
from docleak.models.base import DocumentModel


@dataclass(frozen=True)
class Clipping:
    """Scales the whole gradient so that its l2 norm is at most ``norm``. The adversary does the same."""

    norm: float = 1.0

    def __post_init__(self) -> None:
        require(self.norm > 0, "clip", "norm", self.norm, "a norm above 0")

    @property
    def summary(self) -> str:
        return f"gradient clipped to norm {self.norm:g}"

    def protect(self, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator) -> dict[str, Tensor]:
        return dict(self.imitate(gradient, gradient))

    def imitate(self, dummy: Gradient, observed: Gradient) -> Gradient:
        total = torch.stack([value.square().sum() for value in dummy.values()]).sum().sqrt()
        factor = (self.norm / total.clamp_min(1e-30)).clamp_max(1.0)
        return {name: value * factor for name, value in dummy.items()}
