"""From logits and losses of candidates to the next token (Dentan et al., 2024, section 4.2, steps 3 to 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from docleak.errors import AttackError

Mean = Literal["geometric", "arithmetic"]


@dataclass(frozen=True)
class Temperature:
    """Of a softmax, by the number of the token in its field: from ``first`` to ``last`` in ``steps`` equal steps.

    The paper decays it "over 3 steps" to 0.2-0.4, so that only the first tokens explore; where it begins it does not
    say. ``steps`` of 0 is no decay.
    """

    last: float = 0.3
    first: float = 0.6
    steps: int = 3

    def __post_init__(self) -> None:
        if self.last <= 0 or self.first <= 0 or self.steps < 0:
            raise AttackError(f"{self} cannot be used; expected temperatures above 0, and 0 steps or more.")

    def at(self, token: int) -> float:
        """The temperature of token number ``token``, from 0."""
        left = max(0.0, 1 - token / self.steps) if self.steps else 0.0
        return self.last + (self.first - self.last) * left


def likelihoods(logits: Tensor, temperature: float) -> Tensor:
    """Softmax over the candidates, (N,) to (N,), in double precision."""
    return torch.softmax(logits.double() / temperature, dim=0)


def loss_likelihoods(losses: Tensor, temperature: float) -> Tensor:
    """Eq. 5: softmax of 2 - loss / median over the candidates, (N,) to (N,); the lowest loss is the likeliest."""
    median = losses.double().quantile(0.5).clamp(min=torch.finfo(torch.float64).tiny)
    return likelihoods(2 - losses.double() / median, temperature)


def weighted_mean(target: Tensor, public: Tensor, weight: float, kind: Mean) -> Tensor:
    """Both likelihoods (N,) as one, summing to 1; ``weight`` is the target's, and 0 leaves the public one."""
    if kind == "arithmetic":
        return weight * target + (1 - weight) * public
    mean = weight * target.clamp(min=1e-300).log() + (1 - weight) * public.clamp(min=1e-300).log()
    return torch.softmax(mean, dim=0)


def sample_top_p(probabilities: Tensor, top_p: float, *, generator: torch.Generator) -> int:
    """An index drawn from the smallest set of likeliest candidates that holds ``top_p`` of the mass (Holtzman et al.,
    2020), in proportion to their probabilities."""
    sorted_, order = probabilities.sort(descending=True, stable=True)
    before = sorted_.cumsum(0) - sorted_
    kept = torch.where(before < top_p, sorted_, 0.0)
    return int(order[int(torch.multinomial(kept, 1, generator=generator))])
