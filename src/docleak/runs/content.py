"""What the objects of a configuration hold, so that a run is not resumed with another one's numbers.

Of somebody's own code count its file, which worker processes import, the bytecode and what it names (helpers,
constants), closures and defaults; of an instance its class and all that it was given; of tensors type, shape and bytes.
What docleak, Python and installed packages define counts by its name. The same object has the same digest in every
process of one version of Python.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import inspect
import io
import json
import os
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from docleak.errors import RunError
from docleak.registry import Chosen, Given, Registry

#: Told by their texts.
SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
#: Members of a class that tell nothing of what it computes.
UNTOLD = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__slotnames__", "_abc_impl",
})  # fmt: skip
#: Of a configuration of transformers, a hash by Python, which is another one in every process.
HASHED = "_original_object_hash"
#: Of these and of open files the type stands for what they hold, which changes no number.
LOCKS = (type(threading.Lock()), type(threading.RLock()))
INSTALLED = {"site-packages", "dist-packages"}
#: The flag of classes that are no fixed parts of Python or an extension (Py_TPFLAGS_HEAPTYPE).
HEAP = 1 << 9


def objects_in(value: object) -> dict[str, Any]:
    """Name -> description of every object that came along in a configuration's values, for a run's manifest."""
    if isinstance(value, Given):
        return {}
    if isinstance(value, Chosen):
        return {str(value): describe(value.thing, name=str(value))}
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    objects: dict[str, Any] = {}
    for one in inner:
        objects |= objects_in(one)
    return objects


def describe(thing: object, *, name: str = "", networks: bool = True) -> object:
    """An object as JSON: its module and qualified name, a digest of its code if it is somebody's own, and its fields.

    Of objects inside it that are no dataclasses a digest tells what they hold; without ``networks`` only their names
    are told, as of what is known otherwise. RunError, which calls the object ``name``, where it holds what cannot be
    told from another.
    """
    try:
        return _described(thing, networks=networks)
    except (_Unknown, RecursionError) as fault:
        what = str(fault) if isinstance(fault, _Unknown) else "objects within objects without an end"
        raise RunError(
            f"{name or type(thing).__qualname__!r} holds {what}: a run cannot note what is in it, and would take "
            "another one for the same. Expected numbers, texts, tensors, arrays, functions, and objects that pickle "
            "can keep. Leave it out of the object, or out of what its class returns from __getstate__."
        ) from fault


def code_digest_of(kind: Any) -> str:
    """Ten hexadecimal digits over the code of a class or function that is not docleak's, and over what it names in
    files of its author's; "" for what docleak or Python defines."""
    return _Contents().of(kind)[:10] if _is_theirs(kind.__module__) else ""


def _described(thing: Any, *, networks: bool, inside: bool = False) -> object:
    if type(thing) is float and not abs(thing) < float("inf"):
        return repr(thing)  # JSON has no such numbers
    if type(thing) in (type(None), bool, int, float, str):
        return thing
    if type(thing) is dict and all(type(key) is str for key in thing):
        return {key: _described(value, networks=networks, inside=True) for key, value in thing.items()}
    if type(thing) in (list, tuple):
        return [_described(value, networks=networks, inside=True) for value in thing]
    named = all(isinstance(getattr(thing, key, None), str) for key in ("__module__", "__qualname__"))
    kind: Any = thing if named else type(thing)
    contents = _Contents()
    told: dict[str, Any] = {"object": f"{kind.__module__}:{kind.__qualname__}"}
    theirs = _is_theirs(kind.__module__)
    if code := contents.of(kind)[:10] if theirs else _source(kind):
        told["code"] = code
    if kind is thing:
        if not theirs and (getattr(kind, "__closure__", None) or isinstance(kind, types.MethodType)):
            told["digest"] = contents.of(kind)[:10]
        return told
    if is_dataclass(thing) or not inside:
        held = _fields(thing)
        told["fields"] = {key: _described(value, networks=networks, inside=True) for key, value in held.items()}
    if not is_dataclass(thing) and networks:
        told["digest"] = contents.of(thing)[:10]
    return told


def _source(kind: Any) -> str:
    """Of a class or function that is installed, ten hexadecimal digits over its source; "" where there is none."""
    if kind.__module__.partition(".")[0] in ("docleak", "builtins"):
        return ""
    try:
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()[:10]
    except (OSError, TypeError):
        return ""


