"""One budget for several trainings of one model, such as self-pretraining and then fine-tuning, on the same units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from docleak import spec
from docleak.errors import PrivacyError
from docleak.privacy.budget import least_noise
from docleak.privacy.distributions import epsilon_of
from docleak.privacy.mechanism import Mechanism

#: More phases than these are none.
MOST_PHASES = 8


@dataclass(frozen=True)
class Phase:
    """A training of so many rounds, in each of which a unit is drawn with ``unit_rate``."""

    name: str
    rounds: int
    unit_rate: float = 1.0


def phases_of(text: str) -> tuple[Phase, ...]:
    """``NAME:ROUNDS`` or ``NAME:ROUNDS:RATE``, separated by commas; PrivacyError for anything else."""
    phases = []
    for part in spec.items(text) or ("",):
        name, rest = spec.split_name(part)
        rounds, rate = spec.split_name(rest)
        try:
            phases.append(Phase(name, int(rounds), spec.number(rate) if rate else 1.0))
            if not name:
                raise ValueError(part)
        except ValueError as error:
            raise PrivacyError(
                f"a phase is {part!r}; expected NAME:ROUNDS or NAME:ROUNDS:RATE, as in pretraining:5,finetuning:10."
            ) from error
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names) or len(names) > MOST_PHASES:
        raise PrivacyError(f"the phases are {', '.join(names)}; expected at most {MOST_PHASES}, each name once.")
    return tuple(phases)


def mechanisms(phases: Sequence[Phase], like: Mechanism) -> list[Mechanism]:
    """The mechanism of each phase: ``like`` in all but rounds and rate."""
    return [replace(like, rounds=phase.rounds, unit_rate=phase.unit_rate) for phase in phases]


def noise_for_phases(phases: Sequence[Phase], like: Mechanism, epsilon: float, delta: float) -> float:
    """The least noise multiplier, the same in all phases, with which they keep to ``epsilon`` together.

    PrivacyError where no noise up to MOST_NOISE is enough.
    """
    return _noise_for(tuple(phases), like, epsilon, delta)


@lru_cache(maxsize=64)  # a plan is asked for when it is checked, begun, trained by and written about
def _noise_for(phases: tuple[Phase, ...], like: Mechanism, epsilon: float, delta: float) -> float:
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 < delta < 1):
        raise PrivacyError(f"epsilon is {epsilon} and delta {delta}; expected a number above 0, and a probability.")

    def cost(noise: float) -> float:
        return epsilon_of(mechanisms(phases, replace(like, noise_multiplier=noise)), delta)

    return least_noise(cost, epsilon, 1.0, f"{len(phases)} phases")


def phase_of(phases: Sequence[Phase], name: str) -> Phase:
    """The phase of that name; PrivacyError lists what there is."""
    for phase in phases:
        if phase.name == name:
            return phase
    raise PrivacyError(f"there is no phase {name!r}; the plan has {', '.join(phase.name for phase in phases)}.")
