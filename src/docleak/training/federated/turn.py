"""A time limit for work that runs in this process, so that a silo that hangs does not hang everybody."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Seconds a silo of this process has for a message, unless it is said otherwise.
TURN_SECONDS = 6 * 3600.0
LONGEST_TURN = 366 * 86400.0
#: Seconds that work which cannot be interrupted (a library that does not return) has left to come back.
GRACE_SECONDS = 60.0
#: Exit code of a process that had to end because of such work.
STUCK = 70


class TurnOver(BaseException):
    """The time is up. No Exception: nothing between the silo's work and who set the limit may take it for a fault."""


@contextmanager
def turn(seconds: float, what: str, *, grace: float = GRACE_SECONDS) -> Iterator[None]:
    """Raise TurnOver in this block once ``seconds`` are over; ``what`` names the block's work.

    In the main thread the work is interrupted by a signal. Where that is not possible, or the work does not come back
    within ``grace`` more seconds, the whole process is ended with exit code STUCK after a sentence on stderr: files
    are written whole or not at all, so that whatever was running can be continued. Work that never lets another line
    of Python run is ended by faulthandler a little later, with exit code 1 and where it was.
    """
    if not 0 < seconds <= LONGEST_TURN:
        raise ValueError(f"a time limit of {seconds} seconds; expected more than 0, and at most a year")
    ended = threading.Event()
    interruptible = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM")

    def end() -> None:
        if not ended.wait(seconds + grace):
            print(f"docleak: {what} did not answer within {seconds:g} s and cannot be interrupted; this process ends. "
                  "The same command goes on from the last round.", file=sys.stderr, flush=True)  # fmt: skip
            os._exit(STUCK)

    def over(number: int, frame: FrameType | None) -> None:
        raise TurnOver

    watching = threading.Thread(target=end, name="docleak-turn", daemon=True)
    watching.start()
    if last_resort := sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds + 2 * grace, exit=True, file=sys.__stderr__)
    if interruptible:
        before = signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if interruptible:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if last_resort:
            faulthandler.cancel_dump_traceback_later()
        ended.set()
