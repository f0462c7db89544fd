"""``docleak report``: write the report of finished runs again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from docleak.cli.output import emit
from docleak.cli.studies import say

if TYPE_CHECKING:
    from docleak.runs.run import Run

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines; no progress bar.")]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; several are put into one report.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the report; needed to join several runs.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the numbers as a Markdown table here.")] = None,
    json_output: Json = False,
) -> None:
    """Write (again) the HTML report of one or several finished runs, from what is on disk."""
    from docleak.files import undamaged
    from docleak.runs.run import Run

    loaded = [Run.load(path) for path in runs]
    with undamaged(runs[0] if len(runs) == 1 else Path(os.path.commonpath([path.absolute() for path in runs]))):
        _report(loaded, out, markdown, json_output)


def _report(loaded: list[Run], out: Path | None, markdown: Path | None, json_output: bool) -> None:
    """Write the report of these runs, each by its own kind."""
    import numpy as np

    from docleak.errors import RunError
    from docleak.evidence.markdown import write_markdown
    from docleak.evidence.report import summary_text, verdict_json, write_report

    if any("updates" in run.config for run in loaded):
        from docleak.evidence import update_report

        if len(loaded) > 1 or out is not None or markdown is not None:
            raise RunError(
                "the report of an audit of updates stands in its own directory: write it on its own, without --out "
                "and --markdown."
            )
        page = update_report.write_report(loaded[0])
        told = {
            "report": str(page),
            "results": str(page.parent / "results.json"),
            **update_report.results_of(loaded[0]),
        }
        emit(told, f"{update_report.summary_text(loaded[0])}\n\nReport: {page}", json_output=json_output)
        return
    if any(run.kind for run in loaded):
        from docleak.files import write_atomically
        from docleak.studies.registry import report_on

        page, readings = report_on([run.path for run in loaded], out)
        if markdown is not None:
            tables = [table.to_markdown() for reading in readings for table in reading.tables.values()]
            write_atomically(markdown, "\n".join(tables).encode())
        say(page, readings, json_output=json_output)
        return
    if len(loaded) > 1 and out is None:
        raise RunError(f"{len(loaded)} runs are to be joined; say with --out into which folder the report goes.")
    chosen, seed = loaded[0] if len(loaded) == 1 else loaded, int(loaded[0].config.get("seed", 0))
    page = write_report(chosen, rng=np.random.default_rng(seed), out=out)
    if markdown is not None:
        write_markdown(loaded, markdown, rng=np.random.default_rng(seed))
    text = f"{summary_text(chosen, np.random.default_rng(seed))}\n\nReport: {page}"
    said = verdict_json(chosen, np.random.default_rng(seed))
    emit({"report": str(page), "verdict": said}, text, json_output=json_output)
