"""The one reader of short texts: ``gi-dqa:start=light``, ``sroie:PATH``, ``LABEL=MODEL``, ``8/255``.

A text is a name, and behind a colon its options as ``key=value``, separated by commas; several names are separated by
commas, too. Options become fields of a dataclass, of the types that it declares: a number may be a fraction, ``+``
joins the items of a tuple, and ``Said`` names what has no text of its own. Every caller says what the thing is called
in messages, and which error is raised.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from enum import Enum
from fractions import Fraction
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar

from docleak.errors import DocleakError

#: What says who somebody is, and is no option.
IDENTITY = ("name", "paper", "summary")
T = TypeVar("T")


@dataclass(frozen=True)
class Said:
    """How a field is said in text, as ``Annotated[type, Said(...)]``.

    ``key`` is its key, if not its name; ``values`` what words stand for; ``read`` makes a value of a text, and raises
    ValueError with what was expected. With ``inside`` the options of the field's present value are options too.
    """

    key: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    read: Callable[[str], object] | None = None
    inside: bool = False


def split_name(text: str) -> tuple[str, str]:
    """What is before the first colon, and what is behind it ("" where there is none)."""
    name, _, rest = text.strip().partition(":")
    return name.strip(), rest.strip()


def names(text: str) -> tuple[str, ...]:
    """The names of a comma-separated list; the options of one (``name:key=value,key=value``) stay with it."""
    specs: list[str] = []
    for part in items(text):
        if specs and "=" in part and ":" not in part[: part.index("=")]:
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return tuple(specs)


def items(text: str, separator: str = ",") -> tuple[str, ...]:
    """The parts of a list that are not empty."""
    return tuple(part.strip() for part in text.split(separator) if part.strip())


def pair(text: str, *, what: str, expected: str, error: type[DocleakError]) -> tuple[str, str]:
    """``LABEL=VALUE`` as two texts that are not empty; ``what`` and ``expected`` are words of the error."""
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise error(f"{what} is {text!r}; expected {expected}.")
    return key, value


def number(text: str) -> float:
    """A number such as 0.1, 1e-4 or 8/255; ValueError for anything else."""
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError) as fault:
        raise ValueError("a number such as 0.1 or 8/255") from fault


def weights(text: str, *, default: float) -> dict[str, float]:
    """``text@0.1+gaussian@0.01`` as name -> weight, ``default`` where none is said; ``none`` for none."""
    parts = [part.partition("@") for part in items(text, "+")] if text != "none" else []
    return {name: number(weight) if weight else default for name, _, weight in parts}


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """ " Did you mean 'gi-dqa'?" of a name that is not known, and "" where none of the known ones is near."""
    names = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), names, n=1, cutoff=cutoff)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def counted_words(number: int, what: str) -> str:
    """ "1 page", "2 pages"."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def unknown(noun: str, name: str, known: Sequence[str], *, more: str = "") -> str:
    """The sentence about a name that is not known: the nearest one, and all there are."""
    return f"unknown {noun} {name!r}.{nearest(name, known)} Expected one of {', '.join(known)}{more}."


def options(text: str, *, what: str, error: type[DocleakError], takes: str = "key=value") -> dict[str, str]:
    """``key=value,key=value`` as texts by key, with ``_`` for ``-``; ``error`` names ``what`` cannot be told them."""
    told = {}
    for part in items(text):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise error(f"{what} cannot be told {part!r}; it takes {takes}, each as key=value.")
        told[key.replace("-", "_")] = value
    return told


def told(thing: Any, text: str, *, what: str, error: type[DocleakError]) -> Any:
    """``thing`` with the options of ``text``: a dataclass is made with them, an instance of one is changed.

    Raises ``error``, in which ``what`` names the thing, for unknown keys, values of another type, and missing ones.
    """
    if not isinstance(thing, type):
        for key, value in options(text, what=what, error=error, takes=_signature(thing)).items():
            thing = _changed(thing, key, value, what=what, error=error)
        return thing
    return build(thing, options(text, what=what, error=error, takes=_signature(thing)), what=what, error=error)


def build(kind: type[T], values: Mapping[str, Any], *, what: str, error: type[DocleakError]) -> T:
    """The dataclass ``kind`` of ``values``, which are texts or of its fields' types already; errors as of ``told``."""
    sayable = _sayable(kind)
    by_key = {_key(name, hint): name for name, hint in sayable.items()}
    made = {}
    for key, value in values.items():
        if key not in by_key:
            raise error(_untold(kind, key, value, what))
        name = by_key[key]
        made[name] = _typed(sayable[name], value, key, what=what, error=error)
    required = [f.name for f in _fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in required if name not in made]
    if missing:
        raise error(f"{what} needs {', '.join(missing)}; it takes {_signature(kind)}.")
    return kind(**made)


