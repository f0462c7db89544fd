"""When the priors count."""

from __future__ import annotations

import pytest

from docleak.attacks.gradients.schedules import SCHEDULES


@pytest.mark.parametrize(
    ("name", "start", "middle", "end"),
    [
        ("exponential", 1.0, 0.999**2500, 0.999**5000),  # the paper's 0.999 per iteration, 5,000 iterations
        ("delayed", 0.0, 1.0, 1.0),
        ("constant", 1.0, 1.0, 1.0),
    ],
)
def test_values(name: str, start: float, middle: float, end: float) -> None:
    schedule = SCHEDULES[name]
    assert [schedule(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([start, middle, end], rel=1e-9)


def test_delayed_is_off_until_the_middle() -> None:
    assert SCHEDULES["delayed"](0.499) == 0.0


def test_every_schedule_is_tested_and_stays_a_factor() -> None:
    assert set(SCHEDULES) == {"exponential", "delayed", "constant"}
    for schedule in SCHEDULES.values():
        assert all(0 <= schedule(i / 50) <= 1 for i in range(51))
