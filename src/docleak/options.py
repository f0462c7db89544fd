"""Options of the command line, written beside the fields of configurations whose values they give.

A field made with ``option`` is an option of every command that takes its configuration; other fields are not, unless
the class has no such field at all: then each field that a text can say is one. Fields of a nested configuration are
options of the outer one, all of them, or those that ``only`` names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from docleak import spec
from docleak.documents.ranges import Range, short
from docleak.documents.typed import parts_of, types_of, united
from docleak.errors import DocleakError

T = TypeVar("T")
_OPTION, _ONLY = "docleak option", "docleak only"


@dataclass(frozen=True)
class Need:
    """When an option does something: where ``met`` holds of the configuration that its field is of; ``what`` ends the
    sentence "--it belongs to ..."."""

    met: Callable[[Any], bool]
    what: str


@dataclass(frozen=True)
class Option:
    """How a field is asked for: ``flag`` if it is not the field's own name, ``group`` is its panel in help.

    ``read`` makes the value (of a tuple: an item) of its text; without it the field's type does. A tuple is a list
    with commas, or with ``repeat`` an option for each item. An ``argument`` has no flag. What has no default has to be
    given, unless it is ``optional``, for the study knows one. A truth value has the flag that turns its default round;
    ``both`` ways can be said where a user cannot know which it is: --capture and --no-capture.
    """

    help: str
    flag: str = ""
    group: str = ""
    range: Range | None = None
    metavar: str = ""
    read: Callable[[str], Any] | None = None
    repeat: bool = False
    argument: bool = False
    optional: bool = False
    both: bool = False
    need: Need | None = None


@dataclass(frozen=True)
class Asked:
    """A field as an option: where it is in the configuration ("exposure.defense"), its type, and its default
    (MISSING where it has none)."""

    path: str
    option: Option
    type: Any
    default: Any

    @property
    def flag(self) -> str:
        """As it is written, "--pages"; what is on by default has "--no-" before its name."""
        name = self.path.rpartition(".")[2].replace("_", "-")
        turned = self.default is True and not self.option.both
        return self.option.flag or f"--{'no-' if turned else ''}{name}"

    @property
    def scalar(self) -> Any:
        """The type of the value, or of an item of it: str, int, float or bool; str for what is read from text."""
        kinds = [one for one in parts_of(self.type) if one in (int, float, bool)]
        return kinds[0] if kinds and self.read is None else str

    @property
    def read(self) -> Callable[[str], Any] | None:
        """What makes the value, or an item of it, of a text, where its plain type does not."""
        return self.option.read or (Path if Path in parts_of(self.type) else None)

    @property
    def several(self) -> bool:
        """Whether the value is a tuple of any length."""
        return any(get_origin(one) is tuple and get_args(one)[-1] is Ellipsis for one in united(self.type))

    def value(self, text: Any) -> Any:
        """What a text (a number, a truth value, a tuple of texts) stands for; DocleakError for what it cannot."""
        if self.scalar is bool:
            return bool(text) if self.option.both else self.default is not True
        if not self.several:
            return self.read(text) if self.read else text
        texts = spec.names(text) if isinstance(text, str) else tuple(text)
        try:
            return tuple((self.read or self.scalar)(item) for item in texts)
        except ValueError as fault:
            raise DocleakError(f"{self.flag} is {text!r}; expected numbers with commas between them.") from fault


def option(default: T, help: str, flag: str = "", group: str = "", **more: Any) -> T:
    """A dataclass's field with this default that is an option; ``more`` as of ``Option``."""
    return field(default=default, metadata={_OPTION: Option(help, flag, group, **more)})


def without_default(help: str, **more: Any) -> Mapping[str, Option]:
    """The metadata of a field that has no default: ``updates: str = field(metadata=without_default("..."))``."""
    return {_OPTION: Option(help, **more)}


def required(help: str, **more: Any) -> Any:
    """A dataclass's field without a default that is an option; ``more`` as of ``Option``."""
    return field(metadata=without_default(help, **more))


def only(*names: str, **others: Option) -> Mapping[str, Mapping[str, Option | None]]:
    """The metadata of a nested configuration of which only these fields are options, the ``others`` asked for so."""
    return {_ONLY: dict.fromkeys(names) | others}


