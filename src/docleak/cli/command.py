"""Commands made of what they take: each field of a dataclass, or parameter of a function, is an option."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, make_dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import click
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from docleak.cli.guard import Bounded, Text, check_values, typed
from docleak.documents.ranges import Range
from docleak.options import Asked, Need, Option, configured, option, options_of, refuse_idle

#: The panel of options that every long command has.
RUN = "Run"
#: Options that many commands have.
DEVICE: Any = option("auto", "auto, cpu, cuda, cuda:1, mps.", group=RUN)
WORKERS: Any = option(
    0, "Worker processes, one thread each; 0: one per core, on a GPU one.", group=RUN, range=Range(0, 512)
)
CLUSTER: Any = option("", "Address of a Dask scheduler that shares this file system; its workers compute.", group=RUN)


def _drawn(given: Any) -> bool:
    from docleak.documents.loaders import drawn

    return drawn(given.documents)


#: What a seed of ``documents`` needs.
DRAWN = Need(_drawn, "synthetic pages and drawn tables")
#: Options that stand on the command line: the names of their fields, and as they are written.
Said: TypeAlias = Mapping[str, str]


class Line(TyperCommand):
    """A command that does ``work``: a function whose parameters are the options, where their defaults say so, and which
    gets ``said``, too, if it has a parameter of that name; or, with a dataclass ``kind``, one of its instance and
    ``said``. ``above`` is the name of its group; its own is the first word of the function's. What is ``endless`` has
    nothing to print for machines."""

    def __init__(
        self, work: Callable[..., None], above: str = "", *, kind: type[Any] | None = None, panel: str | None = None,
        endless: bool = False,
    ) -> None:  # fmt: skip
        name = work.__name__.partition("_")[0]
        self.path = f"{above} {name}".strip()
        of_function: tuple[type[Any], Callable[..., None]] = (kind, work) if kind else _of_function(work)
        self.kind, self.work = of_function
        self.asked = {path.replace(".", "__"): one for path, one in options_of(self.kind).items()}
        params = [parameter(name, one, one.default) for name, one in (self.asked | ({} if endless else JSON)).items()]
        super().__init__(name, help=inspect.getdoc(work), params=params, rich_help_panel=panel)

    def invoke(self, ctx: click.Context) -> None:
        """Check what was given, and do the work."""
        given = [(one, ctx.params[name]) for name, one in self.asked.items() if typed(ctx, name)]
        options = configured(self.kind, {one.path: one.value(value) for one, value in given})
        check_values(self.path, self, ctx, lambda: refuse_idle(options, [one for one, _ in given]))
        self.work(options, {one.path.rpartition(".")[2]: one.flag for one, _ in given})


def _of_function(work: Callable[..., None]) -> tuple[type[Any], Callable[[Any, Said], None]]:
    """A dataclass of a function's parameters, and the function called with an instance of it."""
    hints, parameters = get_type_hints(work), inspect.signature(work).parameters
    kind = dataclass_of({name: (hints[name], one.default) for name, one in parameters.items() if name != "said"})

    def called(options: Any, said: Said) -> None:
        work(**vars(options), **({"said": said} if "said" in parameters else {}))

    return kind, called


def dataclass_of(asked: Mapping[str, tuple[Any, Any]]) -> type[Any]:
    """The dataclass with these fields: name -> type, and what ``option`` gave, which several may share."""
    made = [(name, hint, field(default=one.default, metadata=one.metadata)) for name, (hint, one) in asked.items()]
    return make_dataclass("Options", made, frozen=True, kw_only=True)


def group(name: str, about: str, commands: Sequence[Callable[..., None] | Line], *, panel: str) -> TyperGroup:
    """Commands, or functions that they are made of, under a common word."""
    lines: Sequence[click.Command] = [one if isinstance(one, Line) else Line(one, name) for one in commands]
    return TyperGroup(
        name=name, commands=lines, help=about, no_args_is_help=True, suggest_commands=False, rich_help_panel=panel
    )


#: The options of a run of units that may be computed side by side.
RUNNING = dataclass_of({
    "out": (Path | None, option(None, "Run directory; an interrupted run in it is continued.", group=RUN)),
    "device": (str, DEVICE), "workers": (int, WORKERS), "cluster": (str, CLUSTER),
})  # fmt: skip
#: The option of every command that has something to print.
JSON = {"json_output": Asked("json_output", Option(
    "Print one JSON object for machines; no progress bar.", "--json", RUN), bool, False)}  # fmt: skip


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
    text_kind = click.Path() if one.read is Path else click.STRING
    read = Text(text_kind) if kind is click.STRING else Bounded(kind, told.range) if told.range else kind
    shown: Any = None if missing else _shown(default) if kind is click.STRING else default
    if told.argument:
        more: dict[str, Any] = {"nargs": -1} if one.several else {"default": shown, "show_default": bool(shown)}
        return TyperArgument(param_decls=[name], type=read, required=required, help=text, **more)
    if told.repeat:
        shown = [] if missing else _texts(default)
    return TyperOption(
        param_decls=[name, one.flag], type=read, default=shown, show_default=shown not in (None, ""), help=text,
        required=required, multiple=told.repeat, metavar=told.metavar or None, rich_help_panel=told.group or None,
    )  # fmt: skip


def _texts(values: Sequence[Any]) -> list[str]:
    return [str(getattr(value, "name", value)) for value in values]


def _shown(value: Any) -> str | None:
    """A default as it would be typed."""
    if isinstance(value, tuple):
        fixed = bool(value) and all(isinstance(item, int) for item in value) and len(value) == 2
        return ("x" if fixed else ",").join(_texts(value)) or None
    return None if value is None else str(getattr(value, "name", value))
