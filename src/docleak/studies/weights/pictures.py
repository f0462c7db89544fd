"""Pictures of games: curves over the surest fields, reliability, numbers beside the paper's, numbers over epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from docleak.metrics.estimate import Estimate
from docleak.metrics.extraction import Floats, as_array, curve
from docleak.report.pictures import mark, new_figure, png_figure
from docleak.studies.weights.factors import Found, Level
from docleak.studies.weights.table import GameTable, Ranked

NOTHING = Estimate(None)
OURS, PAPER, BASE = "#1f5fa8", "#c4570a", "#7a7f87"
#: Curves of more rows cannot be told apart.
MOST_CURVES = 6
#: Panels of ``draw_epochs`` -> the estimates that they show, and how each is called.
PANELS: Mapping[str, Mapping[str, str]] = {
    "Validation": {},
    "One-shot: improvement factor": {"ipf": "IpF", "distances": "its three distances"},
    "One-shot: share of tokens wrong": {"hamming": "attack", "base_hamming": "public data only"},
    "Multi-shot": {"hamaac": "HamAAC", "base_hamaac": "HamAAC, public data only", "accauc": "AccAUC",
                   "base_accauc": "AccAUC, public data only"},
}  # fmt: skip


def draw_curves(*tables: GameTable, names: Sequence[str] = ("",)) -> bytes:
    """A PNG: AccAt(p) and HamAt(p) of the attack and of public data alone (Dentan et al., 2024, eqs. 7 and 9), a line
    of panels for each table."""
    figure = new_figure(9.4, 3.1 * max(1, len(tables[:MOST_CURVES])) + 0.3)
    axes = figure.subplots(max(1, len(tables[:MOST_CURVES])), 2, squeeze=False)
    parts = (("fields read exactly, % (AccAt)", 0), ("tokens wrong, % (HamAt)", 1))
    for line, table, name in zip(axes, tables, names, strict=False):
        for axis, (words, column) in zip(line, parts, strict=True):
            for fields, colour, label in ((table.fields, OURS, "with the weights"),
                                          (table.baseline, BASE, "public data only")):  # fmt: skip
                if fields:
                    shares, values = points(fields, column)
                    area = f"AccAUC {values.mean():.3f}" if column == 0 else f"HamAAC {1 - values.mean():.3f}"
                    axis.step(100 * shares, 100 * values, where="post", color=colour, label=f"{label}, {area}")
            axis.set(xlabel="the surest p % of the fields", ylabel=words, xlim=(0, 100), ylim=(-2, 102))
            axis.set_title(name, fontsize=8)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
    return png_figure(figure)


def points(fields: Sequence[Ranked], column: int) -> tuple[Floats, Floats]:
    """Shares p = 1/N ... 1 and the mean of a column of ``as_array`` over the first ones, (N,) each."""
    values = as_array([field.match for field in fields])[:, column]
    return np.arange(1, len(fields) + 1) / len(fields), curve(values)


def draw_reliability(answers: Mapping[str, Any]) -> bytes:
    """A PNG: what the adversary stated against what came true, a point per fifth of the tokens or fields."""
    figure = new_figure(4.6, 3.6)
    axis = figure.subplots()
    axis.plot([0, 100], [0, 100], color="#999", linewidth=1, linestyle="--")
    for event, colour, words in (("token", PAPER, "a token is right"), ("half", OURS, "half of a field is")):
        bins = answers["events"][event]["bins"]
        axis.plot([100 * b["stated"] for b in bins], [100 * b["true"] for b in bins], "o-", color=colour, label=words)
    axis.set(xlabel="stated probability, %", ylabel="came true, %", xlim=(-3, 103), ylim=(-3, 103))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9)
    return png_figure(figure)


def draw_numbers(
    rows: Mapping[str, tuple[Found | None, Mapping[str, float]]], metric: str, title: str, levels: Sequence[Level],
    neutral: float | None,
) -> bytes:  # fmt: skip
    """A PNG: ``metric`` of every row (dots with intervals) beside the paper's (crosses); then means by factor."""
    figure = new_figure(15 if levels else 6.5, max(2.6, 0.2 * max(len(rows), len(levels)) + 1.3))
    axes = figure.subplots(1, 3 if levels else 1, squeeze=False)[0]
    ours = [findings.estimates.get(metric, NOTHING) if findings else NOTHING for findings, _ in rows.values()]
    _dots(axes[0], list(rows), ours, [printed.get(metric) for _, printed in rows.values()], neutral)
    axes[0].set_title(title, fontsize=9)
    if levels:
        names = [level.name for level in levels]
        _dots(axes[1], names, [level.ipf for level in levels], [level.printed for level in levels], neutral)
        _dots(axes[2], [""] * len(levels), [level.distances for level in levels], [None] * len(levels), neutral)
        axes[1].set_title("IpF, mean over rows", fontsize=9)
        axes[2].set_title("its distances alone, mean over rows", fontsize=9)
    figure.supxlabel("dots: ours, bars: 95 % intervals over documents; crosses: printed in the paper", fontsize=8)
    return png_figure(figure)


