"""The one contract of attacks: what the adversary sees and knows goes in, what it says it recovered comes out.

The truth is no argument, and randomness is. What a view, a knowledge and a finding are is each package's business.
"""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

import torch

from docleak.errors import AttackError

View = TypeVar("View", contravariant=True)
Knowledge = TypeVar("Knowledge", contravariant=True)
Finding = TypeVar("Finding", covariant=True)


class Described(Protocol):
    """What every attack and every server says of itself, in lists and reports."""

    @property
    def name(self) -> str: ...
    @property
    def paper(self) -> str: ...
    @property
    def summary(self) -> str: ...


@runtime_checkable
class Attack(Described, Protocol[View, Knowledge, Finding]):
    """An attack; a frozen dataclass whose fields are its hyper-parameters can be told them in text."""

    def run(self, view: View, knowledge: Knowledge, *, budget: int, generator: torch.Generator) -> Finding:
        """Attack with at most ``budget`` evaluations of a gradient, or attempts, where weights are attacked."""


def require_evaluations(budget: int) -> None:
    """AttackError unless there is a gradient evaluation to spend."""
    if budget < 1:
        raise AttackError(f"budget is {budget}; expected at least one gradient evaluation.")
