"""The residuals of gradient matching at one guess, with the products that Levenberg-Marquardt asks for.

A gradient g = dL/dθ depends on the pixels x by d²L/dθ dx. Read the other way round that is how dL/dx depends on θ: so
J v is one backward pass from dL/dx · v to the parameters, and Jᵀ u one from dL/dθ · u to the pixels. Both run through
the same graph of first derivatives, which is kept, and need no third ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from docleak.attacks.gradients.levenberg import Linear
from docleak.attacks.gradients.matching import Gradient
from docleak.attacks.gradients.view import GradientView
from docleak.errors import AttackError
from docleak.models.base import Encoded


class Linearised:
    """r(x) at ``unknowns`` (n,) for one view; ``pixels`` maps unknowns to (B, 3, H, W).

    ``residuals`` is a linear map of the difference between a gradient, as it would be sent, and the observed one.
    ``count`` is called for every product; the slope is no product, but the last part of the evaluation.
    """

    def __init__(
        self,
        view: GradientView,
        inputs: Sequence[Encoded],
        pixels: Callable[[Tensor], Tensor],
        unknowns: Tensor,
        count: Callable[[], None],
        residuals: Callable[[Gradient], Tensor],
    ) -> None:
        if view.local is not None:
            raise AttackError("solver=lm needs a plain gradient, not an update of local steps; use the default solver.")
        self.view, self.residuals, self.names, self.count = view, residuals, view.names, count
        parameters = dict(view.model.module.named_parameters())
        self.wanted = [parameters[name] for name in self.names]
        self.free = unknowns.detach().requires_grad_(True)
        loss = view.model.loss(pixels(self.free), inputs).mean()
        first = torch.autograd.grad(loss, [self.free, *self.wanted], create_graph=True, allow_unused=True)
        self.of_pixels, *self.sent = _filled(first, [self.free, *self.wanted])
        self.leaves = {n: g.detach().requires_grad_(True) for n, g in zip(self.names, self.sent, strict=True)}
        sent = view.as_sent(self.leaves)
        self._residual = residuals({name: sent[name] - g for name, g in view.gradient.items()})
        self.residual = self._residual.detach()
        self._slope: Tensor | None = None

    def slope(self) -> Tensor:
        """Jᵀ r (n,)."""
        if self._slope is None:
            self._slope = self._pulled(self.residual)
        return self._slope

    def push(self, direction: Tensor) -> Tensor:
        """J v (m,): how the residuals move with the unknowns."""
        self.count()
        moved = torch.autograd.grad(self.of_pixels, self.wanted, direction, retain_graph=True, allow_unused=True)
        tangent = dict(zip(self.names, _filled(moved, self.wanted), strict=True))
        if self.view.imitate is not None:
            at = {name: leaf.detach() for name, leaf in self.leaves.items()}
            tangent = torch.func.jvp(self.view.as_sent, (at,), (tangent,))[1]
        return self.residuals(tangent)

    def pull(self, residual: Tensor) -> Tensor:
        """Jᵀ u (n,)."""
        self.count()
        return self._pulled(residual)

    def _pulled(self, residual: Tensor) -> Tensor:
        leaves = list(self.leaves.values())
        back = torch.autograd.grad(self._residual, leaves, residual, retain_graph=True, allow_unused=True)
        pairs = [(g, b) for g, b in zip(self.sent, back, strict=True) if b is not None and g.requires_grad]
        (pulled,) = torch.autograd.grad([g for g, _ in pairs], self.free, [b for _, b in pairs], retain_graph=True)
        return pulled


class Joined:
    """Several of these at the same unknowns: the residuals of all, one after another."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = parts
        self.residual = torch.cat([part.residual for part in parts])

    def slope(self) -> Tensor:
        """Jᵀ r (n,)."""
        return torch.stack([part.slope() for part in self.parts]).sum(0)

    def push(self, direction: Tensor) -> Tensor:
        """J v (m,)."""
        return torch.cat([part.push(direction) for part in self.parts])

    def pull(self, residual: Tensor) -> Tensor:
        """Jᵀ u (n,)."""
        shares = torch.split(residual, [len(part.residual) for part in self.parts])
        return torch.stack([part.pull(u) for part, u in zip(self.parts, shares, strict=True)]).sum(0)


def _filled(found: Sequence[Tensor | None], of: Sequence[Tensor]) -> list[Tensor]:
    """Zeros where autograd found no way."""
    return [torch.zeros_like(p) if value is None else value for value, p in zip(found, of, strict=True)]
