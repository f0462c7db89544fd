"""What per-provider clipping costs on top of the same AdamW steps, in time and memory.

Time: the same local runs over the same providers of the tiny VT5, pass by pass in turns. The private pass goes back to
the global weights before each provider, and clips and adds up what changed. Memory: the peak of a process that makes a
client's round with a VT5 large enough for its weights to fill it, against the same with plain local training.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from bench.evaluation import most_memory
from docleak.documents.page import Page
from docleak.documents.synthetic import make_pages
from docleak.models import load_model
from docleak.models.base import DocumentModel, trainable
from docleak.models.vt5 import VT5
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated.local import parameters_of, set_parameters, train_in_place, train_locally
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.private.clipping import clipped_sum
from docleak.training.private.rounds import client_round

PROVIDERS = 6
PAGES = 2
PASSES = 9
#: Clipping may cost this much more than the bare steps, and hold so many more copies of the trainable weights.
TARGET = 1.15
TARGET_COPIES = 1.0
LOCAL = LocalPlan(batch_size=8, learning_rate=2e-4, dropout=False)
#: Of the process whose memory is measured: float32 weights, then bytes per weight.
LARGE = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_heads": 12}
WORD = 4


def measure() -> dict[str, float]:
    """CPU milliseconds per provider, bare and private, and their ratio; extra copies for 2 and for 6 providers."""
    bare, private = _passes(load_model("vt5-start"), _groups(PROVIDERS))
    ratios = [mine / other for mine, other in zip(private, bare, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    plain, *peaks = (_peak_in_fresh_process(providers) for providers in (0, 2, PROVIDERS))
    copies = [(peak["bytes"] - plain["bytes"]) / plain["weights"] / WORD for peak in peaks]
    return {
        "bare_ms": 1e3 * statistics.median(bare) / PROVIDERS,
        "private_ms": 1e3 * statistics.median(private) / PROVIDERS,
        "ratio": statistics.median(ratios),
        "ratio_lower_quartile": low,
        "ratio_upper_quartile": high,
        "passes": PASSES,
        "target": TARGET,
        "weights": plain["weights"],
        "copies_2_providers": copies[0],
        f"copies_{PROVIDERS}_providers": copies[1],
        "target_copies": TARGET_COPIES,
    }


def _groups(providers: int) -> list[list[Page]]:
    pages = make_pages(providers * PAGES, seed=0, split="train", size=(224, 224))
    return [[replace(page, provider=str(i)) for page in pages[PAGES * i : PAGES * (i + 1)]] for i in range(providers)]


def _passes(model: DocumentModel, groups: list[list[Page]]) -> tuple[list[float], list[float]]:
    """CPU seconds of passes over all providers; the first pair warms up."""
    weights = {name: p.detach().clone() for name, p in trainable(model.module)}

    def runs() -> list[Callable[[], object]]:
        return [
            partial(train_in_place, model, group, LOCAL, client="bench", rng=np.random.default_rng(0))
            for group in groups
        ]

    def bare() -> None:
        for run in runs():
            run()

    def private() -> None:
        clipped_sum(model.module, weights, runs(), 0.5)

    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(PASSES + 1):
        for times, act in zip(seconds, (bare, private), strict=True):
            started = time.process_time()
            act()
            times.append(time.process_time() - started)
        set_parameters(model, {name: value.numpy() for name, value in weights.items()})
    return seconds[0][1:], seconds[1][1:]


def _peak_in_fresh_process(providers: int) -> dict[str, int]:
    """Freed memory goes back to the system at once, so that the peak is of what is held."""
    command = [sys.executable, "-m", "bench.private", str(providers)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    peak, weights = map(int, out.split())
    return {"bytes": peak, "weights": weights}


def _one_round(providers: int) -> None:
    """One client's round as a silo makes it, from the arrays it received; 0 providers: plain local training."""
    torch.set_num_threads(1)
    small = load_model("vt5-start")
    assert isinstance(small, VT5) and isinstance(small.config.text, dict)
    config = replace(small.config, text={**small.config.text, **LARGE})
    model = VT5(VT5.build(config), small.tokenizer, config, name="vt5-large")
    received = parameters_of(model)
    page = make_pages(1, seed=0, split="train", size=(224, 224))[0]  # one question, so that all steps are alike
    pages = [replace(page, questions=page.questions[:1], provider=str(i)) for i in range(max(providers, 1))]
    local = replace(LOCAL, batch_size=1, epochs=2)
    randomness = Randomness.fresh()  # here, since it loads a library
    if providers:
        plan = DpPlan(Mechanism(1.0, 1), clip_norm=0.5, denominator=providers, delta=1e-5)
        client_round(
            model, pages, plan, local, weights=received, client="bench", clients_drawn=1,
            randomness=randomness,
        )  # fmt: skip
    else:
        set_parameters(model, received)
        train_locally(model, pages, local, client="bench", rng=np.random.default_rng(0))
    print(most_memory(), sum(array.size for array in received.values()))


def as_markdown(row: dict[str, float]) -> str:
    """The numbers as a section for people."""
    spread = f"{row['ratio_lower_quartile']:.3f}-{row['ratio_upper_quartile']:.3f}"
    copies = max(row["copies_2_providers"], row[f"copies_{PROVIDERS}_providers"])
    met = row["ratio"] <= row["target"] and round(copies, 2) <= row["target_copies"]  # one, but for kilobytes
    return "\n".join(
        [
            "",
            "## Provider-level differential privacy",
            "",
            "| per-provider clipping | measured | target |",
            "|---|---|---|",
            f"| CPU ms per provider, bare steps: {row['bare_ms']:.1f} | {row['private_ms']:.1f} | |",
            f"| ratio (quartiles) | {row['ratio']:.3f} ({spread}) | {row['target']:.2f} |",
            f"| more copies of {row['weights'] / 1e6:.0f} M weights, 2 providers | {row['copies_2_providers']:.2f} "
            f"| {row['target_copies']:.1f} |",
            f"| the same, {PROVIDERS} providers | {row[f'copies_{PROVIDERS}_providers']:.2f} "
            f"| {row['target_copies']:.1f} |",
            "",
            f"Tiny VT5, {row['passes']:.0f} passes in turns on one thread (`bench/private.py`); "
            f"{'met' if met else 'missed'}.",
            "",
        ]
    )


if __name__ == "__main__":
    _one_round(int(sys.argv[1]))