def _is_theirs(module: str | None) -> bool:
    """Whether the code of a module is somebody's own: neither docleak's nor Python's nor installed."""
    top = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if top == "docleak" or not file:
        return top != "docleak" and top not in sys.stdlib_module_names
    return not INSTALLED & {*Path(file).parts} and Path(os.__file__).parent not in Path(file).parents


class _Unknown(Exception):
    """What cannot be told from another, in words."""


class _Contents:
    """Digests of what is found from one object."""

    def __init__(self) -> None:
        self.done: dict[int, tuple[object, str]] = {}
        self.within: dict[int, int] = {}
        self.names: list[str] = []
        self.files: dict[str | None, str] = {}
        self.coding = 0

    def of(self, thing: Any) -> str:
        """A digest of what ``thing`` holds; _Unknown where that cannot be said, but in what code names, where the type
        stands for it (a lock, say)."""
        if type(thing) in SIMPLE:
            return _hash(type(thing).__name__, repr(thing))
        key = id(thing)
        if key in self.within:
            return f"again {self.within[key]}"
        if key not in self.done:
            self.within[key] = len(self.within)
            try:
                digest = _hash(*self._parts(thing))
            except _Unknown:
                raise
            except Exception as fault:  # whatever an object raises that cannot be pickled
                kind = type(thing).__qualname__
                if not self.coding:
                    where = f" (in {'.'.join(self.names)})" if self.names else ""
                    raise _Unknown(f"a {kind}{where}") from fault
                digest = _hash("unknown", kind)
            finally:
                del self.within[key]
            self.done[key] = (thing, digest)
        return self.done[key][1]

    def _parts(self, thing: Any) -> Iterable[object]:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if type(thing) in (list, tuple):
            return [type(thing).__name__, *map(self.of, thing)]
        if type(thing) in (set, frozenset):
            return ["set", *sorted(map(self.of, thing))]
        if type(thing) in (dict, types.MappingProxyType):
            return ["dict", *sorted([self.of(key), self.of(value)] for key, value in thing.items())]
        if torch and isinstance(thing, torch.Tensor):
            flat = thing.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
            data = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
            return [type(thing).__qualname__, str(thing.dtype), *thing.shape, thing.requires_grad, data]
        if numpy and type(thing) is numpy.ndarray and not thing.dtype.hasobject:
            data = hashlib.sha256(numpy.ascontiguousarray(thing)).hexdigest()
            return [type(thing).__qualname__, str(thing.dtype), *thing.shape, data]
        if isinstance(thing, (io.IOBase, *LOCKS)):
            return ["named", type(thing).__qualname__]
        if isinstance(thing, types.FunctionType):
            return self._function(thing)
        if isinstance(thing, type):
            return self._class(thing)
        if isinstance(thing, types.MethodType):
            return ["method", self.of(thing.__self__), self.of(thing.__func__)]
        if isinstance(thing, types.CodeType):
            return self._code(thing)
        if isinstance(thing, types.ModuleType):
            return ["module", thing.__name__]
        if isinstance(thing, Registry):
            return ["registry", thing.noun]
        if isinstance(thing, property):
            return ["property", *map(self.of, (thing.fget, thing.fset, thing.fdel))]
        if isinstance(thing, functools.cached_property):
            return ["property", self.of(thing.func)]
        if isinstance(thing, classmethod | staticmethod) or type(thing) is functools._lru_cache_wrapper:
            return [type(thing).__name__, self.of(thing.__wrapped__)]
        return self._instance(thing)

    def _instance(self, thing: Any) -> Iterable[object]:
        """By what pickle would keep of it."""
        reduce = copyreg.dispatch_table.get(type(thing))
        made = reduce(thing) if reduce else thing.__reduce_ex__(4)
        if isinstance(made, str):
            return ["named", type(thing).__qualname__, made]
        maker, given, state, *items = (*made, None, None)[:5] if len(made) < 5 else made[:5]
        parts = [self.of(maker), self.of(given), *(self.of(list(one)) for one in items if one is not None)]
        held = _held(thing, state)
        return [*parts, self.of(state)] if held is None else [*parts, *self._named(held)]

    def _named(self, held: Mapping[str, object]) -> Iterator[list[str]]:
        for name, value in sorted(held.items()):
            self.names.append(name)
            yield [name, self.of(value)]
            self.names.pop()

    def _function(self, thing: types.FunctionType) -> Iterable[object]:
        cells = [_content(cell) for cell in thing.__closure__ or ()]
        closed = [self.of(cells), self.of(thing.__defaults__), self.of(thing.__kwdefaults__)]
        if not _is_theirs(thing.__module__):
            return ["named", thing.__module__, thing.__qualname__, *closed]
        file = self._file(thing.__module__)
        return ["function", thing.__qualname__, file, self.of(thing.__code__), *closed, *self._coded(_globals(thing))]

    def _class(self, thing: type) -> Iterable[object]:
        if not _is_theirs(thing.__module__) or not thing.__flags__ & HEAP:
            return ["named", thing.__module__, thing.__qualname__]
        members = {name: value for name, value in vars(thing).items() if name not in UNTOLD}
        bases = [self.of(base) for base in (type(thing), *thing.__bases__)]
        return ["class", thing.__qualname__, self._file(thing.__module__), *bases, *self._coded(members)]

    def _file(self, module: str | None) -> str:
        """Of the file of a module; "" for scripts and notebooks, whose objects go to other processes as they are."""
        file = Path(getattr(sys.modules.get(module or ""), "__file__", None) or "")
        if module not in self.files:
            there = module != "__main__" and file.is_file()
            self.files[module] = hashlib.sha256(file.read_bytes()).hexdigest() if there else ""
        return self.files[module]

    def _coded(self, members: Mapping[str, object]) -> list[list[str]]:
        self.coding += 1
        try:
            return list(self._named(members))
        finally:
            self.coding -= 1

    def _code(self, code: types.CodeType) -> Iterable[object]:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        does = (code.co_code.hex(), code.co_exceptiontable.hex())
        return [code.co_name, *counts, *names, *does, self.of(code.co_consts)]


