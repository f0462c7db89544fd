"""docleak's Inverting Gradients beside LeakPro's modular preset (Apache-2.0), on the same network, gradient and budget.

    python3 -m venv LEAK && LEAK/bin/pip install torch==2.13.0+cpu numpy scipy pandas pillow transformers opacus \\
        optuna torchmetrics pytorch-ignite scikit-learn pydantic loguru matplotlib seaborn dotmap
    LEAK/bin/pip install --no-deps torchvision==0.28.0
    python -m bench.league leakpro --peer LEAK/bin/python --source CHECKOUT    of aidotse/LeakPro

Every side is a process of its own in that environment, docleak's too. Each chooses the best of as many settings on
pictures that are not counted; the budget is gradients. LeakPro keeps the candidate with the least loss.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from bench.beside_breaching import FIRST_STEPS, HISTORIES
from bench.league.ask import ask
from bench.league.auditing import verdict
from docleak.metrics import Estimate
from docleak.metrics.estimate import ratio_interval
from docleak.report.table import Row

NETWORKS = ("lenet5",)
BUDGET, TUNED_ON, PICTURES = 200, 1, 4
#: LeakPro's total variation is breaching's: the mean difference of neighbours; its own default is 1e-3.
VARIATIONS = (1e-1, 1e-2, 1e-3, 1e-4)
SIDES = {
    "leakpro": [(v, s) for v in VARIATIONS for s in FIRST_STEPS[:1]],
    "docleak, same steps": [(v, s) for v in VARIATIONS for s in FIRST_STEPS[:1]],
    "docleak, own solver": [(v, float(h)) for v in VARIATIONS for h in HISTORIES[:1]],
}


def measure(peer: str, source: str) -> dict[str, Any]:
    """Network -> side -> setting, PSNR of each picture, processor milliseconds a gradient, peak memory."""
    job = {"budget": BUDGET, "tuned_on": TUNED_ON, "pictures": PICTURES, "source": source}
    return {
        network: {
            side: ask(peer, "leakpro_pictures", {**job, "network": network, "side": side, "settings": settings}, {},
                      with_docleak=True)[0] for side, settings in SIDES.items()
        } for network in NETWORKS
    }  # fmt: skip


def rows(numbers: dict[str, Any]) -> list[Row]:
    """Likeness by pairs of pictures, and milliseconds a gradient."""
    return [row for network, sides in numbers.items() for row in _rows("LeakPro, Inverting Gradients", network, sides)]


def _rows(peer: str, case: str, sides: dict[str, Any]) -> list[Row]:
    theirs, found = next(iter(sides.values())), []
    for name, ours in list(sides.items())[1:]:
        gained = np.array(ours["psnr"]) - np.array(theirs["psnr"])
        low, high = ratio_interval(gained, np.ones(len(gained), np.int64), np.random.default_rng(0), 0.95, 2000, False)
        ratio = ours["ms"] / theirs["ms"]
        found.append(Row(peer, {
            "case": f"{case}, one picture of 32 x 32",
            "budget": f"{BUDGET} gradients, best of {ours['tried']} settings",
            "measure": f"PSNR, dB, median ({name.partition(', ')[2]})",
            "theirs": f"{statistics.median(theirs['psnr']):.1f}", "ours": f"{statistics.median(ours['psnr']):.1f}",
            "difference": f"{Estimate(float(gained.mean()), low, high, len(gained)).text(2, signed=True)}; "
                          f"{ours['ms']:.1f} ms of the processor a gradient, theirs {theirs['ms']:.1f}: x {ratio:.2f}",
            "memory": f"{theirs['peak_mib']:.0f}, {ours['peak_mib']:.0f}", "n": len(gained),
            "verdict": verdict(low, high),
        }))  # fmt: skip
    return found
