"""Run every benchmark and write docs/results/bench.json and bench.md: ``python -m bench`` from the repository root."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from bench import attack, candidates, documents, pairs, private, secure

RESULTS = Path(__file__).parents[1] / "docs" / "results"

Numbers = dict[str, float]


def environment() -> dict[str, str | int | float]:
    """Where and on what the numbers were measured."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "load_before": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "commit": _commit(),
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
        found = subprocess.run(command, cwd=RESULTS.parents[1], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def as_markdown(where: dict[str, str | int | float], pages: Numbers, attacks: dict[str, Numbers]) -> str:
    """The numbers as a page for people."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m bench`; do not edit. " + ", ".join(f"{key} {value}" for key, value in where.items()),
        "",
        "## Making synthetic pages",
        "",
        "| process | pages per second |",
        "|---|---|",
        f"| fresh (its first {pages['cold_pages']:.0f} pages) | {pages['cold_pages_per_second']:.0f} |",
        f"| warm | {pages['warm_pages_per_second']:.0f} |",
        "",
        f"Medians of {pages['processes']:.0f} processes.",
        "",
        "## One gradient-matching step, beside a bare PyTorch loop",
        "",
        "| attack | docleak, ms | bare loop, ms | ratio (quartiles) | target |",
        "|---|---|---|---|---|",
    ]
    for name, row in attacks.items():
        spread = f"{row['ratio_lower_quartile']:.3f}-{row['ratio_upper_quartile']:.3f}"
        lines.append(
            f"| `{name}` | {row['engine_ms']:.1f} | {row['bare_ms']:.1f} | {row['ratio']:.3f} ({spread}) "
            f"| {'met' if row['ratio'] <= row['target'] else 'missed'}: {row['target']:.2f} |"
        )
    steps = max(row["steps"] for row in attacks.values())
    lines += [
        "",
        f"Tiny Donut, one page; medians of {steps:.0f} steps, the two taking turns step by step. The bare loop does",
        "the same forward, gradient and double backward pass, with the plain sum of squares and Adam",
        "(`bench/attack.py`).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and save."""
    torch.set_num_threads(1)
    where = environment()
    pages = documents.measure()
    attacks = attack.measure()
    sums = secure.measure()
    clipping = private.measure()
    losses = candidates.measure()
    stages = pairs.measure()
    text = as_markdown(where, pages, attacks) + secure.as_markdown(sums) + private.as_markdown(clipping)
    text += candidates.as_markdown(losses) + pairs.as_markdown(stages)
    RESULTS.mkdir(parents=True, exist_ok=True)
    numbers = {"environment": where, "documents": pages, "attack": attacks, "secure": sums, "private": clipping}
    numbers["candidates"] = losses
    numbers["pairs"] = stages
    (RESULTS / "bench.json").write_text(json.dumps(numbers, indent=2) + "\n")
    (RESULTS / "bench.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
