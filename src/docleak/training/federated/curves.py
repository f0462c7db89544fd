"""Learning curves of a federated training as a picture."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from docleak.files import reported, write_atomically
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.scores import kept_of

BLUE, ORANGE, GREY = "#1f5fa8", "#c4570a", "#888888"


def draw_curves(run: FederatedRun, *, rng: np.random.Generator) -> Path | None:
    """OUT/curves.png: training loss per silo and in all, and ANLS with its interval; None before the first round."""
    from matplotlib.figure import Figure

    rows = run.rows()
    if not rows:
        return None
    every = {n: kept_of(run.scores(n) or (), rng=rng) for n in range(len(rows) + 1)}
    scored = {n: kept.anls for n, kept in every.items() if kept is not None and kept.anls.value is not None}
    figure = Figure(figsize=(9, 3.6) if scored else (4.8, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots(1, 2 if scored else 1, squeeze=False)[0]
    numbers = [row.round for row in rows]
    for silo in sorted({client.silo for row in rows for client in row.clients}):
        points = [(row.round, client.loss) for row in rows for client in row.clients if client.silo == silo]
        if all(loss is not None for _, loss in points):
            axes[0].plot(*zip(*points, strict=True), color=GREY, linewidth=0.8, alpha=0.7)
    losses = [row.loss for row in rows]
    if None in losses:
        axes[0].text(0.5, 0.5, "private: silos do not say it", ha="center", transform=axes[0].transAxes)
    else:
        axes[0].plot(numbers, losses, color=BLUE, marker="o")
    axes[0].set(xlabel="round", ylabel="training loss", title="Training loss (grey: each silo)")
    if scored:
        values = np.array([[anls.value, anls.value if anls.low is None else anls.low,
                            anls.value if anls.high is None else anls.high] for anls in scored.values()])  # fmt: skip
        noised = any(kept.noised for kept in every.values() if kept is not None)
        axes[1].fill_between(list(scored), values[:, 1], values[:, 2], color=ORANGE, alpha=0.2, linewidth=0)
        axes[1].plot(list(scored), values[:, 0], color=ORANGE, marker="o")
        axes[1].set(
            xlabel="round", ylabel="ANLS", title="ANLS on documents the silos keep" + " (noised)" * noised, ylim=(0, 1)
        )
    for axis in axes:
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    file = run.path / "curves.png"
    with reported(file):
        write_atomically(file, buffer.getvalue())
    return file
