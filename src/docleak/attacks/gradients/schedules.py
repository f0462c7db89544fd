"""When the priors count: the factor phi(t) of GI-DQA eq. 4, of progress in [0, 1] and of the iteration t (0 at first).

The paper counts 5,000 iterations; a schedule here is a function of the share of the budget that is
spent, so that a shorter run goes through the same course. Only ``literal`` counts iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: (share of the budget that is spent, iterations before this one) -> factor of the priors.
Schedule = Callable[[float, int], float]

PAPER_ITERATIONS = 5000
PAPER_DECAY = 0.999


def exponential(progress: float, iteration: int) -> float:
    """GI-DQA: strong at first, decaying. 0.999 per iteration over 5,000 iterations: 1 -> 0.0067."""
    return math.exp(math.log(PAPER_DECAY) * PAPER_ITERATIONS * progress)


def literal(progress: float, iteration: int) -> float:
    """GI-DQA as printed, exp(-lambda t) with lambda = 0.999: the priors are gone after seven iterations."""
    return math.exp(-PAPER_DECAY * iteration)


def delayed(progress: float, iteration: int) -> float:
    """GradViT (Hatamizadeh et al., 2022): off in the first half, on in the second."""
    return 0.0 if progress < 0.5 else 1.0


def constant(progress: float, iteration: int) -> float:
    """No scheduling (Table 5, row "None")."""
    return 1.0


SCHEDULES: dict[str, Schedule] = {
    "exponential": exponential, "literal": literal, "delayed": delayed, "constant": constant,
}  # fmt: skip
