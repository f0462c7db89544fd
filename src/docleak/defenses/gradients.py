"""Defences that change the gradient which a client sends: noise, clipping, compression, freezing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from docleak.defenses.defense import Gradient, require
from docleak.errors import DefenseError
from docleak.models.base import DocumentModel
from docleak.models.stages import STAGES


@dataclass(frozen=True)
class GradientNoise:
    """N(0, sigma^2) on every coordinate, once per round (the LDP of GI-DQA's Table 8).

    Without clipping it has no sensitivity and so no epsilon; ``docleak budget`` plans differential privacy.
    """

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


@dataclass(frozen=True)
class Clipping:
    """Scales the whole gradient so that its l2 norm is at most ``norm``; on its own no protection, and a part of
    differential privacy. The adversary does the same."""

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


@dataclass(frozen=True)
class TopK:
    """Keeps the ``share`` of each tensor's numbers that is largest in size, at least one; the rest become zero.

    Also called gradient pruning. The adversary sees which numbers came and compares those alone.
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


@dataclass(frozen=True)
class Freezing:
    """Leaves out the parameters of the named stages, joined by ``+``, which are neither trained nor sent (GI-DQA,
    section 5); by default the two before the modalities meet."""

    stages: str = "vision+text"

    def __post_init__(self) -> None:
        unknown = [name for name in self.frozen if name not in STAGES]
        require(not unknown, "freeze", "stages", self.stages, f"some of {', '.join(STAGES)} joined by +")
        require(set(self.frozen) != set(STAGES), "freeze", "stages", self.stages, "at least one stage left to train")

    @property
    def frozen(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.stages.split("+"))

    @property
    def summary(self) -> str:
        return f"{' and '.join(self.frozen)} parameters frozen and not sent"

    def protect(self, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator) -> dict[str, Tensor]:
        sent = {name: value for name, value in gradient.items() if model.stage(name) not in self.frozen}
        if not sent:
            raise DefenseError(f"freezing {self.stages} leaves no parameter of {model.name!r} to send.")
        return sent

    def imitate(self, dummy: Gradient, observed: Gradient) -> Gradient:
        return dummy
