"""How a federation hides its silos' updates from the server: what every party agrees on beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from docleak.errors import FederationError
from docleak.privacy.plan import DpPlan
from docleak.training.federated.secure.fixed_point import FixedPoint, Shapes, words_of
from docleak.training.federated.secure.shamir import Entropy

if TYPE_CHECKING:
    from docleak.training.federated.secure.messages import Session

#: The largest |n_k Delta_k| a silo may send, unless the plan says otherwise; with differential privacy, how many times
#: max(1, sigma) C / M.
LIMIT, PRIVATE_LIMIT = 1000.0, 100.0


@dataclass(frozen=True)
class SecurePlan:
    """Secure aggregation of every round's updates.

    A sum is over at least ``threshold`` silos. 0 means all that were drawn under a privacy plan, whose noise is planned
    for all of them, and floor(2K / 3) + 1 of the K otherwise. ``limit`` is the largest size of a value that a silo may
    send, after weighting by its examples; it is public, sets the precision, and must not be chosen from the data. 0
    means 1,000, and 100 max(1, sigma) C / M under a privacy plan.
    """

    threshold: int = 0
    limit: float = 0.0

    def __post_init__(self) -> None:
        if self.threshold < 0 or not (math.isfinite(self.limit) and self.limit >= 0):
            raise FederationError(
                f"secure aggregation with threshold {self.threshold} and limit {self.limit}; expected 0 or more."
            )

    def needed(self, silos: int, privacy: DpPlan | None) -> int:
        """The threshold of a round of so many silos."""
        return self.threshold or (silos if privacy is not None else 2 * silos // 3 + 1)

    def fixed_point(self, silos: int, privacy: DpPlan | None) -> FixedPoint:
        """How values become words in a round of so many silos."""
        limit = self.limit or LIMIT
        if not self.limit and privacy is not None:
            sigma = max(1.0, privacy.mechanism.noise_multiplier)
            limit = PRIVATE_LIMIT * sigma * privacy.clip_norm / privacy.denominator
        return FixedPoint.for_limit(limit, silos)

    def session(
        self, silos: Sequence[str], shapes: Shapes, *, round_number: int, privacy: DpPlan | None, entropy: Entropy
    ) -> Session:
        """A session for one round. FederationError for fewer than two silos, or a threshold that does not fit them."""
        from docleak.training.federated.secure.messages import Session  # needs cryptography

        return Session.new(
            list(silos), round_number=round_number, words=words_of(shapes),
            fixed=self.fixed_point(len(silos), privacy), threshold=self.needed(len(silos), privacy), entropy=entropy,
        )  # fmt: skip


def too_coarse(fixed: FixedPoint, privacy: DpPlan, shares: int) -> str:
    """Why silos may not round so: a step is more than half of the standard deviation of one of ``shares`` shares of the
    noise, "" where it is not. Each silo rounds its own share; in finer steps that is noise of its own, but for some
    exp(-8 pi^2) of it."""
    step, share = 2.0**-fixed.fraction_bits, privacy.noise_std(shares) / privacy.denominator
    if not share or 2 * step <= share:
        return ""
    return (
        f"secure aggregation with a limit of {fixed.limit:.3g} rounds to steps of {step:.3g}, which takes away a share "
        f"of the noise, whose standard deviation is {share:.3g}; expected a smaller secure limit (0: docleak's own)"
    )
