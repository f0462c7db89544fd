"""Registries: what docleak ships, what other packages and running programs add, and objects, all chosen in one way.

A choice is a registered name with options (``gi-dqa:start=light``), ``"module:object"`` of somebody's own file, or
an object. A configuration keeps ``Registry.chosen`` of it: the name, which brings along what other processes cannot
find by it. Nothing is imported before it is loaded, so that lists need no torch.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Self, TypeAlias, TypeVar

from docleak import spec
from docleak.errors import DocleakError

T = TypeVar("T")
#: What no name holds: they begin its options, and part them.
MARKS = ":,="
#: What a configuration's field takes where one may choose: a name, "module:object", or the object itself.
Choice: TypeAlias = Any


@dataclass(frozen=True)
class Entry:
    """Where a thing is ("module:object"), what it does in a line, and whose it is."""

    target: str
    summary: str = ""
    paper: str = ""

    def __str__(self) -> str:
        return f"{self.summary}; {self.paper}" if self.paper else self.summary


class Chosen(str):
    """A name that brings its object along, to worker processes too; equal to the name."""

    thing: object

    @classmethod
    def of(cls, name: str, thing: object) -> Self:
        """The name ``name`` with ``thing``."""
        made = cls(name)
        made.thing = thing
        return made

    def __deepcopy__(self, memo: object) -> Self:  # dataclasses.asdict must not copy a model
        return self


class Given(Chosen):
    """A name with a hash of what it brings along, so that a run's manifest has nothing else to say of it."""


