"""What two runs side by side say in words."""

from __future__ import annotations

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
