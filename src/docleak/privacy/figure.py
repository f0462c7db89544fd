"""The budget drawn: what epsilon grows to, round by round."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from docleak.privacy.accounting import Guarantee


def budget_picture(curves: Mapping[str, Sequence[Guarantee]], target: Guarantee) -> NDArray[np.uint8]:
    """Curves by name, with ``target`` as a point and its statement below: uint8 RGB, (H, W, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.0), dpi=110)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.29, 0.86, 0.63))
    for style, (name, points) in zip(("-", "--", ":"), curves.items(), strict=False):
        axes.plot([p.mechanism.rounds for p in points], [p.epsilon for p in points], style, label=name)
    rounds = target.mechanism.rounds
    axes.plot([rounds], [target.epsilon], "o", color="black", label=f"{rounds} rounds: {target.epsilon:.3g}")
    axes.set_xlabel("rounds")
    axes.set_ylabel(f"epsilon per {target.mechanism.unit}, delta {target.delta:.3g}")
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", integer=True)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.text(0.02, 0.02, textwrap.fill(target.sentence(), 118), fontsize=7.5, va="bottom")
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