@dataclass(frozen=True, eq=False)
class Registry(Generic[T]):
    """Things of one kind by name; ``noun`` and ``error`` are for messages.

    ``protocol`` ("module:class", runtime-checkable) is what an object must fulfil; without one it must be callable.
    ``group`` is the entry points' group, of which this registry takes those named ``view/NAME``, and, if it is the
    ``default`` of the group, those without a view. With ``argument`` the text behind the name is one argument as it is
    (``trocr:PATH``), not options.
    """

    noun: str
    error: type[DocleakError]
    entries: dict[str, Entry]
    protocol: str = ""
    group: str = ""
    view: str = ""
    default: bool = False
    argument: bool = False

    def names(self) -> tuple[str, ...]:
        """All names: the shipped ones first, in their order."""
        return (*self.entries, *(name for name in self._installed if name not in self.entries))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def summaries(self) -> dict[str, str]:
        """Name -> what it does, and whose it is, in a line."""
        others = {name: " and ".join(map(_distribution, points)) for name, points in self._installed.items()}
        hidden = {name: f" (not that of {others[name]})" for name in self.entries if name in others}
        shipped = {name: f"{entry}{hidden.get(name, '')}" for name, entry in self.entries.items()}
        return shipped | {name: f"from {whose}" for name, whose in others.items() if name not in shipped}

    def register(self, name: str, thing: object, summary: str = "") -> None:
        """Add an object, a class of one, or its "module:object", for this process and the workers that it starts."""
        if name in self.names() or not name or any(mark in name for mark in MARKS):
            raise self.error(f"{self.noun} {name!r} cannot be registered: it is taken, or holds one of : , =.")
        self.entries[name] = _Registered(thing if isinstance(thing, str) else "", summary, thing=thing)

    def unregister(self, name: str) -> None:
        """Take away what was registered."""
        if isinstance(self.entries.get(name), _Registered):
            del self.entries[name]

    def load(self, choice: Choice) -> T:
        """The thing that ``choice`` means; ``error`` says what is known, or what an object lacks."""
        if isinstance(choice, Chosen):
            return self._checked(choice.thing, choice)
        if not isinstance(choice, str):
            name = _name_of(choice)
            return self._checked(self._with(choice, name, "") if isinstance(choice, type) else choice, name)
        thing, name, options = self._found(choice)
        return self._checked(self._with(thing, name, options), choice)

    def name_of(self, choice: Choice) -> str:
        """What units and reports call it: the text of a registered one, else the object's own name."""
        if isinstance(choice, str) and (isinstance(choice, Chosen) or spec.split_name(choice)[0] in self):
            return choice.strip()
        return _name_of(self.load(choice))

    def plain(self, choice: Choice) -> bool:
        """Whether ``choice`` is the name of one of docleak's own without options; nothing is loaded to tell."""
        return type(choice) is str and type(self.entries.get(choice)) is Entry

    def chosen(self, choice: Choice) -> str:
        """The name of ``choice``, checked; what another process would not find by its name comes along with it."""
        thing, name = self.load(choice), self.name_of(choice)
        if isinstance(choice, Chosen):
            return choice
        if self.plain(spec.split_name(name)[0]) and (isinstance(choice, str) or self._same(name, thing)):
            return name
        return Chosen.of(name, thing)

    def all_chosen(self, choices: Iterable[Choice]) -> tuple[str, ...]:
        """``chosen`` of each; ``error`` of none, and where two different objects go by one name."""
        names = tuple(self.chosen(choice) for choice in choices)
        if not names:
            raise self.error(f"no {self.noun} is named; expected a name or an object, or several.")
        for name in names:
            same = (other for other in names if other == name)
            if len({id(other.thing) if isinstance(other, Chosen) else None for other in same}) > 1:
                raise self.error(f"two {self.noun}s are called {name!r}. Give one of them another name.")
        return names

    @functools.cached_property
    def _installed(self) -> Mapping[str, list[EntryPoint]]:
        """By name what other packages offer: several where these are different objects."""
        points: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group) if self.group else ():
            view, slash, name = point.name.rpartition("/")
            there = (view == self.view or (not slash and self.default)) and not any(mark in name for mark in MARKS)
            if there and all(point.value != other.value for other in points.setdefault(name, [])):
                points[name].append(point)
        return points

    def _same(self, name: str, thing: object) -> bool:
        there = self.load(name)
        return there is thing or bool(type(there) is type(thing) and there == thing)

    def _found(self, choice: str) -> tuple[Any, str, str]:
        """The thing as it is registered or lies in a file, its name, and its options."""
        name, rest = spec.split_name(choice)
        entry = self.entries.get(name)
        if isinstance(entry, _Registered):
            return self._own(*spec.split_name(entry.target)) if entry.target else entry.thing, name, rest
        if entry is not None:
            return resolve(entry.target), name, rest
        if name in self._installed:
            return self._loaded(*self._installed[name]), name, rest
        attribute, options = spec.split_name(rest)
        if all(part.isidentifier() for part in (*name.split("."), *attribute.split("."))):
            if _READING.get():
                raise self.error(
                    f"a run that is being read names the {self.noun} {name}:{attribute}, and reading imports nothing."
                )
            return self._own(name, attribute), f"{name}:{attribute}", options
        said = spec.unknown(self.noun, name, self.names(), more=', or "module:object" of your own')
        raise self.error(said + " Several are named one by one, without commas." * ("," in name))

    def _own(self, module: str, attribute: str) -> Any:
        """An object of somebody's own file, in the current folder too."""
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.append(os.getcwd())  # for good: worker processes are given these folders
        try:
            return resolve(f"{module}:{attribute}")
        except ModuleNotFoundError as fault:
            if fault.name != module.partition(".")[0] and fault.name != module:
                raise self.error(f"{self.noun} {module}:{attribute} cannot be imported: {fault}.") from fault
            said = spec.unknown(self.noun, module, self.names())
            raise self.error(f"{said} There is no module {module!r} either, here or installed.") from fault
        except (Exception, SystemExit) as fault:  # whatever the file raises while it is imported
            raise self.error(f"{self.noun} {module}:{attribute}: {raised(fault)}.") from fault

    def _loaded(self, point: EntryPoint, *others: EntryPoint) -> Any:
        if others:
            several = " and ".join(f"{one.value} of {_distribution(one)}" for one in (point, *others))
            raise self.error(
                f"{self.noun} {point.name!r} is {several}, and nobody knows which of them is meant. Take one of these "
                'packages away, or say it by "module:object".'
            )
        whose = _distribution(point)
        if EntryPoint.pattern.match(point.value) is None:
            raise self.error(
                f"{self.noun} {point.name!r} of {whose} cannot be loaded: it is {point.value!r}; expected "
                "module:object. Options stand behind the name, where it is used."
            )
        try:
            return point.load()
        except (Exception, SystemExit) as fault:
            raise self.error(f"{self.noun} {point.name!r} of {whose} cannot be loaded: {raised(fault)}.") from fault

    def _with(self, thing: Any, name: str, options: str) -> Any:
        if self.argument and isinstance(thing, type):
            return self._called(thing, name, options)
        if isinstance(thing, type) or options:
            what = f"{self.noun} {name!r}"
            try:
                thing = spec.told(thing, options, what=what, error=self.error)
            except DocleakError:
                raise
            except (Exception, SystemExit) as fault:  # whatever the code of a class raises when it is called
                why = f"{what} cannot be made: {raised(fault)}"
                raise self.error(f"{why}. Expected a class without required arguments, or an object.") from fault
        if options and any(f.name == "name" for f in (fields(thing) if is_dataclass(thing) else ())):
            thing = replace(thing, name=f"{thing.name}:{options}")
        return thing

    def _called(self, kind: Any, name: str, argument: str) -> Any:
        arguments = (argument,) if argument else ()
        try:
            inspect.signature(kind).bind(*arguments)
        except TypeError as fault:
            known = ", ".join(f"{key} ({entry})" for key, entry in self.entries.items())
            raise self.error(f"{self.noun} {name!r}: {fault}; expected one of {known}.") from fault
        return kind(*arguments)

    def _checked(self, thing: Any, name: str) -> T:
        if not self.protocol:
            if not callable(thing):
                raise self.error(f"{self.noun} {name!r} is a {type(thing).__name__}; expected something to call.")
            return thing  # type: ignore[no-any-return]
        protocol = resolve(self.protocol)
        self._require_texts(thing, name, protocol)
        if isinstance(thing, protocol):
            return thing  # type: ignore[no-any-return]
        wanted = sorted(member for kind in protocol.__mro__ for member in getattr(kind, "__protocol_attrs__", ()))
        wanted = wanted or sorted(_members(protocol))
        missing = [member for member in dict.fromkeys(wanted) if not hasattr(thing, member)]
        expected = self.protocol.replace(":", ".")
        if not missing:  # no protocol, but a class
            raise self.error(f"{self.noun} {name!r} is a {type(thing).__name__}; expected a {expected}.")
        raise self.error(
            f"{self.noun} {name!r} is a {type(thing).__name__} without {', '.join(missing)}; expected what {expected} "
            f"has: {', '.join(dict.fromkeys(wanted))}."
        )

    def _require_texts(self, thing: Any, name: str, protocol: type) -> None:
        """What ``thing`` says of itself is asked for once now, and not for the first time after hours of work."""
        for member in _members(protocol):
            asked = inspect.getattr_static(protocol, member, None)
            if isinstance(asked, property) and inspect.signature(asked.fget).return_annotation == "str":  # type: ignore[arg-type]
                what = f"{self.noun} {name!r}: its {member}"
                try:
                    said = getattr(thing, member)
                except (Exception, SystemExit) as fault:
                    if isinstance(fault, AttributeError) and fault.name in (None, member):
                        continue  # what is missing is told below
                    raise self.error(f"{what} cannot be asked: {raised(fault)}.") from fault
                if not isinstance(said, str):
                    raise self.error(f"{what} is a {type(said).__name__}; expected a text.")


