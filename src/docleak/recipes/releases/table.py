"""The table of a recipe of the kind ``release``: what a released model gives away, beside what the paper printed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from docleak.errors import RecipeError
from docleak.metrics import Estimate
from docleak.models.loading import title_of
from docleak.recipes.kinds import Kind, field_types
from docleak.recipes.page import Group, Picture, estimate_text, failed_text, with_printed, write_page
from docleak.recipes.recipe import Recipe
from docleak.recipes.releases.config import SETTINGS, ReleaseConfig
from docleak.recipes.releases.experiment import OPTIONS, ReleaseExperiment, experiments, facts_of, plan
from docleak.recipes.releases.measures import Cell, Measured, metrics
from docleak.recipes.runner import failures

#: Of a column: its head, the digits it is printed with, and whether in percent.
Column = tuple[str, int, bool]
SIDES = {"positive": "RED positive", "negative": "RED negative", "gap": "difference"}
COLUMNS: dict[str, dict[str, Column]] = {
    "utility": {"anls": ("ANLS", 1, True), "accuracy": ("ACC", 1, True), "gigabytes": ("GiB sent", 2, False)},
    "gap": {
        "red_acc": ("RED ACC", 1, True), "red_anls": ("RED ANLS", 1, True),
        **{f"{side}_{name}": (f"{title} {name.upper()}", 1, True)
           for side, title in SIDES.items() for name in ("acc", "anls")},
    },
    "memorisation": {
        "positive_n": ("N positive", 0, False), "negative_n": ("N negative", 0, False),
        **{f"{side}_{name}": (f"{title} {name.upper()}", 1, True)
           for side, title in SIDES.items() for name in ("acc", "anls")},
        **{f"{side}_{name}_confident": (f"{SIDES[side]} {name.upper()}, confidence ≥ 0.9", 1, True)
           for side in ("positive", "negative") for name in ("acc", "anls")},
    },
    "noise": {"noise_prv": ("PRV", 10, False), "noise_pld": ("PLD", 4, False),
              "noise_ours": ("PLD, known coins", 4, False)},
    "division": {name: (name, 0, False) for name in ("providers", "documents", "pages", "questions")},
}  # fmt: skip
RATES: dict[str, Column] = {
    "balanced_accuracy": ("balanced accuracy", 1, True), "auc": ("AUC", 3, False),
    "tpr_at_10_fpr": ("TPR at 10 % FPR", 1, True), "epsilon_measured": ("ε measured, at least", 2, False),
    "epsilon_claimed": ("ε claimed, at most", 2, False),
}  # fmt: skip
FOOTNOTE = (
    "Ours with 95 % intervals over providers in square brackets; the paper's value in round brackets. Attack "
    "accuracies are means over seeds with their standard deviation behind ±, rates and AUC are those of the smallest "
    "s. ε measured is a lower bound with 95 % confidence, ε claimed the accountant's upper bound; docs/release.md "
    "explains both. GiB count both ways, as serialised, a tied weight once."
)


def columns_of(config: ReleaseConfig) -> dict[str, Column]:
    """The columns of a measure, by metric."""
    if config.measure == "membership":
        return {**{f"accuracy_s{least}": (f"accuracy, s = {least}", 1, True) for least in config.minimum}, **RATES}
    if config.measure == "disclosure":
        heads: dict[str, Column] = {}
        for key in config.keys:
            heads |= {
                f"asked_{key}": (f"{key}: asked", 0, False), f"different_{key}": ("different answers", 0, False),
                f"share_{key}": ("commonest", 1, True),
                f"trained_{key}": ("of the top 15, training values the public model does not give", 0, False),
            }  # fmt: skip
        return heads
    return COLUMNS[config.measure]


def write_table(
    recipe: Recipe, scale: str, planned: Sequence[ReleaseExperiment], out: Path, facts: Mapping[str, str]
) -> Path:
    """Write table.md, table.json, pictures.png and table.html; returns the path of the last.

    RecipeError if the rows measure different things, which makes no table.
    """
    heads = {tuple(columns_of(e.config).items()) for e in planned}
    if len(heads) > 1:
        measures = ", ".join(dict.fromkeys(e.config.measure for e in planned))
        raise RecipeError(f"the rows of {recipe.name!r} measure different things ({measures}); give them tables apart.")
    columns = columns_of(planned[0].config)
    results = [e.result() for e in planned]
    groups, remarks = [], dict(facts)
    for model in dict.fromkeys(e.model for e in planned):
        own = [(e, found) for e, found in zip(planned, results, strict=True) if e.model == model]
        failed = {e.row.name: failures(e.folder) for e, _ in own if failures(e.folder)}
        rows = [(e.row.name, [_text(e, found, name, column) for name, column in columns.items()]) for e, found in own]
        groups.append(Group(title_of(own[0][0].config.model), rows, failed))
    for e, found in zip(planned, results, strict=True):
        for name, text in (found.remarks if found else {}).items():
            remarks[f"{e.row.name}, {name}"] = text
    told = {name for found in results if found for name, cell in found.cells.items() if cell.value is not None}
    drawn = {name: column for name, column in columns.items() if column[2] and name in told} or columns
    picture = Picture(draw(planned, results, drawn), "The same as a picture", "Every row beside the paper's")
    return write_page(
        recipe, scale, out, heads=[head for head, _, _ in columns.values()], groups=groups, facts=remarks,
        footnote=FOOTNOTE, picture=picture, saved=[_json(e, found) for e, found in zip(planned, results, strict=True)],
    )  # fmt: skip


def _text(e: ReleaseExperiment, found: Measured | None, metric: str, column: Column) -> str:
    _, digits, percent = column
    printed = e.row.printed.get(e.model, {}).get(metric)
    if found is None:
        return with_printed("-" + failed_text(failures(e.folder)), printed, digits, percent)
    cell = found.cells.get(metric, Cell(None))
    ours = estimate_text(Estimate(cell.value, cell.low, cell.high, 0, 0), digits, percent)
    more = f", {cell.more}" if cell.more and cell.value is not None else ""
    return with_printed(ours + more, printed, digits, percent)


def _json(e: ReleaseExperiment, found: Measured | None) -> dict[str, Any]:
    return {
        "row": e.row.name,
        "model": e.model,
        "target": e.config.released().name,
        "ours": {name: asdict(cell) for name, cell in found.cells.items()} if found else {},
        "paper": dict(e.row.printed.get(e.model, {})),
        "trained": asdict(found.target) | {"model": ""} if found and found.target else None,
        "remarks": dict(found.remarks) if found else {},
        "failed": failures(e.folder),
    }


def draw(
    planned: Sequence[ReleaseExperiment], results: Sequence[Measured | None], columns: Mapping[str, Column]
) -> bytes:
    """A PNG: a panel per column with every row's number and interval (dots), and the paper's (crosses)."""
    from matplotlib.figure import Figure

    across = min(4, len(columns))
    down = -(-len(columns) // across)
    height = 0.27 * len(planned) + 0.9
    figure = Figure(figsize=(2.6 + 2.6 * across, max(2.4, height) * down), dpi=110, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    for axis in axes.flat[len(columns) :]:
        axis.set_visible(False)
    for axis, (metric, (head, _, percent)) in zip(axes.flat, columns.items(), strict=False):
        scale = 100.0 if percent else 1.0
        for place, (e, found) in enumerate(zip(planned, results, strict=True)):
            _mark(axis, place, found.cells.get(metric) if found else None,
                  e.row.printed.get(e.model, {}).get(metric), scale)  # fmt: skip
        axis.set_title(head + (", %" if percent else ""), fontsize=8)
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=7)
    first = axes[0, 0]
    first.set_yticks(range(len(planned)), [e.row.name for e in planned], fontsize=7)
    first.set_ylim(len(planned) - 0.5, -0.5)
    printed = any(e.row.printed.get(e.model) for e in planned)
    words = "dots: ours; bars: 95 % intervals over providers" + "; crosses: printed in the paper" * printed
    figure.supxlabel(words, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _mark(axis: Any, place: int, cell: Cell | None, printed: float | None, scale: float) -> None:
    if cell is not None and cell.value is not None:
        if cell.low is not None and cell.high is not None:
            axis.plot([scale * cell.low, scale * cell.high], [place, place], color="#1f5fa8", linewidth=1.5)
        axis.plot(scale * cell.value, place, "o", color="#1f5fa8", markersize=4)
    if printed is not None:
        axis.plot(scale * printed, place, "x", color="#c4570a", markersize=5)


RELEASES = Kind(
    about="attacks on released models",
    settings=SETTINGS,
    types=field_types(ReleaseConfig),
    metrics=tuple(metrics()),
    options=OPTIONS,
    experiments=experiments,
    plan=plan,
    facts=facts_of,
    write_table=write_table,
)
