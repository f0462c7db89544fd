"""What one evaluation of ``gi-dqa`` costs on a GPU at the published sizes, in float32 and in TF32.

TF32 rounds the factors of matrix products and convolutions to 10 binary digits. Seconds, FLOP and memory are measured
as ``bench/evaluation.py`` does, on the same pages; the machine's peak is a square matrix product in the same precision
in the same process. What TF32 costs the adversary is how far the page's own gradient moves with it, relative to the
gradient in float32: a distance under which no candidate can be told from the page. The bare loop takes turns with the
engine, both matching all tensors.

    python -m bench accelerator               every size and precision, on the first GPU
    python -m bench.accelerator SIZE           one size in every precision, as JSON
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from bench.attack import RELATIVE_ADAM, compared
from bench.evaluation import GIGA, multiplied, watched
from docleak.attacks.gradients import gi_dqa
from docleak.documents.synthetic import make_pages
from docleak.models import load_model, trainable
from docleak.studies.gradient.case import Case, build_case
from docleak.studies.gradient.config import Exposure
from docleak.training.update import client_gradient

#: Size -> checkpoint, width and height of the page (None: the checkpoint's own), recomputed layers, timed evaluations.
SIZES: dict[str, tuple[str, tuple[int, int] | None, bool, int]] = {
    "LayoutLMv3-base": ("make:layoutlmv3-base,spread=yes", None, False, 20),
    "Donut-base, 320 x 320": ("make:donut-base", (320, 320), False, 20),
    "Donut-base, 480 x 640": ("make:donut-base", (480, 640), False, 10),
    "Donut-base, 960 x 1280": ("make:donut-base", (960, 1280), False, 5),
    "Donut-base, 1920 x 2560": ("make:donut-base", (1920, 2560), False, 3),
    "Donut-base, 1920 x 2560, recomputed": ("make:donut-base", (1920, 2560), True, 3),
}
#: Of these the engine takes turns with a bare loop.
BESIDE_BARE = ("LayoutLMv3-base", "Donut-base, 320 x 320")
PRECISIONS = ("float32", "tf32")
PRODUCTS = ("gemm", "conv", "cutlass", "xmma", "mm", "linear")
SIDE, OPERATIONS = 8192, 4


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Matrix products and convolutions in it, as one of PRECISIONS."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def measure() -> dict[str, dict[str, Any]]:
    """By "SIZE, PRECISION": what an evaluation of it takes, each from a process of its own."""
    if not torch.cuda.is_available():
        raise SystemExit("accelerator is measured on a GPU, and torch finds none here.")
    costs: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        print(f"  {size}", file=sys.stderr)
        done = subprocess.run([sys.executable, "-m", "bench.accelerator", size], stdout=subprocess.PIPE, check=True)
        costs |= json.loads(done.stdout)
    return costs


def of_size(size: str, name: str, *, device: str = "cuda") -> dict[str, Any]:
    """Seconds (median), FLOP, GFLOP/s of the evaluation and of the machine, shares of time, GB on the device."""
    source, pixels, recompute, timed = SIZES[size]
    model = load_model(source, image_size=pixels, device=device)
    page = model.fit(make_pages(1, seed=0)[0])
    with precision("float32"):
        case = build_case(model, [page], Exposure(), seed=0)
    attack = replace(gi_dqa.ATTACK, recompute=recompute)
    side = SIDE if device.startswith("cuda") else SIDE // 8
    with precision(name):
        moved = _moved(case)
        peak = multiplied(side, device)
        held = _held(device)
        took = watched(attack, case, timed)
        seconds, peak = statistics.median(took.seconds), max(peak, multiplied(side, device))
        largest = sorted(took.operations.items(), key=lambda item: -item[1])[:OPERATIONS]
        cost = {
            "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
            "parameters": sum(p.numel() for p in model.module.parameters()), "width": model.image_size[0],
            "height": model.image_size[1], "precision": name, "seconds": seconds, "gflop": took.flop / GIGA,
            "gflop_per_second": took.flop / seconds / GIGA, "machine_gflop_per_second": peak,
            "products_share": sum(part for kernel, part in took.operations.items() if _is_product(kernel)),
            "kernel_seconds": took.profiled, "largest": dict(largest), "moved": moved, "held_gb": held / GIGA,
            "gb": (torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else 0) / GIGA,
        }  # fmt: skip
        if size in BESIDE_BARE:
            cost["bare"] = compared(RELATIVE_ADAM, case.view, case.knowledge, warmup=3, steps=timed)
    return cost


def _moved(case: Case) -> float:
    """|g' - g| / |g| of the client's gradient g (float32) and the one of the same page in the present precision."""
    names = [name for name, _ in trainable(case.view.model.module)]
    again = client_gradient(case.view.model, case.pixels, case.inputs, names=names)
    sent = case.clean.gradient
    squares = [((again[n] - sent[n]).double().square().sum(), sent[n].double().square().sum()) for n in names]
    return float((sum(s for s, _ in squares) / sum(s for _, s in squares)) ** 0.5)


def _held(device: str) -> int:
    """Bytes of weights, gradient and page; the peak is counted from here."""
    if not device.startswith("cuda"):
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def as_markdown(rows: dict[str, dict[str, Any]]) -> str:
    """The numbers as a section for people."""
    heads = (
        "model", "page", "precision", "seconds", "the GPU at work", "GFLOP", "GFLOP/s", "of the machine's",
        "its time in products", "gradient moved by", "GB", "beside a bare loop (quartiles)",
    )  # fmt: skip
    lines = [
        "", "## One evaluation of `gi-dqa` on a GPU", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|",
    ]  # fmt: skip
    for name, row in rows.items():
        rate, bare = row["gflop_per_second"], row.get("bare")
        counted = (
            f"{row['gflop']:,.0f} | {rate:,.0f} | {row['machine_gflop_per_second']:,.0f}: " if rate else "- | - | "
        )
        share = f"{rate / row['machine_gflop_per_second']:.0%}" if rate else "-"
        beside = "-"
        if bare is not None:
            beside = f"{bare['ratio']:.3f} ({bare['ratio_lower_quartile']:.3f}-{bare['ratio_upper_quartile']:.3f})"
        page = f"{row['width']} x {row['height']}{', recomputed' if 'recomputed' in name else ''}"
        cells = (
            name.partition(", ")[0], page, row["precision"], f"{row['seconds']:.3f}",
            f"{min(1.0, row['kernel_seconds'] / row['seconds']):.0%}", f"{counted}{share}",
            f"{row['products_share']:.0%}", f"{row['moved']:.1e}" if row["moved"] else "0", f"{row['gb']:.1f}", beside,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    device = next((row["device"] for row in rows.values()), "")
    lines += [
        "", f"{device}, one page, a process for each size. Where the GPU is not at work it waits for the processor to",
        "tell it what to do next. *Gradient moved by* is what TF32 makes of the page's own gradient, relative to",
        "float32: the digits that are left to an adversary who computes so. docleak computes in float32. *Beside a",
        "bare loop* is the ratio of medians (quartiles of neighbouring steps' ratios); both match all tensors.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _is_product(kernel: str) -> bool:
    return any(part in kernel.lower() for part in PRODUCTS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({f"{sys.argv[1]}, {name}": of_size(sys.argv[1], name) for name in PRECISIONS}))
