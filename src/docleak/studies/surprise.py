"""By how much a model's loss on what it is said to be trained on is below that on others: whether it saw it."""

from __future__ import annotations

from typing import Any

import numpy as np

from docleak.metrics.estimate import Estimate
from docleak.metrics.memorisation import difference
from docleak.report.measure import Groups, share_of

#: So many documents of either kind are asked about.
ASKED = 60


def apart(said: Groups, others: Groups, seed: tuple[int, ...], *, of: str) -> dict[str, Any]:
    """The mean loss on ``others`` less that on what is ``said`` to be trained on, in nats, with its interval over the
    groups (``report.measure.measured``), which are ``of`` a kind; plain values."""
    means = [share_of(losses, np.random.default_rng(seed), of=of, share=False) for losses in (others, said)]
    return difference(*means).to_json()


def surely(told: dict[str, Any]) -> bool:
    """Whether what ``apart`` found is above 0 with its whole interval."""
    return (Estimate.of_json(told).low or 0.0) > 0


def in_words(told: dict[str, Any], after: str) -> str:
    """What ``apart`` found, ``after`` what was taken off both sides ("": nothing)."""
    by = Estimate.of_json(told)
    if by.value is None or by.low is None or by.high is None:
        return "too few were asked about"
    return f"by {by.value:.2f} nats [{by.low:.2f}, {by.high:.2f}]" + (f", after {after}" if after else "")
