"""The mechanism that is accounted: Poisson-sampled Gaussian noise over rounds, and what one neighbour is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from docleak import spec
from docleak.errors import PrivacyError, refuse, those
from docleak.spec import counted_words


class Unit(StrEnum):
    """Whose presence is hidden: everything that belongs to one of these is added or removed together."""

    PROVIDER = "provider"
    DOCUMENT = "document"
    CLIENT = "client"
    #: One question with its answer. The weakest: several may be about one page, and all tell of its provider.
    RECORD = "record"


class Relation(StrEnum):
    """Which two data sets are neighbours. One epsilon says less under ``REPLACE_ONE``: noise must hide two units."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"


class Sampler(StrEnum):
    """How units are drawn. Only Poisson: the amplification that is accounted is that of independent coins."""

    POISSON = "poisson"


class Participation(StrEnum):
    """What the accounting grants to the coins of whole clients, where ``client_rate`` is below 1.

    All units of a client are drawn with its coin, so theirs are not independent, and whoever knows the other units
    sees the coin in the size of the sum; the server sees it anyway. ``KNOWN`` therefore counts the coins as public,
    which is a bound whatever the data are (cluster sampling: Bun et al., 2022). ``HIDDEN`` takes each unit for
    independent with probability ``client_rate * unit_rate``, as Tito et al. (2024), section 6.2.3, do. That is
    no bound on the privacy of the units of a client; it is there to reproduce the paper's numbers.
    """

    KNOWN = "known"
    HIDDEN = "hidden"


#: No training has more rounds, and no noise beyond these bounds says anything; inside them every epsilon is computed.
MOST_ROUNDS, LEAST_NOISE, MOST_NOISE = 10**9, 1e-9, 1e9


@dataclass(frozen=True)
class Mechanism:
    """``rounds`` of a sum of vectors, one per unit, each of L2 norm at most C, plus noise N(0, (noise_multiplier C)^2).

    In each round a client takes part with probability ``client_rate``, and each unit in it with ``unit_rate``, all by
    coins of their own. ``noise_multiplier`` 0 is no differential privacy: epsilon is infinite.
    """

    noise_multiplier: float
    rounds: int
    unit_rate: float = 1.0
    client_rate: float = 1.0
    unit: Unit = Unit.PROVIDER
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    sampler: Sampler = Sampler.POISSON
    participation: Participation = Participation.KNOWN

    def __post_init__(self) -> None:
        noise, rates = self.noise_multiplier, {"unit rate": self.unit_rate, "client rate": self.client_rate}
        refuse(PrivacyError, those(
            (not (noise == 0 or LEAST_NOISE <= noise <= MOST_NOISE),
             f"noise multiplier is {noise}; expected 0, or a number from {LEAST_NOISE:g} to {MOST_NOISE:g}"),
            (not 1 <= self.rounds <= MOST_ROUNDS,
             f"rounds is {self.rounds}; expected at least 1 and at most {MOST_ROUNDS}"),
            *((not 0 < rate <= 1, f"{name} is {rate}; expected a probability above 0 and at most 1")
              for name, rate in rates.items()),
            (self.unit is Unit.CLIENT and self.unit_rate != 1,
             "a client is the unit, so the unit rate must be 1; give the client rate instead"),
        ))  # fmt: skip

    @property
    def rate(self) -> float:
        """The probability that a unit takes part in a round, q = client_rate * unit_rate."""
        return self.client_rate * self.unit_rate

    @property
    def independent(self) -> bool:
        """Whether it is accounted as Poisson sampling of the units themselves, with probability ``rate``."""
        return self.client_rate == 1 or self.participation is Participation.HIDDEN

    def of_noise(self, part: float) -> Mechanism:
        """The same with ``part`` of the noise's variance; with less noise than is counted, as if there were none."""
        noise = self.noise_multiplier * math.sqrt(part)
        return replace(self, noise_multiplier=noise if noise >= LEAST_NOISE else 0.0)

    def sentence(self) -> str:
        """Sampling, noise and rounds in words."""
        multiplier = f"{self.noise_multiplier:.4f}" if self.noise_multiplier >= 0.01 else f"{self.noise_multiplier:.3g}"
        noise = f"{counted_words(self.rounds, 'round')}, noise multiplier {multiplier}"
        if self.rate == 1:
            return f"{noise}, every {self.unit} in every round"
        if self.client_rate == 1:
            return f"{noise}, each {self.unit} drawn by a coin of its own with probability {self.rate:.4g} (Poisson)"
        likely = f"with probability {self.client_rate:.4g} at most"
        drawn = f"{noise}, each client in a round {likely}, drawn anew in every round"
        if self.unit is not Unit.CLIENT:
            units = f"each of its {self.unit}s by a coin of its own with {self.unit_rate:.4g}"
            drawn += f", and {units if self.unit_rate < 1 else f'with it all its {self.unit}s'}"
        if self.participation is Participation.KNOWN:
            return f"{drawn}, counted as if everybody knew which clients took part"
        return (
            f"{drawn}, by the published counting, which is no bound (coins hidden, as if each {self.unit} were drawn "
            "on its own)"
        )


E = TypeVar("E", bound=StrEnum)


def choice(kind: type[E], text: str, *, what: str) -> E:
    """The member of a closed enumeration that ``text`` names; PrivacyError lists what there is, and why no more."""
    try:
        return kind(text)
    except ValueError as error:
        why = (
            " Fixed-size batches have another, weaker amplification than the one accounted." if kind is Sampler else ""
        )
        raise PrivacyError(f"{what} is {text!r}; expected {' or '.join(kind)}.{why}") from error


def probability(text: str, *, what: str) -> float:
    """``0.2`` or ``50/340``; PrivacyError for what is no number (its range is the mechanism's to judge)."""
    try:
        return spec.number(text)
    except ValueError as error:
        raise PrivacyError(f"{what} is {text!r}; expected a probability such as 0.2 or 50/340.") from error
