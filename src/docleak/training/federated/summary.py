"""What came of a federated training: its last model, and its numbers in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from docleak.documents.storage import reported
from docleak.errors import RunError
from docleak.models.loading import load_model
from docleak.models.t5 import T5_BASE
from docleak.models.t5_files import ReaderConfig
from docleak.training.federated.curves import mean_anls
from docleak.training.federated.local import set_parameters
from docleak.training.federated.party import model_of
from docleak.training.federated.record import FederatedRun

#: What the server sees of one silo under a privacy plan, without and with secure aggregation.
SEEN = {
    False: "Whoever sees a single silo's update sees only that silo's share of the noise.",
    True: "The server sees sums with the whole noise, as long as it follows the protocol (docs/secure-aggregation.md).",
}


def network_of(source: str) -> nn.Module:
    """The network whose numbers are counted; ``vt5-base`` and ``fedocvqa-base`` have the papers' sizes, no values."""
    if source == "vt5-base":
        from docleak.models.vt5 import DIT_BASE, VT5

        with torch.device("meta"):
            return VT5.build(ReaderConfig(T5_BASE, DIT_BASE))
    if source == "fedocvqa-base":
        from docleak.models.fedocvqa import MAE_BASE, FeDocVQA

        with torch.device("meta"):
            return FeDocVQA.build(ReaderConfig(T5_BASE, MAE_BASE))
    return load_model(source).module


def save_model(run: FederatedRun, device: str) -> Path:
    """Write the model of the last round to OUT/model, which every command takes as --model."""
    state = run.state()
    if state is None:
        raise RunError(f"{run.path} has no finished round, so there is no model to save.")
    model = model_of(run.federation, device)
    set_parameters(model, {name: value.astype(np.float32) for name, value in state.parameters.items()})
    out = run.path / "model"
    with reported(out):
        model.save(str(out))
    return out


def facts_of(run: FederatedRun, silos: Mapping[str, Path], *, rng: np.random.Generator) -> dict[str, Any]:
    """The numbers of a finished training, for machines; intervals are over documents."""
    rows = run.rows()
    anls = {}
    for number in range(len(rows) + 1):
        if scores := run.scores(number):
            value, low, high = mean_anls(scores, rng=rng)
            anls[number] = {"anls": value, "low": low, "high": high, "questions": sum(s.questions for s in scores),
                            "documents": len(scores)}  # fmt: skip
    return {
        "run": str(run.path),
        "model": str(run.path / "model"),
        "updates": str(run.path / "updates") if (run.path / "updates").is_dir() else "",
        "silos": {name: str(path) for name, path in silos.items()},
        "rounds": [
            {
                "round": row.round,
                "silos": [client.silo for client in row.clients],
                "loss": row.loss,
                **anls.get(row.round, {}),
                "bytes_up": sum(client.up for client in row.clients),
                "bytes_down": sum(client.down for client in row.clients),
                "seconds_training": row.seconds_training,
                "seconds_averaging": row.seconds_averaging,
            }
            for row in rows
        ],
        "start": anls.get(0, {}),
        "privacy": _privacy(run),
        "secure": run.federation.secure is not None,
    }


def _privacy(run: FederatedRun) -> dict[str, Any] | None:
    """What the begun rounds guarantee, and to whom; None without a plan."""
    ledger = run.ledger()
    spent = ledger.spent() if ledger else None
    if ledger is None or spent is None:
        return None
    return {
        "claim": f"after {ledger.begun} rounds, {spent.sentence()}",
        "epsilon": spent.epsilon,
        "delta": spent.delta,
        "rounds_begun": ledger.begun,
        "limit": f"It holds for the released models. {SEEN[run.federation.secure is not None]} What silos answer on "
        "the documents they keep is outside of it.",
    }


def text_of(facts: Mapping[str, Any]) -> str:
    """The same for people: a line per round, and what to do next."""
    lines = ["round  loss    ANLS of what the silos keep   sent     seconds"]
    for row in ({"round": 0, **facts["start"]}, *facts["rounds"]):
        sent = (row.get("bytes_up", 0) + row.get("bytes_down", 0)) / 2**20
        loss = f"{row['loss']:.3f}" if row.get("loss") is not None else "-"
        seconds = f"{row['seconds_training']:.0f}" if "seconds_training" in row else "-"
        lines.append(f"{row['round']:5}  {loss:6}  {_interval(row):28}  {sent:5.1f} MiB  {seconds}")
    lines.append(f"\nModel: {facts['model']}\nCurves: {facts['run']}/curves.png")
    if facts["privacy"]:
        lines.append(f"Privacy: {facts['privacy']['claim']}\n{facts['privacy']['limit']}")
    if facts["updates"] and not facts["privacy"]:  # the audit cannot train a private round again
        name, path = next(iter(facts["silos"].items()))
        about, chosen = f"{name}'s updates", f" --client {name} --documents folder:{path}"
        if facts["secure"]:
            about, chosen = "masked updates and in their sum", f" --documents {Path(path).parent}"
        lines.append(f"What the server could read in {about}: docleak audit --updates {facts['updates']}{chosen}")
    return "\n".join(lines)


def _interval(row: Mapping[str, Any]) -> str:
    if "anls" not in row:
        return "-"
    if row["low"] is None:
        return f"{row['anls']:.3f} ({row['questions']} questions)"
    return f"{row['anls']:.3f} [{row['low']:.3f}, {row['high']:.3f}] n = {row['questions']}"
