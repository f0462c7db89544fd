"""Work in this process that takes too long is interrupted, or ends the process where it cannot be."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from docleak.training.federated.flower.grid import STUCK, TurnOver, turn


def hang() -> None:
    with turn(0.1, "silo 'a'"):
        try:
            threading.Event().wait(60)
        except Exception:  # no fault of the work may swallow the end of its turn
            pytest.fail("the end of a turn is no Exception")


def test_work_that_hangs_is_interrupted_and_the_next_is_not() -> None:
    before = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    with pytest.raises(TurnOver):
        hang()
    assert time.monotonic() - began < 5
    with turn(0.1, "silo 'b'"):
        pass
    time.sleep(0.2)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize(
    ("work", "code"),
    [
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); ctypes.CDLL(None).pause()", STUCK),
        ("sum(itertools.repeat(0))", 1),  # a library that never lets any other Python code run
    ],
)
def test_work_that_cannot_be_interrupted_ends_the_process(work: str, code: int) -> None:
    script = (
        "import ctypes, itertools, signal\nfrom docleak.training.federated.flower.grid import turn\n"
        f"with turn(0.2, \"silo 'a'\", grace=0.3):\n    {work}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    if code == STUCK:
        said = done.stderr.decode()
        assert "silo 'a' did not answer within 0.2 s and cannot be interrupted" in said and "Traceback" not in said


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_limits_that_are_none(seconds: float) -> None:
    with pytest.raises(ValueError, match="expected more than 0"), turn(seconds, "x"):
        pass