def draw_epochs(rows: Sequence[Found]) -> bytes:
    """A PNG: validation, one-shot and multi-shot numbers against the epoch that is attacked (figure 7)."""
    done = sorted(rows, key=lambda found: found.estimates["epoch"].value or 0)
    figure = new_figure(13, 3.4)
    axes = figure.subplots(1, 4)
    card = done[0].card if done else {"epochs": [], "best": {}}
    numbers = [e["number"] for e in card["epochs"]]
    axes[0].plot(numbers, [e["validation"]["accuracy"] for e in card["epochs"]], color=OURS, label="accuracy")
    loss = axes[0].twinx()
    loss.plot(numbers, [e["validation"]["loss"] for e in card["epochs"]], color=PAPER, label="loss")
    loss.set_ylabel("loss", color=PAPER, fontsize=8)
    for name, best in card["best"].items():
        axes[0].axvline(best["number"], color=BASE, linestyle=":", linewidth=1)
        place = {"transform": axes[0].get_xaxis_transform(), "rotation": 90, "va": "bottom", "fontsize": 7}
        axes[0].text(best["number"], 0.02, f" best {name}", **place)
    axes[0].set_ylabel("accuracy", color=OURS, fontsize=8)
    for axis, (title, names) in zip(axes, PANELS.items(), strict=True):
        for name, label in names.items():
            _line(axis, done, name, label)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("epoch", fontsize=8)
        axis.grid(alpha=0.25)
        if names:
            axis.legend(fontsize=7)
    axes[1].axhline(1, color=BASE, linewidth=1)
    axes[1].set_yscale("log")
    return png_figure(figure)


def _line(axis: Any, done: Sequence[Found], name: str, label: str) -> None:
    """An estimate over epochs with its interval as a band; the baseline is dashed."""
    there = [(f.estimates["epoch"].value, f.estimates[name]) for f in done if name in f.estimates]
    kept = [(x, e) for x, e in there if e.value is not None]
    style = {"linestyle": "--", "color": BASE} if name.startswith("base_") else {}
    (line,) = axis.plot(
        [x for x, _ in kept], [e.value for _, e in kept], marker="o", markersize=3, label=label, **style
    )
    sure = [(x, e.low, e.high) for x, e in kept if e.low is not None]
    if sure:
        xs, lows, highs = zip(*sure, strict=True)
        axis.fill_between(xs, lows, highs, alpha=0.15, color=line.get_color())


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
        mark(axis, place, e, theirs)
    ends = [x for x in (*(e.high for e in points), *printed) if x is not None]
    if neutral is not None and ends and max(ends) > 4:
        axis.set_xscale("log")
    axis.set_yticks(range(len(names)), names, fontsize=6.5)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(alpha=0.25)
    axis.tick_params(axis="x", labelsize=7)
