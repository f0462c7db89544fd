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
from docleak.cli.guard import Guarded
from docleak.cli.output import emit
from docleak.cli.plan import budget, guard, plan
from docleak.cli.report import check, compare, report, schema
from docleak.cli.reproduce import reproduce
from docleak.cli.studies import PANEL
from docleak.cli.train import TrainGroup
from docleak.errors import DocleakError

TRAIN, MATERIAL, HERE = "Train", "Data and models", "This installation"

app = typer.Typer(cls=Guarded, no_args_is_help=True, pretty_exceptions_enable=False)
app.command(rich_help_panel=PANEL)(report)
app.command(rich_help_panel=PANEL)(check)
app.command(rich_help_panel=PANEL)(compare)
app.command(rich_help_panel=PANEL)(schema)
app.command(rich_help_panel=PANEL)(reproduce)
app.command(rich_help_panel=TRAIN)(budget)
app.command(rich_help_panel=TRAIN)(plan)
app.command(rich_help_panel=TRAIN)(guard)
app.add_typer(benchmark.app, name="benchmark", rich_help_panel=PANEL)
app.add_typer(deploy.app, name="deploy", rich_help_panel=TRAIN)
app.add_typer(data.app, name="data", rich_help_panel=MATERIAL)
app.add_typer(models.app, name="models", rich_help_panel=MATERIAL)


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


@app.command(rich_help_panel=HERE)
def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
) -> None:
    """Check that this installation can do its work, and say what to do where it cannot."""
    from docleak.cli.doctor import checks

    results = checks()
    width = max(len(c.name) for c in results)
    lines = [f"{'ok ' if c.passed else 'NO '} {c.name:{width}}  {c.detail}" for c in results]
    emit({c.name: {"passed": c.passed, "detail": c.detail} for c in results}, "\n".join(lines), json_output=json_output)
    if all(c.passed or c.optional for c in results):
        return
    if json_output:  # the object is printed: a second one with the error would make it unreadable
        raise typer.Exit(1)
    raise DocleakError("this installation cannot do its work; see the lines marked NO.")


@cache
def command_line() -> click.Group:
    """All commands, made once and guarded."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    studies: dict[str, click.Command] = {"audit": AuditGroup(), "attack": AttackGroup(), "defend": DefendCommand()}
    studies |= {name: group.commands.pop(name) for name in ("report", "check", "compare", "schema", "reproduce")}
    doctor = group.commands.pop("doctor")
    group.commands = {**studies, "train": TrainGroup(TRAIN), **group.commands, "doctor": doctor}
    return group
