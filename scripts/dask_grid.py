"""An audit grid over a Dask cluster on this machine, one of whose two worker processes is killed: nothing is lost.

python -m scripts.scale grid --folder work
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

GRID = (
    "audit", "gradient", "--model", "donut-start", "--model", "layoutlmv3-start", "--attacks",
    "gi-dqa,inverting-gradients,random", "--pages", "4", "--budget", "20", "--json",
)  # fmt: skip
ADDRESS, PATIENCE, KILLED_AT = "tcp://127.0.0.1:8791", 600, 5


@dataclass(frozen=True)
class Grid:
    """``units`` of the grid; how many there were when a worker was killed; seconds of the audit over the cluster, of
    the same command again, and of two local processes; whether both reports have the same measures."""

    units: int
    killed_at: int
    seconds: float
    seconds_again: float
    seconds_local: float
    alike: bool


def grid(folder: Path) -> Grid:
    """Run it in ``folder``, which is new; RuntimeError where a command fails."""
    folder.mkdir(parents=True)
    over, local = (*GRID, "--cluster", ADDRESS, "--out", "cluster"), (*GRID, "--workers", "2", "--out", "local")
    port = ADDRESS.rpartition(":")[2]
    with ExitStack() as stack:
        stack.enter_context(_started(folder, "dask_scheduler", "--host", "127.0.0.1", "--port", port))
        first, _ = (
            stack.enter_context(
                _started(folder, "dask_worker", ADDRESS, "--no-nanny", "--nthreads", "1", "--host", "127.0.0.1")
            )
            for _ in range(2)
        )
        began = time.monotonic()
        audit = _audit(folder, over)
        while audit.poll() is None and _units(folder / "cluster") < KILLED_AT:
            time.sleep(0.2)
        killed_at = _units(folder / "cluster")
        first.kill()
        _ended(audit)
        seconds, began = time.monotonic() - began, time.monotonic()
        _ended(_audit(folder, over))
        again = time.monotonic() - began
    began = time.monotonic()
    _ended(_audit(folder, local))
    seconds_local = time.monotonic() - began
    told = [json.loads((folder / name / "results.json").read_text())["measures"] for name in ("cluster", "local")]
    return Grid(_units(folder / "cluster"), killed_at, seconds, again, seconds_local, told[0] == told[1])


@contextmanager
def _started(folder: Path, what: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", f"distributed.cli.{what}", *options, "--no-dashboard"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _audit(folder: Path, words: tuple[str, ...]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "docleak", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _ended(audit: subprocess.Popen[bytes]) -> None:
    _, said = audit.communicate(timeout=PATIENCE)
    if audit.returncode:
        raise RuntimeError(said.decode()[-2000:])


def _units(run: Path) -> int:
    return len(list(run.glob("units/*/unit.json")))
