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


class _Compared(torch.autograd.Function):
    """Of tensors d and as many g: |d - g|², d.g and |d|, each (n,), and their derivatives 2 (d - g), g and d / |d|.

    Written out, because that is a third of the operations and one difference in memory at a time; once differentiable.
    """

    @staticmethod
    def forward(context: Any, observed: Sequence[Tensor], *dummy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pairs = list(zip(dummy, observed, strict=True))
        norms = torch.stack([torch.linalg.vector_norm(d) for d in dummy])
        context.observed, context.norms = observed, norms
        context.save_for_backward(*dummy)
        squares = torch.stack([torch.linalg.vector_norm(d - g) for d, g in pairs]).square()
        return squares, torch.stack([torch.dot(d.flatten(), g.flatten()) for d, g in pairs]), norms

    @staticmethod
    @once_differentiable
    def backward(context: Any, of_square: Tensor, of_dot: Tensor, of_norm: Tensor) -> tuple[Tensor | None, ...]:
        inward = 2 * of_square + torch.where(context.norms > 0, of_norm / context.norms, 0.0)
        along = of_dot - 2 * of_square
        tensors = zip(context.saved_tensors, context.observed, inward.tolist(), along.tolist(), strict=True)
        return None, *(torch.mul(d, i).add_(g, alpha=a) for d, g, i, a in tensors)


def _compared(dummy: Gradient, observed: Gradient) -> tuple[Tensor, Tensor, Tensor]:
    """Per parameter of ``observed`` (n of them): |d - g|², d.g and |d|, each (n,); every distance is of these."""
    compared: tuple[Tensor, Tensor, Tensor] = _Compared.apply(  # type: ignore[no-untyped-call]
        tuple(observed.values()), *(dummy[name] for name in observed)
    )
    return compared


def _norms(observed: Gradient) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(true) for true in observed.values()])


def squared(view: GradientView) -> Distance:
    """DLG (Zhu et al., 2019): the sum of squared differences over all parameters."""
    return lambda dummy: _compared(dummy, view.gradient)[0].sum()


def cosine(view: GradientView) -> Distance:
    """Inverting Gradients (Geiping et al., 2020): one minus the cosine of the whole gradients."""
    true = _norms(view.gradient).norm()

    def distance(dummy: Gradient) -> Tensor:
        _, dots, norms = _compared(dummy, view.gradient)
        alike: Tensor = dots.sum() / (norms.norm() * true).clamp_min(1e-15)
        return 1 - alike

    return distance


def squared_and_cosine(view: GradientView) -> Distance:
    """GI-DQA eq. 5: per layer, mean squared error plus one minus the cosine, summed over layers.

    Tensors whose gradient is NEGLIGIBLE are left out, which the paper does not say: what they are like is rounding.
    """
    return _squared_and_cosine({name: view.gradient[name] for name in informative(view.gradient)})


def squared_and_cosine_of_all(view: GradientView) -> Distance:
    """GI-DQA eq. 5 as printed: over all layers."""
    return _squared_and_cosine(view.gradient)


def _squared_and_cosine(observed: Gradient) -> Distance:
    true = _norms(observed)
    sizes = torch.tensor([g.numel() for g in observed.values()]).to(true)

    def distance(dummy: Gradient) -> Tensor:
        squares, dots, norms = _compared(dummy, observed)
        return (squares / sizes + 1 - dots / (norms * true).clamp_min(1e-30)).sum()

    return distance


#: Parameters that stand for position, per architecture: absolute tables, or Swin's relative ones.
POSITIONS = ("pos_embed", "embed_positions", "relative_position_bias_table", "position_embeddings")


def squared_and_position(view: GradientView, *, weight: float = 1.0) -> Distance:
    """APRIL (Lu et al., 2021): squared difference, plus the cosine of the position parameters' gradients.

    Swin has no absolute position table; there its relative position bias stands in for it.
    """
    telling = informative(view.gradient)
    true = _norms(view.gradient)
    positions = [n in telling and any(part in n for part in POSITIONS) for n in view.gradient]

    def distance(dummy: Gradient) -> Tensor:
        squares, dots, norms = _compared(dummy, view.gradient)
        apart = 1 - dots / (norms * true).clamp_min(1e-30)
        total: Tensor = squares.sum() + weight * apart[positions].sum()
        return total

    return distance


def relative(view: GradientView) -> Distance:
    """Mean over parameters of |g' - g|² / |g|²: free of scale, zero only at a match."""
    observed = {name: view.gradient[name] for name in informative(view.gradient)}
    scales = _norms(observed).square()
    return lambda dummy: (_compared(dummy, observed)[0] / scales).mean()
