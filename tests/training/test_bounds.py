"""How large an update may be: no honest silo is refused, a finite absurdity is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.training.federated.bounds import LONGEST, MARGIN, UpdateBounds, norm
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.local_plan import LocalPlan

LOCAL = LocalPlan(epochs=2, batch_size=4, learning_rate=0.01, weight_decay=0.5)
WEIGHTS = {"a": np.full((3, 4), 2.0), "b": np.zeros(4)}  # 16 numbers of length sqrt(48)


def bounds(local: LocalPlan = LOCAL, privacy: DpPlan | None = None) -> UpdateBounds:
    return UpdateBounds.of(Federation(local=local, privacy=privacy), WEIGHTS)


def test_the_largest_update_is_what_the_steps_of_the_plan_can_do() -> None:
    step = MARGIN * 0.01 * (4 + 0.5 * math.sqrt(48))
    assert bounds().largest_norm(10, shares=1) == pytest.approx(6 * step)  # 2 epochs of 3 batches
    assert bounds(replace(LOCAL, max_steps=5)).largest_norm(10, shares=1) == pytest.approx(5 * step)
    assert bounds(replace(LOCAL, max_steps=5)).largest_norm(0, shares=1) == pytest.approx(5 * step)
    assert bounds().largest_norm(0, shares=1) == pytest.approx(LONGEST * (math.sqrt(48) + 1))
    sgd = replace(LOCAL, optimiser="sgd")
    assert bounds(sgd).largest_norm(10, shares=1) == pytest.approx(LONGEST * (math.sqrt(48) + 1))
    clipped = bounds(replace(sgd, max_norm=0.3)).largest_norm(10, shares=1)
    assert clipped == pytest.approx(6 * MARGIN * 0.01 * (0.3 + 0.5 * math.sqrt(48)))


def test_under_a_plan_it_is_many_units_and_the_noise() -> None:
    plan = DpPlan(Mechanism(3.0, 3), clip_norm=0.5, denominator=2, delta=1e-5)
    length = bounds(LOCAL, plan).largest_norm(1, shares=4)
    assert length == pytest.approx(100 * 0.5 + 3.0 * 0.5 / 2 / 2 * (4 + 20))


@pytest.mark.parametrize(
    ("size", "examples", "said"),
    [
        (1e-3, 10, []),
        (1e-3, 11, ["says it counts 11 examples; it introduced itself with 10"]),
        (3e38, 10, ["sent an update of length 1.2e+39; what the plan lets a silo do is at most 4.48"]),
        (1.0, 10, []),
        (1.2, 10**15, ["says it counts", "sent an update of length 4.8;"]),
    ],
)
def test_what_is_said_of_an_update(size: float, examples: int, said: list[str]) -> None:
    update = ClientUpdate("a", examples, {name: np.full(value.shape, size) for name, value in WEIGHTS.items()})
    faults = bounds().faults(update, introduced=10, shares=1)
    assert len(faults) == len(said) and all(part in fault for part, fault in zip(said, faults, strict=True)), faults


def test_a_length_beyond_float64_is_no_length() -> None:
    assert norm({"a": np.full(4, 1e200)}) == math.inf
    update = ClientUpdate("a", 1, {"a": np.full((3, 4), 1e200), "b": np.zeros(4)})
    assert "length inf" in bounds().faults(update, introduced=10, shares=1)[0]
