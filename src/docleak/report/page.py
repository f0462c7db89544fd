"""The page that every report is: verdicts first, then sections, and the same numbers as JSON beside it.

OUT/report.html    complete in itself: it loads nothing and sends nothing
OUT/results.json   the verdict, and what each study adds
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from docleak.documents.visible import in_markdown, without_html
from docleak.files import reported, write_atomically
from docleak.report.severity import Overall, Part, overall
from docleak.report.table import Table
from docleak.report.templating import render

PAGE, RESULTS = "report.html", "results.json"
#: Lines that a terminal is shown at most of one study.
LINES = 15


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading, of which ``short`` is the word among links; ``anchor`` is its HTML id,
    ``body`` what a template made."""

    anchor: str
    short: str
    heading: str
    body: Markup


@dataclass(frozen=True)
class Reading:
    """What finished units of one study say.

    ``parts`` carry the verdict, ``counted`` is its headline, ``remarks`` say how it was counted; ``articles`` are the
    verdicts on single models or clients. ``sections`` make up the page, ``question`` and ``lead`` begin it where it
    stands alone. ``lines`` are for the terminal, ``results`` for machines; ``tables`` by name. ``runs`` are what "how
    to rerun" shows (``run_facts``).
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

    @property
    def verdict(self) -> Overall:
        """The worst of the parts, and what was counted."""
        return overall(self.parts, self.counted)


def joined(readings: Sequence[Reading]) -> Overall:
    """One verdict over several readings: the first one's headline, all parts."""
    parts = [part for reading in readings for part in reading.parts]
    return overall(parts, readings[0].counted)


def write_report(readings: Sequence[Reading], folder: Path) -> Path:
    """Write PAGE and RESULTS of one or several readings into ``folder``; returns the page's path.

    Raises RunError where the files cannot be written.
    """
    verdict, first = joined(readings), readings[0]
    html = render(
        "page.html.j2",
        question=first.question,
        lead=first.lead,
        verdict=verdict,
        articles=[reading.articles for reading in readings],
        remarks=[remark for reading in readings for remark in reading.remarks],
        notices=[notice for reading in readings for notice in reading.notices],
        sections=[section for reading in readings for section in reading.sections],
        limits=list(dict.fromkeys(limit for reading in readings for limit in reading.limits)),
        runs=[run for reading in readings for run in reading.runs],
        synthetic=all(reading.synthetic for reading in readings),
    )
    results = json.dumps(results_of(readings), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with reported(folder / PAGE):
        write_atomically(folder / RESULTS, results.encode("utf-8", "backslashreplace"))
        write_atomically(folder / PAGE, html.encode("utf-8", "backslashreplace"))
    return folder / PAGE


def results_of(readings: Sequence[Reading]) -> dict[str, Any]:
    """What RESULTS holds: the verdict over all parts, then what each study adds."""
    verdict = joined(readings)
    parts = [
        {"part": part.name, "severity": str(part.severity), "label": part.said, "sentence": part.sentence}
        for part in verdict.parts
    ]
    said = {"severity": str(verdict.severity), "label": verdict.label, "sentence": verdict.sentence, "parts": parts}
    return {"verdict": said, **{key: value for reading in reversed(readings) for key, value in reading.results.items()}}


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
    return {
        "path": str(path),
        **manifest,
        "signature": manifest["info"].get("signature", ""),
        "settings": _settings(manifest["config"]),
    }


def _settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A configuration as rows: settings within settings one by one."""
    rows = []
    for key, value in config.items():
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        rows += [(f"{key} {name}".strip().replace("_", " "), _setting(one)) for name, one in inner]
    return rows


def _setting(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value in (None, "") else str(value)
