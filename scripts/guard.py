"""What the guard finds and what it refuses for nothing: attacks of active servers, their stealthy variants, honest rounds.

    python scripts/guard.py honest --folder work      trainings, whose every round's model is kept (about 10 minutes)
    python scripts/guard.py measure --folder work     guard, honest rounds and manipulations; docs/results/guard.md

Both go on where they were stopped. Honest rounds are those of ``docleak train federated``: its capture has the model that
every round began from.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.models.lora import Lora, adapt
from docleak.models.vlm.tiny import make_tiny
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import FedOpt
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.local import LocalPlan
from docleak.training.federated.record import FederatedRun

ROUNDS, SILOS, PAGES = 10, 2, 8
#: Made on the spot: name -> (base, whether adapters are put on it).
MADE = {"smolvlm": ("smolvlm", False), "smolvlm-lora": ("smolvlm", True), "layoutlmv3-lora": ("layoutlmv3-start", True),
        "donut-lora": ("donut-start", True)}  # fmt: skip
PRIVATE = DpPlan(Mechanism(0.8, ROUNDS, unit_rate=0.9), clip_norm=0.5, denominator=40, delta=1e-3)
ADAMW = LocalPlan(max_steps=2, batch_size=2)
ADAM = replace(ADAMW, optimiser="adam", learning_rate=2e-4)
SGD = replace(ADAMW, optimiser="sgd", learning_rate=0.05, weight_decay=0.0, max_norm=1.0)
#: Name of a training -> model, local plan, server step, privacy.
TRAININGS: Mapping[str, tuple[str, LocalPlan, FedOpt, DpPlan | None]] = {
    "vt5 adamw": ("vt5-start", ADAMW, FedOpt(), None),
    "vt5 adam fedadam": ("vt5-start", ADAM, FedOpt("fedadam", 1e-3), None),
    "vt5 sgd": ("vt5-start", SGD, FedOpt(), None),
    "vt5 dp": ("vt5-start", ADAMW, FedOpt(), PRIVATE),
    "vt5 trained adamw": ("vt5-trained", ADAMW, FedOpt(), None),
    "vt5 trained dp": ("vt5-trained", ADAMW, FedOpt(), PRIVATE),
    "vt5 fedadam 0.01": ("vt5-start", ADAMW, FedOpt("fedadam", 0.01), None),
    "donut adamw": ("donut-start", ADAMW, FedOpt(), None),
    "donut sgd fedavgm": ("donut-start", SGD, FedOpt("fedavgm"), None),
    "donut dp": ("donut-start", ADAMW, FedOpt(), PRIVATE),
    "donut trained adam": ("donut-trained", ADAM, FedOpt(), None),
    "donut lora adamw": ("donut-lora", ADAMW, FedOpt(), None),
    "layoutlmv3 adamw": ("layoutlmv3-start", ADAMW, FedOpt(), None),
    "layoutlmv3 sgd fedadam": ("layoutlmv3-start", SGD, FedOpt("fedadam", 1e-3), None),
    "layoutlmv3 trained adamw": ("layoutlmv3-trained", ADAMW, FedOpt("fedavgm"), None),
    "layoutlmv3 dp": ("layoutlmv3-start", ADAMW, FedOpt(), PRIVATE),
    "layoutlmv3 lora adamw": ("layoutlmv3-lora", ADAMW, FedOpt(), None),
    "smolvlm adamw": ("smolvlm", ADAMW, FedOpt(), None),
    "smolvlm lora adamw": ("smolvlm-lora", ADAMW, FedOpt(), None),
    "smolvlm lora dp": ("smolvlm-lora", ADAMW, FedOpt(), PRIVATE),
}  # fmt: skip


def model_at(name: str, folder: Path) -> str:
    """Where the model of that name is, made if need be."""
    if name not in MADE:
        return name
    base, adapted = MADE[name]
    out = folder / "models" / name
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        if not adapted:
            make_tiny(base, out, seed=0)
        else:
            adapt(model_at(base, folder), out, Lora(), seed=0)
    return str(out)


def honest(folder: Path, seed: int) -> Iterator[str]:
    """Train all of TRAININGS; each is interrupted after half of its rounds and gone on with."""
    if not (folder / "silos").exists():
        division = divide(["synthetic"], SILOS, by="providers", seed=seed, count=PAGES)
        write_silos(division.shares, division.sources, folder / "silos", by="providers", seed=seed)
    silos = {item.name: item for item in sorted((folder / "silos").iterdir())}
    for number, (name, (source, local, server, private)) in enumerate(TRAININGS.items()):
        out = folder / "trainings" / name.replace(" ", "-")
        done = out / "done.json"
        if done.exists():
            continue
        started = time.perf_counter()
        for rounds in (ROUNDS // 2, ROUNDS):
            federation = Federation(model_at(source, folder), rounds, holdout=0.0 if private is None else 0.2, seed=seed + number,
                                    local=local, server=server, privacy=private)  # fmt: skip
            run = FederatedRun.open(out / "run", federation)
            train_embedded(run, silos, evaluate_every=0, capture=out / "updates")
        done.write_text(json.dumps({"seconds": time.perf_counter() - started}))
        yield f"{name}: {time.perf_counter() - started:.0f} s"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("honest", "measure"))
    parser.add_argument("--folder", type=Path, default=Path("guard-work"))
    parser.add_argument("--seed", type=int, default=100)
    asked = parser.parse_args()
    for line in honest(asked.folder, asked.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
