"""How long CDMI takes on the tiny LayoutLM: 128 candidates, 8 attempts, 100 fields, baseline included.

The target is trained for extraction, which costs most: each candidate is a page passed through it. Two workers of one
thread each, as ``docleak attack cdmi`` does on two cores. Training is kept short and is not counted.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from docleak.attacks.weights import CdmiConfig
from docleak.studies.engine import begin, carry_out
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.game import ready
from docleak.studies.weights.study import MODELS, WeightsStudy
from docleak.studies.weights.table import fields_of
from docleak.training.extraction.fit import FitConfig

FIELDS, ATTEMPTS, CANDIDATES, WORKERS = 100, 8, 128, 2
EPOCHS = 5
#: Minutes for all fields.
TARGET = 10.0


def measure() -> dict[str, float]:
    """Minutes for all fields, model calls, and pages passed through models per second of all workers together."""
    short = FitConfig(epochs=EPOCHS, learning_rate=1e-3, validate_every=EPOCHS)
    config = WeightsConfig(
        task="ee-bio",
        fields=FIELDS,
        attempts=ATTEMPTS,
        target_training=short,
        public_training=short,
        calibrate=False,
        attack=CdmiConfig(candidates=CANDIDATES),
    )
    with tempfile.TemporaryDirectory() as folder:
        study, out = WeightsStudy(config), Path(folder) / "run"
        begin(study, out)
        ready(config, out / MODELS)  # trains
        began = time.perf_counter()
        run = carry_out(study, out, workers=WORKERS)
        seconds = time.perf_counter() - began
        calls = sum(int(unit["calls"]) for unit in fields_of(run))
        done = len(fields_of(run))
    return {
        "fields": done, "attempts": ATTEMPTS, "candidates": CANDIDATES, "workers": WORKERS, "minutes": seconds / 60,
        "calls": calls, "calls_per_second": calls / seconds, "target_minutes": TARGET,
    }  # fmt: skip


def as_markdown(row: dict[str, float]) -> str:
    """The numbers as a section for people."""
    verdict = "met" if row["minutes"] <= row["target_minutes"] else "missed"
    lines = [
        "",
        "## CDMI on the tiny LayoutLM, trained for extraction",
        "",
        "| fields | attempts | candidates | workers | minutes | pages through models | a second | target |",
        "|---|---|---|---|---|---|---|---|",
        f"| {row['fields']:.0f} | {row['attempts']:.0f} | {row['candidates']:.0f} | {row['workers']:.0f} | "
        f"{row['minutes']:.1f} | {row['calls']:.0f} | {row['calls_per_second']:.0f} | "
        f"{verdict}: {row['target_minutes']:.0f} minutes |",
        "",
        "`docleak attack cdmi --task ee-bio` without its training (`bench/cdmi.py`); equal prefixes are computed once.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print({key: round(value, 3) for key, value in measure().items()})
