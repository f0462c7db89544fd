"""The commands, put together; each body only parses, calls one function and prints."""

from __future__ import annotations

from functools import cache
from typing import Annotated

import click
import typer
import typer.main

import docleak
from docleak.cli import benchmark, data, deploy, models
from docleak.cli.attack import AttackGroup, DefendCommand
from docleak.cli.audit import AuditGroup
from docleak.cli.command import Line, group
from docleak.cli.output import emit, end_with
from docleak.cli.plan import budget, guard, plan
from docleak.cli.report import check, compare, report, schema
from docleak.cli.reproduce import reproduce
from docleak.cli.studies import PANEL
from docleak.cli.train import train_group
from docleak.errors import DocleakError

TRAIN, MATERIAL, HERE = "Train", "Data and models", "This installation"
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, suggest_commands=False)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"docleak {docleak.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and stop."),
    ] = False,
) -> None:
    """Train document models together, and measure what they leak. Start with: docleak audit"""


def doctor() -> None:
    """Check that this installation can do its work, and say what to do where it cannot."""
    from docleak.cli.doctor import checks

    results = checks()
    width = max(len(c.name) for c in results)
    lines = [
        f"ok  {c.name:{width}}  {c.detail}" if c.passed
        else f"-   {c.name:{width}}  optional: {c.detail}" if c.optional
        else f"NO  {c.name:{width}}  {c.detail}"
        for c in results
    ]  # fmt: skip
    told = {c.name: {"passed": c.passed, "detail": c.detail, "optional": c.optional} for c in results}
    emit(told, "\n".join(lines))
    if not all(c.passed or c.optional for c in results):
        error = DocleakError("this installation cannot do its work; see the lines marked NO.")
        end_with(error)


@cache
def command_line() -> click.Group:
    """All commands, made once."""
    made = typer.main.get_command(app)
    assert isinstance(made, click.Group)
    lines: list[click.Command] = [
        AuditGroup(), AttackGroup(), DefendCommand(),
        *(Line(work, panel=PANEL) for work in (report, check, compare, schema, reproduce)),
        train_group(TRAIN),
        *(Line(work, panel=TRAIN) for work in (budget, plan, guard)),
        group("benchmark", benchmark.ABOUT, benchmark.COMMANDS, panel=PANEL),
        group("deploy", deploy.ABOUT, deploy.COMMANDS, panel=TRAIN),
        group("data", data.ABOUT, data.COMMANDS, panel=MATERIAL),
        group("models", models.ABOUT, models.COMMANDS, panel=MATERIAL),
        Line(doctor, panel=HERE),
    ]  # fmt: skip
    made.commands = {str(line.name): line for line in lines}
    return made