@dataclass(frozen=True)
class _Registered(Entry):
    """An entry of this process only."""

    thing: Any = None


#: Whether files of runs are being read, which anybody may have written.
_READING: ContextVar[bool] = ContextVar("reading", default=False)


@contextmanager
def importing_nothing() -> Iterator[None]:
    """While files of runs are read, no module that they name is imported: whoever wrote them chose the names."""
    before = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(before)


def may_import(target: str) -> bool:
    """Whether the module of ``"module:object"`` may be imported now: always, but while runs are read, when it must have
    been imported before by who reads them."""
    return not _READING.get() or spec.split_name(target)[0] in sys.modules


def resolve(target: str) -> Any:
    """The object of ``"module:object"``; ModuleNotFoundError and AttributeError as from Python."""
    module, attributes = spec.split_name(target)
    return functools.reduce(getattr, attributes.split("."), importlib.import_module(module))


def raised(fault: BaseException) -> str:
    """What was raised while a module was imported, or a class called, and by which line of which file, if it was."""
    if isinstance(fault, SyntaxError):
        return f"{fault.filename}, line {fault.lineno}, has a {type(fault).__name__}: {fault.msg}"
    importing = (__file__, spec.__file__, os.path.dirname(importlib.__file__), "<frozen")
    frames = traceback.extract_tb(fault.__traceback__)[1:]  # the first one is where it was caught
    frames = [one for one in frames if not one.filename.startswith(importing)]
    if not frames:
        return str(fault)
    return f"{frames[-1].filename}, line {frames[-1].lineno}, raises {type(fault).__name__}: {fault}"


def _members(protocol: type) -> set[str]:
    """Public names that a protocol and the ones it extends declare."""
    kinds = [kind for kind in protocol.__mro__ if kind.__module__ not in ("typing", "builtins")]
    return {name for kind in kinds for name in vars(kind) if not name.startswith("_")}


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _name_of(thing: object) -> str:
    try:
        name = getattr(thing, "name", None)
    except (Exception, SystemExit):  # told where it is checked
        name = None
    if isinstance(name, str):
        return name
    kind = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    options = spec.described(thing)
    return f"{kind}:{options}" if options else kind
