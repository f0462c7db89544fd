"""GELU and attention with second derivatives written out.

Gradient matching differentiates twice: a gradient over the parameters, then its distance to another one over the
pixels. PyTorch assembles the second derivative of these functions from elementary steps, each of which reads and
writes whole tensors; here one step is one formula, worked in place. Values and first derivatives are PyTorch's own.
There are no third derivatives: asking for one raises.

In the formulas a leading ``u`` marks what the second pass brings to a result of the first one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, int, int, int]

#: 2 φ(0), φ the density of the standard normal distribution.
TWO_PHI_0 = math.sqrt(2 / math.pi)


def gelu(x: Tensor) -> Tensor:
    """x Φ(x) elementwise (Hendrycks and Gimpel, 2016), exact."""
    result: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Gelu(torch.autograd.Function):
    """The slope Φ(x) + x φ(x) of a first pass is kept for the second one, which needs it twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = None
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            ctx.slope = torch.ops.aten.gelu_backward(x.new_ones(()).expand_as(x), x.detach())
            first: Tensor = _GeluBackward.apply(gradient, x, ctx.slope)  # type: ignore[no-untyped-call]
            return first
        only: Tensor = torch.ops.aten.gelu_backward(gradient, x) if ctx.slope is None else gradient * ctx.slope
        return only


class _GeluBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, x, slope)
        return gradient * slope

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, Tensor, None]:
        """u reaches the gradient times the slope, and x times gradient · (2 - x²) φ(x)."""
        _refuse_a_third_derivative()
        gradient, x, slope = ctx.saved_tensors
        square = x.square()
        density = (square * (-0.5 / math.log(2))).exp2_()  # half the time of exp_
        curvature = density.addcmul_(square, density, value=-0.5)  # (2 - x²) φ(x) / (2 φ(0))
        return u * slope, curvature.mul_(u).mul_(gradient).mul_(TWO_PHI_0), None


def attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(query keyᵀ + bias + mask) value, and the softmax; the query comes scaled.

    query (N, H, T, d), key and value (N, H, S, d); bias (H, T, S); mask, a constant, broadcasts to (N, H, T, S).
    Returns (N, H, T, d) and (N, H, T, S).
    """
    if mask is not None and mask.requires_grad:
        raise ValueError("the mask requires a gradient, but attention() gives none to it; pass a detached mask.")
    shape = (*query.shape[:3], key.shape[2])
    batches = (t.flatten(0, 1) for t in (query, key, value))
    mixed, share = _Attention.apply(*batches, bias, mask, shape)  # type: ignore[no-untyped-call]
    return mixed.view(query.shape), share.view(shape)


class _Attention(torch.autograd.Function):
    """On batches of matrices (N H, T, d) and (N H, S, d); ``shape`` is (N, H, T, S)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None, shape: Shape
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.biased = None if bias is None else shape
        offsets = [t for t in (bias, mask) if t is not None]
        share = _scores(query, key, offsets, shape).softmax(-1)
        ctx.save_for_backward(query, key, value, share)
        return torch.bmm(share, value), share

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, of_share: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, share = ctx.saved_tensors
        if gradient is None:
            gradient = torch.zeros_like(query)
        if torch.is_grad_enabled():
            inputs = (gradient, of_share, query, key, value, share, ctx.biased)
            gradients = _AttentionBackward.apply(*inputs)  # type: ignore[no-untyped-call]
        else:
            to_share = _product(of_share, gradient, value.mT)
            to_scores = torch._softmax_backward_data(to_share, share, -1, share.dtype)
            gradients = _to_inputs(gradient, to_scores, query, key, share, ctx.biased)
        return (*gradients, None, None)


class _AttentionBackward(torch.autograd.Function):
    """``biased`` is the shape (N, H, T, S) where there is a bias, else None."""

    @staticmethod
    def forward(
        ctx: Any,
        gradient: Tensor,
        of_share: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        share: Tensor,
        biased: Shape | None,
    ) -> tuple[Tensor | None, ...]:
        excess = _product(of_share, gradient, value.mT)
        buffer = excess * share
        excess.sub_(buffer.sum(-1, keepdim=True))
        to_scores = torch.mul(excess, share, out=buffer)
        ctx.save_for_backward(gradient, query, key, value, share, excess, to_scores)
        ctx.biased = biased
        return _to_inputs(gradient, to_scores, query, key, share, biased)

    @staticmethod
    def backward(
        ctx: Any, u_query: Tensor, u_key: Tensor, u_value: Tensor, u_bias: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """With P the softmax and E = gradient valueᵀ - its mean under P, the first pass sent P E to the scores.

        h = u_query keyᵀ + query u_keyᵀ + u_bias, minus its mean under P, reaches gradient valueᵀ as P h and P as E h
        (up to a constant per row, which the softmax takes away).
        """
        _refuse_a_third_derivative()
        gradient, query, key, value, share, excess, to_scores = ctx.saved_tensors
        h = _scores(u_query, key, [] if u_bias is None else [u_bias], ctx.biased).baddbmm_(query, u_key.mT)
        buffer = h * share
        h.sub_(buffer.sum(-1, keepdim=True))
        to_excess = torch.mul(h, share, out=buffer)
        to_share = h.mul_(excess).baddbmm_(gradient, u_value.mT)
        to_gradient = torch.bmm(share, u_value).baddbmm_(to_excess, value)
        to_query, to_key = torch.bmm(to_scores, u_key), torch.bmm(to_scores.mT, u_query)
        to_value = torch.bmm(to_excess.mT, gradient)
        return to_gradient, to_excess if ctx.needs_input_grad[1] else None, to_query, to_key, to_value, to_share, None


def _scores(query: Tensor, key: Tensor, offsets: Sequence[Tensor], shape: Shape | None) -> Tensor:
    """query keyᵀ plus at most two offsets that broadcast to ``shape`` (N, H, T, S), as (N H, T, S)."""
    if shape is None or not offsets:
        return torch.bmm(query, key.mT)
    scores = query.new_empty(shape)
    scores = torch.add(*offsets, out=scores) if len(offsets) == 2 else scores.copy_(offsets[0])
    return scores.flatten(0, 1).baddbmm_(query, key.mT)


def _product(start: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """start + a b, a new tensor."""
    return torch.bmm(a, b) if start is None else torch.baddbmm(start, a, b)


def _to_inputs(
    gradient: Tensor, to_scores: Tensor, query: Tensor, key: Tensor, share: Tensor, biased: Shape | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of query, key, value and, summed over N, of the bias."""
    to_bias = None if biased is None else to_scores.view(biased).sum(0)
    return torch.bmm(to_scores, key), torch.bmm(to_scores.mT, query), torch.bmm(share.mT, gradient), to_bias


def _refuse_a_third_derivative() -> None:
    """What the second pass computes in place has no graph; without this, its own derivative would lack terms."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a third derivative was asked for (create_graph=True in the second pass), but these layers have two. "
            "Load the model with transformers itself."
        )
