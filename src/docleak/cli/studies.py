"""Commands that carry a study out: their options are the fields of its configuration, made when they are asked for."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typer.core import TyperCommand

from docleak.cli.command import JSON, RUNNING, parameter
from docleak.cli.guard import check_values, typed
from docleak.cli.output import Progress, emit, note, working_in
from docleak.errors import DocleakError
from docleak.models.device import pick_device
from docleak.options import Asked, options_of, refuse_idle
from docleak.registry import resolve
from docleak.studies.kinds import Kind

if TYPE_CHECKING:
    from docleak.report.page import Reading
    from docleak.studies.study import Study

#: The panel of help that the commands are in.
PANEL = "Audit"


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
        """Name of a parameter -> the field of the configuration that it is for."""
        config = resolve(self.kind.config) if self.kind.config else self.study().Config
        hidden = {*self.fixed, *self.without}
        return {path.replace(".", "__"): one for path, one in options_of(config).items() if path not in hidden}

    def parameters(self) -> list[click.Parameter]:
        """The study's options, and those of a run."""
        asked, defaults = {**self.options(), **options_of(RUNNING), **JSON}, {**self.preset, "out": self.out}
        made = [parameter(name, one, defaults.get(one.path, one.default)) for name, one in asked.items()]
        return sorted(made, key=lambda one: not isinstance(one, click.Argument))

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
        run_and_report(study, Path(values["out"]), how_of(ctx, study.device))


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


def run_and_report(study: Study[Any], out: Path, how: Mapping[str, Any]) -> None:
    """Carry the study out in ``out``, by whom ``how`` says, write its report, and print what it says."""
    from docleak.studies.engine import carry_out
    from docleak.studies.registry import report_on

    study.check(note)
    with working_in(out):
        with Progress(out=out) as watcher:
            carry_out(study, out, watcher=watcher, **how)
        page, readings = report_on([out])
    say(page, readings)


def say(page: Path, readings: list[Reading], beside: Mapping[str, Path] | None = None) -> None:
    """Print what a report says, and the files that were written ``beside`` it: what they are called -> where."""
    from docleak.report.page import RESULTS, joined, results_of

    verdict, beside = joined(readings), beside or {}
    lines = [f"Notice: {notice}" for reading in readings for notice in reading.notices][:2]
    lines += [f"Verdict: {verdict.label.lower()}.", f"  {verdict.sentence}"]
    lines += [line for reading in readings for line in ("", *reading.lines)]
    value = {
        "report": str(page),
        "results": str(page.with_name(RESULTS)),
        **in_json(beside),
        **results_of(readings),
    }
    emit(value, "\n".join([*lines, "", f"Report: {page}", *written(beside)]))


def written(beside: Mapping[str, Path]) -> list[str]:
    """A line for each file."""
    return [f"{name}: {file}" for name, file in beside.items()]


def in_json(beside: Mapping[str, Path]) -> dict[str, str]:
    """The same as keys: "model_card" of "Model card"."""
    return {name.lower().replace(" ", "_"): str(file) for name, file in beside.items()}
