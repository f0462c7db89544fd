"""Layers that keep their input alone and compute the rest anew, in the first and in the second backward pass.

Gradient matching differentiates twice, and its graph holds the intermediate tensors of both passes of every layer at
once: memory that grows with the page. Chen et al. (2016, "Training deep nets with sublinear memory cost") compute a
layer anew when its derivative is asked for; here the backward pass of a layer is such a layer, too. What is held is its
input, what came back to its output, and everything of one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_asked = False


@contextmanager
def recomputation(asked: bool = True) -> Iterator[None]:
    """Within it, layers that can do so keep their input alone.

    For one evaluation of a distance of gradients and its slope over pixels: there the second pass reaches the input,
    and no parameter. Second derivatives over parameters are not to be asked for.
    """
    global _asked
    before, _asked = _asked, asked
    try:
        yield
    finally:
        _asked = before


def recomputing() -> bool:
    """Whether layers are asked to."""
    return _asked and torch.is_grad_enabled()


def recomputed(layer: Callable[[Tensor], Tensor], hidden: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """``layer(hidden)``, which depends on ``parameters`` beside its input, and on no chance."""
    free = [parameter for parameter in parameters if parameter.requires_grad]
    output: Tensor = _Forward.apply(layer, hidden, *free)  # type: ignore[no-untyped-call]
    return output


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: Callable[[Tensor], Tensor], hidden: Tensor, *free: Tensor) -> Tensor:
        ctx.layer, ctx.twice = layer, False
        ctx.save_for_backward(hidden, *free)
        return layer(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *free = ctx.saved_tensors
        if torch.is_grad_enabled():
            ctx.twice = True
            return None, *_Backward.apply(ctx.layer, gradient, hidden, *free)  # type: ignore[no-untyped-call]
        if ctx.twice:  # the end of the second pass, which is for the input alone
            return None, *_slopes(ctx.layer, gradient, hidden, ()), *(None for _ in free)
        return None, *_slopes(ctx.layer, gradient, hidden, free)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layer: Callable[[Tensor], Tensor], gradient: Tensor, hidden: Tensor, *free: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.layer = layer
        ctx.save_for_backward(gradient, hidden, *free)
        return _slopes(layer, gradient, hidden, free)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("a third derivative was asked for; layers that are computed anew have two.")
        gradient, hidden, *free = ctx.saved_tensors
        with torch.enable_grad():
            back, entered = gradient.detach().requires_grad_(True), hidden.detach().requires_grad_(True)
            slopes = torch.autograd.grad(ctx.layer(entered), [entered, *free], back, create_graph=True)
        pairs = [(slope, u) for slope, u in zip(slopes, upstream, strict=True) if slope.requires_grad]
        derivatives = torch.autograd.grad(
            [slope for slope, _ in pairs], [back, entered], [u for _, u in pairs], allow_unused=True
        )
        return None, *derivatives, *(None for _ in free)


def _slopes(
    layer: Callable[[Tensor], Tensor], gradient: Tensor, hidden: Tensor, free: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        entered = hidden.detach().requires_grad_(True)
        return torch.autograd.grad(layer(entered), [entered, *free], gradient)
