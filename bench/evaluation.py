"""What one evaluation of ``gi-dqa`` costs: seconds, matrix products, share of what the machine can multiply, memory.

An evaluation is forward pass, gradient over the tensors that are matched, and the double backward pass to the pixels.
Each size is measured in a process of its own, on one page, random weights at the published sizes. FLOP are those of
matrix products and convolutions, counted by PyTorch as they are called; the machine's peak is a square matrix product
in the same process. Beside it runs the bare loop of ``bench/attack.py``, which matches all tensors, by turns with
docleak's engine doing the same.

    python -m bench.evaluation SIZE     one of SIZES, as JSON
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from bench.attack import RELATIVE_ADAM, clock, compared
from docleak.attacks.gradients import GradientAttack, gi_dqa
from docleak.attacks.gradients.solvers import Objective
from docleak.documents.synthetic import make_pages
from docleak.models import load_model
from docleak.studies.gradient.case import Case, build_case
from docleak.studies.gradient.config import Exposure

#: Size -> checkpoint, width and height of the page (None: the checkpoint's own), timed evaluations.
SIZES: dict[str, tuple[str, tuple[int, int] | None, int]] = {
    "Donut (tiny)": ("donut-start", None, 15),
    "Donut (tiny), 384 x 512": ("donut-start", (384, 512), 7),
    "Donut (tiny), 768 x 1024": ("donut-start", (768, 1024), 3),
    "LayoutLMv3 (tiny)": ("layoutlmv3-start", None, 15),
    "VT5 (tiny)": ("vt5-start", None, 15),
    "LayoutLMv3-base": ("make:layoutlmv3-base,spread=yes", None, 5),
    "Donut-base, 320 x 320": ("make:donut-base", (320, 320), 5),
}
#: Of these the engine takes turns with a bare loop; the ratio may be this.
BESIDE_BARE = {"Donut (tiny)": 1.10, "LayoutLMv3-base": 1.05, "Donut-base, 320 x 320": 1.05}
#: Share of the machine's peak that one evaluation is to have.
TARGETS = {"Donut (tiny)": 0.45, "LayoutLMv3 (tiny)": 0.60, "VT5 (tiny)": 0.35}
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "convolution_backward", "matmul")
SIDE, OPERATIONS = 1536, 5
GIGA = 1e9


@dataclass
class Watching:
    """A solver that evaluates the objective where it is, and keeps what that took."""

    timed: int
    counted: bool = True  # products are: the counter cannot see recomputed layers
    seconds: list[float] = field(default_factory=list)
    flop: float = 0.0
    operations: dict[str, float] = field(default_factory=dict)  # shares of ``profiled``; on a GPU of kernels
    profiled: float = 0.0  # seconds

    def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor:
        """Evaluate once to warm up, once counting products, once in the profiler, then ``timed`` times."""
        objective(start, 0.0)
        if self.counted:
            with FlopCounterMode(display=False) as counter:
                objective(start, 0.0)
            self.flop = float(counter.get_total_flops())
        on_gpu = start.is_cuda
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
            objective(start, 0.0)
            clock(start.device)
        events = seen.key_averages()
        spent = {e.key.removeprefix("aten::"): e.self_device_time_total if on_gpu else e.self_cpu_time_total
                 for e in events}  # fmt: skip
        self.profiled = sum(spent.values()) / 1e6
        self.operations = {name: share / 1e6 / self.profiled for name, share in spent.items()}
        for _ in range(self.timed):
            self.seconds.append(seconds_of(lambda: objective(start, 0.0), start.device))
        return start


def measure() -> dict[str, dict[str, Any]]:
    """Size -> what an evaluation of it takes, each from a process of its own."""
    costs = {}
    for size in SIZES:
        print(f"  {size}", file=sys.stderr)
        done = subprocess.run([sys.executable, "-m", "bench.evaluation", size], stdout=subprocess.PIPE, check=True)
        costs[size] = json.loads(done.stdout)
    return costs


def of_size(size: str) -> dict[str, Any]:
    """Seconds (median), FLOP, GFLOP/s of the evaluation and of the machine, shares of time, GB at the peak."""
    source, pixels, timed = SIZES[size]
    model = load_model(source, image_size=pixels)
    case = build_case(model, [model.fit(make_pages(1, seed=0)[0])], Exposure(), seed=0)
    width, height = model.image_size
    peak = multiplied()
    took = watched(gi_dqa.ATTACK, case, timed)
    seconds = statistics.median(took.seconds)
    products = sum(
        took.operations.get(name, 0.0) for name in took.operations if name.removeprefix("mkldnn_") in PRODUCTS
    )
    largest = sorted(took.operations.items(), key=lambda item: -item[1])[:OPERATIONS]
    cost = {
        "parameters": sum(p.numel() for p in model.module.parameters()), "width": width, "height": height,
        "seconds": seconds, "gflop": took.flop / GIGA, "gflop_per_second": took.flop / seconds / GIGA,
        "machine_gflop_per_second": max(peak, multiplied()), "products_share": products, "largest": dict(largest),
        "gb": most_memory() / GIGA,
    }  # fmt: skip
    if size in BESIDE_BARE:
        cost["bare"] = compared(RELATIVE_ADAM, case.view, case.knowledge, warmup=1, steps=timed)
    return cost


def watched(attack: GradientAttack, case: Case, timed: int) -> Watching:
    """The attack on ``case``, its solver a Watching."""
    solver = Watching(timed, counted=not attack.recompute)
    draws = 1 + attack.whitening.draws if attack.matching is None else 0
    watching = replace(attack, solver=solver)
    watching.run(case.view, case.knowledge, budget=draws + timed + 3, generator=torch.Generator().manual_seed(0))
    return solver


def multiplied(side: int = SIDE, device: str = "cpu", best_of: int = 7) -> float:
    """GFLOP/s of the product of two square matrices of ``side``, the best of some."""
    left, right = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    return 2 * side**3 / min(seconds_of(lambda: left @ right, left.device) for _ in range(best_of)) / GIGA


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """What ``work`` takes, on the device that does it."""
    began = clock(device)
    work()
    return clock(device) - began


def most_memory() -> int:
    """Bytes that this process had at most since its program began; Linux alone. What ``resource`` says is at least as
    much as the process had that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def as_markdown(rows: dict[str, dict[str, Any]]) -> str:
    """The numbers as a section for people."""
    heads = (
        "model", "parameters, M", "page", "seconds", "µs a pixel", "GFLOP", "GFLOP/s", "of the machine's", "target",
        "time in products", "their GFLOP/s", "other time is mostly in", "GB",
    )  # fmt: skip
    lines = ["", "## One evaluation of `gi-dqa`", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for size, row in rows.items():
        rate, products, target = row["gflop_per_second"], row["products_share"], TARGETS.get(size)
        share = rate / row["machine_gflop_per_second"]
        told = "" if target is None else f"{'met' if share >= target else 'missed'}: {target:.0%}"
        others = ", ".join(f"{name} {part:.0%}" for name, part in row["largest"].items() if not _is_product(name))
        cells = (
            size.partition(",")[0], f"{row['parameters'] / 1e6:,.1f}", f"{row['width']} x {row['height']}",
            f"{row['seconds']:.3g}", f"{1e6 * row['seconds'] / row['width'] / row['height']:.3g}",
            f"{row['gflop']:,.1f}", f"{rate:.0f}", f"{row['machine_gflop_per_second']:.0f}: {share:.0%}", told,
            f"{products:.0%}", f"{rate / products:.0f}", others, f"{row['gb']:.1f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Why a network 48 to 128 wide misses its target: a third to a half of its time is no matrix product but",
        "second derivatives taken number by number (attention, layer norms, GELU) and copies, and its products are of",
        "small matrices, which alone do not reach the machine's speed (the column behind their time). At the published",
        "sizes most of the time is products.", "",
        "Of a deep Donut only the tensors next to the pixels are matched. Of the same page, all tensors matched,",
        "and by turns with a bare loop:", "",
        "| model | docleak, s | bare loop, s | ratio (quartiles) | target |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for size, row in rows.items():
        if (bare := row.get("bare")) is not None:
            quartiles = f"{bare['ratio_lower_quartile']:.3f}-{bare['ratio_upper_quartile']:.3f}"
            target = BESIDE_BARE[size]
            met = f"{'met' if bare['ratio'] <= target else 'missed'}: {target:.2f}"
            took = f"{bare['engine_ms'] / 1e3:.3g} | {bare['bare_ms'] / 1e3:.3g}"
            lines.append(f"| {size} | {took} | {bare['ratio']:.3f} ({quartiles}) | {met} |")
    lines += ["", "One thread, one synthetic page, a process each (`bench/evaluation.py`).", ""]
    return "\n".join(lines)


def _is_product(name: str) -> bool:
    return name.removeprefix("mkldnn_") in PRODUCTS


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    print(json.dumps(of_size(sys.argv[1])))
