"""What a gradient audit says: one verdict per model, the evidence field by field, every attack on equal terms."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from docleak.attacks.registries import ATTACKS
from docleak.documents.pages import grouped
from docleak.metrics import PSNR_CAP_DB, Estimate
from docleak.report.page import LINES, Reading, Section, run_facts
from docleak.report.severity import Cell, Part, Route, Severity, judge, routes_sentence
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table, Value
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.fields import NEAR
from docleak.studies.gradient.exposed import in_place, measured_on, part_sent, published, tested, unfinished
from docleak.studies.gradient.findings import FLOORS, ROUTES, answer_given, blind
from docleak.studies.gradient.measures import categories_of, measures_of
from docleak.studies.gradient.pictures import PAGES_SHOWN, bar_of, pictures_of, text_of
from docleak.studies.gradient.results import AttackResult, ModelResult, ReportData, prepare
from docleak.studies.gradient.verdict import of_batches, sampled, textless, verdict
from docleak.studies.gradient.words import (
    LIMITS,
    METRICS,
    advice_section,
    defend_command,
    duration,
    notices,
    only_defended,
)

#: Of a recipe's table.
COLUMNS = {
    "binary": Column("Binary (picture)", 1, percent=True), "fuzz_ratio": Column("fuzz ratio"),
    "psnr": Column("PSNR, dB", 1), "fft2d": Column("FFT2D", 4), "mse": Column("MSE", 0),
    "documents": Column("documents", 0), "evaluations": Column("evaluations", 0),
    "seconds": Column("s per attack", 0), "text": Column("text tokens read"),
    "text_exact": Column("whole text exact", 1, percent=True),
}  # fmt: skip
#: Of a report's tables.
SHOWN = {
    "binary": Column("Picture: read exactly", 1, percent=True, bar=True), "fuzz_ratio": Column("Fuzz ratio"),
    "psnr": Column("PSNR, dB", 1), "fft2d": Column("FFT2D", 4), "mse": Column("MSE", 0),
    "explained": Column("Gradient explained"), "evaluations": Column("Evaluations", 0),
    "seconds": Column("Time per page"),
}  # fmt: skip
KNOWN = (
    "A field counts as read if any route gave its exact value. What the attacker was given beforehand is no finding."
)


def read(runs: Sequence[Run], rng: np.random.Generator) -> Reading:
    """The reading of one run, or of several of the same pages and budgets; RunError for others."""
    data = prepare(runs, rng)
    counts, first = _counts(data), data.info
    models = [_model(model, data, f"model-{number}") for number, model in enumerate(data.models)]
    tables = {model.model: table_of(model, data.engines) for model in data.models}
    noticed = notices(data)
    evidence = render(
        "gradient_evidence.html.j2",
        models=models,
        engines=data.engines,
        near=round(100 * NEAR),
        pages_shown=PAGES_SHOWN,
    )
    floor = "published" if published(data.runs[0]) else "blank"
    numbers = render(
        "gradient_numbers.html.j2", tables=tables.values(), metrics=METRICS, equal=not noticed, floor=floor
    )  # fmt: skip
    advice = () if _compared(runs) else (advice_section(data),)
    return Reading(
        question="What did one client's gradient give away?",
        lead=_lead(counts),
        parts=_parts(data),
        counted=_counted(data),
        articles=render("gradient_verdicts.html.j2", models=models),
        remarks=(KNOWN,),
        notices=(*noticed, *data.drawn, *data.told("shortage"), *data.told("questions_made")),
        sections=(
            Section("threat", "Threat model", "Threat model: who could do this",
                    render("gradient_threat.html.j2", threat=first["threat_model"], models=models), open=True),
            Section("evidence", "Evidence", "Evidence: look for yourself", evidence, annex=True),
            Section("numbers", "Numbers", "Numbers: every attack, on equal terms", numbers),
            *advice,
        ),
        lines=tuple(summary_lines(data)),
        results=data.to_json(),
        tables=tables,
        limits=LIMITS,
        runs=tuple(run_facts(run.path, run.manifest()) for run in data.runs),
        synthetic=all(run.config.get("documents") == "synthetic" for run in data.runs),
        measures=tuple(one for model in data.models for one in measures_of(model)),
        scope=Scope(
            system=" ".join(filter(None, [
                f"Training of {'; '.join(model.title for model in data.models)}, shared as gradients"
                f"{part_sent(data.runs[0])}", in_place(data.runs[0]),
            ])),
            material=f"{counted_words(counts['pages'], 'page')} with {counted_words(counts['fields'], 'private field')}"
            + f", {counts['placeless']} of them without a place on the page: not scored" * bool(counts["placeless"]),
            adversary="whoever receives one client's gradient",
            categories=categories_of(data.models),
            sample=sampled(data.models),
            remedies=tuple(f"{told} To measure it, run {defend_command(data)}." for told in only_defended(data)),
            remedy="" if _compared(runs) else defend_command(data),
            unfinished=unfinished(data.runs, [unit.record for model in data.models for unit in model.units]),
        ),
    )  # fmt: skip


#: Folder of a run in which a comparison of defences may lie, which then says what to do.
DEFENCES = "defences"


def _compared(runs: Sequence[Run]) -> bool:
    return len(runs) == 1 and (runs[0].path / DEFENCES / "run.json").is_file()


def _lead(counts: dict[str, int]) -> str:
    models = f", with {counts['models']} models" if counts["models"] > 1 else ""
    namesakes = (
        " Models with inputs of different sizes have different pages, even where the pages have the same name."
        if counts["namesakes"] else ""
    )  # fmt: skip
    return (
        f"{counted_words(counts['attacks'], 'attack')} tried to rebuild "
        f"{counted_words(counts['pages'], 'private page')} ({counted_words(counts['fields'], 'private field')}) from "
        "what a client would send to the server of a joint "
        f"training{models}.{namesakes} A gradient is what a client sends instead of its page: a list of numbers, "
        "computed from the page, that says how the model should change."
    )


def table_of(model: ModelResult, engines: Sequence[str]) -> Table:
    """All attacks on one model, between the true page and the blank template."""

    def row(name: str, estimates: dict[str, Estimate], note: str) -> Row:
        values: dict[str, Value] = {key: estimates[key] for key in SHOWN if key in estimates}
        psnr = estimates["psnr"].value
        if psnr is not None and psnr >= PSNR_CAP_DB:
            values["psnr"] = "identical"
        return Row(name, values, note=note, quiet=True)

    pages, documents = counted_words(len(model.best.units), "page"), model.documents
    reader = f", read by {', '.join(engines)}" if engines else ""
    interval = "95 % intervals over documents" if documents > 1 else "one document gives no interval"
    caption = (
        f"n = {pages} of {counted_words(documents, 'document')}, {model.best.counts.scored} private fields{reader}. "
        "This table is about pictures; words, question and answer are in the verdict. In brackets or small: "
        f"{interval}; of what is explained, and of evaluations, the least and the greatest of a page."
    )
    most = {} if (noisy := of_truth(model.best)).value is None else {"explained": noisy}
    rows = [row("True page", {**model.ceiling, **most}, "ceiling"), *map(_attack_row, model.attacks)]
    blank = "Published template" if published(model.best.units[0].run) else "Blank template"
    rows.append(row(blank, dict(model.floor), "floor"))
    return Table(model.title, SHOWN, rows, caption, first="Attack", open=True)


def of_truth(attack: AttackResult) -> Estimate:
    """How much of a gradient the true page explains where that is not all: mean, least and greatest of a page."""
    return Estimate.spread([unit.record["finding"].get("of_truth") for unit in attack.units])


def _attack_row(attack: AttackResult) -> Row:
    floor = ". A floor: it sees no gradient" if attack.attack in FLOORS else ""
    paper = f". {attack.paper}" if attack.paper else ""
    seconds = attack.seconds.value
    values: dict[str, Value] = {
        **{key: attack.estimates[key] for key in SHOWN if key in attack.estimates},
        "explained": attack.explained, "evaluations": attack.evaluations,
        "seconds": None if seconds is None else duration(seconds),
    }  # fmt: skip
    facts = {"pages": len(attack.units), "seconds_per_page": seconds}
    return Row(attack.attack, values, facts=facts, note=f"{attack.summary}{paper}{floor}")


def tokens_read(model: ModelResult) -> str:
    """What linear algebra read of the text: of single pages the tokens at their places, of batches also the set."""
    if model.batches:
        named, there, placed, of = (
            sum(batch.get(part, {}).get(key, 0) for batch in model.batches)
            for part in ("tokens", "places")
            for key in ("right", "true")
        )
        return f"{named} of {there} as a set" + (f", {placed} of {of} places" if of else "")
    if not model.texts:
        return "-"
    right, tokens = (sum(int(text[key]) for text in model.texts) for key in ("tokens_right", "tokens"))
    exact = sum(bool(text["exact"]) for text in model.texts)
    return f"{right} of {tokens}; {exact} of {len(model.texts)} pages exact"


def _counts(data: ReportData) -> dict[str, int]:
    units = [unit for model in data.models for unit in model.units]
    fields = {unit.identity: unit.score.fields for unit in units}
    return {
        "models": len(data.models),
        "attacks": len({unit.record["attack"] for unit in units} - {*FLOORS}),
        "pages": len(fields),
        "fields": sum(map(len, fields.values())),
        "placeless": sum(field.mse is None for page in fields.values() for field in page),
        "namesakes": len(fields) - len({unit.page for unit in units}),
    }


def _model(model: ModelResult, data: ReportData, anchor: str) -> dict[str, Any]:
    names = list(dict.fromkeys(model.best.pages))
    pages = [_page(model, name) for name in names[:PAGES_SHOWN]]
    first = pages[0]["attacks"][0]["pages"]
    return {
        "result": model,
        "anchor": anchor,
        "verdict": verdict(model, data.engines),
        "bar": bar_of(model),
        "counts": model.best.counts,
        "cover": [{**shown, "alt": f"{shown['alt']} (cover)"} for shown in first if shown["kind"] != "template"],
        "cover_page": names[0],
        "pages": pages,
        "left_out": len(names) - len(pages),
        "given": _given(model),
    }


def _page(model: ModelResult, name: str) -> dict[str, Any]:
    record = next(unit.record for unit in model.best.units if unit.page == name)
    shown = [pictures_of(attack, name, best=attack is model.best) for attack in model.attacks]
    return {
        "name": name,
        "about": [(key.capitalize(), record[key]) for key in ("provider", "document")
                  if record.get(key) and record[key] != name],
        "repeats": len(record.get("repeats", ())),
        "answer_given": any(answer_given(unit.record) for unit in model.units
                            if unit.page == name and unit.record["attack"] not in FLOORS),
        "question": record.get("question"),
        "answer": record.get("answer"),
        "attacks": [pictures for pictures in shown if pictures is not None],
        "text": next((text_of(unit) for unit in model.units if unit.page == name and unit.text is not None), None),
    }  # fmt: skip


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
    if how := published(model.best.units[0].run):
        lines.append(f"The template that the attacker had is not the blank one as it is: {how}.")
    known = dict.fromkeys(map(str, chain.from_iterable(unit.record["knowledge"] for unit in model.units)))
    lines.append(f"Known beforehand: {'; '.join(sentence.rstrip('.') for sentence in known) or 'nothing'}.")
    if alone := textless(model):
        lines.append(
            f"{' and '.join(alone)} used none of the text: it works with the gradient and the blank template alone."
        )
    if how:
        lines = [line.replace("the blank template", "the published template") for line in lines]
    skipped = [f"Not tried, since it does not apply here: {reason}." for reason in model.skipped]
    return [*lines, *skipped, *_repeats(model), *_self_tests(model)]


def _repeats(model: ModelResult) -> list[str]:
    counts = [unit.repeats for unit in model.pages if unit.repeats]
    if not counts:
        return []
    places, pages = counted_words(sum(counts), "other place"), counted_words(len(counts), "page")
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
    which = tested(model.units[0].record)
    line = f"Self test, the true page must reproduce {which}: {passed} of {len(tests)} passed{worst}."
    return [line, *(f"{note}." for note in notes)]


def _parts(data: ReportData) -> tuple[Part, ...]:
    """A part per model, those of which nothing is finished among them."""
    measured = [
        Part(model.title, model.severity, _short(model, data.engines), anchor=f"model-{number}")
        for number, model in enumerate(data.models)
    ]
    return (*measured, *(Part(title, Severity.UNMEASURED, why) for title, why in _silent(data)))


def _short(model: ModelResult, engines: Sequence[str]) -> str:
    judged, routes = model.findings.judgement, routes_sentence(model.findings.routes)
    by = f": {routes}" if routes else ""
    counted = (
        f"{judged.read} of {judged.of} private fields read{by}."
        if judged.of
        else " ".join([f"No private field could be counted{by}.", *(f"{why}." for why in model.findings.untried)])
    )
    said = verdict(model, engines)
    silent = said.severity in (Severity.UNTOLD, Severity.UNMEASURED)
    exposed = measured_on(model.best.units[0].run)
    parts = [counted, f"Measured {exposed}." if exposed else "", *of_batches(model), *model.findings.unread,
             said.sentence if silent else "", said.more]  # fmt: skip
    return " ".join(filter(None, parts))


def _silent(data: ReportData) -> list[tuple[str, str]]:
    """(title, why) of models that were asked for and of which no unit is finished."""
    there = {model.model for model in data.models}
    why = {one["model"]: one["why"] for run in data.runs for one in run.info.get("skipped", ())}
    waiting = "No unit of it is finished."
    return [
        (str(facts.get("title", key)), f"Nothing was tried: {why[key]}." if key in why else waiting)
        for key, facts in data.info["models"].items() if key not in there
    ]  # fmt: skip


def _counted(data: ReportData) -> str:
    """Fields over all models; the same page seen by several models is one page. A route that only some of the models
    have is counted on the fields that it was tried on, and takes none out of the whole."""
    models = grouped((field for model in data.models for field in model.findings.fields), lambda field: field.identity)
    order = list(Cell)
    said = judge([min((field.cell for field in same), key=order.index) for same in models.values()])
    limits = {route.name: route.limit for model in data.models for route in model.findings.routes}
    routes = [
        Route(name, tuple(min((f.routes[name] for f in same if name in f.routes), key=order.index,
                              default=Cell.UNSCORED) for same in models.values()), limits.get(name, ""),
              _handed(data, name))
        for name in ROUTES
    ]  # fmt: skip
    where = counted_words(len({identity[:-1] for identity in models}), "audited page")
    by = routes_sentence([route for route in routes if route.of and (route.read or route.name != "question")])
    was = "was" if said.of == 1 else "were"
    by, exposed = f" by at least one route: {by}" if by else "", measured_on(data.runs[0])
    exposed = f"{exposed[0].upper()}{exposed[1:]}: " if exposed else ""
    if not said.of:
        untried = routes_sentence([route for route in routes if Cell.UNTRIED in route.cells])
        return f"{exposed}No private field of {where} could be counted{untried and f': {untried}'}."
    return f"{exposed}{said.read} of {said.of} private fields of {where} {was} read{by}."


def _handed(data: ReportData, name: str) -> str:
    """What was handed to the attacker of a route over all models; "" where none was handed anything."""
    givens = {route.handed for model in data.models for route in model.findings.routes if route.name == name}
    handed = next((one for one in sorted(givens) if one), "")
    return f"{handed} of some models" if handed and len(givens) > 1 else handed


def summary_lines(data: ReportData) -> list[str]:
    """Each model's verdict and the best rows of the tables, for a terminal; attacks of somebody's own always."""
    lines = []
    shown = data.models[:3] if len(data.models) > 4 else data.models
    for model in shown:
        said = verdict(model, data.engines)
        lines.append(f"{model.title}: {said.severity.label.lower()}. {_short(model, data.engines)}")
        rows = [one for one in model.attacks if one.counts.scored and not blind(one.units[0].record)]
        best = rows[: 1 if len(data.models) > 2 else 3]
        lines += [f"  {_row(attack)}" for attack in rows if attack in best or attack.attack not in ATTACKS.entries]
    if len(data.models) > len(shown):
        lines.append(f"... and {len(data.models) - len(shown)} more models in the report.")
    lines = lines[: LINES - 3]
    if any(model.documents < 2 for model in data.models):
        lines.append("One document is an example, not a rate: audit more pages for an interval.")
    return lines


def _row(attack: AttackResult) -> str:
    columns = attack.estimates
    fuzz, psnr = columns["fuzz_ratio"].value, columns["psnr"].value
    return "  ".join([
        f"picture by {attack.attack:<18}", f"exact {attack.counts.exact}/{attack.counts.scored}",
        f"fuzz {'-' if fuzz is None else format(fuzz, '.2f')}",
        f"PSNR {'-' if psnr is None else format(psnr, '.1f')} dB",
        f"gradient explained {'-' if attack.explained.value is None else format(attack.explained.value, '.3f')}"
        + ("" if (most := of_truth(attack).value) is None else f" (the true page {most:.3f})"),
    ])  # fmt: skip