def options_of(config: Any, *, told: bool = False) -> dict[str, Asked]:
    """Path -> option, of a configuration's class or of an instance, whose values are the defaults then. ``told``: no
    field is an option that does not say so."""
    kind = config if isinstance(config, type) else type(config)
    types, options = types_of(kind), dict[str, Asked]()
    told = told or any({_OPTION, _ONLY} & one.metadata.keys() for one in fields(kind))
    for one in fields(kind):
        default = _default(one) if config is kind else getattr(config, one.name)
        if is_dataclass(default) and _OPTION not in one.metadata:
            inner = options_of(default, told=told and _ONLY not in one.metadata)
            wanted = one.metadata.get(_ONLY, dict.fromkeys(inner))
            for path in (path for path in inner if path in wanted):
                wording = wanted[path] or inner[path].option
                options[f"{one.name}.{path}"] = replace(inner[path], path=f"{one.name}.{path}", option=wording)
        elif _OPTION in one.metadata:
            options[one.name] = Asked(one.name, one.metadata[_OPTION], types[one.name], default)
        elif not told and one.init and _sayable(types[one.name]):
            options[one.name] = Asked(one.name, Option(f"The study's {one.name}."), types[one.name], default)
    return options


def configured(config: Any, given: Mapping[str, Any]) -> Any:
    """The configuration with the ``given`` values by path; of a class with its defaults, or an instance changed."""
    kind = config if isinstance(config, type) else type(config)
    values = {path: value for path, value in given.items() if "." not in path}
    by_name = {one.name: one for one in fields(kind)}
    for name in dict.fromkeys(path.partition(".")[0] for path in given if "." in path):
        inner = {path.partition(".")[2]: value for path, value in given.items() if path.startswith(f"{name}.")}
        default = _default(by_name[name]) if config is kind else getattr(config, name)
        values[name] = configured(default, inner)
    return kind(**values) if config is kind else replace(config, **values)


def stored_fault(config: type, stored: Mapping[str, Any]) -> str:
    """Which option's value in a configuration read from JSON is of another type or no number, and what was expected;
    "" where there is none. What is no plain value is not looked at, nor what is not there, nor ranges: those of the
    command line may be narrower than what Python was given."""
    for path, asked in options_of(config).items():
        value: Any = stored
        for name in path.split("."):
            value = value.get(name, MISSING) if isinstance(value, Mapping) else MISSING
        kinds = parts_of(asked.type)
        if value is MISSING or not set(kinds) <= {str, int, float, bool, type(None)}:
            continue
        if {int, float} & set(kinds):  # 2.0 is a whole number, and JSON holds what is not finite as null
            kinds += [int, float, *[type(None)] * (float in kinds)]
        for one in value if isinstance(value, list) else [value]:
            if type(one) not in kinds or one != one:
                names = dict.fromkeys(kind.__name__ for kind in parts_of(asked.type))
                return f"{path} is {short(one)}; expected {asked.option.range or ' or '.join(names)}"
    return ""


def refuse_idle(config: Any, asked: Collection[Asked], *, flags: bool = True) -> None:
    """DocleakError naming the options that were given and do nothing in this configuration; without ``flags`` as
    Python writes them."""
    idle: dict[str, list[str]] = {}
    for one in asked:
        place = config
        for name in one.path.split(".")[:-1]:
            place = getattr(place, name)
        if one.option.need is not None and not one.option.need.met(place):
            what = one.option.need.what
            name = one.flag if flags else one.path.rpartition(".")[2]
            idle.setdefault(what if flags else what.removeprefix("--"), []).append(name)
    for what, names in idle.items():
        raise DocleakError(said_idle(names, what))


@contextmanager
def by_arguments(config: type | None, **others: str) -> Iterator[None]:
    """A DocleakError from within names the configuration's options by its fields, 'clients' for --client, or by what
    the ``others`` are called; command lines to type, docleak and what follows, stay."""
    try:
        yield
    except DocleakError as error:
        options = options_of(config) if config else {}
        names = {one.flag: path.rpartition(".")[2] for path, one in options.items()}
        names |= {f"--{name.replace('_', '-')}": argument for name, argument in others.items()}

        def argument(flag: re.Match[str]) -> str:
            return repr(names[flag[0]]) if flag[0] in names else flag[0]

        error.args = (re.sub(r"\bdocleak [a-z]+ [^.;,]*|--[a-z][a-z-]*", argument, str(error)),)
        raise


def said_idle(flags: Collection[str], what: str) -> str:
    """The sentence about options that do nothing, and to ``what`` they belong."""
    verb, them, do = ("belongs", "it", "does") if len(flags) == 1 else ("belong", "them", "do")
    return f"{', '.join(flags)} {verb} to {what}, and {do} nothing here. Leave {them} out."


def _default(one: Field[Any]) -> Any:
    """Of a nested configuration that is made anew each time, its class."""
    made = one.default_factory
    return one.default if made is MISSING else made if isinstance(made, type) else made()


def _sayable(hint: Any) -> bool:
    plain = all(one in (str, int, float, bool, type(None)) or get_origin(one) is Literal for one in parts_of(hint))
    return plain and all(get_args(one)[-1] is Ellipsis for one in united(hint) if get_origin(one) is tuple)
