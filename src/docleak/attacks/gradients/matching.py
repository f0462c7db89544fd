"""Distances between the adversary's gradient and the client's.

A matcher is built once per attack from the observed gradient and then called with the dummy
gradient; both are dictionaries over the same parameter names. All distances are differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from docleak.attacks.gradients.local_steps import Taken
from docleak.attacks.gradients.view import GradientView
from docleak.models.base import DocumentModel, Encoded

Gradient = Mapping[str, Tensor]
Distance = Callable[[Gradient], Tensor]

#: Parameters whose gradient is below this share of the largest one are identically zero up to rounding (key
#: biases, to which softmax is invariant, and tables nothing looked up); their direction is noise.
NEGLIGIBLE = 1e-7


def dummy_gradient(
    model: DocumentModel, pixels: Tensor, inputs: Sequence[Encoded], names: Sequence[str], *, create_graph: bool
) -> dict[str, Tensor]:
    """The gradient of the batch's mean loss with respect to ``names``, as a client computes it.

    Parameters that the loss does not reach get zeros.
    """
    parameters = dict(model.module.named_parameters())
    wanted = [parameters[name] for name in names]
    loss = model.loss(pixels, inputs).mean()
    values = torch.autograd.grad(loss, wanted, create_graph=create_graph, allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if value is None else value
        for name, parameter, value in zip(names, wanted, values, strict=True)
    }


def dummy_of(
    view: GradientView, pixels: Tensor, inputs: Sequence[Encoded], *, create_graph: bool, taken: Taken | None = None
) -> dict[str, Tensor]:
    """What the view's client would have computed from ``pixels`` and ``inputs``: one gradient, or its local steps.

    ``taken`` is what is known of steps on them.
    """
    if view.local is not None:
        return view.local.simulate(view.model, pixels, inputs, view.names, create_graph=create_graph, taken=taken)
    return dummy_gradient(view.model, pixels, inputs, view.names, create_graph=create_graph)


def informative(gradient: Gradient) -> tuple[str, ...]:
    """Names whose gradient is not negligible beside the largest one."""
    norms = {name: float(value.norm()) for name, value in gradient.items()}
    top = max(norms.values(), default=0.0)
    return tuple(name for name, norm in norms.items() if norm > NEGLIGIBLE * top)


def distance_at(view: GradientView, pixels: Tensor, inputs: Sequence[Encoded]) -> float:
    """How far, by ``relative``, what the view's client would have sent of these is from what it sent."""
    return float(relative(view)(view.as_sent(dummy_of(view, pixels, inputs, create_graph=False))))


def squared(view: GradientView) -> Distance:
    """DLG (Zhu et al., 2019): the sum of squared differences over all parameters."""
    observed = view.gradient

    def distance(dummy: Gradient) -> Tensor:
        return torch.stack([(dummy[n] - g).square().sum() for n, g in observed.items()]).sum()

    return distance


def cosine(view: GradientView) -> Distance:
    """Inverting Gradients (Geiping et al., 2020): one minus the cosine of the whole gradients.

    Differentiable once: the derivative is written out, because memory is what a large network's distance waits for.
    """
    names, observed = tuple(view.gradient), tuple(view.gradient.values())

    def distance(dummy: Gradient) -> Tensor:
        mismatch: Tensor = _Cosine.apply(observed, *(dummy[name] for name in names))  # type: ignore[no-untyped-call]
        return mismatch

    return distance


class _Cosine(torch.autograd.Function):
    """1 - d.g / (|d| |g|) of tensors d and as many g, and its derivative d (d.g) / (|d|^3 |g|) - g / (|d| |g|)."""

    @staticmethod
    def forward(context: Any, observed: tuple[Tensor, ...], *dummy: Tensor) -> Tensor:
        dot = torch.stack([torch.dot(d.flatten(), g.flatten()) for d, g in zip(dummy, observed, strict=True)]).sum()
        size, true = (torch.stack([t.norm() for t in tensors]).norm() for tensors in (dummy, observed))
        norms = (size * true).clamp_min(1e-15)
        context.observed, context.dot, context.size, context.norms = observed, dot, size, norms
        context.save_for_backward(*dummy)
        distance: Tensor = 1 - dot / norms
        return distance

    @staticmethod
    @once_differentiable
    def backward(context: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        along = float(-upstream / context.norms)
        inward = float(upstream * context.dot / (context.norms * context.size.square().clamp_min(1e-30)))
        pairs = zip(context.saved_tensors, context.observed, strict=True)
        return None, *(torch.mul(g, along).add_(d, alpha=inward) for d, g in pairs)


def squared_and_cosine(view: GradientView) -> Distance:
    """GI-DQA eq. 5: per layer, mean squared error plus one minus the cosine, summed over layers.

    Tensors whose gradient is NEGLIGIBLE are left out, which the paper does not say: what they are like is rounding.
    """
    return _squared_and_cosine({name: view.gradient[name] for name in informative(view.gradient)})


def squared_and_cosine_of_all(view: GradientView) -> Distance:
    """GI-DQA eq. 5 as printed: over all layers."""
    return _squared_and_cosine(view.gradient)


def _squared_and_cosine(observed: Gradient) -> Distance:
    def distance(dummy: Gradient) -> Tensor:
        terms = []
        for name, true in observed.items():
            guess = dummy[name]
            similarity = (guess * true).sum() / (guess.norm() * true.norm()).clamp_min(1e-30)
            terms.append((guess - true).square().mean() + 1 - similarity)
        return torch.stack(terms).sum()

    return distance


#: Parameters that stand for position, per architecture: absolute tables, or Swin's relative ones.
POSITIONS = ("pos_embed", "embed_positions", "relative_position_bias_table", "position_embeddings")


def squared_and_position(view: GradientView, *, weight: float = 1.0) -> Distance:
    """APRIL (Lu et al., 2021): squared difference, plus the cosine of the position parameters' gradients.

    Swin has no absolute position table; there its relative position bias stands in for it.
    """
    base = squared(view)
    positions = [n for n in informative(view.gradient) if any(part in n for part in POSITIONS)]

    def distance(dummy: Gradient) -> Tensor:
        total = base(dummy)
        for name in positions:
            guess, true = dummy[name], view.gradient[name]
            total = total + weight * (1 - (guess * true).sum() / (guess.norm() * true.norm()).clamp_min(1e-30))
        return total

    return distance


def relative(view: GradientView) -> Distance:
    """Mean over parameters of |g' - g|² / |g|²: free of scale, zero only at a match."""
    names = informative(view.gradient)
    scales = {n: float(view.gradient[n].square().sum()) for n in names}

    def distance(dummy: Gradient) -> Tensor:
        terms = [(dummy[n] - view.gradient[n]).square().sum() / scales[n] for n in names]
        return torch.stack(terms).mean()

    return distance
