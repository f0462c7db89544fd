"""Keep a party's process running, and let none of its children outlive it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

#: prctl's option for the signal that a process gets when its parent dies (Linux).
PR_SET_PDEATHSIG = 1
#: Seconds until a process that ended is started again: the first time, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 30.0
#: A process that ran for so many seconds had been started well.
STEADY = 60.0
PATIENCE = 15.0
#: What a silo's folder holds while a message is being answered there: the number of the process that does.
AT_WORK = ".at-work"
#: Exit code of a node whose training process was killed, and of one that lost its server.
KILLED, LOST = 71, 72


def end_with_parent() -> None:
    """Have this process killed when its parent ends, however that ends. Does nothing where the system cannot."""
    parent = os.getppid()
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended in between
        os.kill(os.getpid(), signal.SIGKILL)


class Stopped(BaseException):
    """This process was asked to end."""


def supervise(
    command: Sequence[str], *, environment: Mapping[str, str],
    after_start: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> None:  # fmt: skip
    """Run ``command`` until this process is asked to end (SIGTERM, SIGINT), and again whenever it ends by itself.

    It ends with this process, even one that is killed. ``after_start`` is called after each start; what it raises
    ends the process, too. Called in the main thread.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    pause = FIRST_PAUSE
    process: subprocess.Popen[bytes] | None = None
    try:
        while True:
            began = time.monotonic()
            process = subprocess.Popen(list(command), env=dict(environment), preexec_fn=end_with_parent)
            after_start(process)
            code = process.wait()
            pause = FIRST_PAUSE if time.monotonic() - began > STEADY else pause
            say(f"docleak: {Path(command[0]).name} ended with code {code}; it is started again in {pause:g} s.")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    except Stopped:
        return
    finally:
        if process is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                continue


def wait_for_port(process: subprocess.Popen[bytes], port: int, *, seconds: float = 120.0) -> bool:
    """Whether ``process`` listens on the loopback ``port`` in time; False as soon as it has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as one:
            one.settimeout(1.0)
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.2)
    return False


@contextmanager
def at_work(folder: Path | None) -> Iterator[None]:
    """Say in a silo's folder that this process answers a message, so that its node notices if it is killed."""
    if folder is None or not folder.is_dir():
        yield
        return
    file = folder / AT_WORK
    file.write_text(f"{os.getpid()}\n")
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def was_killed(folder: Path) -> bool:
    """Whether a process that was at work in ``folder`` is gone without having said so."""
    try:
        number = int((folder / AT_WORK).read_text())
        os.kill(number, 0)
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except (OSError, ValueError, IndexError):
        return False
