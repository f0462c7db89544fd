"""When the priors count: the factor phi(t) of GI-DQA eq. 4 as a function of progress in [0, 1].

The paper counts 5,000 iterations; a schedule here is a function of the share of the budget that is
spent, so that a shorter run goes through the same course.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[float], float]

PAPER_ITERATIONS = 5000
PAPER_DECAY = 0.999


def exponential(progress: float) -> float:
    """GI-DQA: strong at first, decaying. 0.999 per iteration over 5,000 iterations: 1 -> 0.0067."""
    return math.exp(math.log(PAPER_DECAY) * PAPER_ITERATIONS * progress)


def delayed(progress: float) -> float:
    """GradViT (Hatamizadeh et al., 2022): off in the first half, on in the second."""
    return 0.0 if progress < 0.5 else 1.0


def constant(progress: float) -> float:
    """No scheduling (Table 5, row "None")."""
    return 1.0


SCHEDULES: dict[str, Schedule] = {"exponential": exponential, "delayed": delayed, "constant": constant}
