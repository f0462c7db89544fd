"""Files that appear whole or not at all, for their owner only."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from docleak.errors import RunError
from docleak.files import (
    drafted,
    drafted_folder,
    make_private,
    private_folder,
    read_json_object,
    stamps,
    undamaged,
    write_atomically,
    write_json,
)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders_are_for_their_owner_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    write_json(tmp_path / "a" / "b" / "c.json", {"x": 1})
    with drafted_folder(tmp_path / "d") as draft:
        (draft / "inner").mkdir()
        (draft / "inner" / "file").write_text("x")
    with drafted(tmp_path / "replaced") as file:
        file.unlink()
        file.write_text("written by somebody who makes a file of their own")
    for path in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "d", tmp_path / "d" / "inner"):
        assert mode(path) == 0o700
    for path in (tmp_path / "a" / "b" / "c.json", tmp_path / "d" / "inner" / "file", tmp_path / "replaced"):
        assert mode(path) == 0o600


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "mine").chmod(0o755)
    assert private_folder(tmp_path / "mine" / "new") == tmp_path / "mine" / "new"
    assert (mode(tmp_path / "mine"), mode(tmp_path / "mine" / "new")) == (0o755, 0o700)
    with drafted_folder(tmp_path / "mine") as draft:
        (draft / "file").touch(0o644)
    assert (mode(tmp_path / "mine"), mode(tmp_path / "mine" / "file")) == (0o755, 0o600)


def test_links_are_not_followed_when_a_folder_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("not ours")
    (tmp_path / "other").chmod(0o644)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "link").symlink_to(tmp_path / "other")
    make_private(tmp_path / "ours")
    assert mode(tmp_path / "other") == 0o644


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_names_the_file_and_says_that_work_goes_on(tmp_path: Path, number: int) -> None:
    said = r"cannot write .*round\.bin: .*run the same command again: it continues"
    with pytest.raises(RunError, match=said) as raised, drafted(tmp_path / "round.bin"):
        raise OSError(number, os.strerror(number))
    assert isinstance(raised.value.__cause__, OSError) and not list(tmp_path.iterdir())


def test_a_real_full_device_is_told_so(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with pytest.raises(RunError, match="the disk is full"), drafted(tmp_path / "x"), open("/dev/full", "wb") as full:
        full.write(b"x")


def test_a_full_disk_is_told_where_safetensors_meets_it(tmp_path: Path) -> None:
    """It raises an error of its own, which was the traceback of ``docleak models make``."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with (
            pytest.raises(RunError, match=r"cannot write .*a limit on the size"),
            drafted_folder(tmp_path / "x") as draft,
        ):
            save_file({"weight": np.zeros(1000, np.float32)}, draft / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, '{"x": ' + "9" * 6000 + "}", "\ud800"])
def test_a_damaged_file_of_a_run_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RunError, match=r"run\.json .*Delete it\."):
        read_json_object(tmp_path / "run.json", error=RunError, advice="Delete it.")


def refused(*_: object, **__: object) -> None:
    """What opening a file that one may not read raises; as root nothing does."""
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "x")


def test_a_file_that_one_may_not_read_is_not_to_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "run.json", {})
    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(RunError, match=r"run\.json may not be read .*the right to read it") as told:
        read_json_object(tmp_path / "run.json", error=RunError, advice="Delete it and rerun the audit.")
    assert "Delete" not in str(told.value)


def test_records_of_another_shape_name_their_folder_and_other_errors_pass(tmp_path: Path) -> None:
    record: dict[str, int] = {}
    with pytest.raises(RunError, match=r"holds records that .* cannot read .KeyError: 'score'"), undamaged(tmp_path):
        _ = record["score"]
    with pytest.raises(RunError, match=r"^as it is$"), undamaged(tmp_path):
        raise RunError("as it is")
    with pytest.raises(KeyboardInterrupt), undamaged(tmp_path):
        raise KeyboardInterrupt


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # open before the writer, which would wait for it
    try:
        write_atomically(pipe, b"said")
        assert os.read(reader, 10) == b"said"
    finally:
        os.close(reader)
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_nothing_is_left_of_a_file_that_was_not_finished(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", b"old")
    with pytest.raises(ValueError, match="stop"), drafted(tmp_path / "x"):
        raise ValueError("stop")
    assert (tmp_path / "x").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_stamps_are_of_all_that_a_text_names_but_not_of_runs_below(tmp_path: Path) -> None:
    """An audit writes its run beside the pages that it reads, which stay the same for it."""
    (tmp_path / "run").mkdir()
    for name in ("pages.jsonl", "run/run.json", ".hidden"):
        (tmp_path / name).write_text("1")
    there = stamps(f"sroie:{tmp_path}:split=test,synthetic")
    assert {(Path(file).name, size) for file, size, _ in there} == {("pages.jsonl", 1), (".hidden", 1)}
    (tmp_path / "run" / "run.json").write_text("22")
    assert stamps(f"sroie:{tmp_path}:split=test,synthetic") == there
    os.utime(tmp_path / "pages.jsonl", ns=(1, 1))
    assert stamps(tmp_path) != there
    assert stamps("synthetic", "", "layoutlmv3-start", "no\0name", "x" * 5000) == frozenset()
