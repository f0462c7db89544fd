"""How costs grow, measured on tiny things: pixels, parameters, silos, rounds, providers; and what large ones take.

    python -m scripts.scale pixels parameters rounds providers   growth, in this process (2 CPU minutes)
    python -m scripts.scale silos --folder work                  10, 100 and 1,000 silos (3 CPU minutes)
    python -m scripts.scale accountants sizes                    epsilons, and what a 7-billion-parameter model weighs
    python -m scripts.scale nodes --folder work --count 20       over SuperLink; see scripts/supernodes.py
    python -m scripts.scale grid --folder work                   over Dask; see scripts/dask_grid.py
    python -m scripts.scale page                                 docs/results/scale.md, of what was measured

Numbers are kept in docs/results/scale.json, one part at a time. Seconds are those of the processor, the least of
three where nothing else is said, so that what else a machine does counts little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from docleak.files import write_atomically

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SILOS = (10, 100, 1_000)
#: Silos that train in a round, however many there are.
DRAWN = 4
#: Side of a square page in pixels; width of a decoder; rounds; providers of a silo.
SIDES, WIDTHS, ROUNDS, PROVIDERS = (128, 192, 256, 384, 512), (96, 192, 384, 768), (2, 4, 8, 16, 32), (2, 4, 8, 16)
#: The federation that is planned on paper: silos, the share that trains, rounds, delta, noise multipliers.
PAPER_SILOS, SHARE, PAPER_ROUNDS, NOISES = 10_000, 0.01, (100, 1_000, 10_000), (0.5, 0.8, 1.2)

#: Qwen2.5-VL of seven billion, as its configuration was published.
SEVEN = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
         "num_key_value_heads": 4, "vocab_size": 152064}  # fmt: skip
TOWER = {"hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "depth": 32, "out_hidden_size": 3584}


def seconds_of(work: Callable[[], object], times: int = 3) -> float:
    """The least processor time of so many calls, after one that does not count."""
    work()
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def pixels() -> list[dict[str, float]]:
    """One evaluation of an attack on a tiny Donut, whose gradient is differentiated once more, by size of page."""
    from scripts.donut_ladder import TINY
    from scripts.donut_memory import WAYS, peaks

    rows = []
    for side in SIDES:
        rung = replace(TINY, size=(side, side))
        evaluate = _Evaluation(rung, second=True)
        before, most = peaks(rung, WAYS[0])
        rows.append({"size": side * side, "seconds": seconds_of(evaluate.run), "bytes": 1e9 * (most - before)})
        print("pixels", rows[-1], flush=True)
    return rows


def parameters() -> list[dict[str, float]]:
    """One client's gradient on a page of 128 x 128 pixels, by parameters of a Donut whose decoder grows."""
    from scripts.donut_ladder import TINY
    from scripts.donut_memory import CLIENT, peaks

    rows = []
    for width in WIDTHS:
        rung = replace(TINY, size=(128, 128), decoder=(width, 2, 4, 3 * width), width=width // 2, heads=(3, 6))
        gradient = _Evaluation(rung, second=False)
        count = gradient.parameters
        _, most = peaks(rung, CLIENT)
        rows.append({"size": count, "seconds": seconds_of(gradient.run), "bytes": 1e9 * most})
        print("parameters", rows[-1], flush=True)
    return rows


class _Evaluation:
    """A gradient of a network on one page, and, where asked for, its derivative at the pixels."""

    def __init__(self, rung: Any, *, second: bool) -> None:
        from docleak.models.base import Encoded
        from scripts.donut_ladder import build
        from scripts.donut_memory import TOKENS

        self._model, self._second = build(rung, 0), second
        ids = torch.randint(5, 50, (TOKENS,), generator=torch.Generator().manual_seed(0))
        self._inputs = [Encoded({"decoder_input_ids": ids, "labels": ids, "prompt_ids": ids}, ())]
        self._pixels = torch.rand(
            1, 3, rung.size[1], rung.size[0], generator=torch.Generator().manual_seed(1)
        ).requires_grad_()
        self._names = [name for name, _ in self._model.module.named_parameters()]
        self.parameters = sum(p.numel() for p in self._model.module.parameters())

    def run(self) -> None:
        """Once."""
        from docleak.attacks.gradients.matching import dummy_gradient

        made = dummy_gradient(self._model, self._pixels, self._inputs, self._names, create_graph=self._second)
        if self._second:
            distance = torch.stack([value.square().sum() for value in made.values()]).sum()
            torch.autograd.grad(distance, self._pixels)


def rounds() -> list[dict[str, float]]:
    """One training of one silo, a step a round: processor time, bytes of its folder and peak memory after each."""
    from docleak.training.federated.federation import Federation
    from docleak.training.federated.flower.embedded import train_embedded
    from docleak.training.federated.local_plan import LocalPlan
    from docleak.training.federated.record import FederatedRun

    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        silo = _silo(Path(folder) / "a", 1)
        federation = Federation(rounds=ROUNDS[-1], holdout=0.0, local=LocalPlan(max_steps=1, batch_size=1))
        out, began = Path(folder) / "run", time.process_time()

        def on_round(row: Any, scores: Any) -> None:
            if row is not None and row.round in ROUNDS:
                kept = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                rows.append({"size": row.round, "seconds": time.process_time() - began, "bytes": kept, "peak": peak})
                print("rounds", rows[-1], flush=True)

        train_embedded(FederatedRun.open(out, federation), {"a": silo}, evaluate_every=0, on_round=on_round)
    return rows


def providers() -> list[dict[str, float]]:
    """One silo's private round, a page each and a step each, by its providers; all of them are drawn."""
    from docleak.documents.synthetic import make_pages
    from docleak.models import load_model
    from docleak.privacy.mechanism import Mechanism
    from docleak.privacy.plan import DpPlan
    from docleak.privacy.randomness import Randomness
    from docleak.training.federated.local import parameters_of
    from docleak.training.federated.local_plan import LocalPlan
    from docleak.training.private.rounds import client_round

    model = load_model("vt5-start")
    weights, local = parameters_of(model), LocalPlan(max_steps=1, batch_size=1)
    plan = DpPlan(Mechanism(1.0, 1), clip_norm=0.5, denominator=PROVIDERS[-1], delta=1e-3)
    by_provider = {page.provider: page for page in make_pages(8 * PROVIDERS[-1], seed=3)}
    rows = []
    for count in PROVIDERS:
        pages = list(by_provider.values())[:count]

        def work(pages: Any = pages) -> object:
            return client_round(model, pages, plan, local, weights=weights, client="a", clients_drawn=1,
                                randomness=Randomness.fresh())  # fmt: skip

        rows.append({"size": count, "seconds": seconds_of(work)})
        print("providers", rows[-1], flush=True)
    return rows


def _silo(folder: Path, pages: int) -> Path:
    from docleak.documents.folder import save
    from docleak.documents.synthetic import make_pages

    save(make_pages(pages, seed=3), folder)
    return folder


def silos(folder: Path) -> list[dict[str, float]]:
    """``docleak train federated`` over so many silos in one process: two rounds, DRAWN silos each, a step each."""
    rows = []
    for count in SILOS:
        kept, file = folder / f"silos-{count}", folder / f"silos-{count}.json"
        if not kept.exists():
            _run("data", "make", str(kept), "--partition", str(count), "--documents", "synthetic",
                 "--count", str(2 * count))  # fmt: skip
        if not file.exists():
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent, began = usage.ru_utime + usage.ru_stime, time.perf_counter()
            with tempfile.TemporaryDirectory() as out:
                peak = _run(
                    "train", "federated", "--silos", str(kept), "--participation", str(DRAWN / count), "--rounds", "2",
                    "--max-steps", "1", "--batch-size", "2", "--holdout", "0", "--no-capture", "--out", f"{out}/run",
                )  # fmt: skip
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            one = {"size": count, "seconds": usage.ru_utime + usage.ru_stime - spent, "bytes": peak,
                   "wall": time.perf_counter() - began}  # fmt: skip
            file.write_text(json.dumps(one))
        rows.append(json.loads(file.read_text()))
        print("silos", rows[-1], flush=True)
    return rows


def _run(*words: str) -> float:
    """Run a command of docleak's; its peak memory in bytes."""
    command = [sys.executable, "-c", "from docleak.cli.app import main; main()", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"docleak {' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
    return float(usage.ru_maxrss * 1024)


def accountants() -> list[dict[str, Any]]:
    """Epsilon of PAPER_SILOS silos by docleak's accountants: what is counted where silos, or providers, are drawn."""
    from docleak.errors import PrivacyError
    from docleak.privacy.accounting import guarantee
    from docleak.privacy.mechanism import Mechanism, Unit
    from docleak.privacy.second import Accountant

    rows = []
    for unit, rates in ((Unit.CLIENT, {"client_rate": SHARE}), (Unit.PROVIDER, {"unit_rate": SHARE})):
        for noise in NOISES:
            for many in PAPER_ROUNDS:
                mechanism = Mechanism(noise, many, unit=unit, **rates)
                row: dict[str, Any] = {"unit": str(unit), "rates": rates, "noise": noise, "rounds": many}
                for accountant in (Accountant.PLD, Accountant.PRV, Accountant.RDP):
                    try:
                        row[str(accountant)] = guarantee(mechanism, 0.1 / PAPER_SILOS, accountant).epsilon
                    except PrivacyError as fault:
                        row[str(accountant)] = str(fault)
                rows.append(row)
                print("accountants", row, flush=True)
    return rows


def sizes() -> dict[str, int]:
    """Parameters of a vision-language model of 7 billion, by its configuration on the meta device, and of LoRA."""
    import transformers as t

    with torch.device("meta"):
        module = t.Qwen2_5_VLForConditionalGeneration(t.Qwen2_5_VLConfig(text_config=SEVEN, vision_config=TOWER))
    linear = [layer for name, layer in module.named_modules() if name.endswith(("q_proj", "v_proj"))]
    largest = max(p.numel() for p in module.parameters())
    return {
        "parameters": sum(p.numel() for p in module.parameters()), "largest": largest,
        "lora": 16 * sum(layer.in_features + layer.out_features for layer in linear), "layers": len(linear),
    }  # fmt: skip


def law(rows: Sequence[Mapping[str, float]], key: str) -> tuple[float, float, float]:
    """The exponent of ``key`` in size, and its 95 % interval, by least squares in logarithms (Student's t)."""
    from scipy.stats import t

    x, y = np.log([row["size"] for row in rows]), np.log([row[key] for row in rows])
    slope, level = np.polyfit(x, y, 1)
    rest = y - slope * x - level
    error = np.sqrt(rest @ rest / (len(x) - 2) / np.square(x - x.mean()).sum())
    wide = t.ppf(0.975, len(x) - 2) * error
    return float(slope), float(slope - wide), float(slope + wide)


def keep(part: str, numbers: Any) -> None:
    """Put a part's numbers into docs/results/scale.json, with where they were measured."""
    file = RESULTS / "scale.json"
    saved = json.loads(file.read_text()) if file.is_file() else {}
    where = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": str(torch.__version__)}
    saved[part] = {"numbers": numbers, "where": where, "on": time.strftime("%Y-%m-%d")}
    write_atomically(file, (json.dumps(saved, indent=1) + "\n").encode())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    here = {"pixels": pixels, "parameters": parameters, "rounds": rounds, "providers": providers,
            "accountants": accountants, "sizes": sizes}  # fmt: skip
    parser.add_argument("parts", nargs="+", choices=(*here, "silos", "nodes", "grid", "page"))
    parser.add_argument("--folder", type=Path, default=Path("scale-work"))
    parser.add_argument("--count", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for part in asked.parts:
        if part == "page":
            from scripts.scale_page import write_pages

            write_pages(RESULTS)
        elif part == "silos":
            asked.folder.mkdir(parents=True, exist_ok=True)
            keep(part, silos(asked.folder))
        elif part == "nodes":
            from scripts.supernodes import nodes

            keep(part, asdict(nodes(asked.folder, asked.count)))
        elif part == "grid":
            from scripts.dask_grid import grid

            keep(part, asdict(grid(asked.folder)))
        else:
            keep(part, here[part]())


if __name__ == "__main__":
    main()
