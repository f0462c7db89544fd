"""Pages per second of the synthetic invoice maker, in a fresh process (cold) and once its caches are filled (warm)."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from docleak.documents.page import Page
from docleak.documents.synthetic import make_pages

PROCESSES = 5
COLD_PAGES = 16
WARM_PAGES = 256


def measure() -> dict[str, float]:
    """Medians over ``PROCESSES`` fresh processes, in pages per second; imports are not counted."""
    runs = [_in_fresh_process() for _ in range(PROCESSES)]
    cold, warm = ([run[key] for run in runs] for key in ("cold", "warm"))
    return {
        "cold_pages_per_second": statistics.median(cold),
        "warm_pages_per_second": statistics.median(warm),
        "cold_pages": COLD_PAGES,
        "warm_pages": WARM_PAGES,
        "processes": PROCESSES,
    }


def as_markdown(row: dict[str, float]) -> str:
    """The numbers as a section for people."""
    return "\n".join(
        [
            "",
            "## Making synthetic pages",
            "",
            "| process | pages per second |",
            "|---|---|",
            f"| fresh (its first {row['cold_pages']:.0f} pages) | {row['cold_pages_per_second']:.0f} |",
            f"| warm | {row['warm_pages_per_second']:.0f} |",
            "",
            f"Medians of {row['processes']:.0f} processes (`bench/documents.py`).",
            "",
        ]
    )


def _in_fresh_process() -> dict[str, float]:
    command = [sys.executable, "-m", "bench.documents"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rates: dict[str, float] = json.loads(out)
    return rates


def _rate(pages: Sequence[Page]) -> float:
    started = time.perf_counter()
    made = sum(1 for _ in pages)
    return made / (time.perf_counter() - started)


def main() -> None:
    """The first pages of this process, then others of the same providers, as JSON."""
    cold = _rate(make_pages(COLD_PAGES, seed=0, split="train"))
    _rate(make_pages(WARM_PAGES, seed=0, split="validation"))  # every provider has been drawn by now
    print(json.dumps({"cold": cold, "warm": _rate(make_pages(WARM_PAGES, seed=0, split="audit"))}))


if __name__ == "__main__":
    main()
