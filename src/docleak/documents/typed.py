"""Values that Python gives to the fields of configurations, checked by the annotations of the fields."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from docleak.documents.ranges import SEED, check_range, short
from docleak.errors import DocleakError

T = TypeVar("T")
#: Plain types, by the names that annotations give them.
PLAIN = {"str": str, "int": int, "float": float, "bool": bool, "tuple[str, ...]": tuple[str, ...]}
#: What messages call one and several of a type.
WORDS = {bool: ("True or False", "truth values"), int: ("a whole number", "whole numbers"),
         float: ("a number", "numbers"), str: ("a text", "texts"), NoneType: ("None", "None")}  # fmt: skip


def typed(
    kind: type, values: Mapping[str, Any], *, what: str, error: type[DocleakError] = DocleakError, place: str = ""
) -> dict[str, Any]:
    """``values`` of fields of the dataclass ``kind`` as these keep them: numbers of numpy as Python's, lists as tuples,
    paths as texts; in configurations within it, too.

    Raises ``error``, which says that it is of ``what``, for a value that is not as its field's annotation says, and for
    a seed out of range. Of annotations that are no plain types, tuples or dataclasses nothing is asked.
    """
    hints, made = types_of(kind), {}
    for name, given in values.items():
        value, called = _kept(given, hints[name]), f"{what}: {place}{name}"
        if not _fits(value, hints[name]):
            raise error(f"{called} is {short(given)}; expected {_words(hints[name])}.")
        if name == "seed" and isinstance(value, int):
            check_range(called, value, SEED, error)
        if configs := tuple(one for one in parts_of(hints[name]) if isinstance(one, type) and is_dataclass(one)):
            several = value if isinstance(value, tuple) else (value,)
            inner = tuple(
                inside(one, what=what, error=error, place=f"{place}{name}.") if isinstance(one, configs) else one
                for one in several
            )
            value = inner if isinstance(value, tuple) else inner[0]
        made[name] = value
    return made


def inside(config: T, *, what: str, error: type[DocleakError] = DocleakError, place: str = "") -> T:
    """A configuration with its values ``typed``; the same one where nothing of it changes, or it is no dataclass."""
    if not is_dataclass(config):
        return config
    known = {one.name: one for one in fields(config) if one.init}
    given = {name: getattr(config, name) for name, one in known.items() if getattr(config, name) is not one.default}
    made = typed(type(config), given, what=what, error=error, place=place)
    changed = {name: value for name, value in made.items() if value is not given[name]}
    return replace(config, **changed) if changed else config  # type: ignore[type-var]


def types_of(kind: type) -> dict[str, Any]:
    """Field -> its type; of annotations that name an import for types alone those that are plain, and else object."""
    try:
        return get_type_hints(kind)
    except NameError:  # of an import for types alone
        return {one.name: PLAIN.get(str(one.type), object) for one in fields(kind)}


def united(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def parts_of(hint: Any) -> list[Any]:
    """The types of a union's members, and of the items of tuples among them."""
    return [(*get_args(one), one)[0] if get_origin(one) is tuple else one for one in united(hint)]


def plain(value: Any) -> Any:
    """A number of numpy as Python's; anything else as it is."""
    numpy = sys.modules.get("numpy")  # which lists do without
    if numpy and isinstance(value, numpy.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return value if isinstance(value, int) else int(value)
    return float(value) if isinstance(value, Real) else value


def _kept(value: Any, hint: Any) -> Any:
    if isinstance(value, os.PathLike) and "Path" not in str(hint):
        return os.fspath(value)
    if type(value) in (list, tuple):
        made = tuple(_kept(one, hint) for one in value)
        same = type(value) is tuple and all(one is other for one, other in zip(made, value, strict=True))
        return value if same else made
    return plain(value)


def _fits(value: Any, hint: Any) -> bool:
    """Whether ``value`` is as ``hint`` says. A whole number is a number as well, and no truth value is one."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if isinstance(origin, type) and not inner:
        return isinstance(value, origin)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple:
        items = inner[:1] * len(value) if isinstance(value, tuple) and inner[-1] is Ellipsis else inner
        return isinstance(value, tuple) and len(value) == len(items) and all(map(_fits, value, items))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(one, inner[1]) for one in value.values())
    if hint in (bool, int, float, NoneType):
        return type(value) is hint or (hint is float and type(value) is int)
    known = isinstance(hint, type) and (hint is str or is_dataclass(hint))
    return isinstance(value, hint) if known else True


def _words(hint: Any, several: str = "") -> str:
    """What ``hint`` asks for; ``several`` of it, if that is said."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_words(one, several) for one in inner)
    if origin is Literal:
        return f"{'some' if several else 'one'} of {', '.join(map(repr, inner))}"
    if isinstance(origin, type) and not inner:
        return f"a {origin.__name__}"
    if origin is tuple:
        length = "" if inner[-1] is Ellipsis else f"{len(inner)} "
        items = dict.fromkeys(_words(one, "several") for one in inner if one is not Ellipsis)
        return f"a list or tuple of {length}{' and '.join(items)}"
    said = WORDS.get(hint, ("a mapping", "mappings") if origin else ("", "names or objects") if hint is Any else None)
    return said[bool(several)] if said else getattr(hint, "__name__", str(hint))
