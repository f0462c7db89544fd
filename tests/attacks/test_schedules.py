"""When the priors count."""

from __future__ import annotations

import math

import pytest

from docleak.attacks.gradients.schedules import SCHEDULES


@pytest.mark.parametrize(
    ("name", "start", "middle", "end"),
    [
        ("exponential", 1.0, 0.999**2500, 0.999**5000),  # the paper's 0.999 per iteration, 5,000 iterations
        ("delayed", 0.0, 1.0, 1.0),
        ("constant", 1.0, 1.0, 1.0),
        ("literal", 1.0, math.exp(-0.999 * 50), math.exp(-0.999 * 100)),  # of 100 iterations
    ],
)
def test_values(name: str, start: float, middle: float, end: float) -> None:
    schedule = SCHEDULES[name]
    assert [schedule(t / 100, t) for t in (0, 50, 100)] == pytest.approx([start, middle, end], rel=1e-9)


def test_delayed_is_off_until_the_middle() -> None:
    assert SCHEDULES["delayed"](0.499, 499) == 0.0


def test_only_the_literal_one_counts_iterations() -> None:
    moved = {name for name, schedule in SCHEDULES.items() if schedule(0.1, 1) != schedule(0.1, 10)}
    assert moved == {"literal"} and SCHEDULES["literal"](0.0, 7) < 0.001


def test_every_schedule_is_tested_and_stays_a_factor() -> None:
    assert set(SCHEDULES) == {"exponential", "literal", "delayed", "constant"}
    for schedule in SCHEDULES.values():
        assert all(0 <= schedule(i / 50, i) <= 1 for i in range(51))
