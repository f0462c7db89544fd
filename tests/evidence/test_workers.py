"""Units in worker processes: every one once, progress in order, one copy of the work in each, errors raised."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from docleak.errors import RunError
from docleak.evidence.workers import OnProgress, compute


class Counting:
    """Writes who did a unit, and how many this copy had done; refuses units below 0, after the others began."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.done = folder, 0

    def __call__(self, unit: int, report: OnProgress) -> None:
        if unit < 0:
            raise RunError(f"unit {unit} cannot be done")
        self.done += 1
        report(str(unit), 1, 2)
        time.sleep(0.05)  # long enough for the other process to take a unit
        (self.folder / str(unit)).write_text(f"{os.getpid()} {self.done} {torch.get_num_threads()}")
        report(str(unit), 2, 2)

    @staticmethod
    def written(folder: Path) -> dict[int, tuple[int, int, int]]:
        rows = {int(file.name): file.read_text().split() for file in folder.iterdir()}
        return {unit: (int(a), int(b), int(c)) for unit, (a, b, c) in rows.items()}


def collect(events: list[tuple[str, int, int]]) -> Callable[[str, int, int], None]:
    return lambda *event: events.append(event)


@pytest.mark.parametrize(("units", "workers"), [([3, 1, 2], 1), ([5], 4), ([], 4)])
def test_one_worker_or_one_unit_stays_here(units: list[int], workers: int, tmp_path: Path) -> None:
    events: list[tuple[str, int, int]] = []
    compute(Counting(tmp_path), units, workers=workers, on_progress=collect(events))
    assert Counting.written(tmp_path) == {unit: (os.getpid(), place + 1, 1) for place, unit in enumerate(units)}
    assert events == [(str(unit), number, 2) for unit in units for number in (1, 2)]


@pytest.mark.slow
def test_two_processes_share_the_units(tmp_path: Path) -> None:
    events: list[tuple[str, int, int]] = []
    compute(Counting(tmp_path), range(12), workers=2, on_progress=collect(events))
    found = Counting.written(tmp_path)
    assert set(found) == set(range(12))
    per_process: dict[int, list[int]] = {}
    for _, (process, done, threads) in sorted(found.items()):
        assert process != os.getpid() and threads == 1
        per_process.setdefault(process, []).append(done)
    assert len(per_process) <= 2
    assert all(sorted(done) == list(range(1, len(done) + 1)) for done in per_process.values()), "a copy is kept"
    assert sorted(events) == sorted((str(unit), number, 2) for unit in range(12) for number in (1, 2))
    assert all(events.index((str(unit), 1, 2)) < events.index((str(unit), 2, 2)) for unit in range(12))


@pytest.mark.slow
def test_an_error_of_a_worker_is_raised_and_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="unit -1 cannot be done"):
        compute(Counting(tmp_path), [0, -1, *range(1, 500)], workers=2, on_progress=collect([]))
    assert len(Counting.written(tmp_path)) < 400
