"""The picture of trainings: scores of all rows beside the paper's, and curves over rounds where there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from docleak.metrics import Estimate
from docleak.report.pictures import mark, new_figure, png_figure
from docleak.studies.training.carrying import Point
from docleak.studies.training.config import FINETUNING, PRETRAINING

#: What a curve shows of a point.
Shown = Callable[[Point], float | None]


@dataclass(frozen=True)
class Drawn:
    """A row of the picture: its score, the paper's, and the validation points of its first training."""

    name: str
    average: Estimate | None
    printed: float | None
    points: Sequence[Point] = field(default_factory=tuple)


def draw(rows: Sequence[Drawn]) -> bytes:
    """A PNG: scores with intervals (dots) and the paper's (crosses), then a panel per kind of curve that there is.

    Curves are means over the data sets; a lone row has a line per data set too.
    """
    panels = _panels(rows)
    height = max(3.2, 0.26 * len(rows) + 1.4)
    figure = new_figure(6.4 + 4.2 * len(panels), height)
    axes = figure.subplots(1, 1 + len(panels), squeeze=False, width_ratios=[1.4, *[1] * len(panels)])[0]
    _scores(axes[0], rows)
    for axis, (title, phase, shown) in zip(axes[1:], panels, strict=True):
        for row in rows:
            lines = _lines(row, phase, shown, apart=len(rows) == 1)
            for label, line in lines.items():
                axis.plot(list(line), list(line.values()), marker="o", markersize=3, label=label)
        axis.set(title=title, xlabel="round")
        axis.set_xlim(left=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(**_below(figure, len(axis.lines)))
        axis.grid(alpha=0.25)
    return png_figure(figure)


def _scores(axis: Any, rows: Sequence[Drawn]) -> None:
    for place, row in enumerate(rows):
        mark(axis, place, row.average, row.printed, scale=100, sizes=(6, 6))
    axis.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set(title="Test documents", xlabel="two-stage average, %")
    handles, labels = axis.get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))
    if legend:
        axis.legend(legend.values(), legend, **_below(axis.figure, len(legend)))
    axis.grid(alpha=0.25)


def _below(figure: Any, entries: int) -> dict[str, Any]:
    """Where a legend of so many entries covers no point: under the axis' name."""
    place = (0.5, -0.8 / figure.get_figheight())
    return {"loc": "upper center", "bbox_to_anchor": place, "ncols": min(entries, 3), "fontsize": 7}


def _panels(rows: Sequence[Drawn]) -> list[tuple[str, str, Shown]]:
    """Title, phase and value of every kind of curve that some row has."""
    kinds: list[tuple[str, str, Shown]] = [
        ("Validation loss, self-pretraining", PRETRAINING, lambda point: point.loss),
        ("Validation loss, fine-tuning", FINETUNING, lambda point: point.loss),
        ("Validation score, fine-tuning", FINETUNING, lambda point: point.score),
    ]
    return [kind for kind in kinds if any(_lines(row, kind[1], kind[2], apart=False) for row in rows)]


def _lines(row: Drawn, phase: str, shown: Shown, *, apart: bool) -> Mapping[str, Mapping[int, float]]:
    """Round -> value of a row's curve, the mean over data sets; with ``apart``, those of the data sets too."""
    rounds: dict[int, dict[str, float]] = {}
    for point in row.points:
        value = shown(point)
        if point.phase == phase and value is not None:
            rounds.setdefault(point.round, {})[point.source] = value
    if not rounds:
        return {}
    lines = {row.name: {number: sum(values.values()) / len(values) for number, values in rounds.items()}}
    if apart:
        sources = next(iter(rounds.values()))
        lines |= {source: {number: values[source] for number, values in rounds.items()} for source in sources}
    return lines
