"""One process at a time in a folder."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import SoftFileLock, UnixFileLock

from docleak.errors import RunError
from docleak.runs import claim
from docleak.runs.claim import claimed

HOLD = """
import sys
from pathlib import Path
from docleak.runs.claim import claimed
with claimed(Path(sys.argv[1]), whole=sys.argv[2] == "whole"):
    print("claimed", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def held_elsewhere(folder: Path, *, whole: bool) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed the folder, until it is killed at the end."""
    command = [sys.executable, "-c", HOLD, str(folder), "whole" if whole else "inside"]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "claimed\n"
        yield other
    finally:
        other.send_signal(signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
        other.communicate(timeout=30)


@pytest.mark.parametrize("whole", [False, True])
def test_the_second_process_is_refused_and_told_who_is_there_and_a_killed_one_leaves_nothing(
    tmp_path: Path, whole: bool
) -> None:
    folder = tmp_path / "new" / "out"
    with held_elsewhere(folder, whole=whole) as other:
        with pytest.raises(RunError) as refused, claimed(folder, whole=whole):
            raise AssertionError("both were let in")
        assert "another docleak is at work in" in str(refused.value)
        assert f"process {other.pid} on " in str(refused.value) and " UTC)" in str(refused.value)
        assert "Wait until it is done, or give another folder (out)" in str(refused.value)
        inside, beside = folder / ".docleak-half", folder.parent / ".docleak-out-ab0_cd1x"
        not_ours = folder.parent / ".docleak-out-2-ab0_cd1x"
        folder.mkdir(exist_ok=True)
        (folder / "rows" / ".docleak-draft").mkdir(parents=True)
        (folder / "rows" / ".docleak-draft" / "model").write_text("half")
        (folder / "rows" / ".docleak-claim-old").write_text("")  # of an inner claim that was killed as well
        (folder / "result.json").write_text("{}")
        inside.write_text("half")
        beside.mkdir()
        not_ours.mkdir()
    assert inside.exists()
    with claimed(folder, whole=whole):
        assert sorted(f.name for f in folder.rglob("*") if "claim" not in f.name) == ["result.json", "rows"]
        assert beside.exists() is not whole and not_ours.exists()
    assert sorted(f.name for f in folder.rglob("*")) == ["result.json", "rows"]
    left = {"out", ".docleak-out-2-ab0_cd1x"} | (set() if whole else {".docleak-out-ab0_cd1x"})
    assert {f.name for f in folder.parent.iterdir()} == left


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no /proc")
@pytest.mark.parametrize("wait", [False, True])
def test_a_place_that_takes_no_files_is_not_somebody_at_work(wait: bool) -> None:
    place = Path("/proc/docleak-none")
    with pytest.raises(RunError, match=r"^cannot write .*none") as told, claimed(place, whole=True, wait=wait):
        raise AssertionError("let in")
    assert "another docleak" not in str(told.value)


def test_drafts_stay_where_nobody_was_killed(tmp_path: Path) -> None:
    """A folder that was never claimed may be anybody's: another command may be writing there right now."""
    (tmp_path / ".docleak-1-ab").write_text("being written")
    with claimed(tmp_path):
        pass
    assert [f.name for f in tmp_path.iterdir()] == [".docleak-1-ab"]


def test_one_thread_may_claim_within_its_claim_and_another_may_not(tmp_path: Path) -> None:
    refused: list[str] = []

    def second() -> None:
        try:
            with claimed(tmp_path):
                refused.append("let in")
        except RunError as error:
            refused.append(str(error))

    with claimed(tmp_path):
        with claimed(tmp_path / "." / ""):
            pass
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(30)
    assert len(refused) == 1 and f"process {os.getpid()}" in refused[0]
    with claimed(tmp_path):
        assert json.loads((tmp_path / ".docleak-claim.json").read_text())["process"] == os.getpid()


def test_who_waits_says_for_whom_and_gets_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A table stood still for minutes beside another one that trained the same target, and said nothing."""
    monkeypatch.setattr(claim, "SILENT_SECONDS", 0.05)
    entered = threading.Event()

    def second() -> None:
        with claimed(tmp_path, wait=True):
            entered.set()

    with claimed(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.2)
    thread.join(30)
    assert entered.is_set()
    said = capfd.readouterr().err
    assert said.startswith(
        f"docleak waits: another process, of this run or another, is at work in {tmp_path} (process {os.getpid()} on "
    )
    assert said.count("\n") == 1


def test_folders_made_for_a_claim_go_if_nothing_came_of_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), claimed(tmp_path / "a" / "b"):
        raise ValueError("refused before anything was written")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="flock is of Unix")
def test_where_the_file_system_has_no_locks_the_file_is_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(self: UnixFileLock) -> None:
        raise OSError(claim.NO_LOCKS[1], "No locks available")

    monkeypatch.setattr(UnixFileLock, "_acquire", no_locks)
    other = SoftFileLock(tmp_path / ".docleak-claim-soft")
    with other, pytest.raises(RunError, match="another docleak is at work"), claimed(tmp_path):
        raise AssertionError("both were let in")
    with claimed(tmp_path):
        assert (tmp_path / ".docleak-claim-soft").exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(RunError, match="may write"), claimed(folder):
            raise AssertionError("claimed")


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(RunError, match="file in the way"), claimed(tmp_path / "out"):
        raise AssertionError("claimed")
