"""Run benchmarks and write docs/results/bench.json and bench.md, from the repository root.

    python -m bench                      all of them but those of APART
    python -m bench federated answers    these; the others keep the numbers that are there

A part's numbers are saved, with where and when they were measured, as soon as it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from docleak.files import write_atomically

RESULTS = Path(__file__).parents[1] / "docs" / "results"
#: Modules of this folder that ``measure`` and tell the numbers ``as_markdown``, in the page's order.
PARTS = (
    "startup", "documents", "attack", "evaluation", "batched", "accelerator", "beside_breaching", "federated",
    "private", "secure", "candidates", "cdmi", "answers", "pairs", "imprint",
)  # fmt: skip
#: Need a package that is not docleak's, or a GPU, as their first lines say: measured only where they are named.
APART = ("accelerator", "beside_breaching", "imprint")

#: Part -> {"environment": where and when, "numbers": what its ``measure`` returned}.
Saved = dict[str, dict[str, Any]]


def environment(commit: str = "") -> dict[str, str | int | float]:
    """Where, on what, and of which commit (the one that is checked out) the numbers are measured."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "load_before": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "commit": commit or _commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        process = subprocess.run(command, cwd=RESULTS.parents[1], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return process.stdout.strip()


def read(results: Path) -> Saved:
    """The parts that were measured before; none where nothing was."""
    file = results / "bench.json"
    parts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not all(isinstance(part, dict) and set(part) == {"environment", "numbers"} for part in parts.values()):
        raise SystemExit(f"{file} is not what python -m bench writes; expected environment and numbers by part.")
    return {str(name): part for name, part in parts.items()}


def write(saved: Saved, results: Path) -> str:
    """Save the numbers and the page for people, which is returned. Numbers of no known part are dropped."""
    known = {name: saved[name] for name in PARTS if name in saved}
    write_atomically(results / "bench.json", (json.dumps(known, indent=2) + "\n").encode())
    page = as_markdown(known)
    write_atomically(results / "bench.md", page.encode())
    return page


def as_markdown(saved: Mapping[str, Mapping[str, Any]]) -> str:
    """The numbers of all parts as one page."""
    text = "# Benchmarks\n\nWritten by `python -m bench`; do not edit.\n"
    for name, part in saved.items():
        where = ", ".join(f"{key} {value}" for key, value in part["environment"].items())
        text += f"{import_module(f'bench.{name}').as_markdown(part['numbers']).rstrip()}\n\n*{where}*\n"
    return text


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> None:
    """Measure the parts that are named, or all, saving after each; then print the page."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure docleak's speed on this machine.")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; default: all but {', '.join(APART)}"
    )
    named = parser.parse_args(arguments).parts or [name for name in PARTS if name not in APART]
    if unknown := [name for name in named if name not in PARTS]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(PARTS)}")
    torch.set_num_threads(1)
    saved, commit = read(results), _commit()  # before the page that this run writes is another than the commit's
    for number, name in enumerate(named, start=1):
        print(f"{name} ({number} of {len(named)}) ...", file=sys.stderr)
        where = environment(commit)
        saved[name] = {"environment": where, "numbers": import_module(f"bench.{name}").measure()}
        page = write(saved, results)
    print(page)


if __name__ == "__main__":
    main()
