"""The one verdict on top of an audit's page, over its models and what else it audited; the summary of a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from docleak.evidence.extraction.shipped import weights_section
from docleak.evidence.report_data import AttackResult, ModelResult, ReportData
from docleak.evidence.report_verdict import of_batches, verdict
from docleak.evidence.report_words import notices
from docleak.evidence.routes import ROUTES, FieldFound
from docleak.report.page import Reading
from docleak.report.severity import Cell, Overall, Part, Route, Severity, judge, overall, routes_sentence
from docleak.runs.run import Run

#: Lines that a terminal is shown at most.
LINES = 15
#: Folder of an audit in which the shipped released model is asked.
RELEASED = "released"


def released_reading(folder: Path) -> Reading | None:
    """What the audit in ``folder`` says of the shipped released model; None if it was not asked there."""
    if not (folder / RELEASED / "run.json").is_file():
        return None
    from docleak.studies.answers.study import AnswersStudy

    return AnswersStudy.read([Run(folder / RELEASED)], np.random.default_rng(0), beside=True)


def sections(data: ReportData) -> dict[str, Any]:
    """The parts of an audit beside its gradients, as templates see them: "released" and "weights", None without."""
    folder: Path | None = data.runs[0].path if len(data.runs) == 1 else None
    return {
        "released": released_reading(folder) if folder else None,
        "weights": weights_section(folder) if folder else None,
    }


def overview(data: ReportData, beside: Mapping[str, Any]) -> Overall:
    """The worst of all parts, and how many fields any route gave with any model."""
    parts = [
        Part(model.title, model.severity, _short(model), anchor=f"model-{number}")
        for number, model in enumerate(data.models)
    ]
    parts += [Part(title, Severity.UNMEASURED, why) for title, why in _silent(data)]
    if (released := beside["released"]) is not None:
        parts += released.parts
    if (weights := beside["weights"]) is not None:
        said = weights["verdict"]
        parts.append(Part(f"weights of {weights['model']}", said.severity, said.headline, said.label, "weights"))
    return overall(parts, _counted(data))


def _short(model: ModelResult) -> str:
    said, routes = model.findings.judgement, routes_sentence(model.findings.routes)
    by = f": {routes}" if routes else ""
    counted = f"{said.read} of {said.of} private fields read{by}." if said.of else "No private field could be counted."
    return " ".join([counted, *of_batches(model), *model.findings.unread])


def _silent(data: ReportData) -> list[tuple[str, str]]:
    """(title, why) of models that were asked for and of which no unit is finished."""
    there = {model.model for model in data.models}
    why = {one["model"]: one["why"] for run in data.runs for one in run.info.get("skipped", ())}
    unfinished = "No unit of it is finished."
    return [
        (str(facts.get("title", key)), f"Nothing was tried: {why[key]}." if key in why else unfinished)
        for key, facts in data.info["models"].items() if key not in there
    ]  # fmt: skip


def _counted(data: ReportData) -> str:
    """Fields over all models; the same page seen by several models is one page. A route that only some of the models
    have is counted on the fields that it was tried on, and takes none out of the whole."""
    models: dict[tuple[object, ...], list[FieldFound]] = {}
    for field in (field for model in data.models for field in model.findings.fields):
        models.setdefault(field.identity, []).append(field)
    order = list(Cell)
    said = judge([min((field.cell for field in same), key=order.index) for same in models.values()])
    limits = {route.name: route.limit for model in data.models for route in model.findings.routes}
    routes = [
        Route(name, tuple(min((f.routes[name] for f in same if name in f.routes), key=order.index,
                              default=Cell.UNSCORED) for same in models.values()), limits.get(name, ""),
              _handed(data, name))
        for name in ROUTES
    ]  # fmt: skip
    pages = len({identity[:-1] for identity in models})
    where = "1 audited page" if pages == 1 else f"{pages} audited pages"
    by = routes_sentence([route for route in routes if route.of and (route.read or route.name != "question")])
    was = "was" if said.of == 1 else "were"
    by = f" by at least one route: {by}" if by else ""
    if not said.of:
        return f"No private field of {where} could be counted."
    return f"{said.read} of {said.of} private fields of {where} {was} read{by}."


def _handed(data: ReportData, name: str) -> str:
    """What was handed to the attacker of a route over all models; "" where none was handed anything."""
    found = {route.handed for model in data.models for route in model.findings.routes if route.name == name}
    handed = next((one for one in sorted(found) if one), "")
    return f"{handed} of some models" if handed and len(found) > 1 else handed


def summary_lines(data: ReportData) -> list[str]:
    """The overall verdict, each model's, and the best rows of the tables, for a terminal."""
    found = overview(data, sections(data))
    lines = [f"Notice: {notice}" for notice in [*notices(data), *data.shortages][:2]]
    lines += [f"Verdict: {found.label.lower()}.", f"  {found.sentence}"]
    shown = data.models[:3] if len(data.models) > 4 else data.models
    for model in shown:
        said = verdict(model, data.engines)
        lines.append(f"{model.title}: {said.label.lower()}. {_short(model)} {said.more}".rstrip())
        if said.severity in (Severity.UNTOLD, Severity.UNMEASURED):
            lines.append(f"  {said.sentence}")
        rows = [attack for attack in model.attacks if attack.counts.scored]
        lines += [f"  {_row(attack)}" for attack in rows[: 1 if len(data.models) > 2 else 3]]
    if len(data.models) > len(shown):
        lines.append(f"... and {len(data.models) - len(shown)} more models in the report.")
    lines = lines[: LINES - 1]
    if any(model.documents < 2 for model in data.models):
        lines.append("One document is an example, not a rate: audit more pages for an interval.")
    return lines


def _row(attack: AttackResult) -> str:
    columns = attack.estimates
    fuzz, psnr = columns["fuzz_ratio"].value, columns["psnr"].value
    return "  ".join(
        [
            f"picture by {attack.attack:<18}",
            f"exact {attack.counts.exact}/{attack.counts.scored}",
            f"fuzz {'-' if fuzz is None else format(fuzz, '.2f')}",
            f"PSNR {'-' if psnr is None else format(psnr, '.1f')} dB",
            f"gradient explained {'-' if attack.explained.mean is None else format(attack.explained.mean, '.3f')}",
        ]
    )
