"""What counts as an attempt: a unit that got further is tried anew, one that somebody stopped has not failed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from docleak.errors import DocleakError
from docleak.recipes import runner
from docleak.recipes.runner import Job, attempt, failures


@dataclass(frozen=True)
class Staged(Job):
    """Fails at ``breaks``, one stage an attempt further; stopped by hand at ``stopped``."""

    breaks: tuple[int, ...] = ()
    stopped: int = -1

    @property
    def id(self) -> str:
        return "unit"

    @property
    def turn(self) -> int:
        return 0

    @property
    def stage(self) -> int:
        file = self.folder / "stage"
        return int(file.read_text()) if file.is_file() else 0

    def progress(self) -> str:
        return f"-{self.stage}"

    def finished(self) -> bool:
        return self.stage >= 4

    def compute(self) -> None:
        while not self.finished():
            if self.stage == self.stopped:
                raise KeyboardInterrupt
            if self.stage in self.breaks:
                raise DocleakError("planted")
            (self.folder / "stage").write_text(str(self.stage + 1))


def test_a_unit_that_fails_where_it_stands_is_given_up_after_two_attempts(tmp_path: Path) -> None:
    job = Staged(tmp_path, "cpu", breaks=(2,))
    attempt(job)
    assert job.stage == 2 and job.attempts() == ["DocleakError: planted"] and not runner._given_up(job)
    attempt(job)
    assert job.attempts() == ["DocleakError: planted"] * 2 and runner._given_up(job)
    assert failures(tmp_path) == {"unit": "DocleakError: planted"}


def test_a_unit_that_got_further_is_tried_anew(tmp_path: Path) -> None:
    for stage in range(4):  # killed at every stage, as a machine that is switched off does
        (tmp_path / "stage").write_text(str(stage))
        job = Staged(tmp_path, "cpu")
        assert job.attempts() == []
        job.note([*job.attempts(), runner.BEGAN])
    attempt(job)
    assert job.finished() and not failures(tmp_path)


def test_who_stops_a_unit_has_not_failed_it(tmp_path: Path) -> None:
    for stopped in (0, 0, 0, 3, 3, 3):
        with pytest.raises(KeyboardInterrupt):
            attempt(Staged(tmp_path, "cpu", stopped=stopped))
    job = Staged(tmp_path, "cpu")
    assert job.stage == 3 and job.attempts() == []
    assert json.loads(job.attempts_file.read_text()) == []
    attempt(job)
    assert job.finished()
