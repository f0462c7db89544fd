"""What the embedded Flower engine costs on top of a bare loop over the same silos, and docleak's local training.

Engine: rounds over three silos of synthetic invoices, by ``train_embedded`` and by a loop that calls the same local
rounds and the same server step, in turns; CPU seconds, so that other processes do not count. Local training:
``train_in_place`` against a plain PyTorch loop over the same batches. Memory: the peak of a process that trains one
round with a VT5 whose weights fill it, against one that makes a single client's round.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bench.evaluation import most_memory
from docleak.documents.division import divide
from docleak.documents.page import Page
from docleak.documents.silos import write_silos
from docleak.models import load_model
from docleak.models.base import DocumentModel, pixels_of, trainable
from docleak.models.vt5 import VT5
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import ServerState, step
from docleak.training.federated.local import parameters_of, set_parameters, train_in_place, train_locally
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.party import model_of, train_round
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.silo import open_party

SILOS, DOCUMENTS, STEPS, ROUNDS, PASSES = 3, 90, 25, 1, 5
#: Passes of local training and the steps of each: many short ones, since neighbours on a busy machine differ by 10 %.
LOCAL_PASSES, LOCAL_STEPS = 30, 2
TARGET_OVERHEAD, TARGET_THROUGHPUT, TARGET_COPIES = 0.05, 0.95, 2.0
FEDERATION = Federation(rounds=ROUNDS, holdout=0.0, local=LocalPlan(max_steps=STEPS, batch_size=8, dropout=False))
#: Of the process whose memory is measured.
LARGE = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_heads": 12}
WORD = 4


def measure() -> dict[str, float]:
    """Overhead of the engine, throughput of local training, copies of the weights held beyond one client's need."""
    from docleak.training.federated.flower.embedded import train_embedded

    with tempfile.TemporaryDirectory() as folder:
        silos = _silos(Path(folder) / "silos", DOCUMENTS)
        engine, bare = [], []
        for number in range(PASSES):
            began = time.process_time()
            train_embedded(FederatedRun.open(Path(folder) / str(number), FEDERATION), silos, evaluate_every=0)
            engine.append(time.process_time() - began)
            began = time.process_time()
            _bare(silos)
            bare.append(time.process_time() - began)
        pages = [open_party(path, FEDERATION).training[i] for path in silos.values() for i in range(8)]
    ours, plain = _local(load_model("vt5-start"), pages)
    low, throughput, high = statistics.quantiles((other / mine for mine, other in zip(ours, plain, strict=True)), n=4)
    need, (first, second) = _peak(0), (_peak(2), _peak(4))
    copies = [(peak["bytes"] - need["bytes"]) / need["weights"] / WORD for peak in (first, second)]
    return {
        "round_seconds": statistics.median(bare) / ROUNDS,
        "overhead": statistics.median(mine / other - 1 for mine, other in zip(engine, bare, strict=True)),
        "target_overhead": TARGET_OVERHEAD,
        "throughput": throughput,
        "throughput_lower_quartile": low,
        "throughput_upper_quartile": high,
        "target_throughput": TARGET_THROUGHPUT,
        "weights": need["weights"],
        "copies_2_silos": copies[0],
        "copies_4_silos": copies[1],
        "target_copies": TARGET_COPIES,
    }


def _silos(out: Path, documents: int, silos: int = SILOS) -> dict[str, Path]:
    division = divide(["synthetic"], silos, by="providers", seed=0, count=documents)
    write_silos(division.shares, division.sources, out, by="providers", seed=0)
    return {item.name: item for item in sorted(out.iterdir())}


def _bare(silos: dict[str, Path]) -> None:
    """The same training without an engine: no messages, no bytes, nothing on disk."""
    model = load_model(FEDERATION.model)
    state = ServerState.of(parameters_of(model))
    for number in range(1, ROUNDS + 1):
        weights = {name: value.astype(np.float32) for name, value in state.parameters.items()}
        rounds = [
            train_round(open_party(path, FEDERATION), model, weights, FEDERATION, number) for path in silos.values()
        ]
        state = step(state, [done.update for done in rounds], FEDERATION.server)


def _local(model: DocumentModel, pages: list[Page]) -> tuple[list[float], list[float]]:
    """CPU seconds of the same local steps, by docleak and by a plain loop, which begin by turns; two passes warm up."""
    plan = replace(FEDERATION.local, max_steps=LOCAL_STEPS)
    start = parameters_of(model)
    batches: tuple[tuple[int, ...], ...] = ()

    def ours() -> None:
        nonlocal batches
        batches = train_in_place(model, pages, plan, client="bench", rng=np.random.default_rng(0)).batches

    def plain() -> None:
        _plain(model, pages, plan, batches)

    seconds: dict[Callable[[], None], list[float]] = {ours: [], plain: []}
    for number in range(2 + LOCAL_PASSES):
        for work in (ours, plain) if number % 2 == 0 else (plain, ours):
            set_parameters(model, start)
            began = time.process_time()
            work()
            seconds[work].append(time.process_time() - began)
    return seconds[ours][2:], seconds[plain][2:]


