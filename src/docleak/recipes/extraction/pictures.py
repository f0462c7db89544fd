"""The pictures of extraction recipes: numbers beside the paper's, means by factor, curves over p and over epochs."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from docleak.metrics.estimate import Estimate
from docleak.metrics.extraction import curve
from docleak.recipes.extraction.factors import Level
from docleak.recipes.extraction.measures import Measured, Reading

NOTHING = Estimate(None, None, None, 0, 0)
OURS, PAPER, BASE = "#1f5fa8", "#c4570a", "#7a7f87"
#: Curves of more rows cannot be told apart.
MOST_CURVES = 6


@dataclass(frozen=True)
class Drawn:
    """A row: its name, what was found, and what the paper printed."""

    name: str
    found: Measured | None
    printed: Mapping[str, float]


def draw_numbers(
    rows: Sequence[Drawn], metric: str, title: str, levels: Sequence[Level], neutral: float | None
) -> bytes:
    """A PNG: ``metric`` of every row (dots with intervals) beside the paper's (crosses); then means by factor."""
    figure = _figure(15 if levels else 6.5, max(2.6, 0.2 * max(len(rows), len(levels)) + 1.3))
    axes = figure.subplots(1, 3 if levels else 1, squeeze=False)[0]
    found = [row.found.estimates.get(metric, NOTHING) if row.found else NOTHING for row in rows]
    _dots(axes[0], [row.name for row in rows], found, [row.printed.get(metric) for row in rows], neutral)
    axes[0].set_title(title, fontsize=9)
    if levels:
        names = [level.name for level in levels]
        _dots(axes[1], names, [level.ipf for level in levels], [level.printed for level in levels], neutral)
        _dots(axes[2], [""] * len(levels), [level.distances for level in levels], [None] * len(levels), neutral)
        axes[1].set_title("IpF, mean over rows", fontsize=9)
        axes[2].set_title("its distances alone, mean over rows", fontsize=9)
    figure.supxlabel("dots: ours, bars: 95 % intervals over documents; crosses: printed in the paper", fontsize=8)
    return _png(figure)


def draw_curves(rows: Sequence[Drawn]) -> bytes:
    """A PNG: HamAt(p) and AccAt(p) of the attack and of public data alone, a line of panels per row."""
    done = [row for row in rows if row.found is not None and row.found.readings][:MOST_CURVES]
    figure = _figure(9, 2.6 * max(1, len(done)) + 0.3)
    axes = figure.subplots(max(1, len(done)), 2, squeeze=False)
    for (left, right), row in zip(axes, done, strict=False):
        assert row.found is not None
        for side, color, label in (
            (row.found.readings, OURS, "attack"),
            (row.found.baseline, BASE, "public data only"),
        ):
            shares = np.arange(1, len(side) + 1) / len(side)
            left.step(shares, _curve(side, "hamming"), color=color, label=f"{label}, HamAAC "
                      f"{1 - _curve(side, 'hamming').mean():.3f}", where="pre")  # fmt: skip
            right.step(shares, _curve(side, "perfect"), color=color, label=f"{label}, AccAUC "
                       f"{_curve(side, 'perfect').mean():.3f}", where="pre")  # fmt: skip
        left.set_title(f"{row.name}: HamAt(p)", fontsize=8)
        right.set_title("AccAt(p)", fontsize=8)
        for axis in (left, right):
            axis.set(xlabel="share p of the surest fields", xlim=(0, 1), ylim=(0, 1))
            axis.legend(fontsize=7)
            axis.grid(alpha=0.25)
    return _png(figure)


def draw_epochs(rows: Sequence[Drawn]) -> bytes:
    """A PNG: validation, one-shot and multi-shot numbers against the epoch that is attacked (figure 7)."""
    done = sorted((row.found for row in rows if row.found), key=lambda f: f.estimates["epoch"].value or 0)
    figure = _figure(13, 3.4)
    axes = figure.subplots(1, 4)
    epochs = done[0].card["epochs"] if done else []
    numbers = [e["number"] for e in epochs]
    axes[0].plot(numbers, [e["validation"]["accuracy"] for e in epochs], color=OURS, label="accuracy")
    loss = axes[0].twinx()
    loss.plot(numbers, [e["validation"]["loss"] for e in epochs], color=PAPER, label="loss")
    loss.set_ylabel("loss", color=PAPER, fontsize=8)
    for name, best in (done[0].card["best"] if done else {}).items():
        axes[0].axvline(best["number"], color=BASE, linestyle=":", linewidth=1)
        place = {"transform": axes[0].get_xaxis_transform(), "rotation": 90, "va": "bottom", "fontsize": 7}
        axes[0].text(best["number"], 0.02, f" best {name}", **place)
    axes[0].set_ylabel("accuracy", color=OURS, fontsize=8)
    panels = (("Validation", ()), ("One-shot: improvement factor", ("ipf", "distances")),
              ("One-shot: share of tokens wrong", ("hamming", "base_hamming")),
              ("Multi-shot", ("hamaac", "base_hamaac", "accauc", "base_accauc")))  # fmt: skip
    for axis, (title, names) in zip(axes, panels, strict=True):
        for name in names:
            _line(axis, done, name)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("epoch", fontsize=8)
        axis.grid(alpha=0.25)
        if names:
            axis.legend(fontsize=7)
    axes[1].axhline(1, color=BASE, linewidth=1)
    axes[1].set_yscale("log")
    return _png(figure)


LABELS = {
    "ipf": "IpF", "distances": "its three distances", "hamming": "attack", "base_hamming": "public data only",
    "hamaac": "HamAAC", "base_hamaac": "HamAAC, public data only", "accauc": "AccAUC",
    "base_accauc": "AccAUC, public data only",
}  # fmt: skip


def _line(axis: Any, done: Sequence[Measured], name: str) -> None:
    """An estimate over epochs with its interval as a band; the baseline is dashed."""
    points = [(f.estimates["epoch"].value, f.estimates[name]) for f in done]
    xs = [x for x, e in points if e.value is not None]
    kept = [e for _, e in points if e.value is not None]
    style = {"linestyle": "--", "color": BASE} if name.startswith("base_") else {}
    (line,) = axis.plot(xs, [e.value for e in kept], marker="o", markersize=3, label=LABELS[name], **style)
    if all(e.low is not None for e in kept):
        axis.fill_between(xs, [e.low for e in kept], [e.high for e in kept], alpha=0.15, color=line.get_color())


def _curve(side: Sequence[Reading], what: str) -> Any:
    return curve(np.array([getattr(reading, what) for reading in side]))


def _dots(
    axis: Any,
    names: Sequence[str],
    points: Sequence[Estimate],
    printed: Sequence[float | None],
    neutral: float | None,
) -> None:
    if neutral is not None:
        axis.axvline(neutral, color=BASE, linewidth=1)
    for place, (e, theirs) in enumerate(zip(points, printed, strict=True)):
        if e.value is not None:
            if e.low is not None and e.high is not None:
                axis.plot([e.low, e.high], [place, place], color=OURS, linewidth=1.5)
            axis.plot(e.value, place, "o", color=OURS, markersize=4)
        if theirs is not None:
            axis.plot(theirs, place, "x", color=PAPER, markersize=5)
    ends = [x for x in (*(e.high for e in points), *printed) if x is not None]
    if neutral is not None and ends and max(ends) > 4:
        axis.set_xscale("log")
    axis.set_yticks(range(len(names)), names, fontsize=6.5)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(alpha=0.25)
    axis.tick_params(axis="x", labelsize=7)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
