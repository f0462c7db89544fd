"""What a training's run shows besides its numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from docleak.files import reported, write_atomically
from docleak.report.charts import learning_curves
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.scores import kept_of


def draw_curves(run: FederatedRun) -> Path | None:
    """OUT/curves.png: training loss per silo and in all, and ANLS with its interval; None before the first round."""
    rows = run.rows()
    if not rows:
        return None
    rng = np.random.default_rng(run.federation.seed)
    every = {number: kept_of(run.scores(number) or (), rng=rng) for number in range(len(rows) + 1)}
    scored = {number: kept for number, kept in every.items() if kept is not None and kept.anls.value is not None}
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for client in row.clients:
            if client.loss is not None:
                points.setdefault(client.silo, []).append((row.round, client.loss))
    mean = [(row.round, row.loss) for row in rows if row.loss is not None]
    png = learning_curves(
        points.values(), mean if len(mean) == len(rows) else [],
        {number: kept.anls for number, kept in scored.items()}, noised=any(kept.noised for kept in scored.values()),
    )  # fmt: skip
    file = run.path / "curves.png"
    with reported(file):
        write_atomically(file, png)
    return file
