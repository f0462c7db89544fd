"""Solvers: move the unknowns so that the objective falls, within a budget of gradient evaluations.

An objective takes the unknowns (n,) and the share of the budget spent, and returns its value and
gradient; every call is one gradient evaluation (one forward, backward and double backward pass).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from docleak.errors import AttackError

Objective = Callable[[Tensor, float], tuple[float, Tensor]]


class OutOfBudget(Exception):
    """Raised inside a line search to end a library solver exactly at the budget."""


class Solver(Protocol):
    """Returns the last unknowns; which of the visited ones is kept, the caller decides by the objective."""

    def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor: ...


def require_above_zero(solver: object, **numbers: float) -> None:
    """AttackError for a solver's option that is not above 0 and finite."""
    for name, number in numbers.items():
        if not (number > 0 and math.isfinite(number)):
            raise AttackError(
                f"{type(solver).__name__}: {name.replace('_', '-')} is {number:g}; expected a number above 0."
            )


@dataclass(frozen=True)
class Adam:
    """Adam with exponentially decaying step (GI-DQA section 4.1: 0.999 over 5,000 iterations).

    ``final_factor`` is the step at the end of the budget relative to the first: 0.999^5000 = 0.0067.
    ``signed`` replaces each gradient by its sign and ``steps_at`` multiplies the step by 0.1 at those shares
    of the budget (Inverting Gradients). ``clamp`` keeps the unknowns in [0, 1] after each step.
    """

    learning_rate: float = 2.0 / 255.0
    final_factor: float = 0.999**5000
    signed: bool = False
    clamp: bool = True
    steps_at: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require_above_zero(self, learning_rate=self.learning_rate, final_factor=self.final_factor)

    def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor:
        unknowns = start.clone().requires_grad_(True)
        optimiser = torch.optim.Adam([unknowns], lr=self.learning_rate)
        for step in range(budget):
            progress = step / budget
            for group in optimiser.param_groups:
                group["lr"] = self.learning_rate * self._factor(progress)
            _, gradient = objective(unknowns.detach(), progress)
            unknowns.grad = gradient.sign() if self.signed else gradient
            optimiser.step()
            if self.clamp:
                with torch.no_grad():
                    unknowns.clamp_(0.0, 1.0)
        return unknowns.detach()

    def _factor(self, progress: float) -> float:
        if self.steps_at:
            return float(0.1 ** sum(progress >= at for at in self.steps_at))
        return float(self.final_factor**progress)


@dataclass(frozen=True)
class TorchLBFGS:
    """PyTorch's L-BFGS with its defaults (step 1, no line search, no bounds), as DLG was published."""

    history: int = 100
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        require_above_zero(self, history=self.history, learning_rate=self.learning_rate)

    def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor:
        unknowns = start.clone().requires_grad_(True)
        optimiser = torch.optim.LBFGS([unknowns], lr=self.learning_rate, history_size=self.history)
        used = 0

        def closure() -> Tensor:
            nonlocal used
            if used >= budget:
                raise OutOfBudget
            value, gradient = objective(unknowns.detach(), used / budget)
            used += 1
            unknowns.grad = gradient
            return torch.tensor(value)

        try:
            while used < budget and bool(torch.isfinite(unknowns).all()):
                optimiser.step(closure)  # type: ignore[no-untyped-call]
        except OutOfBudget:
            pass
        return unknowns.detach()


@dataclass(frozen=True)
class BoundedLBFGS:
    """SciPy's L-BFGS-B with unknowns in [0, 1]: paper white and ink black are active bounds.

    A long history pays: on 6,361 unknowns, 150 pairs reach in 200 evaluations what 50 pairs reach in 250.
    The objective is scaled, because small matching losses would meet the solver's absolute tolerances.
    """

    history: int = 200
    scale: float = 1e4

    def __post_init__(self) -> None:
        require_above_zero(self, history=self.history, scale=self.scale)

    def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor:
        from scipy.optimize import Bounds, minimize

        used, last = 0, start.detach().cpu().double().numpy()

        def function(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            nonlocal used, last
            if used >= budget:
                raise OutOfBudget
            value, gradient = objective(torch.from_numpy(values).to(start), used / budget)
            used += 1
            last = values.copy()
            return value * self.scale, gradient.detach().cpu().double().numpy() * self.scale

        bounds = Bounds(np.zeros_like(last), np.ones_like(last))
        options = {"maxfun": 10 * budget, "maxiter": 10 * budget, "maxcor": self.history, "ftol": 0.0, "gtol": 0.0}
        try:
            # A line search that ends early (rounding) restarts with a fresh history from the last point.
            for _ in range(8):
                optimum = minimize(
                    function, last.clip(0, 1), jac=True, method="L-BFGS-B", bounds=bounds, options=options
                )  # fmt: skip
                last = optimum.x
        except OutOfBudget:
            pass
        return torch.from_numpy(last).to(start)
