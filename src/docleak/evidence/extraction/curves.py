"""AccAt(p) and HamAt(p) of a game as a picture (Dentan et al., 2024, eqs. 7 and 9)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from docleak.evidence.extraction.table import GameTable, Ranked
from docleak.metrics.extraction import Floats, as_array, curve

OURS, THEIRS = "#9c3428", "#566270"


def draw_curves(table: GameTable) -> bytes:
    """A PNG: shares of fields read exactly, and of tokens wrong, among the surest p of the fields."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.4, 3.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    parts = (("fields read exactly, % (AccAt)", 0), ("tokens wrong, % (HamAt)", 1))
    for axis, (words, column) in zip(panels, parts, strict=True):
        for fields, colour, label in ((table.fields, OURS, "with the weights"),
                                      (table.baseline, THEIRS, "public data only")):  # fmt: skip
            if fields:
                shares, values = points(fields, column)
                axis.step(100 * shares, 100 * values, where="post", color=colour, label=label)
        axis.set(xlabel="the surest p % of the fields", ylabel=words, xlim=(0, 100), ylim=(-2, 102))
        axis.grid(alpha=0.3)
    panels[0].legend(fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def draw_reliability(answers: Mapping[str, Any]) -> bytes:
    """A PNG: what the adversary stated against what came true, a point per fifth of the tokens or fields."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.plot([0, 100], [0, 100], color="#999", linewidth=1, linestyle="--")
    for event, colour, words in (("token", OURS, "a token is right"), ("half", "#24506f", "half of a field is")):
        bins = answers["events"][event]["bins"]
        axis.plot([100 * b["stated"] for b in bins], [100 * b["true"] for b in bins], "o-", color=colour, label=words)
    axis.set(xlabel="stated probability, %", ylabel="came true, %", xlim=(-3, 103), ylim=(-3, 103))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def points(fields: Sequence[Ranked], column: int) -> tuple[Floats, Floats]:
    """Shares p = 1/N ... 1 and the mean of a column of ``as_array`` over the first ones, (N,) each."""
    values = as_array([field.match for field in fields])[:, column]
    return np.arange(1, len(fields) + 1) / len(fields), curve(values)
