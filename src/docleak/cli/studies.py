"""What every command does that carries out a study: progress on stderr, the report, what it says."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docleak.cli.output import Progress, emit, working_in
from docleak.cli.settings import default_workers

if TYPE_CHECKING:
    from docleak.report.page import Reading
    from docleak.studies.study import Study


def command_line() -> str:
    """The command as it was typed, to be typed again."""
    return "docleak " + shlex.join(sys.argv[1:])


def run_and_report(study: Study[Any], out: Path, workers: int, json_output: bool) -> None:
    """Carry the study out in ``out``, write its report, and print what it says."""
    from docleak.studies.engine import carry_out
    from docleak.studies.registry import report_on

    with working_in(out):
        with Progress(quiet=json_output, out=out) as watcher:
            carry_out(study, out, workers=workers or default_workers(), command=command_line(), watcher=watcher)
        page, readings = report_on([out])
    say(page, readings, json_output=json_output)


def say(page: Path, readings: list[Reading], *, json_output: bool, beside: Sequence[str] = ()) -> None:
    """Print what a report says, and a line for each report ``beside`` it."""
    from docleak.report.page import RESULTS, joined, results_of

    verdict = joined(readings)
    lines = [f"Notice: {notice}" for reading in readings for notice in reading.notices][:2]
    lines += [f"Verdict: {verdict.label.lower()}.", f"  {verdict.sentence}"]
    lines += [line for reading in readings for line in ("", *reading.lines)]
    lines += ["", *beside] if beside else []
    value = {"report": str(page), "results": str(page.with_name(RESULTS)), **results_of(readings)}
    emit(value, "\n".join([*lines, "", f"Report: {page}"]), json_output=json_output)
