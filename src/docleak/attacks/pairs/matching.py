"""Distances between gradients that pair attacks add to ``docleak.attacks.gradients.matching``, and MMGIA's quality."""

from __future__ import annotations

import torch
from torch import Tensor

from docleak.attacks.gradients.matching import Distance, Gradient, informative
from docleak.attacks.gradients.view import GradientView

#: Keeps square roots differentiable at a match.
TINY = 1e-24


def layer_norms(view: GradientView) -> Distance:
    """MMGIA eq. 2 without its prior: the sum over parameters of the L2 norm of the difference."""
    observed = {name: view.gradient[name] for name in informative(view.gradient)}

    def distance(dummy: Gradient) -> Tensor:
        return torch.stack([((dummy[n] - g).square().sum() + TINY).sqrt() for n, g in observed.items()]).sum()

    return distance


def layer_cosine(view: GradientView) -> Distance:
    """MMGIA eq. 3, LAMP's: one minus the mean over parameters of the cosine."""
    observed = {name: view.gradient[name] for name in informative(view.gradient)}

    def distance(dummy: Gradient) -> Tensor:
        cosines = [
            (dummy[n] * g).sum() / ((dummy[n].square().sum() + TINY).sqrt() * g.norm()) for n, g in observed.items()
        ]
        return 1 - torch.stack(cosines).mean()

    return distance


def squared_and_absolute(view: GradientView, *, weight: float = 0.01) -> Distance:
    """TAG (Deng et al., 2021): squared difference plus ``weight`` times the absolute one."""
    observed = view.gradient

    def distance(dummy: Gradient) -> Tensor:
        terms = [(dummy[n] - g).square().sum() + weight * (dummy[n] - g).abs().sum() for n, g in observed.items()]
        return torch.stack(terms).sum()

    return distance


def quality(view: GradientView, dummy: Gradient) -> float:
    """MMGIA eq. 6, Q: one minus the relative L2 distance of the whole gradients; 1 at a match, 0 for a dummy of 0."""
    difference = torch.stack([(dummy[n] - g).square().sum() for n, g in view.gradient.items()]).sum()
    true = torch.stack([g.square().sum() for g in view.gradient.values()]).sum()
    return float(1 - (difference / true).sqrt())
