"""Carrying studies out: resumed, in parallel, after errors, and after workers die. The work is a stand-in."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from docleak.errors import DocleakError, RunError
from docleak.files import drafted
from docleak.report.page import Reading
from docleak.report.severity import Part, Severity
from docleak.runs.pool import WorkerDied
from docleak.runs.run import BEGAN, Run
from docleak.studies.engine import Assignment, Silence, begin, carry_out, compute
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.study import GradientStudy
from docleak.studies.study import Study, Tell, Unit


@dataclass(frozen=True)
class StandInConfig:
    """``how`` the unit "1" comes to its end: fine, dies, dies-once, waits to be killed once, fails, killed, in
    stages, exits, or fails while "0" is in the middle of writing a file."""

    how: str = "fine"
    count: int = 4


class Killed(BaseException):
    """Nobody catches it, as nobody catches a kill."""


class StandIn(Study[StandInConfig]):
    """Counts on disk how often each unit was begun, since workers are other processes."""

    kind = "tests.studies.test_engine:StandIn"
    Config = StandInConfig

    def units(self) -> Sequence[Unit]:
        return [Unit(str(number), 2, number) for number in range(self.config.count)]

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        tell(1)
        file = run.path / f"count-{unit.id}"
        number = int(file.read_text()) + 1 if file.is_file() else 1
        with drafted(file) as draft:  # whole, also where the worker is ended here
            draft.write_text(str(number))
        if self.config.how == "fails-beside" and unit.id == "0":
            with drafted(run.path / "pictures" / "of-0") as draft:
                draft.write_text("half")
                time.sleep(120)
        if self.config.how == "fails-beside" and unit.id == "1":
            while not [*run.path.glob("pictures/.docleak-*")]:
                time.sleep(0.02)
            raise DocleakError("planted beside")
        how = self.config.how if unit.id == "1" else "fine"
        if how == "dies" or (how == "dies-once" and number == 1):
            (run.path / ".docleak-half").write_text("its draft")
            os._exit(1)
        if how == "waits" and number == 1:
            (run.path / "waiting").write_text(str(os.getpid()))
            time.sleep(120)
        if how == "killed":
            raise Killed
        if how == "exits":
            sys.exit()
        if how == "fails" or (how == "stages" and number <= 3):
            raise DocleakError(f"planted {number}")
        return {"process": os.getpid()}, {"picture": np.zeros((2, 2, 3), dtype=np.uint8)}

    def progress(self, unit: Unit, run: Run) -> str:
        file = run.path / f"count-{unit.id}"
        return f"-{file.read_text()}" if self.config.how == "stages" and file.is_file() else ""

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator) -> Reading:
        done = sum(len(run.units()) for run in runs)
        return Reading("?", "", (Part("it", Severity.NONE, ""),), f"{done} units.", (), (), {"done": done})


def counts(run: Run) -> dict[str, int]:
    return {file.name[6:]: int(file.read_text()) for file in sorted(run.path.glob("count-*"))}


def going_on(run: Run, how: str, workers: int = 2) -> None:
    with run.claimed():
        compute([Assignment(StandIn(StandInConfig(how)), run)], workers=workers, keep_going=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_unit_runs_once_and_a_rerun_computes_nothing(tmp_path: Path, workers: int) -> None:
    run = carry_out(StandIn(StandInConfig()), tmp_path, workers=workers)
    assert counts(run) == dict.fromkeys("0123", 1)
    assert ({unit["process"] for unit in run.units()} == {os.getpid()}) is (workers == 1)
    assert carry_out(StandIn(StandInConfig()), tmp_path, workers=workers).units() == run.units()
    assert counts(run) == dict.fromkeys("0123", 1) and not list((tmp_path / "attempts").glob("*"))


def test_a_missing_unit_alone_is_computed_again(tmp_path: Path) -> None:
    run = carry_out(StandIn(StandInConfig()), tmp_path)
    (run.folder("2") / "unit.json").unlink()
    carry_out(StandIn(StandInConfig()), tmp_path)
    assert counts(run) == {"0": 1, "1": 1, "2": 2, "3": 1}


def test_progress_begins_at_what_was_done_and_ends_with_every_unit(tmp_path: Path) -> None:
    class Noting(Silence):
        def __init__(self) -> None:
            self.told: list[Any] = []

        def began(self, sizes: Mapping[str, int], finished: Any) -> None:
            self.told.append((dict(sizes), set(finished)))

        def reached(self, label: str, number: int, of: int) -> None:
            self.told.append((label, number, of))

    run = carry_out(StandIn(StandInConfig(count=2)), tmp_path)
    (run.folder("1") / "unit.json").unlink()
    watcher = Noting()
    carry_out(StandIn(StandInConfig(count=2)), tmp_path, watcher=watcher)
    assert watcher.told == [({"0": 2, "1": 2}, {"0"}), ("1", 1, 2), ("1", 2, 2)]


def test_runs_side_by_side_take_turns(tmp_path: Path) -> None:
    labels: list[str] = []

    class Noting(Silence):
        def reached(self, label: str, number: int, of: int) -> None:
            labels.extend([label] if number == of else [])

    studies = [StandIn(StandInConfig(count=2)) for _ in range(2)]
    compute([Assignment(s, begin(s, tmp_path / str(i))) for i, s in enumerate(studies)], workers=1, watcher=Noting())
    assert labels == ["0: 0", "1: 0", "0: 1", "1: 1"]


# -- workers that die -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_going", [True, False])
def test_a_unit_whose_worker_died_is_tried_once_more_alone(tmp_path: Path, keep_going: bool) -> None:
    study = StandIn(StandInConfig("dies-once"))
    run = begin(study, tmp_path)
    compute([Assignment(study, run)], workers=2, keep_going=keep_going)
    assert len(run.units()) == 4 and counts(run)["1"] == 2 and not run.failures()
    assert not (run.path / ".docleak-half").exists()


def test_a_unit_that_kills_its_worker_twice_is_given_up_and_the_others_finish(tmp_path: Path) -> None:
    run = begin(StandIn(StandInConfig("dies")), tmp_path)
    going_on(run, "dies")
    assert [unit["unit"] for unit in run.units()] == ["0", "2", "3"]
    assert list(run.failures()) == ["1"] and "worker process died" in run.failures()["1"]
    before = counts(run)
    going_on(run, "dies")
    assert counts(run) == before, "it is not tried a third time"


def test_where_nobody_goes_on_the_second_death_ends_the_command_and_is_no_failure(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match=r"exit code 1\) at 1\."):
        carry_out(StandIn(StandInConfig("dies")), tmp_path, workers=2)
    assert counts(Run.load(tmp_path))["1"] == 2 and not Run.load(tmp_path).failures()


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_recorded_after_the_second_try_where_others_go_on(tmp_path: Path, workers: int) -> None:
    run = begin(StandIn(StandInConfig("fails")), tmp_path)
    going_on(run, "fails", workers)
    assert run.failures() == {"1": "DocleakError: planted 2"} and len(run.units()) == 3


def test_an_error_leaves_no_half_a_file_of_the_workers_that_it_ends(tmp_path: Path) -> None:
    with pytest.raises(DocleakError, match="planted beside"):
        carry_out(StandIn(StandInConfig("fails-beside")), tmp_path, workers=2)
    assert not [file.name for file in tmp_path.rglob("*") if file.name.startswith((".docleak", "of-0"))]


def test_the_first_error_ends_a_command_of_one_study_and_does_not_count(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        with pytest.raises(DocleakError, match=f"planted {number}"):
            carry_out(StandIn(StandInConfig("fails")), tmp_path)
    assert [unit["unit"] for unit in Run.load(tmp_path).units()] == ["0"] and not Run.load(tmp_path).failures()


@pytest.mark.parametrize("workers", [1, 2])
def test_code_that_ends_the_process_is_an_error_and_no_success(tmp_path: Path, workers: int) -> None:
    with pytest.raises(RunError, match=r"unit '1': its code called sys.exit\(None\)"):
        carry_out(StandIn(StandInConfig("exits")), tmp_path / "one", workers=workers)
    run = begin(StandIn(StandInConfig("exits")), tmp_path / "several")
    going_on(run, "exits", workers)
    assert set(run.failures()) == {"1"} and counts(run)["1"] == 2


def test_a_unit_that_got_further_is_tried_anew(tmp_path: Path) -> None:
    run = begin(StandIn(StandInConfig("stages")), tmp_path)
    going_on(run, "stages", workers=1)
    assert counts(run)["1"] == 4 and len(run.units()) == 4 and not run.failures()


def test_a_unit_during_which_the_command_was_killed_has_not_failed(tmp_path: Path) -> None:
    run = begin(StandIn(StandInConfig("killed")), tmp_path)
    for _ in range(3):
        with pytest.raises(Killed):
            going_on(run, "killed", workers=1)
        run.note_attempts("1", [BEGAN])  # as a kill that nothing can catch leaves it
    going_on(run, "fine", workers=1)
    assert len(run.units()) == 4 and not run.failures()


# -- other runs -------------------------------------------------------------------------------------------------------


def test_a_run_of_another_configuration_or_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out(StandIn(StandInConfig()), tmp_path)
    with pytest.raises(RunError, match="count: 4 there, 5 asked for"):
        carry_out(StandIn(StandInConfig(count=5)), tmp_path)
    monkeypatch.setattr("docleak.runs.identity.code_digest", lambda: "0123456789")
    with pytest.raises(RunError, match=r"begun by docleak .* with other code"):
        carry_out(StandIn(StandInConfig()), tmp_path)


def test_other_weights_under_the_same_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "identity", lambda self: {"weights": "aaaa"})
    carry_out(StandIn(StandInConfig()), tmp_path)
    monkeypatch.setattr(StandIn, "identity", lambda self: {"weights": "bbbb"})
    with pytest.raises(RunError, match="weights: its files have the hash aaaa there, bbbb now"):
        carry_out(StandIn(StandInConfig()), tmp_path)


# -- on a cluster -----------------------------------------------------------------------------------------------------


@contextmanager
def dask_workers(count: int) -> Iterator[str]:
    """The address of a scheduler on loopback with so many worker processes, which nobody starts again."""
    distributed = pytest.importorskip("dask.distributed", reason="the cluster extra is not installed")
    dask = pytest.importorskip("dask")
    root = Path(__file__).parents[2]  # classes of tests are imported by their name
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=0, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=None
        ) as cluster,
    ):
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--no-nanny"]
        more = ["--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
        workers = [subprocess.Popen([*command, *more], env=environment, stderr=subprocess.DEVNULL)
                   for _ in range(count)]  # fmt: skip
        try:
            with distributed.Client(cluster.scheduler_address) as client:
                client.wait_for_workers(count, timeout=120)
            yield cluster.scheduler_address
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def test_units_run_on_a_dask_cluster_of_processes_one_of_which_is_killed(tmp_path: Path) -> None:
    study, failing = StandIn(StandInConfig("waits", 6)), StandIn(StandInConfig("fails"))
    run, other = begin(study, tmp_path / "a"), begin(failing, tmp_path / "b")

    def kill() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (run.path / "waiting").is_file():
            time.sleep(0.1)
        while time.monotonic() < deadline and len(run.units()) < 5:
            time.sleep(0.1)
        os.kill(int((run.path / "waiting").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    with dask_workers(2) as address:
        killer.start()
        with pytest.raises(RunError, match="workers of the cluster that had it ended"):
            compute([Assignment(study, run)], workers=1, cluster=address)
        assert len(run.units()) == 5
        compute([Assignment(study, run)], workers=1, cluster=address)  # goes on, on the other worker
        compute([Assignment(failing, other)], workers=1, cluster=address, keep_going=True)
    killer.join()
    assert counts(run) == {"0": 1, "1": 2, "2": 1, "3": 1, "4": 1, "5": 1}  # what was done is not done again
    assert len(run.units()) == 6 and not run.failures()
    assert os.getpid() not in {unit["process"] for unit in run.units()}
    assert len(other.units()) == 3 and other.failures() == {"1": "DocleakError: planted 2"}


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask.distributed", reason="the cluster extra is not installed")
    monkeypatch.setattr("docleak.runs.pool.CLUSTER_TIMEOUT", "1s")
    study = StandIn(StandInConfig())
    with pytest.raises(RunError, match=r"127\.0\.0\.1:1"):
        compute([Assignment(study, begin(study, tmp_path))], workers=1, cluster="tcp://127.0.0.1:1")


def test_a_study_on_a_gpu_keeps_float32_in_every_process_that_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GradientConfig(models=("donut-start",), attacks=("random",), pages=1)
    for device, tf32 in (("cpu", True), ("cuda", False)):
        sent = pickle.dumps(GradientStudy(config, device=device))
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # as torch has it, in a new worker
        assert pickle.loads(sent).device == device and torch.backends.cudnn.allow_tf32 is tf32


def test_two_different_units_of_one_id_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would be taken for the first, which is finished by then."""
    monkeypatch.setattr(StandIn, "units", lambda study: [Unit("0", what=1), Unit("0", what=2)])
    with pytest.raises(RunError, match="two different units of the id '0'"):
        carry_out(StandIn(StandInConfig()), tmp_path / "run")
    monkeypatch.setattr(StandIn, "units", lambda study: [Unit("0", what=1), Unit("0", what=1)])
    assert len(carry_out(StandIn(StandInConfig()), tmp_path / "run").units()) == 1
