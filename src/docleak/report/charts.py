"""Charts that commands leave beside their numbers: learning curves, and what epsilon grows to."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from docleak.metrics.estimate import Estimate
from docleak.report.pictures import new_figure, png_figure

BLUE, ORANGE, GREY = "#1f5fa8", "#c4570a", "#888888"
#: (round, value).
Points = Sequence[tuple[int, float]]


def learning_curves(silos: Iterable[Points], mean: Points, kept: Mapping[int, Estimate], *, noised: bool) -> bytes:
    """A PNG of training loss by silo and in all, and of ANLS on what silos keep with its interval, over rounds.

    Without ``mean`` the losses are private; ``noised`` ANLS is named so. What is not known is left out of ``kept``.
    """
    figure = new_figure(9 if kept else 4.8, 3.6, dpi=120)
    axes = figure.subplots(1, 2 if kept else 1, squeeze=False)[0]
    for points in silos:
        axes[0].plot(*zip(*points, strict=True), color=GREY, linewidth=0.8, alpha=0.7)
    if mean:
        axes[0].plot(*zip(*mean, strict=True), color=BLUE, marker="o")
    else:
        axes[0].text(0.5, 0.5, "private: silos do not say it", ha="center", transform=axes[0].transAxes)
    axes[0].set(xlabel="round", ylabel="training loss", title="Training loss (grey: each silo)")
    if kept:
        known = {number: anls for number, anls in kept.items() if anls.value is not None}
        values = [anls.value for anls in known.values()]
        low = [anls.value if anls.low is None else anls.low for anls in known.values()]
        high = [anls.value if anls.high is None else anls.high for anls in known.values()]
        axes[1].fill_between(list(known), low, high, color=ORANGE, alpha=0.2, linewidth=0)
        axes[1].plot(list(known), values, color=ORANGE, marker="o")
        title = "ANLS on documents the silos keep" + " (noised)" * noised
        axes[1].set(xlabel="round", ylabel="ANLS", title=title, ylim=(0, 1))
    for axis in axes:
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return png_figure(figure)


def budget_curves(curves: Mapping[str, Points], target: tuple[int, float], label: str, statement: str) -> bytes:
    """A PNG of epsilon (``label``) over rounds, ``target`` as a point and its ``statement`` below."""
    figure = new_figure(7.2, 5.0, layout=None)
    axes = figure.add_axes((0.1, 0.29, 0.86, 0.63))
    for style, (name, points) in zip(("-", "--", ":"), curves.items(), strict=False):
        axes.plot(*zip(*points, strict=True), style, label=name)
    rounds, epsilon = target
    axes.plot([rounds], [epsilon], "o", color="black", label=f"{rounds} rounds: {epsilon:.3g}")
    axes.set_xlabel("rounds")
    axes.set_ylabel(label)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", integer=True)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.text(0.02, 0.02, textwrap.fill(statement, 118), fontsize=7.5, va="bottom")
    return png_figure(figure)
