"""The page that every report is: verdicts first, then sections, and the same numbers as JSON beside it.

OUT/report.html    complete in itself: it loads nothing and sends nothing
OUT/results.json   the verdict, and what each study adds
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from docleak.documents.visible import in_markdown, without_html
from docleak.files import reported, write_atomically
from docleak.report.about import ABOUT, About, kept_about
from docleak.report.measure import MEASURES, Measure
from docleak.report.redaction import struck_in, struck_page
from docleak.report.schema import SCHEMA, checked
from docleak.report.severity import Overall, Part, chance_of_many, overall, worst
from docleak.report.statement import NO_ADVICE, Scope, statement
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render

PAGE, RESULTS = "report.html", "results.json"
#: Of an edition without what is private.
REDACTED_PAGE, REDACTED_RESULTS = "report-redacted.html", "results-redacted.json"
#: Lines that a terminal is shown at most of one study.
LINES = 15
#: Measures from which a column for each leaves no room for numbers.
MOST_COLUMNS = 5


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading, of which ``short`` is the word among links; ``anchor`` is its HTML id,
    ``body`` what a template made. ``open``: nothing in it is private, so a redacted edition shows it. ``annex``: it
    stands last."""

    anchor: str
    short: str
    heading: str
    body: Markup
    open: bool = False
    annex: bool = False


@dataclass(frozen=True)
class Reading:
    """What finished units of one study say.

    ``parts`` carry the verdict, ``counted`` is its headline, ``remarks`` say how it was counted; ``articles`` are the
    verdicts on single models or clients. ``sections`` make up the page, ``question`` and ``lead`` begin it where it
    stands alone. ``lines`` are for the terminal, ``results`` for machines; ``tables`` by name. ``runs`` are what "how
    to rerun" shows (``run_facts``). ``shows``: what of the material is to be seen, "" where that is numbers and names.
    """

    question: str
    lead: str
    parts: tuple[Part, ...]
    counted: str
    sections: tuple[Section, ...]
    lines: tuple[str, ...]
    results: Mapping[str, Any]
    tables: Mapping[str, Table] = field(default_factory=dict)
    articles: Markup = Markup("")
    remarks: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    runs: tuple[Mapping[str, Any], ...] = ()
    synthetic: bool = False
    shows: str = "true values and pictures of what was audited"
    measures: tuple[Measure, ...] = ()
    scope: Scope | None = None


def joined(readings: Sequence[Reading]) -> Overall:
    """One verdict over several readings: what those that are as bad as the worst counted, each behind its question
    where several have parts, all parts, and what of their runs is missing. Of several tests it also says how many leaks
    chance would make."""
    most = worst(part.severity for reading in readings for part in reading.parts)
    counting = [one for one in readings if any(part.severity is most for part in one.parts)] or readings[:1]
    apart = " ".join(f"{reading.question} {reading.counted}" for reading in counting)
    headline = apart if sum(bool(reading.parts) for reading in readings) > 1 else counting[0].counted
    parts = [part for reading in readings for part in reading.parts]
    missing = [reading.scope.unfinished for reading in readings if reading.scope and reading.scope.unfinished]
    verdict = overall(parts, headline, [f"The run is not finished: {one}." for one in missing])
    return replace(verdict, more=f"{verdict.more} {chance_of_many(parts)}".strip())


def write_report(
    readings: Sequence[Reading], folder: Path, *, about: About | None = None, private: Collection[str] | None = None
) -> Path:
    """Write PAGE and RESULTS of one or several readings into ``folder`` (redacted ones have names of their own);
    returns the page's path.

    ``about`` fills in the first page; it is kept beside it, and serves later editions that are given none. With
    ``private``, the values that nobody may read, it is a redacted edition: no picture, no evidence, and none
    of these values. Raises RunError where the files cannot be written.
    """
    full, redacted = checked(results_of(readings)), private is not None
    leads = list(dict.fromkeys((reading.question, reading.lead) for reading in readings))
    verdict, runs = joined(readings), [run for reading in readings for run in reading.runs]
    scopes = [(reading.scope, worst(part.severity for part in reading.parts)) for reading in readings]
    synthetic, known = all(reading.synthetic for reading in readings), about or kept_about(folder) or About()
    said = statement(verdict, scopes, runs, known, digest_of(readings), synthetic=synthetic)
    sections = [section for reading in readings for section in reading.sections]
    if redacted:
        tables = [table for reading in readings for table in reading.tables.values() if table.open]
        numbers = Markup("").join(render("table.html.j2", table=table) for table in tables)
        shown = [section for section in sections if section.open and "<img" not in section.body]
        sections = [Section("tables", "Numbers", "Numbers", numbers), *shown] if tables else shown
    html = render(
        "page.html.j2",
        question=leads[0][0] if len(dict(leads)) == 1 else "What was given away?",
        leads=leads,
        verdict=verdict,
        first=said,
        no_advice=NO_ADVICE,
        measures=measures_table([one for reading in readings for one in reading.measures]),
        redacted=redacted,
        articles=[] if redacted else [reading.articles for reading in readings],
        remarks=[remark for reading in readings for remark in reading.remarks],
        notices=[notice for reading in readings for notice in reading.notices],
        sections=sections,
        limits=list(dict.fromkeys(limit for reading in readings for limit in reading.limits)),
        runs=runs,
        synthetic=synthetic,
        shows=list(dict.fromkeys(one.shows for one in readings if one.shows and not one.synthetic)),
        made_up=any(reading.shows and reading.synthetic for reading in readings),
    )
    results, page, names = full, str(html), (PAGE, RESULTS)
    if private is not None:
        results = checked(struck_in(_common(readings, redacted=True), private))
        head, body = page.split("</style>", 1)
        page = f"{head}</style>{struck_page(body, private, lambda text: str(escape(text)))}"
        names = (REDACTED_PAGE, REDACTED_RESULTS)
    with reported(folder / names[0]):
        if about is not None:
            write_atomically(folder / ABOUT, about.model_dump_json(indent=1).encode())
        write_atomically(folder / names[1], results)
        write_atomically(folder / names[0], page.encode("utf-8", "backslashreplace"))
    return folder / names[0]


