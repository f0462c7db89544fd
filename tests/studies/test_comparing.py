"""What two runs side by side say in words."""

from __future__ import annotations

from docleak.metrics.estimate import Estimate
from docleak.report.measure import FIELDS, Difference, Measure
from docleak.report.severity import Part, Severity, overall
from docleak.studies.comparing import Comparison


def test_a_run_that_is_not_finished_is_said_to_be_so() -> None:
    """One page of forty beside forty of forty is no comparison of all."""
    part = Part("model", Severity.PARTIAL, "So.")
    half, whole = overall([part], "So.", ["The run is not finished: 1 of 40 pages."]), overall([part], "So.")
    lines = Comparison((half, whole), (), (), ()).lines()
    assert lines[:2] == [
        "First: Partial leak. Second: Partial leak.", "Of the first: The run is not finished: 1 of 40 pages."
    ]  # fmt: skip


def test_many_differences_are_held_against_what_chance_makes_of_them() -> None:
    """Of ten intervals of 95 % one or more exclude 0 in 40 % of comparisons in which nothing changed."""
    same = overall([], "")

    def said(*lows: float) -> str:
        pairs = (Estimate(low + 0.2, low, low + 0.4, 40, 20) for low in lows)
        one = Measure(FIELDS, "clients", Estimate(0.5))
        return " ".join(Comparison((same, same), (), tuple(Difference(one, one, of, True) for of in pairs), ()).lines())

    assert "1 or more of them (1 here) would exclude 0 in at most 41 % of comparisons" in said(0.1, *[-0.1] * 9)
    for lows in ((0.1,), (-0.1,) * 10, (0.1,) * 4 + (-0.1,) * 6, (0.1, 0.1)):
        assert "by itself" not in said(*lows), "one alone, none, or more than chance makes"
