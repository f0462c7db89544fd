"""``docleak audit --updates``: attack what a federated server has received."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from docleak.cli.output import emit, progress, working_in
from docleak.cli.settings import pick_device
from docleak.errors import DocleakError

if TYPE_CHECKING:
    from docleak.evidence.updates import UpdatesConfig

Updates = Annotated[
    Path | None,
    typer.Option(
        help="Audit the updates that docleak train or docleak.tap recorded there, instead of a gradient computed here."
    ),
]
Round = Annotated[int, typer.Option("--round", help="With --updates: the round to audit; 0 is the first recorded.")]
Clients = Annotated[
    list[str] | None, typer.Option("--client", help="With --updates: only this client. Repeat for several.")
]
LocalTraining = Annotated[
    str,
    typer.Option(
        "--local",
        help="With --updates: how clients train where it is not recorded: optimiser=sgd,learning_rate=0.1,batch_size=1",
    ),
]


def refuse_several(*, models: int, attacks: int) -> None:
    """DocleakError for more than one model or attack: recorded updates are of one model, and take one attack."""
    several = [f"several {option}" for option, count in (("--model", models), ("--attacks", attacks)) if count > 1]
    if several:
        raise DocleakError(f"{' and '.join(several)} cannot be combined with --updates. Give one.")


def audit_updates(config: UpdatesConfig, out: Path, device: str, workers: int, json_output: bool) -> None:
    """Run the audit of ``config`` with progress, write its report and print the verdicts."""
    from docleak.evidence.update_report import results_of, summary_text, write_report
    from docleak.evidence.updates import run_updates, units_of

    units = {unit.id: unit.evaluations for unit in units_of(config)}
    if not json_output:
        print(f"{len(units)} units; pictures appear in {out / 'units'} while this runs.", file=sys.stderr)
    command = "docleak " + shlex.join(sys.argv[1:])
    with working_in(out):
        with progress(units, quiet=json_output) as report:
            run = run_updates(
                config, out, device=pick_device(device), workers=workers, on_progress=report, command=command
            )
        page = write_report(run)
    text = f"{summary_text(run)}\n\nReport: {page}"
    told = {"report": str(page), "results": str(out / "results.json"), "units": len(units), **results_of(run)}
    emit(told, text, json_output=json_output)
