"""breaching 0.1.2's cases 4 and 6: several pictures in one update, and in one gradient; both by Inverting Gradients.

python -m bench.league batches --peer BREACH/bin/python    (bench.league.cases says how to make the environment)

Case 4's client makes four steps, each on one of its four pictures, at a rate of 0.001; case 6's one gradient is of many
pictures. Labels are told to both sides. Networks and pictures are smaller than the cases', as their rows say.
"""

from __future__ import annotations

from typing import Any

from bench.league.ask import ask
from bench.league.cases import row_of, time_of
from bench.league.convnet import SIDES
from docleak.report.table import Row

NETWORK = "resnet-tiny"
#: A setting is chosen on the client before the first that counts; both sides return the least whole objective.
JOBS = {
    "4": {
        "case": 4,
        "budget": 60,
        "first": 1,
        "examples": 6,
        "pictures": 4,
        "rate": 1e-3,
        "network": NETWORK,
        "keep": "objective",
    },
    "6": {"case": 6, "budget": 100, "first": 1, "examples": 6, "pictures": 8, "network": NETWORK, "keep": "objective"},
}
NAMES = {
    "4": ("4, small federated averaging", "4 pictures of 32 x 32 (of 224 x 224 and ResNet-18), 4 steps of one"),
    "6": ("6, large batch", "8 pictures of 32 x 32 at once (of 100 and ResNet-32-10)"),
}


def measure(peer: str, source: str) -> dict[str, Any]:
    """Case -> side -> mean likeness of each client's pictures, processor seconds a client, peak memory, the setting."""

    def asked(side: str, job: dict[str, Any], settings: Any) -> dict[str, Any]:
        return ask(peer, "breaching_cases", {**job, "side": side, "settings": settings}, {}, with_docleak=True)[0]

    return {case: {side: asked(side, job, settings) for side, settings in SIDES.items()} for case, job in JOBS.items()}


def rows(numbers: dict[str, Any]) -> list[Row]:
    """docleak with breaching's steps, and with its own solver; then the time of a step."""
    table = []
    for case, sides in numbers.items():
        name, pictures = NAMES[case]
        model, steps = f"{NETWORK}, {pictures}", JOBS[case]["budget"]
        budget = f"{steps} gradients of 24,000, best of 2 settings"
        table += [
            row_of(name, model, budget, f"PSNR, dB, median of clients ({what})", sides, side)
            for side, what in (("docleak", "same steps"), ("docleak, own solver", "own solver"))
        ]
        table.append(time_of(name, model, int(str(steps)), sides))
    return table
