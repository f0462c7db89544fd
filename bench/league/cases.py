"""docleak beside breaching 0.1.2 (MIT) on breaching's own cases: its configuration, model, loss and attack.

    python3 -m venv BREACH && BREACH/bin/pip install torch==2.13.0+cpu numpy scipy pandas tqdm pillow transformers \\
        hydra-core==1.3.2 antlr4-python3-runtime==4.9.3 scikit-image scikit-learn threadpoolctl rapidfuzz typer \\
        jinja2 filelock cloudpickle pydantic rich
    BREACH/bin/pip install --no-deps breaching==0.1.2 torchvision==0.28.0 lpips
    python -m bench.league cases --peer BREACH/bin/python

Every side is a process of its own in that environment. The data sets of the cases are not to be had: weights are
random, pictures are docleak's scenes, tokens are drawn. What is smaller than in the case is said in its row.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from bench.league.ask import ask
from bench.league.auditing import verdict
from docleak.metrics import Estimate
from docleak.metrics.estimate import ratio_interval
from docleak.report.table import Row

LINEAR = {"case": 0, "classes": 20, "examples": 6, "first": 0}
CAUSAL = {"case": 10, "vocabulary": 500, "tokens": 12, "budget": 300, "examples": 6, "first": 0}
MASKED = {**CAUSAL, "case": 9, "width": 96, "hidden": 0.15}


def measure(peer: str, source: str) -> dict[str, Any]:
    """Case -> side -> likeness or right tokens of each example, processor seconds an example, peak memory."""

    def asked(side: str, job: dict[str, Any]) -> dict[str, Any]:
        return ask(peer, "breaching_cases", {**job, "side": side}, {}, with_docleak=True)[0]

    return {
        name: {side: asked(side, job) for side in ("breaching", "docleak")}
        for name, job in (("0", LINEAR), ("9", MASKED), ("9, none hidden", {**MASKED, "hidden": 0.0}), ("10", CAUSAL))
    }


def rows(numbers: dict[str, Any]) -> list[Row]:
    """By case."""
    classes, tokens = LINEAR["classes"], CAUSAL["tokens"]
    asked = f"one sequence of {tokens} tokens of 32, vocabulary {CAUSAL['vocabulary']} of"
    budget = f"TAG, {CAUSAL['budget']} steps of 1,000; docleak: algebra"
    right = f"tokens at their place, of {tokens}, mean"
    return [
        row_of("0, sanity check", f"linear model, one picture of 224 x 224, {classes} classes of 1,000", "algebra",
               "PSNR, dB, median (120 at most)", numbers["0"], "docleak"),
        row_of("9, masked language model", f"BERT of two layers of {MASKED['width']}, {asked} 30,522", budget, right,
               numbers["9"], "docleak"),
        row_of("9, every token a label", f"BERT of two layers of {MASKED['width']}, {asked} 30,522", budget, right,
               numbers["9, none hidden"], "docleak"),
        row_of("10, causal language model", f"transformer3, {asked} 50,257", budget, right,
               numbers["10"], "docleak"),
    ]  # fmt: skip


def row_of(case: str, model: str, budget: str, measure: str, sides: dict[str, Any], side: str) -> Row:
    """A side of docleak's beside breaching."""
    theirs, ours = sides["breaching"], sides[side]
    gained = np.array(ours["values"]) - np.array(theirs["values"])
    low, high = ratio_interval(gained, np.ones(len(gained), np.int64), np.random.default_rng(0), 0.95, 2000, False)
    middle = statistics.mean if "mean" in measure else statistics.median
    return Row(peer_of(case), {
        "case": model, "budget": budget, "measure": measure, "theirs": f"{middle(theirs['values']):.1f}",
        "ours": f"{middle(ours['values']):.1f}",
        "difference": f"{Estimate(float(gained.mean()), low, high, len(gained)).text(2, signed=True)}; "
                      f"{ours['seconds']:.3g} s, theirs {theirs['seconds']:.3g} s",
        "memory": f"{theirs['peak_mib']:.0f}, {ours['peak_mib']:.0f}", "n": len(gained),
        "verdict": "equal" if not gained.any() else verdict(low, high),
    })  # fmt: skip


def time_of(case: str, model: str, steps: int, sides: dict[str, Any]) -> Row:
    """The processor's milliseconds a step of both sides with the same steps, by examples."""
    theirs, ours = (1e3 * np.array(sides[side]["each"]) / steps for side in ("breaching", "docleak"))
    low, middle, high = np.quantile(ours / theirs, (0.25, 0.5, 0.75)).tolist()
    return Row(peer_of(case), {
        "case": model, "budget": "a step", "measure": "the processor's milliseconds, median",
        "theirs": f"{np.median(theirs):.1f}", "ours": f"{np.median(ours):.1f}",
        "difference": f"x {middle:.2f}, quartiles {low:.2f} to {high:.2f}",
        "memory": f"{sides['breaching']['peak_mib']:.0f}, {sides['docleak']['peak_mib']:.0f}", "n": len(ours),
        "verdict": verdict(-high, -low, level=-1.0),
    })  # fmt: skip


def peer_of(case: str) -> str:
    """A case by its number is breaching's."""
    return f"breaching, case {case}" if case[:1].isdigit() else case
