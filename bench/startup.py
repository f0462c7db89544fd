"""Seconds of CPU until small commands have answered, beside an empty Python and one that imports torch."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

RUNS = 7
ENTRY = "from docleak.cli import main; main()"
COMMANDS = (
    "--help", "--version", "audit --help", "audit pairs --help", "audit updates --help", "defend --help",
    "train federated --help", "attack --list", "data list", "models list", "reproduce --list", "budget --epsilon 8",
)  # fmt: skip
BESIDE = {"python -c pass": ("-c", "pass"), "import torch": ("-c", "import torch")}


def measure() -> dict[str, float]:
    """Command -> median seconds of user and system time over ``RUNS`` processes, after one that is not counted."""
    seconds = {name: _median(words) for name, words in BESIDE.items()}
    return seconds | {f"docleak {words}": _median(("-c", ENTRY, *words.split())) for words in COMMANDS}


def as_markdown(row: dict[str, float]) -> str:
    """The numbers as a section for people."""
    lines = ["", "## Until a command has answered", "", "| command | seconds of CPU |", "|---|---|"]
    lines += [f"| `{name}` | {seconds:.2f} |" for name, seconds in row.items()]
    return "\n".join([*lines, "", f"Medians of {RUNS} processes (`bench/startup.py`).", ""])


def _median(words: Sequence[str]) -> float:
    return statistics.median([_seconds(words) for _ in range(RUNS + 1)][1:])


def _seconds(words: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen([sys.executable, *words], cwd=folder, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with exit code {child.returncode}.")
    return usage.ru_utime + usage.ru_stime