def _plain(model: DocumentModel, pages: list[Page], plan: LocalPlan, batches: tuple[tuple[int, ...], ...]) -> None:
    examples = [(page, question) for page in pages for question in page.questions if question.answers]
    parameters = [p for _, p in trainable(model.module)]
    optimiser = torch.optim.AdamW(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay)
    model.module.eval()
    for batch in batches:
        chosen = [examples[i] for i in batch]
        distinct = list({id(page): page for page, _ in chosen}.values())
        fitted = {id(page): model.fit(page) for page in distinct}
        pixels = torch.stack([pixels_of(fitted[id(page)].image) for page in distinct])
        inputs = [model.encode(fitted[id(page)], question) for page, question in chosen]
        owners = [next(i for i, other in enumerate(distinct) if other is page) for page, _ in chosen]
        loss = model.loss(pixels, inputs, owners).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        float(loss.detach())


def _peak(silos: int) -> dict[str, int]:
    """Freed memory goes back to the system at once, so that the peak is of what is held."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "bench.federated", str(silos)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    peak, weights = map(int, out.split())
    return {"bytes": peak, "weights": weights}


def _one_round(silos: int) -> None:
    """One round of a large VT5: of ``silos`` silos on the engine, or a single client's training without it."""
    torch.set_num_threads(1)
    from docleak.training.federated.flower.embedded import train_embedded

    with tempfile.TemporaryDirectory() as folder:
        small = load_model("vt5-start")
        assert isinstance(small, VT5) and isinstance(small.config.text, dict)
        config = replace(small.config, text={**small.config.text, **LARGE})
        VT5(VT5.build(config), small.tokenizer, config, name="large").save(f"{folder}/model")
        federation = Federation(
            f"{folder}/model", 1, holdout=0.0, local=LocalPlan(max_steps=2, batch_size=1, dropout=False)
        )
        folders = _silos(Path(folder) / "silos", 2 * max(silos, 1), max(silos, 1))
        if silos:
            train_embedded(FederatedRun.open(Path(folder) / "run", federation), folders, evaluate_every=0)
            weights = sum(p.numel() for _, p in trainable(model_of(federation, "cpu").module))
        else:
            model = load_model(federation.model)
            (path,) = folders.values()
            train_locally(
                model, open_party(path, federation).training, federation.local, client="bench",
                rng=np.random.default_rng(0),
            )  # fmt: skip
            weights = sum(p.numel() for _, p in trainable(model.module))
    print(most_memory(), weights)


def as_markdown(row: dict[str, float]) -> str:
    """The numbers as a section for people."""

    def met(held: bool) -> str:
        return "met" if held else "missed"

    copies = max(row["copies_2_silos"], row["copies_4_silos"])
    spread = f"{row['throughput_lower_quartile']:.3f}-{row['throughput_upper_quartile']:.3f}"
    throughput = f"{row['throughput']:.3f} ({spread})"
    return "\n".join(
        [
            "",
            "## Federated training",
            "",
            "| embedded engine | measured | target |",
            "|---|---|---|",
            f"| overhead over a bare loop, a training of one round of {row['round_seconds']:.0f} CPU seconds | "
            f"{row['overhead']:.1%} | "
            f"{met(row['overhead'] <= row['target_overhead'])}: {row['target_overhead']:.0%} |",
            f"| local training, throughput beside a plain PyTorch loop (quartiles) | {throughput} | "
            f"{met(row['throughput'] >= row['target_throughput'])}: {row['target_throughput']:.2f} |",
            f"| copies of {row['weights'] / 1e6:.0f} M float32 weights beyond one client's training, 2 silos and 4 | "
            f"{row['copies_2_silos']:.1f} and {row['copies_4_silos']:.1f} | {met(copies <= row['target_copies'])}: "
            f"{row['target_copies']:.0f} |",
            "",
            "Tiny VT5, three silos, one thread. The overhead holds what a training pays once, whatever its rounds:",
            "each silo's folder is opened twice more, for its meeting and for whose data it holds",
            "(`bench/federated.py`).",
            "",
        ]
    )


if __name__ == "__main__":
    _one_round(int(sys.argv[1]))
