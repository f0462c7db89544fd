"""Units in worker processes: every one once, progress in order, one copy of the work in each, errors raised."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import active_children, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from docleak.errors import RunError
from docleak.runs.pool import OnProgress, Work, _interrupted_after, _told_of_death, results


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
        rows = {int(file.name): file.read_text().split() for file in folder.iterdir() if file.read_text()}
        return {unit: (int(a), int(b), int(c)) for unit, (a, b, c) in rows.items()}


def compute(work: Work[int], units: Sequence[int], *, workers: int, on_progress: OnProgress) -> None:
    """Every unit; the first error ends them all and is raised."""
    with closing(results(work, units, workers=workers, on_progress=on_progress)) as ended:
        for _, error in ended:
            if error is not None:
                raise error


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
    records = Counting.written(tmp_path)
    assert set(records) == set(range(12))
    per_process: dict[int, list[int]] = {}
    for _, (process, done, threads) in sorted(records.items()):
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


class Unsent(OSError):
    """As requests and others have them: made of two texts, and pickled as if it were of one."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


class Failing(Counting):
    """Raises what is made for that unit."""

    def __call__(self, unit: int, report: OnProgress) -> None:
        raise (KeyError("score"), Unsent("unit", "lost"))[unit]


@pytest.mark.slow
def test_an_error_of_a_worker_says_where_it_was_raised_also_where_it_cannot_be_sent(tmp_path: Path) -> None:
    ended = results(Failing(tmp_path), [0, 1], workers=2, on_progress=collect([]))
    errors = [error for _, error in sorted(ended, key=lambda pair: pair[0])]
    assert isinstance(errors[0], KeyError) and type(errors[1]) is OSError and str(errors[1]) == "Unsent: unit: lost"
    for error in errors:
        assert 'raise (KeyError("score"), Unsent("unit", "lost"))[unit]' in str(error.__notes__), error


class Dying(Counting):
    """Dies at unit 3 as a process that used too much memory does."""

    def __call__(self, unit: int, report: OnProgress) -> None:
        if unit == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        super().__call__(unit, report)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are of POSIX")
def test_a_worker_that_dies_is_told_with_its_unit(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"died \(killed from outside.*at 3\..*same command goes on"):
        compute(Dying(tmp_path), [1, 2, 3, *range(4, 200)], workers=2, on_progress=collect([]))
    assert 3 not in Counting.written(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a fork server is of Linux")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the pool's, of a late start
def test_a_worker_that_dies_is_told_while_another_is_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_signed = forkserver.read_signed

    def slowly(descriptor: int) -> Any:
        answer = read_signed(descriptor)
        time.sleep(0.3)
        return answer

    monkeypatch.setattr(forkserver, "read_signed", slowly)
    with pytest.raises(RunError, match="killed from outside"):
        compute(Dying(tmp_path), [3, 1, 2], workers=2, on_progress=collect([]))
    assert not active_children()


@dataclass
class Ended:
    """A process that came to its end."""

    exitcode: int


def test_who_died_is_told_from_how_all_ended() -> None:
    processes: Any = {1: Ended(-signal.SIGTERM), 2: Ended(-signal.SIGKILL), 3: Ended(-signal.SIGTERM)}
    said = _told_of_death(processes, {1: "a", 2: "b", 3: "c"})
    assert said.startswith("a worker process died (killed from outside, or for want of memory) at b. What is")
    said = _told_of_death({1: Ended(3), 2: Ended(-signal.SIGTERM)}, {2: "b"})  # type: ignore[dict-item]
    assert said.startswith("a worker process died (exit code 3) before its first unit.")
    assert said.endswith("goes on from there, once what it printed is mended."), "it was no want of memory"
    both: Any = {1: Ended(1), 2: Ended(-signal.SIGKILL)}
    assert _told_of_death(both, {}).endswith("; with fewer workers it needs less memory."), "the one for the other"


PARENT = """
import sys, time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from tests.runs.test_pool import Counting, compute
if __name__ == "__main__":
    compute(Counting(Path(sys.argv[1])), range(10_000), workers=2, on_progress=lambda *event: None)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kill -9 is of POSIX")
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script, units = tmp_path / "parent.py", tmp_path / "units"
    script.write_text(PARENT)
    units.mkdir()
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    with subprocess.Popen([sys.executable, str(script), str(units)], env={**os.environ, "PYTHONPATH": paths}) as parent:
        deadline = time.monotonic() + 60
        while len({row[0] for row in Counting.written(units).values()}) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        workers = {row[0] for row in Counting.written(units).values()}
        parent.kill()
    assert len(workers) == 2
    deadline = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, workers))


def alive(process: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    status = Path(f"/proc/{process}/stat")
    if Path("/proc/self/stat").exists():
        return status.exists() and status.read_text().rpartition(")")[2].split()[0] not in "ZX"
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_workers_that_are_being_started(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was begun and not yet known was not ended, and failed by itself, with a traceback."""
    submit = ProcessPoolExecutor.submit
    ended: list[int | None] = []

    def interrupted(pool: ProcessPoolExecutor, *args: Any) -> Any:
        signal.raise_signal(number)
        return submit(pool, *args)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    monkeypatch.setattr(BaseProcess, "terminate", lambda process: ended.append(process.pid))
    before = signal.signal(number, signal.default_int_handler)  # pytest's own processes may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            list(results(print, ["a", "b"], workers=2, on_progress=lambda *event: None))
        assert len(set(ended)) == 2 and signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no mask of signals")
def test_what_is_started_outlives_a_ctrl_c_that_comes_while_it_imports() -> None:
    """A terminal, and Jupyter, send it to all processes: the one that workers are forked from died of it, and the
    command ended with "unexpected EOF" behind its traceback."""
    struck = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"
    with _interrupted_after():
        told = subprocess.run([sys.executable, "-c", struck], capture_output=True, text=True)
    assert told.stdout == "alive\n", told.stderr[-300:]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it
    try:
        with pytest.raises(KeyboardInterrupt), _interrupted_after():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
