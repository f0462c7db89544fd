"""Commands that carry a study out: their options are the fields of its configuration, made when they are asked for."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from typer.core import TyperArgument, TyperCommand, TyperOption

from docleak.cli.guard import Bounded, Text, check_values
from docleak.cli.output import Progress, emit, note, working_in
from docleak.cli.ranges import range_of
from docleak.documents.ranges import Range
from docleak.errors import DocleakError
from docleak.models.device import pick_device
from docleak.options import Asked, options_of, refuse_idle
from docleak.registry import resolve
from docleak.studies.kinds import Kind

if TYPE_CHECKING:
    from docleak.report.page import Reading
    from docleak.studies.study import Study

#: Panels of help: of commands, and of the options that every study has.
PANEL, RUN = "Audit", "Run"


@dataclass(frozen=True)
class Work:
    """What a command does: a study of ``kind`` (or a class of somebody's own) into the folder ``out``.

    By field of the configuration, ``preset`` are other defaults, and ``fixed`` what the command itself says; these and
    the fields ``without`` are no options of it.
    """

    kind: Kind
    out: str
    preset: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    without: Sequence[str] = ()

    def study(self) -> type[Study[Any]]:
        """The study's class."""
        from docleak.studies.registry import load_study

        return load_study(self.kind.place)

    def options(self) -> dict[str, Asked]:
        """Name of a parameter -> the field that it is for."""
        config = resolve(self.kind.config) if self.kind.config else self.study().Config
        asked = options_of(config)
        hidden = {*self.fixed, *self.without}
        return {path.replace(".", "__"): one for path, one in asked.items() if path not in hidden}

    def parameters(self) -> list[click.Parameter]:
        """The study's options, and those of a run."""
        of_study = [
            parameter(name, one, self.preset.get(one.path, one.default)) for name, one in self.options().items()
        ]
        workers = Bounded(click.INT, range_of("", "--workers") or Range(0, 1))
        run = [
            _option("out", "--out", Text(click.Path()), self.out,
                    "Run directory; an interrupted run in it is continued.", RUN),
            _option("device", "--device", Text(click.STRING), "auto", "auto, cpu, cuda, cuda:1, mps.", RUN),
            _option("workers", "--workers", workers, 0,
                    "Worker processes, one thread each; 0: one per core, on a GPU one.", RUN),
            _option("cluster", "--cluster", Text(click.STRING), "",
                    "Address of a Dask scheduler that shares this file system; its workers compute.", RUN),
            TyperOption(param_decls=["json_output", "--json"], is_flag=True, default=False, rich_help_panel=RUN,
                        help="Print one JSON object for machines; no progress bar."),
        ]  # fmt: skip
        return sorted([*of_study, *run], key=lambda one: not isinstance(one, click.Argument))

    def given(self, context: click.Context) -> dict[str, Any]:
        """Field -> value, of the options that stand on the command line, over the command's presets."""
        values = {
            one.path: one.value(context.params[name]) for name, one in self.options().items() if typed(context, name)
        }
        return {**self.preset, **values}

    def asked(self, context: click.Context) -> Study[Any]:
        """The study that the command line asks for; DocleakError for options that do nothing in it."""
        kind, values = self.study(), context.params
        config = kind.of_options(self.given(context), self.fixed)
        refuse_idle(config, [one for name, one in self.options().items() if typed(context, name)])
        return kind(config, device=pick_device(values["device"]))


class Late(click.Command):
    """A command whose parameters are made when somebody asks for them: until then nothing is imported."""

    @cached_property
    def _late(self) -> list[click.Parameter]:
        return self.made()

    def made(self) -> list[click.Parameter]:
        """The parameters."""
        raise NotImplementedError

    @property
    def params(self) -> list[click.Parameter]:
        """What ``made`` gives."""
        return self._late

    @params.setter
    def params(self, none: list[click.Parameter]) -> None:
        """click sets none when the command is made."""


class StudyCommand(Late, TyperCommand):
    """``work`` as a command."""

    def __init__(self, name: str, work: Work, *, path: str, panel: str | None = None, about: str = "") -> None:
        self.work, self.path = work, path
        super().__init__(name, help=about or work.kind.about, rich_help_panel=panel)

    def made(self) -> list[click.Parameter]:
        """The study's options, and those of a run."""
        return self.work.parameters()

    def invoke(self, ctx: click.Context) -> None:
        """Carry the study out and report."""
        check_values(self.path, self, ctx)
        values = ctx.params
        study = self.work.asked(ctx)
        run_and_report(study, Path(values["out"]), how_of(ctx, study.device), values["json_output"])


def how_of(ctx: click.Context, device: str) -> dict[str, Any]:
    """What ``carry_out`` takes of the options of a run on ``device``.

    DocleakError for workers beside a cluster, or where none answers.
    """
    workers, cluster = ctx.params["workers"], ctx.params["cluster"]
    if cluster:
        from docleak.runs.pool import cluster_at

        if workers:
            raise DocleakError(
                "--workers does nothing with --cluster: the scheduler's workers do the work. Leave it out."
            )
        with cluster_at(cluster):
            pass
    return {"workers": workers or default_workers(device), "cluster": cluster, "command": command_line()}


def default_workers(device: str = "cpu") -> int:
    """One worker per core this process may use; one on a GPU, whose memory each would fill with models of its own."""
    if device != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def command_line() -> str:
    """The command as it was typed, to be typed again."""
    return "docleak " + shlex.join(sys.argv[1:])


def run_and_report(study: Study[Any], out: Path, how: Mapping[str, Any], json_output: bool) -> None:
    """Carry the study out in ``out``, by whom ``how`` says, write its report, and print what it says."""
    from docleak.studies.engine import carry_out
    from docleak.studies.registry import report_on

    study.check(note)
    with working_in(out):
        with Progress(quiet=json_output, out=out) as watcher:
            carry_out(study, out, watcher=watcher, **how)
        page, readings = report_on([out])
    say(page, readings, json_output=json_output)


def say(page: Path, readings: list[Reading], *, json_output: bool) -> None:
    """Print what a report says."""
    from docleak.report.page import RESULTS, joined, results_of

    verdict = joined(readings)
    lines = [f"Notice: {notice}" for reading in readings for notice in reading.notices][:2]
    lines += [f"Verdict: {verdict.label.lower()}.", f"  {verdict.sentence}"]
    lines += [line for reading in readings for line in ("", *reading.lines)]
    value = {"report": str(page), "results": str(page.with_name(RESULTS)), **results_of(readings)}
    emit(value, "\n".join([*lines, "", f"Report: {page}"]), json_output=json_output)


def typed(context: click.Context, name: str) -> bool:
    """Whether the parameter stands on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _option(name: str, flag: str, kind: Any, default: Any, text: str, panel: str, **more: Any) -> TyperOption:
    return TyperOption(
        param_decls=[name, flag], type=kind, default=default, show_default=default not in (None, ""), help=text,
        rich_help_panel=panel or None, **more,
    )  # fmt: skip


def parameter(name: str, one: Asked, default: Any) -> click.Parameter:
    """The parameter of that name for a configuration's field."""
    told, missing = one.option, default is MISSING
    required = missing and not told.optional
    if one.scalar is bool:
        flag = f"{one.flag}/--no-{one.flag.removeprefix('--')}" if told.both else one.flag
        return TyperOption(param_decls=[name, flag], is_flag=True, default=told.both and default, help=told.help,
                           show_default=told.both, rich_help_panel=told.group or None)  # fmt: skip
    text = f"{told.help} ({told.range})" if told.range and not one.several else told.help
    kinds: dict[Any, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT}
    kind = click.STRING if one.several else kinds.get(one.scalar, click.STRING)
    text_kind = click.Path() if told.read is Path else click.STRING
    read = Text(text_kind) if kind is click.STRING else Bounded(kind, told.range) if told.range else kind
    if told.argument:
        more: dict[str, Any] = {"nargs": -1} if one.several else {}
        return TyperArgument(param_decls=[name], type=read, required=required, help=text, **more)
    if told.repeat:
        return _option(name, one.flag, read, [] if missing else _texts(default), text, told.group, multiple=True)
    shown = None if missing else _shown(default) if kind is click.STRING else default
    return _option(name, one.flag, read, shown, text, told.group, required=required, metavar=told.metavar or None)


def _texts(values: Sequence[Any]) -> list[str]:
    return [str(getattr(value, "name", value)) for value in values]


def _shown(value: Any) -> str | None:
    """A default as it would be typed."""
    if isinstance(value, tuple):
        fixed = bool(value) and all(isinstance(item, int) for item in value) and len(value) == 2
        return ("x" if fixed else ",").join(_texts(value)) or None
    return None if value is None else str(getattr(value, "name", value))
