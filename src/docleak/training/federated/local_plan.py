"""How a client trains in a round, in words and numbers: without PyTorch, which whoever only reads a plan can spare."""

from __future__ import annotations

import math
from dataclasses import dataclass

from docleak.errors import FederationError, refuse
from docleak.training.objectives.tasks import tasks_of

#: How a silo may train -> torch's class of that name.
OPTIMISERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}


@dataclass(frozen=True)
class LocalPlan:
    """``epochs`` over a client's examples in batches, with an optimiser that begins anew each round.

    ``objective`` says what an example is, see ``objective_of``. ``optimiser`` is "adamw" (decay apart from the
    gradient), "adam" (the paper's, as torch has it: the decay is added to the gradient, so that weights which no
    example moves shrink by a whole step) or "sgd"; ``learning_rate`` is constant. ``max_steps`` ends a round early; 0
    does not. With ``dropout`` the model trains as its configuration says, else in evaluation mode.
    """

    epochs: int = 1
    batch_size: int = 16
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    optimiser: str = "adamw"
    max_norm: float = 0.0  # gradients are clipped to this norm; 0 does not clip
    max_steps: int = 0
    dropout: bool = True
    objective: str = "qa"

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            raise FederationError(f"unknown client optimiser {self.optimiser!r}; known: {', '.join(OPTIMISERS)}.")
        faults = [
            f"{name} is {value}; expected at least 1"
            for name, value in (("epochs", self.epochs), ("batch_size", self.batch_size))
            if value < 1
        ]
        faults += [
            f"{name} is {value}; expected a finite number of 0 or more"
            for name in ("learning_rate", "weight_decay", "max_norm", "max_steps")
            for value in [getattr(self, name)]
            if not (math.isfinite(value) and value >= 0)
        ]
        refuse(FederationError, faults)
        tasks_of(self.objective)  # refuses what it does not know
