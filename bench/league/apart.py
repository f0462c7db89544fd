"""Comparisons that bench and scripts make in one process, each side in one of its own, with its peak memory.

python -m bench.league apart --peer BREACH/bin/python --source CHECKOUT    of insait-institute/dager-gradient-inversion
(bench.league.cases says how to make the environment)

breaching's Inverting Gradients on one picture, with the settings that ``python -m bench beside_breaching`` chose on two
other pictures; its reading of its imprint block, as ``python -m bench imprint``; DAGER's span of the first layer, as
``scripts/beside_dager.py`` has it: its functions take PyTorch alone, and run in docleak's environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from bench.__main__ import RESULTS
from bench.league.ask import ask
from bench.league.cases import row_of, time_of
from docleak.report.table import Row

BUDGET = 200
#: Network -> how many pictures; of ResNet-18 three steps of one, for its memory alone.
PICTURES = {"resnet-tiny": 24, "lenet5": 6, "resnet18": 1}
BINS, BATCHES, SEEDS = (16, 64), 5, 12
MODELS = {"gpt2": "GPT-2", "bert": "BERT"}


def measure(peer: str, source: str) -> dict[str, Any]:
    """Kind -> case -> side -> values, processor seconds of each, peak memory."""

    def breaching(sides: tuple[str, ...], job: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        given = {side: {**job, "side": side, **({"settings": [settings[side]]} if settings else {})} for side in sides}
        return {side: ask(peer, "breaching_cases", one, {}, with_docleak=True)[0] for side, one in given.items()}

    chosen = json.loads((RESULTS / "bench.json").read_text(encoding="utf-8"))["beside_breaching"]["numbers"]["likeness"]
    pictures = {}
    for network, count in PICTURES.items():
        told = chosen.get(network)
        settings = {
            side.removesuffix(", same steps"): told[side]["setting"] if told else (0.2, 0.1)
            for side in ("breaching", "docleak, same steps", *(["docleak, own solver"] if told else []))
        }
        job = {"case": "picture", "network": network, "budget": BUDGET if told else 3, "first": 2, "examples": count}
        pictures[network] = breaching(tuple(settings), job, settings)
    sides, spans = ("breaching", "docleak"), {"seeds": SEEDS, "source": source}
    return {
        "pictures": pictures,
        "imprint": {
            str(bins): breaching(sides, {"case": "imprint", "bins": bins, "first": 0, "examples": BATCHES}, {})
            for bins in BINS
        },
        "spans": {
            model: {
                side: ask(sys.executable, "dager_spans", {**spans, "side": side, "model": model}, {})[0]
                for side in ("DAGER", "docleak")
            } for model in MODELS
        },
    }  # fmt: skip


def rows(numbers: dict[str, Any]) -> list[Row]:
    """Pictures by breaching's steps and docleak's own solver; time of a step where all pictures took it; algebra."""
    table, peer = [], "breaching, Inverting Gradients"
    for network, sides in numbers["pictures"].items():
        model, budget = f"{network}, one picture of 32 x 32", f"{BUDGET} gradients, best of 8 settings"
        for side, what in (("docleak", "same steps"), ("docleak, own solver", "own solver")):
            if side in sides and PICTURES[network] > 1:
                table.append(row_of(peer, model, budget, f"PSNR, dB, median ({what})", sides, side))
        if PICTURES[network] > 1:
            table.append(time_of(peer, model, BUDGET, sides))
    for bins, sides in numbers["imprint"].items():
        model = f"ResNet-18 behind its block of {bins} bins, 8 pictures"
        table.append(_counted("breaching, imprint", model, "pictures read (40 dB)", 8, sides))
    for model, sides in numbers["spans"].items():
        case = f"{MODELS[model]} with random weights, one sequence of 12 tokens"
        table.append(_counted("DAGER", case, "tokens read, less wrong ones", 12, sides))
    return table


def _counted(peer: str, case: str, measure: str, size: int, sides: dict[str, Any]) -> Row:
    """What both sides read by algebra, theirs first."""
    theirs, ours = sides.values()
    read = [f"{sum(side['values']):.0f} of {size * len(side['values'])}" for side in (theirs, ours)]
    return Row(peer, {
        "case": case, "budget": "algebra", "measure": measure, "theirs": read[0], "ours": read[1],
        "difference": f"{sum(ours['values']) - sum(theirs['values']):+.0f}; {ours['seconds']:.3g} s, theirs "
                      f"{theirs['seconds']:.3g} s",
        "memory": f"{theirs['peak_mib']:.0f}, {ours['peak_mib']:.0f}", "n": len(ours["values"]),
        "verdict": "equal" if ours["values"] == theirs["values"] else "cannot tell",
    })  # fmt: skip


def memory_of(numbers: Mapping[str, Any], network: str) -> str:
    """Peak MiB of both sides with the same steps; "-" where it was not measured."""
    sides = numbers.get("pictures", {}).get(network)
    return f"{sides['breaching']['peak_mib']:.0f}, {sides['docleak']['peak_mib']:.0f}" if sides else "-"
