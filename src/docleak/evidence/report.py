"""The report of an audit: one self-contained HTML page, its numbers as JSON, and a summary for the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from docleak.documents.storage import reported, write_atomically
from docleak.evidence.answers.shipped import released_section
from docleak.evidence.extraction.shipped import weights_section
from docleak.evidence.report_data import NEAR, ModelResult, ReportData, Spread, prepare
from docleak.evidence.report_pictures import PAGES_SHOWN, pictures_of, text_of
from docleak.evidence.report_words import (
    ADVICE,
    LIMITS,
    METRICS,
    between,
    defence_words,
    duration,
    notices,
    share,
    summary_lines,
    verdict,
)
from docleak.evidence.run import Run
from docleak.evidence.templating import render
from docleak.metrics import PSNR_CAP_DB, Estimate


def write_report(run: Run | Sequence[Run], *, rng: np.random.Generator, out: Path | None = None) -> Path:
    """Write ``report.html`` and ``results.json`` and return the path of the report.

    Several runs are joined if their pages and budgets are the same. ``out`` is the directory to write to, by default
    that of the first run. ``rng`` draws the bootstrap; the same seed gives the same intervals as ``summary_text``.
    Raises RunError if there is nothing to report, runs cannot be compared, or the files cannot be written.
    """
    data = prepare(_listed(run), rng)
    folder = Path(out) if out is not None else data.runs[0].path
    html = render("report.html.j2", filters=FILTERS, **_context(data))
    results = json.dumps(data.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with reported(folder / "report.html"):
        write_atomically(folder / "results.json", results.encode("utf-8", "backslashreplace"))
        write_atomically(folder / "report.html", html.encode("utf-8", "backslashreplace"))
    return folder / "report.html"


def summary_text(run: Run | Sequence[Run], rng: np.random.Generator) -> str:
    """The verdicts and the first rows of the tables, 15 lines at most."""
    return "\n".join(summary_lines(prepare(_listed(run), rng))[:15])


def _listed(run: Run | Sequence[Run]) -> list[Run]:
    return [run] if isinstance(run, Run) else list(run)


def _context(data: ReportData) -> dict[str, Any]:
    """What the template sees."""
    info = data.info
    return {
        "notices": notices(data),
        "remarks": data.shortages,
        "models": [_model(model, data) for model in data.models],
        "counts": _counts(data),
        "threat": info.get("threat_model") or {},
        "engines": data.engines,
        "runs": [{"path": str(run.path), **run.manifest()} for run in data.runs],
        "metrics": METRICS,
        "advice": ADVICE,
        "defences": data.defences,
        "defence_words": defence_words((data.defences or {}).get("rows", [])),
        "limits": LIMITS,
        "released": released_section(data.runs[0].path) if len(data.runs) == 1 else None,
        "weights": weights_section(data.runs[0].path) if len(data.runs) == 1 else None,
        "synthetic": all(run.config.get("documents") == "synthetic" for run in data.runs),
        "near": round(100 * NEAR),
        "pages_shown": PAGES_SHOWN,
    }


def _counts(data: ReportData) -> dict[str, int]:
    units = [unit for model in data.models for unit in model.units]
    fields = {unit.identity: len(unit.score.fields) for unit in units}
    return {
        "models": len(data.models),
        "attacks": len({unit.record["attack"] for unit in units}),
        "pages": len(fields),
        "fields": sum(fields.values()),
        "namesakes": len(fields) - len({unit.page for unit in units}),
    }


def _model(model: ModelResult, data: ReportData) -> dict[str, Any]:
    names = list(dict.fromkeys(model.best.pages))
    pages = [_page(model, name) for name in names[:PAGES_SHOWN]]
    first = pages[0]["attacks"][0]["pages"]
    return {
        "result": model,
        "verdict": verdict(model, data.engines),
        "counts": model.best.counts,
        "cover": [picture for picture in first if picture["kind"] != "template"],
        "cover_page": names[0],
        "pages": pages,
        "left_out": len(names) - len(pages),
        "given": _given(model),
        "rows": [*model.attacks],
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
    return [*lines, *_repeats(model), *_self_tests(model)]


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
