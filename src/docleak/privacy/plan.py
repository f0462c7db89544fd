"""The plan of a private training: one object that draws the units, says what noise they need, and accounts for both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from docleak.errors import PrivacyError, refuse, those
from docleak.files import shaped
from docleak.privacy.accounting import Guarantee, guarantee
from docleak.privacy.mechanism import Mechanism, Participation
from docleak.privacy.second import Accountant


@dataclass(frozen=True)
class DpPlan:
    """FL-PROVIDER-DP's choices (Tito et al., 2024, Algorithm 1), fixed before the first round.

    Each drawn unit's difference is clipped to L2 norm ``clip_norm`` (C) over all trainable parameters together; a
    client's sum of them, with its noise, is divided by ``denominator`` (M). That is public and the same in every client
    and round: the number that was actually drawn depends on the data, and dividing by it would move the sum of all the
    others when one unit leaves. ``delta`` belongs to the epsilon that the plan claims.

    Noise has the standard deviation sigma C whatever the relation: replacing a unit moves the sum by 2 C, which the
    accountant of that relation counts. ``published_counting`` allows, and is needed for, hidden coins of whole clients,
    as the paper counts its federated training: that is no bound, and every sentence about it says so.
    """

    mechanism: Mechanism
    clip_norm: float
    denominator: int
    delta: float
    published_counting: bool = False

    def __post_init__(self) -> None:
        hidden = self.mechanism.client_rate < 1 and self.mechanism.participation is Participation.HIDDEN
        refuse(PrivacyError, those(
            (not 0 < self.clip_norm < math.inf, f"clip norm is {self.clip_norm}; expected a finite number above 0"),
            (self.denominator < 1, f"denominator is {self.denominator}; expected at least 1"),
            (not 0 < self.delta < 1, f"delta is {self.delta}; expected a probability above 0 and below 1"),
            (hidden and not self.published_counting,
             "participation is hidden, which is no bound: the server sees which clients took part; train with known, "
             "and compare in docleak budget, or ask for the published counting by name (--published-counting)"),
            (self.published_counting and not hidden,
             "the published counting is that of clients drawn whole whose coins count as hidden; here the unit is "
             f"{self.mechanism.unit}, the client rate {self.mechanism.client_rate:.4g}, participation "
             f"{self.mechanism.participation}"),
        ))  # fmt: skip

    @property
    def accountant(self) -> Accountant:
        """Who counts it: PLD, and for the published counting PRV, as the paper."""
        return Accountant.PRV if self.published_counting else Accountant.PLD

    def noise_std(self, shares: int) -> float:
        """Standard deviation per parameter of one of ``shares`` equal shares of noise, before M: sigma C / sqrt(|K|).

        ``shares`` is the number of clients that were drawn, and 1 where none was (the server's).
        """
        return self.mechanism.noise_multiplier * self.clip_norm / math.sqrt(max(shares, 1))

    def guarantee(self, accountant: Accountant | None = None) -> Guarantee:
        """What all rounds of the plan cost together, by its own accountant unless another is named."""
        return guarantee(self.mechanism, self.delta, accountant or self.accountant)

    def bound(self, rounds: int = 0) -> Guarantee:
        """What so many rounds (0: all) cost by a counting that is a bound: coins of clients known to everybody."""
        known = replace(self.mechanism, rounds=rounds or self.mechanism.rounds, participation=Participation.KNOWN)
        return guarantee(known, self.delta)

    def draw_clients(self, names: Iterable[str], coins: np.random.Generator) -> tuple[str, ...]:
        """The clients of a round, each by a coin of its own; there may be none. Their coins may be public.

        As they count as known, a fixed number of clients drawn at random costs the same: only how often each one takes
        part enters.
        """
        ordered = sorted(names)
        return tuple(np.asarray(ordered, dtype=object)[coins.random(len(ordered)) < self.mechanism.client_rate])

    def draw_units(self, names: Iterable[str], coins: np.random.Generator) -> dict[str, np.random.Generator]:
        """The units of a client that take part in a round, each with the stream its own training draws from.

        ``coins`` must be secret. A unit's coin and stream follow from the round's secret and its own name alone, so
        no unit changes what another one does.
        """
        secret = coins.integers(2**32, size=8).tolist()
        streams = {
            name: np.random.default_rng(np.random.SeedSequence(secret, spawn_key=tuple(name.encode())))
            for name in sorted(set(names))
        }
        return {name: stream for name, stream in streams.items() if stream.random() < self.mechanism.unit_rate}

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``from_dict`` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> DpPlan:
        """The inverse of ``to_dict``; PrivacyError names unknown and missing keys, and what is no choice."""
        advice = f"Expected exactly what this docleak writes: {', '.join(field.name for field in fields(cls))}."
        plan = shaped(cls, saved, PrivacyError, "the privacy plan", advice)
        if plan.to_dict() != saved:
            raise PrivacyError(f"the privacy plan lacks settings, which are not guessed. {advice}")
        return plan