def described(thing: object) -> str:
    """The options of a dataclass's instance that are not their defaults, as text; "" where all are."""
    changed = []
    for f in _fields(thing):
        value = getattr(thing, f.name)
        simple = isinstance(value, str | int | float) and f.name not in IDENTITY
        if simple and (f.default is MISSING or value != f.default):
            changed.append(f"{f.name.replace('_', '-')}={value}")
    return ",".join(changed)


def _changed(thing: Any, key: str, text: str, *, what: str, error: type[DocleakError]) -> Any:
    sayable = _sayable(type(thing))
    by_key = {_key(name, hint): name for name, hint in sayable.items()}
    if key in by_key:
        name = by_key[key]
        return replace(thing, **{name: _typed(sayable[name], text, key, what=what, error=error)})
    for name, hint in sayable.items():
        part = getattr(thing, name)
        if _said(hint).inside and key in {_key(*inner) for inner in _sayable(type(part)).items()}:
            return replace(thing, **{name: _changed(part, key, text, what=what, error=error)})
    raise error(_untold(thing, key, text, what))


def _untold(thing: object, key: str, value: object, what: str) -> str:
    signature = _signature(thing)
    hint = nearest(key, [word.partition("=")[0] for word in signature.split(", ")])
    return f"{what} cannot be told '{key.replace('_', '-')}={value}'; it takes {signature}.{hint}"


def _signature(thing: object) -> str:
    """The options of a dataclass or an instance of one, in words."""
    kind = thing if isinstance(thing, type) else type(thing)
    by_name = {f.name: f for f in _fields(kind)}
    words = []
    for name, hint in _sayable(kind).items():
        key, choices = _key(name, hint).replace("_", "-"), _choices(hint)
        value = getattr(thing, name, by_name[name].default)
        shown = "|".join(choices) if choices else value if isinstance(value, int | float | str) else "..."
        words.append(f"{key}={shown}")
        if _said(hint).inside and thing is not kind:
            words += [word for word in _signature(value).split(", ") if "=" in word]
    return ", ".join(words) or "no options"


def _fields(thing: Any) -> tuple[Field[Any], ...]:
    return fields(thing) if is_dataclass(thing) else ()


def _sayable(kind: Any) -> Mapping[str, Any]:
    """Field -> its type, of those that a text can say."""
    return _once_sayable(kind)  # apart, as to type checkers a cached function takes no types


@cache
def _once_sayable(kind: Any) -> Mapping[str, Any]:
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError:  # of an import for types alone
        plain = {"str": str, "int": int, "float": float, "bool": bool}
        hints = {f.name: plain.get(str(f.type), object) for f in _fields(kind)}
    wanted = {f.name: hints[f.name] for f in _fields(kind) if f.init and f.name not in IDENTITY}
    return {name: hint for name, hint in wanted.items() if _can_be_said(hint)}


def _can_be_said(hint: Any) -> bool:
    if _said(hint) != Said():
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _can_be_said(inner[0])
    if origin in (typing.Union, UnionType):
        return any(_can_be_said(one) for one in inner)
    if origin is tuple:
        return len(inner) == 2 and inner[1] is Ellipsis and _can_be_said(inner[0])
    return origin is Literal or hint in (str, int, float, bool) or (isinstance(hint, type) and issubclass(hint, Enum))


def _said(hint: Any) -> Said:
    metadata = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    return next((one for one in metadata if isinstance(one, Said)), Said())


def _key(name: str, hint: Any) -> str:
    return _said(hint).key.replace("-", "_") or name


def _choices(hint: Any) -> tuple[str, ...]:
    if typing.get_origin(hint) is Literal:
        return tuple(map(str, typing.get_args(hint)))
    return ("yes", "no") if hint is bool else tuple(_said(hint).values)


def _typed(hint: Any, value: object, key: str, *, what: str, error: type[DocleakError]) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    said, given = _said(hint), value
    shown = key.replace("_", "-")
    choices = _choices(hint)
    try:
        if isinstance(value, str):
            if said.values:
                return said.values[value]
            value = said.read(value) if said.read is not None else _of_text(hint, value)
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except (ValueError, KeyError) as fault:
        expected = f"one of {', '.join(choices)}" if choices else _expected(hint, fault)
        raise error(f"{what}: {shown} is {given!r}; expected {expected}.") from fault


def _of_text(hint: Any, text: str) -> object:
    """What pydantic does not read: fractions, and items joined by ``+``."""
    if typing.get_origin(hint) is tuple:
        return tuple(_of_text(typing.get_args(hint)[0], item) for item in items(text, "+"))
    numeric = hint in (int, float) or float in typing.get_args(hint)
    return number(text) if numeric else text


def _expected(hint: Any, fault: Exception) -> str:
    if hint is int:
        return "a whole number"
    first = str(fault) if not hasattr(fault, "errors") else str(fault.errors()[0]["msg"])
    return first.removeprefix("Value error, ").removeprefix("Input should be ")
