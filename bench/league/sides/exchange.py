"""How one side of a comparison is asked: a folder with job.json and arrays.npz in, answer.json and answer.npz out.

Standard library and numpy alone: a peer's environment has nothing of docleak's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np


def asked() -> tuple[dict[str, Any], dict[str, Any]]:
    """The job and its arrays, from the folder that the command line names."""
    folder = Path(sys.argv[1])
    with np.load(folder / "arrays.npz") as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads((folder / "job.json").read_text()), arrays


def answer(told: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
    """Write the answer, with the most memory that this process ever held."""
    folder = Path(sys.argv[1])
    np.savez(folder / "answer.npz", **(arrays or {}))
    (folder / "answer.json").write_text(json.dumps({**told, "peak_mib": peak_mib()}))


def peak_mib() -> float:
    """The high-water mark of this program alone: getrusage's still counts the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What the call returns, and its seconds of processor time."""
    began = time.process_time()
    returned = call()
    return returned, time.process_time() - began
