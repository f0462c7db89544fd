"""Run a peer's own code beside docleak and keep the numbers in docs/results/league/PART.json.

    python -m bench.league PART --peer PYTHON [--source FOLDER]

PYTHON is the interpreter of an environment that has the peer (each part's first lines say what to install), FOLDER a
checkout of its repository where it is no package. ``python -m scripts.league`` puts all parts on one page.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.__main__ import RESULTS, environment
from docleak.files import write_atomically

#: Modules of this folder that ``measure`` with a peer and tell the page's ``rows`` of their numbers, in its order.
PARTS = ("apart", "cases", "convnet", "batches", "leakpro", "meter", "auditing")


def stored(results: Path, part: str) -> dict[str, Any] | None:
    """{"environment", "seconds", "numbers"} of a part; None where it was never measured."""
    file = results / "league" / f"{part}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def main() -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(prog="python -m bench.league", description="Run a peer's own code beside docleak.")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--peer", required=True, help="the Python of an environment that has the peer")
    parser.add_argument("--source", default="", help="a checkout of the peer's repository, where it is no package")
    given = parser.parse_args()
    where, began = environment(), time.time()
    numbers = import_module(f"bench.league.{given.part}").measure(given.peer, given.source)
    told = {"environment": where, "seconds": round(time.time() - began), "numbers": numbers}
    write_atomically(RESULTS / "league" / f"{given.part}.json", (json.dumps(told, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
