"""breaching 0.1.2's case 1: its ConvNet on one picture of 32 x 32, both sides by Inverting Gradients.

python -m bench.league convnet --peer BREACH/bin/python    (bench.league.cases says how to make the environment)
"""

from __future__ import annotations

from typing import Any

from bench.league.ask import ask
from bench.league.cases import row_of, time_of
from docleak.report.table import Row

#: breaching's total variation and first step, its default first; of docleak's own solver the second number is the
#: length of history.
SETTINGS, BOUNDED = ((0.2, 0.1), (2e-3, 0.1)), ((0.2, 50.0), (2e-3, 50.0))
#: A setting is chosen on the picture before the first that counts. docleak returns the picture with the least whole
#: objective, as breaching does: of this network's gradient the distance alone hardly tells a picture from its start.
JOB: dict[str, Any] = {"case": 1, "budget": 40, "first": 2, "examples": 6, "keep": "objective"}
SIDES = {"breaching": SETTINGS, "docleak": SETTINGS, "docleak, own solver": BOUNDED}


def measure(peer: str, source: str) -> dict[str, Any]:
    """Side -> likeness of each picture, processor seconds a picture, peak memory, and the setting."""
    return {
        side: ask(peer, "breaching_cases", {**JOB, "side": side, "settings": settings}, {}, with_docleak=True)[0]
        for side, settings in SIDES.items()
    }


def rows(numbers: dict[str, Any]) -> list[Row]:
    """docleak with breaching's steps, and with its own solver; then the time of a step."""
    budget = f"{JOB['budget']} gradients of 24,000, best of {len(SETTINGS)} settings"
    name, model = "1, single image", "ConvNet, one picture of 32 x 32"
    return [
        *(row_of(name, model, budget, f"PSNR, dB, median ({what})", numbers, side)
          for side, what in (("docleak", "same steps"), ("docleak, own solver", "own solver"))),
        time_of(name, model, JOB["budget"], numbers),
    ]  # fmt: skip
