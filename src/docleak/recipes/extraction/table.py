"""The table of a recipe of the kind ``extraction``: ours beside what the paper printed, and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from docleak.errors import RecipeError
from docleak.metrics.estimate import Estimate
from docleak.models.loading import short_name
from docleak.models.shipped import SHIPPED_ENCODERS
from docleak.recipes.extraction.config import SETTINGS, ExtractionConfig
from docleak.recipes.extraction.experiment import OPTIONS, ExtractionExperiment, experiments, facts_of, plan
from docleak.recipes.extraction.factors import Level, Member, levels
from docleak.recipes.extraction.measures import BASELINE, NAMES, Measured
from docleak.recipes.extraction.pictures import Drawn, draw_curves, draw_epochs, draw_numbers
from docleak.recipes.kinds import Kind, field_types
from docleak.recipes.page import Group, Picture, estimate_text, failed_text, with_printed, write_page
from docleak.recipes.recipe import Recipe
from docleak.recipes.runner import failures

#: Of a column: its head, the digits it is printed with, and whether in percent.
Column = tuple[str, int, bool]
ATTACK: dict[str, Column] = {
    "accuracy": ("validation accuracy", 3, False), "epoch": ("epoch", 0, False), "ipf": ("IpF", 3, False),
    "distances": ("its distances alone", 3, False), "hamming": ("tokens wrong", 3, False),
    "base_hamming": ("public data only", 3, False), "hamaac": ("HamAAC", 3, False), "accauc": ("AccAUC", 3, False),
    "at1": ("AccAt 1 %", 1, True), "at5": ("AccAt 5 %", 1, True), "at100": ("AccAt 100 %", 1, True),
    "base_at100": ("public data only", 1, True),
}  # fmt: skip
CURVES: dict[str, Column] = {
    "hamaac": ("HamAAC", 3, False), "base_hamaac": ("public data only", 3, False), "accauc": ("AccAUC", 3, False),
    "base_accauc": ("public data only", 3, False), "at5": ("AccAt 5 %", 1, True),
    "base_at5": ("public data only", 1, True), "at100": ("AccAt 100 %", 1, True),
    "base_at100": ("public data only", 1, True),
}  # fmt: skip
COLUMNS: dict[str, dict[str, Column]] = {
    "attack": ATTACK, "epochs": ATTACK, "curves": CURVES,
    "defences": {name: ATTACK[name] for name in (
        "accuracy", "epoch", "ipf", "distances", "hamming", "base_hamming", "hamaac", "accauc", "at100", "base_at100")},
    "validation": {"accuracy": ("validation accuracy", 3, False), "loss": ("loss", 3, False),
                   "epoch": ("epoch", 0, False)},
    "examples": {"at100": ("fields read exactly", 1, True), "base_at100": ("public data only", 1, True)},
}  # fmt: skip
EXAMPLES = 3
FOOTNOTE = (
    "Ours with 95 % intervals over documents in square brackets; the paper's value in round brackets. IpF is dominated "
    "by its first term, exact readings, where public data alone read nothing: the column behind it leaves that term "
    "out. A share of the surest fields is one of few fields: 1 % of 60 is a single one."
)


def write_table(
    recipe: Recipe, scale: str, planned: Sequence[ExtractionExperiment], out: Path, facts: Mapping[str, str]
) -> Path:
    """Write table.md, table.json, pictures.png and table.html; returns the path of the last.

    RecipeError if the rows show different things, which makes no table.
    """
    shown = list(dict.fromkeys(e.config.shows for e in planned))
    if len(shown) > 1:
        raise RecipeError(
            f"the rows of {recipe.name!r} show different things ({', '.join(shown)}); give them tables apart."
        )
    columns, results = COLUMNS[shown[0]], [e.result() for e in planned]
    groups = []
    for model in dict.fromkeys(e.model for e in planned):
        own = [(e, found) for e, found in zip(planned, results, strict=True) if e.model == model]
        failed = {e.row.name: failures(e.folder) for e, _ in own if failures(e.folder)}
        rows = [(e.row.name, _cells(e, found, columns)) for e, found in own]
        source = own[0][0].config.model
        groups.append(Group(SHIPPED_ENCODERS.get(source, short_name(source)), rows, failed))
    means = _levels(planned, results) if shown[0] == "attack" else []
    told = {f"Mean IpF, {level.name}": level.text for level in means}
    heads = [head for head, _, _ in columns.values()] + ["examples"] * (shown[0] == "examples")
    return write_page(
        recipe, scale, out, heads=heads, groups=groups, facts={**told, **facts}, footnote=FOOTNOTE,
        picture=_picture(shown[0], planned, results, means),
        saved=[_json(e, found) for e, found in zip(planned, results, strict=True)],
    )  # fmt: skip


def _cells(e: ExtractionExperiment, found: Measured | None, columns: Mapping[str, Column]) -> list[str]:
    cells = []
    for number, (metric, (_, digits, percent)) in enumerate(columns.items()):
        estimate = found.estimates.get(metric) if found else None
        ours = "-" if estimate is None else estimate_text(_honest(estimate), digits, percent)
        if found is None and number == 0:
            ours += failed_text(failures(e.folder))
        cells.append(with_printed(ours, e.row.printed.get(e.model, {}).get(metric), digits, percent))
    return cells + ([_examples(found)] if e.config.shows == "examples" else [])


def _honest(estimate: Estimate) -> Estimate:
    """Without an interval where every resample gave the same: it would claim a certainty that nobody has."""
    return replace(estimate, low=None, high=None) if estimate.low == estimate.high else estimate


def _examples(found: Measured | None) -> str:
    """The longest fields that were read exactly: what they say, tokens, and private pages that print it."""
    perfect = sorted((r for r in found.readings if r.perfect), key=lambda r: -r.tokens) if found else []
    told = [f"{r.value.replace('|', '/')} ({r.tokens} tokens, on {r.copies} pages)" for r in perfect[:EXAMPLES]]
    return "; ".join(told) or "-"


def _levels(planned: Sequence[ExtractionExperiment], results: Sequence[Measured | None]) -> list[Level]:
    members = [
        Member(e.config, found, e.row.printed.get(e.model, {}).get("ipf"))
        for e, found in zip(planned, results, strict=True)
    ]
    return levels(members)


def _picture(
    shows: str, planned: Sequence[ExtractionExperiment], results: Sequence[Measured | None], means: Sequence[Level]
) -> Picture:
    several = len({e.model for e in planned}) > 1
    rows = [
        Drawn(f"{e.model}, {e.row.name}" if several else e.row.name, found, e.row.printed.get(e.model, {}))
        for e, found in zip(planned, results, strict=True)
    ]
    if shows == "curves":
        return Picture(draw_curves(rows), "Curves", "HamAt(p) and AccAt(p) of attack and baseline, row by row")
    if shows == "epochs":
        return Picture(draw_epochs(rows), "Along the training", "Validation, one-shot and multi-shot over epochs")
    metric, title, neutral = {
        "validation": ("accuracy", "Validation accuracy", None), "examples": ("at100", "Fields read exactly", None),
    }.get(shows, ("ipf", "IpF (1: no better than public data)", 1.0))  # fmt: skip
    png = draw_numbers(rows, metric, title, means, neutral)
    return Picture(png, "The same as a picture", f"{title} of every row beside the paper's")


def _json(e: ExtractionExperiment, found: Measured | None) -> dict[str, Any]:
    return {
        "row": e.row.name,
        "model": e.model,
        "ours": {name: vars(estimate) for name, estimate in found.estimates.items()} if found else {},
        "paper": dict(e.row.printed.get(e.model, {})),
        "facts": dict(found.facts) if found else {},
        "failed": failures(e.folder),
    }


EXTRACTIONS = Kind(
    about="fields read back out of extraction models",
    settings=SETTINGS,
    types={**field_types(ExtractionConfig), "preset": "str"},
    metrics=(*NAMES, *BASELINE, "accuracy", "loss", "epoch", "distances"),
    options=OPTIONS,
    experiments=experiments,
    plan=plan,
    facts=facts_of,
    write_table=write_table,
)
