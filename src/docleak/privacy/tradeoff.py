"""Families of trade-off curves, ordered by how much they let through, and the epsilon that each of them has at a delta.

A mechanism has the curve F if no conclusion that a unit's absence makes true with probability x becomes true with more
than F(x) by its presence, nor the other way round (f-DP, F = 1 - f; Dong, Roth & Su, 2022). F is concave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy.special import ndtr, ndtri

from docleak.privacy import gaussian
from docleak.privacy.distributions import epsilon_of, privacy_profile
from docleak.privacy.mechanism import Mechanism, Relation
from docleak.spec import counted_words

#: Epsilons at which the curve of a sampled mechanism is touched by its tangents: more make bounds tighter, not truer.
TANGENTS = np.concatenate([np.linspace(0, 2, 21), np.linspace(2.25, 20, 72)])
#: No larger epsilon is measured.
LARGEST = 50.0


@dataclass(frozen=True)
class AnyMechanism:
    """Whatever is (strength, ``delta``)-private: nothing is taken for granted."""

    delta: float
    most: float = LARGEST
    width: float = 1e-6
    text: str = "whatever the mechanism does"

    def inverse(self, strength: float) -> Callable[[float], float]:
        """F(x) = min(e^epsilon x + delta, 1 - e^-epsilon (1 - delta - x))."""
        grown, rest = math.exp(strength), 1 - self.delta
        return lambda y: max(0.0, (y - self.delta) / grown, rest - grown * (1 - y))

    def epsilon(self, strength: float, delta: float) -> float:
        """The strength itself."""
        return strength


@dataclass(frozen=True)
class Gaussian:
    """N(0, 1) against N(strength, 1): Gaussian noise without sampling, over any number of rounds."""

    most: float = 60.0
    width: float = 1e-6
    text: str = "if the mechanism adds Gaussian noise of some size, without sampling"

    def inverse(self, strength: float) -> Callable[[float], float]:
        """F(x) = Phi(Phi^-1(x) + strength)."""
        return lambda y: float(ndtr(ndtri(min(y, 1.0)) - strength))

    def epsilon(self, strength: float, delta: float) -> float:
        """Exactly (Balle & Wang, 2018)."""
        return gaussian.epsilon_of(strength, delta)


@dataclass(frozen=True)
class Sampled:
    """``mechanism`` with any noise: Poisson-sampled Gaussian sums over its rounds; strength is 1 / noise multiplier."""

    mechanism: Mechanism
    most: float = 20.0
    width: float = 1e-3

    @property
    def text(self) -> str:
        """Names sampling and rounds."""
        m = self.mechanism
        drawn = f"in {counted_words(m.rounds, 'round')}, each {m.unit} drawn at {m.rate:.4g}"
        return f"if the mechanism adds Gaussian noise of some size {drawn}"

    def inverse(self, strength: float) -> Callable[[float], float]:
        """From tangents of its curve: each (epsilon, delta) of its privacy loss distribution, in both directions."""
        deltas = privacy_profile(replace(self.mechanism, noise_multiplier=1 / strength), TANGENTS)
        grown = np.exp(TANGENTS)
        return lambda y: max(0.0, float(((y - deltas) / grown).max()), float((1 - deltas - grown * (1 - y)).max()))

    def epsilon(self, strength: float, delta: float) -> float:
        """By docleak's reference accountant."""
        return epsilon_of([replace(self.mechanism, noise_multiplier=1 / strength)], delta)


#: Curves by ``strength``: more of it lets more through. ``most`` is the largest that is looked at, ``width`` how near
#: the search for one comes, relatively; ``text`` says in words what a bound by it takes for granted. ``inverse`` of a
#: strength gives of y the least x with F(x) >= y, both probabilities; ``epsilon`` is that of the curve at a delta.
Family: TypeAlias = AnyMechanism | Gaussian | Sampled


def family_of(mechanism: Mechanism) -> Family | None:
    """The curves of ``mechanism`` with any noise; None where none is known (clients drawn as a whole, replace-one)."""
    if mechanism.client_rate != 1 or mechanism.relation is not Relation.ADD_OR_REMOVE_ONE:
        return None
    return Gaussian() if mechanism.rate == 1 else Sampled(mechanism)


def largest(refuted: Callable[[float], bool], most: float, *, width: float = 1e-6) -> float:
    """The largest strength that is refuted, from below and to a relative ``width``; 0 if none is. They are nested."""
    low, high = 0.0, min(1.0, most)
    if not refuted(1e-9):
        return 0.0
    while refuted(high):
        if high >= most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > width * max(high, 1e-3):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
