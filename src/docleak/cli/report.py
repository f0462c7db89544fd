"""``docleak report``: write the report of finished runs again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from docleak.cli.studies import say

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines; no progress bar.")]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; several are put into one report.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the report; needed to join several runs.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the numbers as Markdown tables here.")] = None,
    json_output: Json = False,
) -> None:
    """Write (again) the HTML report of one or several finished runs, from what is on disk."""
    from docleak.report.page import write_markdown
    from docleak.studies.registry import report_on

    page, readings = report_on(runs, out)
    if markdown is not None:
        write_markdown(readings, markdown)
    say(page, readings, json_output=json_output)
