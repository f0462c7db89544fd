"""docleak beside LeakPro's modular presets (Apache-2.0), on the same network, gradient and budget.

    python3 -m venv LEAK && LEAK/bin/pip install torch==2.13.0+cpu numpy scipy pandas pillow transformers opacus \\
        optuna torchmetrics pytorch-ignite scikit-learn pydantic loguru matplotlib seaborn dotmap
    LEAK/bin/pip install --no-deps torchvision==0.28.0
    python -m bench.league leakpro --peer LEAK/bin/python --source CHECKOUT    of aidotse/LeakPro

Every side is a process of its own in that environment, docleak's too. Each chooses the best of as many settings on
pictures that are not counted; the budget is gradients. LeakPro keeps the candidate with the least loss. Its presets for
batch statistics (Huang, GIA, See Through Gradients) take a network trained with batch normalisation, which is not here.
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

BUDGET, TUNED_ON, PICTURES = 200, 2, 12
#: LeakPro's total variation is breaching's: the mean difference of neighbours; its own default is 1e-3.
VARIATIONS = (1e-1, 1e-2, 1e-3, 1e-4)
FIXED = ((0.0, 0.0),)
INVERTING = {
    "leakpro": [(v, s) for v in VARIATIONS for s in FIRST_STEPS[:1]],
    "docleak, same steps": [(v, s) for v in VARIATIONS for s in FIRST_STEPS[:1]],
    "docleak, own solver": [(v, float(h)) for v in VARIATIONS for h in HISTORIES[:1]],
}
#: (name, its preset, network, settings by side); iDLG has none, and docleak's own solver is Inverting Gradients' above.
CASES = (
    ("Inverting Gradients", "inverting_gradients_attack", "lenet5", INVERTING),
    ("Inverting Gradients", "inverting_gradients_attack", "resnet-tiny", INVERTING),
    ("iDLG", "idlg_attack", "lenet5", {"leakpro": FIXED, "docleak, same steps": FIXED}),
)


def measure(peer: str, source: str) -> dict[str, Any]:
    """Preset and network -> side -> setting, each picture's PSNR and processor milliseconds a gradient, peak memory."""
    job = {"budget": BUDGET, "tuned_on": TUNED_ON, "pictures": PICTURES, "source": source}

    def asked(preset: str, network: str, side: str, settings: Any) -> dict[str, Any]:
        given = {**job, "preset": preset, "network": network, "side": side, "settings": settings}
        return ask(peer, "leakpro_pictures", given, {}, with_docleak=True)[0]

    return {
        f"{name}, {network}": {side: asked(preset, network, side, settings) for side, settings in sides.items()}
        for name, preset, network, sides in CASES
    }


def rows(numbers: dict[str, Any]) -> list[Row]:
    """Likeness by pairs of pictures, then the time of a gradient with the same steps."""
    table: list[Row] = []
    for name, sides in numbers.items():
        attack, network = name.split(", ")
        table += _rows(attack, network, sides)
    return table


def _rows(attack: str, network: str, sides: dict[str, Any]) -> list[Row]:
    theirs, peer = sides["leakpro"], f"LeakPro, {attack}"
    case, count = f"{network}, one picture of 32 x 32", len(theirs["psnr"])
    table = []
    for name, ours in list(sides.items())[1:]:
        gained = np.array(ours["psnr"]) - np.array(theirs["psnr"])
        low, high = ratio_interval(gained, np.ones(len(gained), np.int64), np.random.default_rng(0), 0.95, 2000, False)
        table.append(Row(peer, {
            "case": case, "n": count,
            "budget": f"{BUDGET} gradients" + f", best of {ours['tried']} settings" * (ours["tried"] > 1),
            "measure": f"PSNR, dB, median ({name.partition(', ')[2]})",
            "theirs": f"{statistics.median(theirs['psnr']):.1f}", "ours": f"{statistics.median(ours['psnr']):.1f}",
            "difference": f"{Estimate(float(gained.mean()), low, high, len(gained)).text(2, signed=True)}; "
                          f"{BUDGET * np.mean(ours['ms']) / 1e3:.2f} s, theirs "
                          f"{BUDGET * np.mean(theirs['ms']) / 1e3:.2f} s",
            "memory": f"{theirs['peak_mib']:.0f}, {ours['peak_mib']:.0f}", "verdict": verdict(low, high),
        }))  # fmt: skip
    other, mine = (np.array(sides[side]["ms"]) for side in ("leakpro", "docleak, same steps"))
    low, middle, high = np.quantile(mine / other, (0.25, 0.5, 0.75)).tolist()
    return [*table, Row(peer, {
        "case": case, "n": count, "budget": "a gradient", "measure": "the processor's milliseconds, median",
        "theirs": f"{np.median(other):.1f}", "ours": f"{np.median(mine):.1f}",
        "difference": f"x {middle:.2f}, quartiles {low:.2f} to {high:.2f}",
        "memory": table[0].values["memory"], "verdict": verdict(-high, -low, level=-1.0),
    })]  # fmt: skip
