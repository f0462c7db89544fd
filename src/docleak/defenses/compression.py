"""Top-k compression, also called gradient pruning: only the largest numbers of each tensor are sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from docleak.defenses.defense import Gradient, require
from docleak.models.base import DocumentModel


@dataclass(frozen=True)
class TopK:
    """Keeps the ``share`` of each tensor's numbers that is largest in size, at least one; the rest become zero.

    The adversary sees which numbers came and compares those alone.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "top-k", "share", self.share, "a share above 0 and at most 1")

    @property
    def summary(self) -> str:
        return f"only the largest {self.share:.2%} of each tensor is sent"

    def protect(self, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: self._largest(value) for name, value in gradient.items()}

    def imitate(self, dummy: Gradient, observed: Gradient) -> Gradient:
        return {name: value * (observed[name] != 0) for name, value in dummy.items()}

    def _largest(self, value: Tensor) -> Tensor:
        flat = value.flatten()
        kept = flat.abs().topk(max(1, math.ceil(self.share * flat.numel()))).indices
        return torch.zeros_like(flat).index_copy(0, kept, flat[kept]).view_as(value)
