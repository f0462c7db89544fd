"""``docleak audit``: a study by its name, or one of somebody's own; without a name what can be audited of gradients and
of released models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typer.core import TyperGroup, TyperOption

from docleak.cli.guard import check_values, typed
from docleak.cli.output import Progress, note, working_in
from docleak.cli.studies import PANEL, Late, StudyCommand, Work, how_of, say
from docleak.errors import DocleakError
from docleak.studies.kinds import AUDITS, Kind

if TYPE_CHECKING:
    from docleak.runs.run import Run
    from docleak.studies.study import Study

ABOUT = """Measure what a document model leaks, and write an HTML report.

With no arguments: the shipped tiny Donut and LayoutLMv3, at the start of training and trained, on a synthetic invoice,
then small released models, in a few minutes on a laptop. With --model DIR --documents DIR: your model's gradients.

A study by its name measures that alone, with all its options; MODULE:CLASS is a study of your own.
"""
EVERYTHING = Work(AUDITS["gradient"], "docleak-audit")


class AuditGroup(Late, TyperGroup):
    """Studies by name; options before a name are those of the audit without one."""

    def __init__(self) -> None:
        studies: dict[str, click.Command] = {
            name: StudyCommand(name, Work(kind, kind.out), path=f"audit {name}") for name, kind in AUDITS.items()
        }
        super().__init__(
            name="audit", commands=studies, callback=_begin, help=ABOUT, invoke_without_command=True,
            rich_help_panel=PANEL,
        )  # fmt: skip

    def made(self) -> list[click.Parameter]:
        """The options of gradients, and whether defences are compared."""
        compare = TyperOption(
            param_decls=["compare_defenses", "--compare-defenses/--no-compare-defenses"], default=None,
            help="End with a comparison of defences on the most exposed model. Default: with the default attacks.",
        )  # fmt: skip
        return [*EVERYTHING.parameters(), compare]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A shipped study, or the one at MODULE:CLASS."""
        if ":" not in cmd_name:
            known = super().get_command(ctx, cmd_name)
            if known is None and not ctx.resilient_parsing:
                ctx.fail(f"There is no study {cmd_name!r}; known: {', '.join(AUDITS)}, or MODULE:CLASS of your own.")
            return known
        work = Work(Kind(cmd_name, "", f"The study {cmd_name}."), f"docleak-{cmd_name.rpartition(':')[2].lower()}")
        return StudyCommand(cmd_name, work, path=f"audit {cmd_name}")


def _begin(**values: Any) -> None:
    """Everything, where no study is named; the study's own command follows else."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        check_values("audit", ctx.command, ctx)
        audit_everything(ctx)
    elif before := [p.opts[0] for p in ctx.command.params if typed(ctx, str(p.name))]:
        raise DocleakError(f"{', '.join(before)} stands before the study's name; write options behind it.")


def audit_everything(ctx: click.Context) -> None:
    """Gradients, and where nothing special is asked for a comparison of defences and docleak's released models."""
    from docleak.studies.engine import carry_out
    from docleak.studies.gradient.config import Exposure
    from docleak.studies.gradient.defences import DefenceStudy, most_exposed
    from docleak.studies.gradient.reading import DEFENCES
    from docleak.studies.registry import report_on
    from docleak.studies.shipped import shipped_examples

    study, given, values = EVERYTHING.asked(ctx), EVERYTHING.given(ctx), ctx.params
    config, out, asked = study.config, Path(values["out"]), values["compare_defenses"]
    plain = config.exposure == Exposure() and config.batch_size == 1 and config.rounds == 1
    if asked and not plain:
        raise DocleakError(
            "--compare-defenses compares on one client's plain gradient of one page; leave out the options that change "
            "what is seen or known, or use docleak defend."
        )
    compared = plain and "attacks" not in given if asked is None else asked
    shipped = compared and "models" not in given and config.documents == "synthetic"
    study.check(note)
    how = how_of(ctx, study.device)

    def carried_out(part: Study[Any], folder: Path) -> Run:
        with Progress(out=folder) as watcher:
            return carry_out(part, folder, watcher=watcher, **how)

    with working_in(out):
        run = carried_out(study, out)
        if compared:
            carried_out(DefenceStudy(most_exposed(config, run), device=study.device), out / DEFENCES)
        for folder, example in shipped_examples(config.seed, study.device) if shipped else ():
            carried_out(example, out / folder)
            report_on([out / folder])
        page, readings = report_on([out])
    say(page, readings)
