"""What a silo's update may be at most: how often it counts, and how far it moves the model.

A finite number can ruin a model as well as one that is not. So an update is held against what the plan lets an honest
silo do, before it is averaged and whatever its sender says of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import Arrays, ClientUpdate
from docleak.training.federated.local_plan import LocalPlan

#: An AdamW step moves a number by about the learning rate, and by (1 - beta1) / sqrt(1 - beta2) = 3.2 of it at most
#: (Kingma and Ba, 2015, section 2.1). Rounding and other optimisers of the kind have room in the rest.
MARGIN = 10.0
#: Plain SGD without --max-norm has no bound of its own: an update may be so many times as long as all weights together.
LONGEST = 100.0
#: Under a privacy plan nobody knows how many units a silo has drawn; it is given so many times the plan's M.
UNITS = 100
#: How far the length of noise may be above sqrt(numbers), in standard deviations of one number: never, in practice.
NOISE_MARGIN = 20.0
#: Examples that one silo may say it has.
MOST_EXAMPLES = 10**9


@dataclass(frozen=True)
class UpdateBounds:
    """The bounds of a round: ``length`` of the weights it starts from, over ``numbers`` parameters."""

    federation: Federation
    length: float
    numbers: int

    @classmethod
    def of(cls, federation: Federation, weights: Mapping[str, NDArray[np.floating]]) -> UpdateBounds:
        """For a round from ``weights``."""
        return cls(federation, norm(weights), sum(weights[name].size for name in weights))

    def largest_norm(self, examples: int, *, shares: int) -> float:
        """L2 norm of the update of a silo with so many examples; ``shares`` is how many share the noise of a plan.

        With ``examples`` 0 nobody knows them, which is as many as the plan's ``max_steps`` take, or no bound by steps.
        """
        plan, local = self.federation.privacy, self.federation.local
        if plan is not None:
            noise = plan.noise_std(shares) * (math.sqrt(self.numbers) + NOISE_MARGIN) / plan.denominator
            return UNITS * plan.clip_norm + noise
        steps = _steps(local, examples)
        step = math.sqrt(self.numbers) if local.optimiser in ("adamw", "adam") else local.max_norm
        if not steps or not step:
            return LONGEST * (self.length + 1)
        return MARGIN * steps * local.learning_rate * (step + local.weight_decay * self.length)

    def faults(self, update: ClientUpdate, *, introduced: int, shares: int) -> list[str]:
        """What is too large about an update, in words that go on from the silo's name; for arrays that are finite and
        of the model's shapes. ``introduced`` are the examples its silo said that it has, 0 if that is not known."""
        faults = []
        if introduced and update.examples > introduced:
            faults.append(f"says it counts {update.examples} examples; it introduced itself with {introduced}")
        largest = self.largest_norm(introduced, shares=shares)
        if not (length := norm(update.delta)) <= largest:
            faults.append(
                f"sent an update of length {length:.3g}; what the plan lets a silo do is at most {largest:.3g}"
            )
        return faults


def norm(arrays: Arrays) -> float:
    """L2 norm over all arrays together, in float64."""
    with np.errstate(over="ignore"):
        return math.sqrt(sum(float(np.sum(np.square(arrays[name], dtype=np.float64))) for name in arrays))


def _steps(local: LocalPlan, examples: int) -> int:
    """Steps of a round over so many examples; 0 if that is not known."""
    steps = local.epochs * math.ceil(examples / local.batch_size)
    return min(steps, local.max_steps) if steps and local.max_steps else steps or local.max_steps
