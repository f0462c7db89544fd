"""Freezing stages of the model: their parameters are neither trained nor sent (GI-DQA section 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from docleak.defenses.defense import Gradient, require
from docleak.errors import DefenseError
from docleak.models.base import DocumentModel
from docleak.models.stages import STAGES


@dataclass(frozen=True)
class Freezing:
    """Leaves out the named stages, joined by ``+``; by default the two before the modalities meet."""

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
