"""What a defence is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from docleak.attacks.gradients.view import Knowledge
from docleak.errors import DefenseError
from docleak.models.base import DocumentModel, Encoded

Gradient = Mapping[str, Tensor]


@runtime_checkable
class Defense(Protocol):
    """A frozen dataclass; its fields are its parameters."""

    @property
    def summary(self) -> str:
        """One line in plain words."""


@runtime_checkable
class GradientDefense(Defense, Protocol):
    """Changes what a client sends."""

    def protect(self, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator) -> dict[str, Tensor]:
        """What leaves the client instead of ``gradient``."""

    def imitate(self, dummy: Gradient, observed: Gradient) -> Gradient:
        """What the adversary, who knows the defence, does to its own gradients before it compares (differentiable)."""


@runtime_checkable
class Noisy(Protocol):
    """A gradient defence that adds noise, which an adversary who knows of it counts with."""

    @property
    def noise_std(self) -> float:
        """Standard deviation of the Gaussian noise on every number that is sent."""


@runtime_checkable
class TemplateDefense(Defense, Protocol):
    """Changes the template that is published; clients go on training on clean pages."""

    def publish(
        self, model: DocumentModel, knowledge: Knowledge, blank: list[Encoded], *, generator: torch.Generator
    ) -> Tensor:
        """The published template (B, 3, H, W) in [0, 1]; ``blank`` asks the blank page a made-up question."""


@dataclass(frozen=True)
class NoDefense:
    """The row every defence is compared with."""

    @property
    def summary(self) -> str:
        return "no defence"


def require(condition: bool, name: str, what: str, value: object, expected: str) -> None:
    """Raise DefenseError where a parameter makes no sense (NaN fails every comparison, so it is caught too)."""
    if not condition or (isinstance(value, float) and not math.isfinite(value)):
        raise DefenseError(f"defence {name!r}: {what} is {value!r}; expected {expected}.")
