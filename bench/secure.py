"""CPU time and upload of one secure aggregation: every silo and the server in this process, one after another."""

from __future__ import annotations

import secrets
import statistics
import time

import numpy as np

from docleak.training.federated.secure.fixed_point import FixedPoint, from_words, to_words, words_of
from docleak.training.federated.secure.keys import make_identities
from docleak.training.federated.secure.messages import Session
from docleak.training.federated.secure.simulate import simulate

PARAMETERS = 10_000_000
SILOS = 4
ROUNDS = 3
TARGET_SECONDS = 5.0
TARGET_BYTES = 4.1


def measure() -> dict[str, float]:
    """Medians of ``ROUNDS`` rounds from float32 updates to the sum, and of as many with a silo lost in between.

    CPU seconds are of all silos and the server together; bytes are what one silo sends, per parameter.
    """
    rng = np.random.default_rng(0)
    names = [f"silo-{k}" for k in range(SILOS)]
    shapes = {"weight": (PARAMETERS,)}
    updates = {name: {"weight": rng.normal(0, 1e-3, PARAMETERS).astype(np.float32)} for name in names}
    identities = make_identities(names, entropy=secrets.token_bytes)
    fixed = FixedPoint.for_limit(10.0, SILOS)
    seconds: dict[str, list[float]] = {"": [], names[-1]: []}
    sent = 0
    for number in range(ROUNDS):
        for lost, times in seconds.items():
            session = Session.new(
                names, round_number=number, words=words_of(shapes), fixed=fixed, entropy=secrets.token_bytes
            )
            started = time.process_time()
            inputs = {name: to_words(updates[name], 100, fixed) for name in names}
            outcome = simulate(session, inputs, identities, drop={lost: "mask"} if lost else {})
            from_words(outcome.total, shapes, fixed)
            times.append(time.process_time() - started)
            sent = max(sent, *outcome.uploaded.values())
    return {
        "parameters": PARAMETERS,
        "silos": SILOS,
        "rounds": ROUNDS,
        "cpu_seconds": statistics.median(seconds[""]),
        "cpu_seconds_with_a_lost_silo": statistics.median(seconds[names[-1]]),
        "target_seconds": TARGET_SECONDS,
        "bytes_per_parameter": sent / PARAMETERS,
        "target_bytes": TARGET_BYTES,
    }


def as_markdown(row: dict[str, float]) -> str:
    """The numbers as a section for people."""
    met = row["cpu_seconds"] <= row["target_seconds"] and row["bytes_per_parameter"] <= row["target_bytes"]
    return "\n".join(
        [
            "",
            "## Secure aggregation",
            "",
            f"| {row['parameters']:.0f} parameters, {row['silos']:.0f} silos | measured | target |",
            "|---|---|---|",
            f"| CPU seconds of all, from update to sum | {row['cpu_seconds']:.2f} | {row['target_seconds']:.1f} |",
            f"| the same, one silo lost before it sent | {row['cpu_seconds_with_a_lost_silo']:.2f} | |",
            f"| bytes sent per parameter and silo | {row['bytes_per_parameter']:.4f} | {row['target_bytes']:.1f} |",
            "",
            f"Medians of {row['rounds']:.0f} rounds on one thread; {'met' if met else 'missed'}.",
            "",
        ]
    )