def _globals(function: types.FunctionType) -> dict[str, object]:
    """What the code of a function names in its module, and, by ``module.name`` or as it imports, in other modules of
    one's own."""
    there, steps = function.__globals__, [*_steps(function.__code__)]
    named = [one for one in steps if one.opcode in dis.hasname and one.opname.startswith(("LOAD_", "IMPORT_FROM"))]
    read = [one.argval for one in named if one.opname.endswith(("GLOBAL", "NAME", "GLOBALS"))]
    told = {name: there[name] for name in read if name in there} | dict(_imported(steps, there))
    attributes = {one.argval for one in named}
    modules = [*told.items()]
    for name, value in modules:  # which grows
        if isinstance(value, types.ModuleType) and _is_theirs(value.__name__):
            inside = {f"{name}.{inner}": vars(value)[inner] for inner in attributes if inner in vars(value)}
            modules += [pair for pair in inside.items() if not any(pair[1] is known for _, known in modules)]
            told |= inside
    return told


def _steps(code: types.CodeType) -> Iterator[dis.Instruction]:
    """What code does, with the code within it."""
    yield from (one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _steps(constant)


def _imported(steps: Sequence[dis.Instruction], there: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Modules of one's own that code imports when it runs, which are imported now."""
    for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME" and (level.argval or _may_be_theirs(step.argval.partition(".")[0])):
            with suppress(Exception, SystemExit):  # there it may fail as well
                module = __import__(step.argval, there, None, names.argval, level.argval)
                yield f"import {'.' * level.argval}{step.argval} {names.argval}", module


def _may_be_theirs(top: str) -> bool:
    """``_is_theirs`` of a package or module that nobody may have imported yet."""
    if top in sys.modules or top == "docleak" or top in sys.stdlib_module_names:
        return _is_theirs(top)
    there = PathFinder.find_spec(top)
    places = [there.origin or "", *(there.submodule_search_locations or ())] if there else []
    return bool(places) and not any(INSTALLED & {*Path(place).parts} for place in places)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # of a name that has no value yet
        return ...


def _fields(thing: Any) -> Mapping[str, object]:
    held = _held(thing, thing.__getstate__())
    return held or ({f.name: getattr(thing, f.name) for f in fields(thing)} if is_dataclass(thing) else {})


def _held(thing: object, state: object) -> dict[str, object] | None:
    """Attributes in a state as pickle keeps it, without what was computed of the others; None where it is no such."""
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    held: dict[str, object] = {}
    for part in parts:
        if part is not None and not (isinstance(part, dict) and all(isinstance(name, str) for name in part)):
            return None
        held |= part or {}
    of_class = {name: inspect.getattr_static(type(thing), name, None) for name in held}
    computed = {name for name, member in of_class.items() if isinstance(member, functools.cached_property)}
    return {name: value for name, value in held.items() if name not in computed | {HASHED}}


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
