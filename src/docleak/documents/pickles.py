"""Read data out of pickles of others without running what is in them: plain values and numpy's arrays of them.

A pickle is a program: it names functions and calls them. Here it may name what SAFE has, which builds plain values,
and numpy's own names, behind which stand functions of this module: they build arrays and scalars of numbers, texts and
objects after checking sizes and types, for numpy itself trusts the state that a pickle gives it. Any other name is
refused before anything is called, and so is a state for anything but a dtype or an array. A hostile file can still ask
for more memory or a deeper stack than there is, which ends the process.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from docleak.errors import DocumentError

#: Codes of dtypes that data has: booleans, numbers, texts, bytes and objects; no structures, which can hide pointers.
PLAIN_DTYPE = re.compile(r"[<>=|]?(?:[biufcSUO]\d{0,9}|[?BhHIlLqQefdgFDG])")
#: What reading a damaged or foreign file raises.
FAULTS = (
    OSError, ValueError, EOFError, pickle.UnpicklingError, ImportError, AttributeError, LookupError, TypeError,
    OverflowError, MemoryError, RecursionError,
)  # fmt: skip


class _Named:
    """What stands behind a name: it can be called, and no state can be given to it."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError("it gives a state to a function")


class _Dtype:
    """A dtype while it is read: a code and a byte order. ``plain`` is numpy's."""

    __slots__ = ("plain",)

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        text = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(text, str) or not PLAIN_DTYPE.fullmatch(text):
            raise pickle.UnpicklingError(f"it has a dtype {text!r:.40}")
        self.plain: np.dtype[Any] = np.dtype(text)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or not 8 <= len(state) <= 9 or any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("it has a dtype with parts")
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"it has a dtype of byte order {order!r:.40}")
        self.plain = self.plain.newbyteorder(">" if order == ">" else "<" if order == "<" else "|")


class _Array(np.ndarray[Any, Any]):
    """An array while it is read; its state is checked before numpy sees it."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[2], _Dtype):
            raise pickle.UnpicklingError("it has an array without a plain dtype")
        _, shape, dtype, fortran, content = state
        content = content.encode("latin1") if isinstance(content, str) else content
        _check_size(shape, dtype.plain, content)
        super().__setstate__((1, shape, dtype.plain, bool(fortran), content))  # type: ignore[arg-type]


def _check_size(shape: object, dtype: np.dtype[Any], content: object) -> tuple[int, ...]:
    """The shape; UnpicklingError unless the content fills it: a list of objects, or the bytes of all items."""
    if not isinstance(shape, tuple) or any(type(side) is not int or side < 0 for side in shape):
        raise pickle.UnpicklingError("it has an array without a shape")
    kind, size = (list, 1) if dtype.hasobject else (bytes, dtype.itemsize)
    if not isinstance(content, kind) or len(content) != math.prod(shape) * size:
        raise pickle.UnpicklingError(f"it has an array whose content does not fill its shape {shape}")
    return shape


def _reconstructed(kind: object, shape: object, code: object) -> _Array:
    if kind is not NDARRAY:
        raise pickle.UnpicklingError("it has an array of a class of its own")
    return np.ndarray.__new__(_Array, (0,), np.uint8)


def _from_buffer(content: object, dtype: object, shape: object, order: object) -> NDArray[Any]:
    if not isinstance(dtype, _Dtype) or dtype.plain.hasobject or not isinstance(content, bytes | bytearray):
        raise pickle.UnpicklingError("it has an array that is no buffer of plain values")
    sides = _check_size(shape, dtype.plain, bytes(content))
    return np.frombuffer(bytes(content), dtype.plain).reshape(sides, order="F" if order == "F" else "C")


def _scalar(dtype: object, content: object) -> Any:
    content = content.encode("latin1") if isinstance(content, str) else content
    if not isinstance(dtype, _Dtype) or dtype.plain.hasobject or not isinstance(content, bytes):
        raise pickle.UnpicklingError("it has a number that is no plain value")
    _check_size((), dtype.plain, content)
    return np.ndarray((), dtype.plain, content)[()]


def _latin1(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("it encodes what are no bytes")
    return text.encode("latin1")


def _no_array(*arguments: object) -> NoReturn:
    raise pickle.UnpicklingError("it makes an array by itself")


NDARRAY = _Named(_no_array)
#: Module and name -> what stands behind it. Python 2 wrote ``__builtin__``, and numpy before 2 ``numpy.core``.
SAFE: dict[tuple[str, str], Any] = {
    **{
        (module, kind.__name__): _Named(kind)
        for module in ("builtins", "__builtin__")
        for kind in (bytearray, bytes, complex, dict, frozenset, list, set)
    },
    ("collections", "OrderedDict"): _Named(dict),
    ("_codecs", "encode"): _Named(_latin1),
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): _Named(_Dtype),
    **{
        (f"numpy.{core}.{module}", name): _Named(make)
        for core in ("core", "_core")
        for module, name, make in (
            ("multiarray", "_reconstruct", _reconstructed),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SAFE:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}"[:200])
        return SAFE[module, name]


def read_pickle(path: Path, *, what: str, encoding: Literal["ASCII", "bytes"] = "ASCII") -> object:
    """The value of a pickle file; ``encoding`` says what Python 2's strings become.

    DocumentError, naming ``what`` the file should be, for anything but plain values and arrays of them.
    """
    try:
        with path.open("rb") as file:
            return _Reader(file, encoding=encoding).load()
    except FAULTS as error:
        raise _refused(path, what, error) from error


def read_object_array(path: Path, *, what: str) -> NDArray[np.object_]:
    """The objects of a .npy file, an array of one dimension; errors as of ``read_pickle``."""
    try:
        with path.open("rb") as file:
            return _objects(file)
    except FAULTS as error:
        raise _refused(path, what, error) from error


def _objects(file: io.BufferedReader) -> NDArray[np.object_]:
    if file.peek(6)[:6] != b"\x93NUMPY":
        raise ValueError("not a NumPy .npy file")
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the .npy format, expected 1.0 or 2.0")
    shape, _, dtype = read(file)
    if dtype != np.dtype(object) or len(shape) != 1:
        raise ValueError(f"an array of shape {shape} and dtype {dtype}, expected objects in one dimension")
    values = _Reader(file).load()
    if not isinstance(values, np.ndarray) or values.dtype != np.dtype(object) or values.size != shape[0]:
        raise ValueError(f"no {shape[0]} objects, as its header says")
    return values.view(np.ndarray).reshape(shape)


def _refused(path: Path, what: str, error: BaseException) -> DocumentError:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__
    return DocumentError(
        f"{path}: cannot be read as {what}: {reason}. Pickles are read for plain values and numpy's arrays of them "
        "only, and nothing in them is run. Download the file again, from its official source."
    )
