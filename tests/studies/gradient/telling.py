"""What a run says in all the places where it does: page, terminal, JSON, Markdown."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from docleak.cli.studies import say
from docleak.report.page import results_of
from docleak.report.page import write_markdown as markdown_of
from docleak.runs.run import Run
from docleak.studies.registry import read_runs, report_on

Runs = Run | list[Run]


def listed(run: Runs) -> list[Run]:
    return [run] if isinstance(run, Run) else run


def write_report(run: Runs, out: Path | None = None) -> Path:
    runs = listed(run)
    return report_on([one.path for one in runs], out or (None if len(runs) == 1 else runs[0].path))[0]


def summary_text(run: Runs) -> str:
    runs, text = listed(run), io.StringIO()
    with redirect_stdout(text):
        say(runs[0].path / "report.html", read_runs(runs))
    return text.getvalue().partition("\n\nReport: ")[0]


def verdict_json(run: Runs) -> dict[str, Any]:
    return dict(results_of(read_runs(listed(run)))["verdict"])


def write_markdown(run: Runs, file: Path) -> Path:
    return markdown_of(read_runs(listed(run)), file)
