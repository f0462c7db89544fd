"""Pictures of membership inference: what the model says of members and others, and how often attacks are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from docleak.attacks.answers.features import FeatureTable
from docleak.documents.page import Image
from docleak.metrics.estimate import Estimate
from docleak.report.pictures import decoded, new_figure, png_figure
from docleak.studies.answers.membership import Subset

INSIDE, OUTSIDE = "#c4570a", "#1f5fa8"


def draw_scores(table: FeatureTable, members: Mapping[str, bool], found: Mapping[str, Sequence[Subset]]) -> Image:
    """A histogram per feature over providers, members and others apart, and the accuracies with intervals."""
    inside = np.array([members[name] for name in table.providers])
    across = min(4, len(table.columns))
    down = -(-len(table.columns) // across)
    figure = new_figure(2.7 * across, 2.2 * down + 0.5 * len(found) + 1.4)
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=[2.2 * down, 0.5 * len(found) + 1.4])
    axes = parts[0, 0].subplots(down, across, squeeze=False)
    for axis in axes.flat[len(table.columns) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, table.columns, strict=False):
        values = table.column(name)
        low, high = values.min(), values.max()
        edges = np.linspace(low, high, 16) if high > low else np.array([low - 0.5, low + 0.5])
        for chosen, colour, label in ((inside, INSIDE, "members"), (~inside, OUTSIDE, "others")):
            axis.hist(values[chosen], edges, color=colour, alpha=0.5, density=True, label=label)
        axis.set_title(name, fontsize=8)
        axis.tick_params(labelsize=7)
        axis.set_yticks([])
    axes[0, 0].legend(fontsize=7)
    axis = parts[1, 0].subplots()
    for place, subsets in enumerate(found.values()):
        for step, subset in enumerate(subsets):
            accuracy = subset.accuracy
            if accuracy.value is None or accuracy.low is None or accuracy.high is None:
                continue
            height = place + 0.22 * (step - (len(subsets) - 1) / 2)
            axis.plot([100 * accuracy.low, 100 * accuracy.high], [height, height], color=f"C{step}")
            label = f"s = {subset.minimum}" if place == 0 else ""
            axis.plot(100 * accuracy.value, height, "o", color=f"C{step}", label=label)
    axis.axvline(50, color="grey", linewidth=0.8)
    axis.set_yticks(range(len(found)), list(found), fontsize=8)
    axis.set_ylim(len(found) - 0.4, -0.6)
    axis.set_xlabel("providers guessed right, %", fontsize=8)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize=7)
    return decoded(png_figure(figure))


def accuracy_over_minimum(named: Mapping[str, Mapping[int, Estimate]], *, clearance: float = 0.12) -> Any:
    """A matplotlib figure of accuracies with their intervals over s: attacks by name -> s -> accuracy, each a curve,
    the curves' points ``clearance`` apart. What could not be measured is left out."""
    figure = new_figure(6.2, 3.8)
    axis = figure.subplots()
    for place, (name, accuracies) in enumerate(named.items()):
        known = {least: one for least, one in accuracies.items() if one.value is not None}
        at = [least + clearance * (place - (len(named) - 1) / 2) for least in known]
        bars = [(x, one) for x, one in zip(at, known.values(), strict=True) if one.low is not None]
        axis.plot(at, [100 * (one.value or 0.0) for one in known.values()], "o-", color=f"C{place}", label=name)
        axis.vlines([x for x, _ in bars], *([100 * getattr(one, end) for _, one in bars] for end in ("low", "high")),
                    color=f"C{place}", linewidth=1.2)  # fmt: skip
    axis.axhline(50, color="grey", linewidth=0.8)
    axis.set_xticks(sorted({least for accuracies in named.values() for least in accuracies}))
    axis.set_xlabel("s: providers with more than so many questions; bars: 95 % intervals over providers", fontsize=8)
    axis.set_ylabel("providers guessed right, %", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    return figure
