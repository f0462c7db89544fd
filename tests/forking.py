"""Processes that begin with all that this one has imported: real ones, to be waited for and killed, without the seconds
in which a new interpreter imports PyTorch once more."""

from __future__ import annotations

import fcntl
import multiprocessing.forkserver
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

#: What a pipe holds (Linux) of what a process says; nobody reads it before the end.
PIPE = 1 << 20


class Forked:
    """``work`` in a process and a session of its own, in the folder ``place``; as far as used, a subprocess.Popen.

    What it prints is appended to ``log``, or kept for ``communicate``.
    """

    def __init__(
        self, work: Callable[[], object], place: Path, *, log: Path | None = None, more: Mapping[str, str] | None = None
    ) -> None:
        self.returncode: int | None = None
        pipes = [] if log else [os.pipe() for _ in range(2)]
        for _, end in pipes:
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE)
        self.pid = os.fork()
        if not self.pid:
            streams = [os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)] * 2 if log else [end for _, end in pipes]
            _become(work, place, streams, more or {})
        for _, end in pipes:
            os.close(end)
        self._ends = [begin for begin, _ in pipes]

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 300.0) -> int:
        """The exit code, at its end; subprocess.TimeoutExpired if that is too far."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.01)
        return code

    def communicate(self) -> tuple[str, str]:
        """Its standard output and standard error, at its end."""
        self.wait()
        texts = []
        for end in self._ends:
            with open(end, encoding="utf-8") as stream:
                texts.append(stream.read())
        return texts[0], texts[1]


def docleak_with(*words: str) -> Callable[[], None]:
    """The command line, with these words."""

    def run() -> None:
        from docleak.cli import main

        sys.argv = ["docleak", *words]
        main()

    return run


def _become(work: Callable[[], object], place: Path, streams: list[int], more: Mapping[str, str]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.chdir(place)
        os.environ.update(more)
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
        multiprocessing.forkserver._forkserver.__init__()  # type: ignore[misc] # the one that it knows is its parent's
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
