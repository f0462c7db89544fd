"""How far and how fast fine-tuning on one question moves a model: DocMIA's white-box features (Nguyen et al., 2025).

What was trained on is learnt already: the layer moves less. One linear layer is tuned by plain gradient descent, the
one nearest to the output; every question starts from the released weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from docleak.attacks.answers.asking import Item
from docleak.errors import AttackError
from docleak.models.base import DocumentModel, device_of, in_mode, pixels_of
from docleak.models.vlm.values import derived_once


@dataclass(frozen=True)
class Tuning:
    """At most ``steps``; it ends when one takes less than ``tolerance`` nats off the loss. The step's size is such that
    to first order the median of ``sampled`` questions would lose its whole loss in one: the same for all questions, and
    nobody has to choose it."""

    steps: int = 4
    tolerance: float = 1e-3
    sampled: int = 32


@dataclass(frozen=True)
class Moved:
    """The L2 norm of how far the layer moved, and in how many steps."""

    distance: float
    steps: int


def tune(model: DocumentModel, items: Sequence[Item], tuning: Tuning = Tuning()) -> list[Moved]:
    """One ``Moved`` per item, in order; dropout off, and the model is left as it was. AttackError where no linear layer
    has a gradient."""
    module = model.module
    flags = {name: p.requires_grad for name, p in module.named_parameters()}
    module.requires_grad_(False)
    try:
        with in_mode(module), derived_once(model):
            weight = _last_linear(model, items[0])
            rate = _step_size(model, items[:: max(1, len(items) // tuning.sampled)], weight)
            return [_moved(_loss_of(model, item), weight, rate, tuning) for item in items]
    finally:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(flags[name])


def _loss_of(model: DocumentModel, item: Item) -> Callable[[], Tensor]:
    """The loss on one question, a scalar, with the weights as they are when it is called."""
    page = model.fit(item.page)
    pixels = pixels_of(page.image, device_of(model))[None]
    inputs = [model.encode(page, item.question)]
    return lambda: model.loss(pixels, inputs)[0]


def _last_linear(model: DocumentModel, item: Item) -> Tensor:
    """The weight of the last linear layer that the loss depends on, tied embeddings apart."""
    tied = {id(part.weight) for part in model.module.modules() if isinstance(part, nn.Embedding)}
    linear: list[Tensor] = [
        p.weight for p in model.module.modules() if isinstance(p, nn.Linear) and id(p.weight) not in tied
    ]
    for weight in linear:
        weight.requires_grad_(True)
    gradients = torch.autograd.grad(_loss_of(model, item)(), linear, allow_unused=True)
    model.module.requires_grad_(False)
    used = [w for w, g in zip(linear, gradients, strict=True) if g is not None and bool(g.any())]
    if not used:
        raise AttackError(f"no linear layer of {model.name!r} has a gradient; its fine-tuning cannot be measured.")
    used[-1].requires_grad_(True)
    return used[-1]


def _step_size(model: DocumentModel, items: Sequence[Item], weight: Tensor) -> float:
    sizes = []
    for item in items:
        loss = _loss_of(model, item)()
        (gradient,) = torch.autograd.grad(loss, weight)
        sizes.append(float(loss.detach()) / max(float(gradient.square().sum()), 1e-12))
    return float(np.median(sizes))


def _moved(loss: Callable[[], Tensor], weight: Tensor, rate: float, tuning: Tuning) -> Moved:
    start, before, steps = weight.detach().clone(), loss(), 0
    try:
        while steps < tuning.steps:
            (gradient,) = torch.autograd.grad(before, weight)
            with torch.no_grad():
                weight -= rate * gradient
            steps += 1
            if steps < tuning.steps:
                after = loss()
                if not float(before.detach() - after.detach()) >= tuning.tolerance:
                    break
                before = after
        return Moved(float((weight.detach() - start).norm()), steps)
    finally:
        with torch.no_grad():
            weight.copy_(start)
