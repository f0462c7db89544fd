"""The report of an audit: one self-contained HTML page, its numbers as JSON, and a summary for the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from docleak.documents.visible import visible
from docleak.evidence.advice import advice_of
from docleak.evidence.overview import overview, sections, summary_lines
from docleak.evidence.report_data import ModelResult, ReportData, Spread, prepare
from docleak.evidence.report_pictures import PAGES_SHOWN, pictures_of, text_of
from docleak.evidence.report_verdict import verdict
from docleak.evidence.report_words import ADVICE, LIMITS, METRICS, between, duration, notices, share
from docleak.evidence.routes import FLOORS
from docleak.files import reported, write_atomically
from docleak.metrics import PSNR_CAP_DB, Estimate
from docleak.report.severity import Cell
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.studies.fields import NEAR


def write_report(run: Run | Sequence[Run], *, rng: np.random.Generator, out: Path | None = None) -> Path:
    """Write ``report.html`` and ``results.json`` and return the path of the report.

    Several runs are joined if their pages and budgets are the same. ``out`` is the directory to write to, by default
    that of the first run. ``rng`` draws the bootstrap; the same seed gives the same intervals as ``summary_text``.
    Raises RunError if there is nothing to report, runs cannot be compared, or the files cannot be written.
    """
    data = prepare(_listed(run), rng)
    folder = Path(out) if out is not None else data.runs[0].path
    html = render("report.html.j2", filters=FILTERS, **_context(data))
    results = json.dumps(results_of(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with reported(folder / "report.html"):
        write_atomically(folder / "results.json", results.encode("utf-8", "backslashreplace"))
        write_atomically(folder / "report.html", html.encode("utf-8", "backslashreplace"))
    return folder / "report.html"


def summary_text(run: Run | Sequence[Run], rng: np.random.Generator) -> str:
    """The verdicts and the first rows of the tables, 15 lines at most."""
    return "\n".join(visible(line) for line in summary_lines(prepare(_listed(run), rng)))


def verdict_json(run: Run | Sequence[Run], rng: np.random.Generator) -> dict[str, Any]:
    """The overall verdict and that of every part, for machines; the same as on the page and in results.json."""
    data = prepare(_listed(run), rng)
    return _overall_json(data)


def results_of(data: ReportData) -> dict[str, Any]:
    """What results.json holds."""
    return {"verdict": _overall_json(data), **data.to_json()}


def _overall_json(data: ReportData) -> dict[str, Any]:
    found = overview(data, sections(data))
    return {
        "severity": str(found.severity), "label": found.label, "sentence": found.sentence,
        "parts": [
            {"part": part.name, "severity": str(part.severity), "label": part.said, "sentence": part.sentence}
            for part in found.parts
        ],
    }  # fmt: skip


def _listed(run: Run | Sequence[Run]) -> list[Run]:
    return [run] if isinstance(run, Run) else list(run)


def _context(data: ReportData) -> dict[str, Any]:
    """What the template sees."""
    info, beside = data.info, sections(data)
    return {
        "overall": overview(data, beside),
        "notices": notices(data),
        "remarks": data.shortages,
        "models": [_model(model, data, f"model-{number}") for number, model in enumerate(data.models)],
        "counts": _counts(data),
        "threat": info.get("threat_model") or {},
        "engines": data.engines,
        "runs": [{"path": str(run.path), **run.manifest(), "settings": settings_of(run)} for run in data.runs],
        "metrics": METRICS,
        "advice": ADVICE,
        "measured": advice_of(data),
        "defences": data.defences,
        "limits": LIMITS,
        **beside,
        "synthetic": all(run.config.get("documents") == "synthetic" for run in data.runs),
        "near": round(100 * NEAR),
        "floors": FLOORS,
        "pages_shown": PAGES_SHOWN,
    }


def _counts(data: ReportData) -> dict[str, int]:
    units = [unit for model in data.models for unit in model.units]
    fields = {unit.identity: len(unit.score.fields) for unit in units}
    return {
        "models": len(data.models),
        "attacks": len({unit.record["attack"] for unit in units} - {*FLOORS}),
        "pages": len(fields),
        "fields": sum(fields.values()),
        "namesakes": len(fields) - len({unit.page for unit in units}),
    }


def settings_of(run: Run) -> list[tuple[str, str]]:
    """The configuration of a run as a table: a row per setting, settings within settings one by one."""
    rows = []
    for key, value in run.config.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(f"{key} {name}".strip().replace("_", " "), _setting(one)) for name, one in inner]
    return rows


def _setting(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value in (None, "") else str(value)


def _model(model: ModelResult, data: ReportData, anchor: str) -> dict[str, Any]:
    names = list(dict.fromkeys(model.best.pages))
    pages = [_page(model, name) for name in names[:PAGES_SHOWN]]
    first = pages[0]["attacks"][0]["pages"]
    return {
        "result": model,
        "anchor": anchor,
        "verdict": verdict(model, data.engines),
        "bar": _bar(model),
        "counts": model.best.counts,
        "cover": [{**shown, "alt": f"{shown['alt']} (cover)"} for shown in first if shown["kind"] != "template"],
        "cover_page": names[0],
        "pages": pages,
        "left_out": len(names) - len(pages),
        "given": _given(model),
        "rows": [*model.attacks],
    }


def _bar(model: ModelResult) -> dict[str, Any]:
    """The bar under a headline: the same fields as the headline, by what all routes together gave."""
    said = model.findings.judgement
    read, near = said.read, said.cells.count(Cell.NEAR)
    parts = [("exact", read, "read"), ("near", near, "nearly read"), ("no", said.of - read - near, "not read")]
    return {
        "of": said.of,
        "parts": [{"kind": kind, "count": count, "words": words} for kind, count, words in parts],
        "label": f"By any route, of {said.of} private fields: " + ", ".join(f"{n} {words}" for _, n, words in parts),
    }


def _page(model: ModelResult, name: str) -> dict[str, Any]:
    record = next(unit.record for unit in model.best.units if unit.page == name)
    shown = [pictures_of(attack, name, best=attack is model.best) for attack in model.attacks]
    return {
        "name": name,
        "about": [
            (label, record[key])
            for label, key in (("Provider", "provider"), ("Document", "document"))
            if record.get(key) and record[key] != name
        ],
        "repeats": len(record.get("repeats", ())),
        "answer_given": bool(record["view"].get("answer_known")),
        "question": record.get("question"),
        "answer": record.get("answer"),
        "attacks": [found for found in shown if found is not None],
        "text": next((text_of(unit) for unit in model.units if unit.page == name and unit.text is not None), None),
    }


def _given(model: ModelResult) -> list[str]:
    """What the attacker of this model was handed, in sentences."""
    view = model.best.units[0].record["view"]
    sizes = model.batch_sizes
    pages = "1 page" if sizes == [1] else f"{' or '.join(map(str, sizes))} pages"
    lines = []
    if view.get("numbers") is not None:
        tensors = f" in {view['tensors']} tensors" if view.get("tensors") is not None else ""
        lines.append(f"The gradient of {pages}: {view['numbers']:,} numbers{tensors}, and the model it was taken from.")
    if view.get("train_mode"):
        lines.append("The client ran with dropout on, whose masks the attacker does not know.")
    known = dict.fromkeys(map(str, chain.from_iterable(unit.record["knowledge"] for unit in model.units)))
    lines.append(f"Known beforehand: {'; '.join(sentence.rstrip('.') for sentence in known) or 'nothing'}.")
    skipped = [f"Not tried, since it does not apply here: {reason}." for reason in model.skipped]
    return [*lines, *skipped, *_repeats(model), *_self_tests(model)]


def _repeats(model: ModelResult) -> list[str]:
    counts = [unit.repeats for unit in model.pages if unit.repeats]
    if not counts:
        return []
    places = "1 other place" if sum(counts) == 1 else f"{sum(counts)} other places"
    pages = "1 page" if len(counts) == 1 else f"{len(counts)} pages"
    return [
        f"Private values are printed again at {places} on {pages}. These were blanked in the template too, so the "
        "attacker did not have them; reading is scored at the fields' own places."
    ]


def _self_tests(model: ModelResult) -> list[str]:
    tests = {unit.page: unit.record["self_test"] for unit in model.units if unit.record.get("self_test")}
    if not tests:
        return ["Self test: none was recorded."]
    distances = [float(test["distance"]) for test in tests.values() if test.get("distance") is not None]
    passed = sum(bool(test.get("passed")) for test in tests.values())
    worst = f" (largest relative distance {f'{max(distances):.0e}' if max(distances) else 0})" if distances else ""
    notes = dict.fromkeys(str(test["note"]).rstrip(".") for test in tests.values() if test.get("note"))
    line = f"Self test, the true page must reproduce the observed gradient: {passed} of {len(tests)} passed{worst}."
    return [line, *(f"{note}." for note in notes)]


def _number(estimate: Estimate, digits: int) -> str:
    return "–" if estimate.value is None else f"{estimate.value:,.{digits}f}"


def _psnr(estimate: Estimate) -> str:
    identical = estimate.value is not None and estimate.value >= PSNR_CAP_DB
    return "identical" if identical else _number(estimate, 1)


def _range(estimate: Estimate, digits: int) -> str:
    """Empty where there is no interval, or nothing to tell."""
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return ""
    return f"{estimate.low:,.{digits}f} to {estimate.high:,.{digits}f}"


def _spread(spread: Spread, digits: int) -> str:
    return "–" if spread.mean is None else f"{spread.mean:,.{digits}f}"


FILTERS: dict[str, Callable[..., Any]] = {
    "share": share, "between": between, "number": _number, "psnr": _psnr, "range": _range, "spread": _spread,
    "duration": duration,
}  # fmt: skip