def digest_of(readings: Sequence[Reading]) -> str:
    """The SHA-256 of RESULTS, which the first page and the model card name."""
    return hashlib.sha256(checked(results_of(readings))).hexdigest()


def measures_table(measures: Sequence[Measure]) -> Table:
    """A row per model, client or release, a column per measure that any of them has; of more than MOST_COLUMNS
    measures a row for each that there is."""
    there = [what for what in MEASURES if any(one.what == what for one in measures)]
    names = dict.fromkeys(one.of for one in measures)
    values = {(one.of, one.what): _with_n(one) for one in measures}
    rows = [Row(name, {what: values.get((name, what)) for what in there}) for name in names]
    columns = {what: Column(MEASURES[what].head) for what in there}
    if len(there) > MOST_COLUMNS:
        rows = [Row(one.of, {"measure": MEASURES[one.what].head, "value": _with_n(one)}) for one in measures]
        columns = {"measure": Column("Measure"), "value": Column("Value")}
    caption = (
        "with 95 % intervals over documents or providers, where there are several (gradient explained: the least and "
        "the greatest page); n: how many fields, pages, documents, questions or guesses. docleak check bounds these."
    ) + "".join(f" {MEASURES[one.what].head}, {one.of}: {one.counted}." for one in measures if one.counted)
    return Table("Measured", columns, rows, caption, first="Of", open=True)


def _with_n(measure: Measure) -> str:
    of = measure.estimate
    return (
        f"{measure.text} (n = {of.n:,}{f' {of.of}' * bool(of.of)})" if of.n and of.value is not None else measure.text
    )


def results_of(readings: Sequence[Reading]) -> dict[str, Any]:
    """What RESULTS holds: what all runs have in common, then what each study adds."""
    own = {key: value for reading in reversed(readings) for key, value in reading.results.items()}
    return {**_common(readings), **own}


def _common(readings: Sequence[Reading], *, redacted: bool = False) -> dict[str, Any]:
    verdict = joined(readings)
    parts = [
        {"part": part.name, "severity": str(part.severity), "label": part.said, "sentence": part.sentence}
        for part in verdict.parts
    ]
    said = {"severity": str(verdict.severity), "label": verdict.label, "sentence": verdict.sentence, "parts": parts}
    return {
        "format": SCHEMA, "redacted": redacted, "verdict": said,
        "measures": [one.to_json() for reading in readings for one in reading.measures],
        "runs": [
            {"kind": run["kind"], "docleak": run["docleak"], "created": run["created"],
             "signature": str(run["signature"] or ""), "code": str(run.get("code", ""))}
            for reading in readings for run in reading.runs
        ],
    }  # fmt: skip


def write_markdown(readings: Sequence[Reading], file: Path) -> Path:
    """Write the verdict, all tables, and how they came about, as Markdown for documentation."""
    verdict = joined(readings)
    lines = [without_html(f"**{verdict.label}.** {verdict.sentence}"), ""]
    lines += [without_html(f"- {part.name}: {part.said}. {part.sentence}") for part in verdict.parts] + [""]
    lines += [table.to_markdown() for reading in readings for table in reading.tables.values()]
    lines += [f"{without_html(notice)}  " for reading in readings for notice in reading.notices]
    facts = [(name, str(run[name.lower()])) for reading in readings for run in reading.runs
             for name in ("Command", "Signature") if run[name.lower()]]  # fmt: skip
    lines += [f"{name}: {in_markdown(text)}  " for name, text in dict.fromkeys(facts)]
    with reported(file):
        write_atomically(file, ("\n".join(lines) + "\n").encode())
    return file


def run_facts(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A run as "how to rerun" shows it: its folder, command, build, environment and settings."""
    signature, settings = manifest["info"].get("signature", ""), _settings(manifest["config"])
    return {"path": str(path), **manifest, "signature": signature, "settings": settings}


def _settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A configuration as rows: settings within settings, however deep, one by one."""
    rows = []
    for key, value in config.items():
        inner = _settings(value) if isinstance(value, Mapping) else [("", _setting(value))]
        rows += [(f"{key} {name}".strip().replace("_", " "), one) for name, one in inner]
    return rows


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_setting(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list | tuple):
        parted = "; " if any(isinstance(one, Mapping | list | tuple) for one in value) else ", "
        return parted.join(map(_setting, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value in (None, "") else str(value)
