"""``docleak report``: write the report of finished runs again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from docleak.cli.extraction import report_extraction
from docleak.cli.output import emit
from docleak.cli.studies import say

if TYPE_CHECKING:
    from docleak.runs.run import Run

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines; no progress bar.")]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; several are put into one report.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the report; needed to join several runs.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the numbers as Markdown tables here.")] = None,
    json_output: Json = False,
) -> None:
    """Write (again) the HTML report of one or several finished runs, from what is on disk."""
    from docleak.report.page import write_markdown
    from docleak.runs.run import Run
    from docleak.studies.registry import report_on

    loaded = [Run.load(path) for path in runs]
    if any(not run.kind for run in loaded):
        _report_alone(loaded, out, markdown, json_output)
        return
    page, readings = report_on(runs, out)
    if markdown is not None:
        write_markdown(readings, markdown)
    say(page, readings, json_output=json_output)


def _report_alone(loaded: list[Run], out: Path | None, markdown: Path | None, json_output: bool) -> None:
    """Of updates and weights, which are no studies yet: each report stands in its own directory."""
    from docleak.errors import RunError
    from docleak.evidence import update_report
    from docleak.files import undamaged

    weights = any(run.config.get("kind") == "cdmi" for run in loaded)
    if len(loaded) > 1 or out is not None or markdown is not None:
        what = "an attack on weights" if weights else "an audit of updates"
        raise RunError(
            f"the report of {what} stands in its own directory: write it on its own, without --out and --markdown."
        )
    (run,) = loaded
    with undamaged(run.path):
        if weights:
            report_extraction(run, json_output)
            return
        page = update_report.write_report(run)
        told = {"report": str(page), "results": str(page.with_name("results.json")), **update_report.results_of(run)}
        emit(told, f"{update_report.summary_text(run)}\n\nReport: {page}", json_output=json_output)
