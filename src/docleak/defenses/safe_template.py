"""Safe Template (Ben Hemo et al., 2025, appendix A.2): publish a template whose gradients mislead.

Algorithm 1 starts the perturbation at 0, where the gradient distance is at its minimum and has no slope: ours starts
at random signs. Its step adds the sign of the slope of minus the distance, and so makes the distance smaller, where the
text says that it is to be as large as can be: ours makes it larger. ``direction=descend,start=zero`` is algorithm 1 as
printed, measured in docs/results/gi-dqa/readings.md. The paper gives neither step size nor number of steps; 2.5
epsilon / steps (Madry et al., 2017) and 10 steps are ours. The owner of a template has no client's question: it asks
the blank page a made-up one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from docleak.attacks.gradients.matching import dummy_gradient, squared_and_cosine
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.defenses.defense import require
from docleak.models.base import DocumentModel, Encoded, trainable


@dataclass(frozen=True)
class SafeTemplate:
    """``kind`` pgd (adversarial) or random; ``norm`` linf or l2. Of pgd ``direction`` ascends the distance of the
    gradients, or descends it, and ``start`` is at random signs of full size or at zero.

    ``epsilon`` is in units of the pixel range: the largest change of a pixel (linf), or the root mean square over the
    page (l2: the l2 ball of radius epsilon times the square root of the number of values).
    """

    kind: str = "pgd"
    epsilon: float = 8 / 255
    norm: str = "linf"
    steps: int = 10
    direction: Literal["ascend", "descend"] = "ascend"
    start: Literal["signs", "zero"] = "signs"

    def __post_init__(self) -> None:
        require(self.kind in ("pgd", "random"), "safe-template", "kind", self.kind, "pgd or random")
        require(self.norm in ("linf", "l2"), "safe-template", "norm", self.norm, "linf or l2")
        require(0 < self.epsilon <= 1, "safe-template", "epsilon", self.epsilon, "more than 0 and at most 1")
        require(self.steps >= 1, "safe-template", "steps", self.steps, "at least 1")
        require(
            self.direction in ("ascend", "descend"), "safe-template", "direction", self.direction, "ascend or descend"
        )
        require(self.start in ("signs", "zero"), "safe-template", "start", self.start, "signs or zero")
        moved = self.kind == "pgd" or (self.direction, self.start) == ("ascend", "signs")
        require(moved, "safe-template", "kind", self.kind, "pgd, where a direction or a start is said")

    @property
    def summary(self) -> str:
        how = "adversarial (PGD)" if self.kind == "pgd" else "random"
        told = [f"{self.norm} {self.epsilon * 255:g}/255"]
        told += ["descending the distance"] if self.direction == "descend" else []
        told += ["from zero"] if self.start == "zero" else []
        return f"published template with {how} perturbation, {', '.join(told)}"

    def publish(
        self, model: DocumentModel, knowledge: Knowledge, blank: list[Encoded], *, generator: torch.Generator
    ) -> Tensor:
        template = knowledge.template
        signs = torch.randint(0, 2, template.shape, generator=generator).to(template) * 2 - 1
        delta = self._inside(template, self.epsilon * signs)  # the strongest random perturbation of this size
        if self.kind == "pgd":
            delta = self._moved(model, template, torch.zeros_like(delta) if self.start == "zero" else delta, blank)
        return (template + delta).clamp(0, 1)

    def _inside(self, template: Tensor, delta: Tensor) -> Tensor:
        """Project on the ball, then on valid pixels."""
        if self.norm == "linf":
            delta = delta.clamp(-self.epsilon, self.epsilon)
        else:
            radius = self.epsilon * delta[0].numel() ** 0.5
            norms = delta.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, 1, 1, 1)
            delta = delta * (radius / norms).clamp_max(1.0)
        return (template + delta).clamp(0, 1) - template

    def _moved(self, model: DocumentModel, template: Tensor, delta: Tensor, blank: list[Encoded]) -> Tensor:
        names = [name for name, _ in trainable(model.module)]
        clean = dummy_gradient(model, template, blank, names, create_graph=False)
        distance = squared_and_cosine(GradientView(model, {n: v.detach() for n, v in clean.items()}, len(blank)))
        step = (2.5 if self.direction == "ascend" else -2.5) * self.epsilon / self.steps
        for _ in range(self.steps):
            free = delta.detach().requires_grad_(True)
            dummy = dummy_gradient(model, template + free, blank, names, create_graph=True)
            (slope,) = torch.autograd.grad(distance(dummy), free)
            delta = self._inside(template, delta + step * slope.sign())
        return delta.detach()
