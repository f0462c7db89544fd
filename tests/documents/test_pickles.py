"""Pickles of data sets are read for their values; whatever else they name is refused before it runs."""

from __future__ import annotations

import collections
import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docleak.documents.pickles import read_object_array, read_pickle
from docleak.errors import DocumentError

VALUE: dict[str, Any] = {
    "boxes": np.arange(6, dtype=np.float32).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "foreign": np.array([1, 258], dtype=">i4"),
    "texts": np.array(["ab", "cdé"]),
    "empty": np.zeros((0, 4)),
    "objects": np.array([{"x": 1}, [2]], dtype=object),
    "float": np.float64(3.5), "int": np.int64(-4), "bool": np.bool_(True), "text": np.str_("hé"), "none": None,
    "bytes": b"x\xff", "no bytes": b"", "set": {1, 2}, "frozen": frozenset("a"), "complex": 1 + 2j, "list": [(1, "ü")],
    "ordered": collections.OrderedDict(a=1),
}  # fmt: skip


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, np.ndarray):
        return bool(found.shape == wanted.shape and all(map(same, found.ravel().tolist(), wanted.ravel().tolist())))
    return bool(found == wanted)


def old_names(data: bytes) -> bytes:
    """The pickle as numpy before 2.0 would have written it."""
    for new in (b"numpy._core.multiarray", b"numpy._core.numeric"):
        old = new.replace(b"_core", b"core")
        counted = (b"\x8c" + bytes([len(new)]) + new, b"\x8c" + bytes([len(old)]) + old)
        data = data.replace(*counted).replace(b"c" + new + b"\n", b"c" + old + b"\n")
    if data[2:3] == b"\x95":  # the one frame of protocols 4 and 5 is as long as what is left
        data = data[:3] + struct.pack("<Q", len(data) - 11) + data[11:]
    return data


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("written", [bytes, old_names])
def test_values_and_arrays_are_read(tmp_path: Path, protocol: int, written: Callable[[bytes], bytes]) -> None:
    (tmp_path / "x").write_bytes(written(pickle.dumps(VALUE, protocol)))
    value = read_pickle(tmp_path / "x", what="a test")
    assert isinstance(value, dict) and list(value) == list(VALUE)
    assert [key for key in VALUE if not same(value[key], VALUE[key])] == []


def test_names_of_numpy_1_are_in_what_is_read() -> None:
    for protocol in range(6):
        data = old_names(pickle.dumps(VALUE, protocol))
        assert b"numpy.core.multiarray" in data and b"_core" not in data


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_arrays_of_records_are_read(tmp_path: Path, version: tuple[int, int]) -> None:
    array = np.array([{"version": 1}, VALUE, None], dtype=object)
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version=version)
    header, value, nothing = read_object_array(tmp_path / "x.npy", what="records")
    assert header == {"version": 1} and nothing is None and same(value["boxes"], VALUE["boxes"])


class Call:
    """Calls something when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def global_(module: str, name: str, *rest: bytes) -> bytes:
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"".join(rest) + b"."


HARM = {
    "a command": (Call(os.system, "touch MARK"), "posix.system"),
    "code": (Call(eval, "__import__('os').system('touch MARK')"), "eval"),
    "exec": (Call(exec, "open('MARK', 'w')"), "exec"),
    "attributes": (Call(getattr, "x", "upper"), "getattr"),
    "files": (Call(open, "MARK", "w"), "open"),
    "a nested pickle": (Call(np.load, "other.npy"), "numpy.load"),
    "numpy's memory map": (Call(np.memmap, "MARK", np.uint8, "w+", 0, (4,)), "memmap"),
    "a class of Python": (Call(type, "x", (), {}), "type"),
    "imports": (Call(__import__, "antigravity"), "__import__"),
    "reconstructors": (Call(__import__("copyreg")._reconstructor, Path, object, None), "_reconstructor"),
    "a path": (Path("x"), "pathlib"),
    "numpy's runner": (global_("numpy.testing._private.utils", "runstring", b"X\x01\x00\x00\x00x}\x86R"), "runstring"),
    "numpy's shell": (global_("numpy.distutils.exec_command", "exec_command", b"K\x01\x85R"), "exec_command"),
    "f2py": (global_("numpy.f2py", "compile", b"X\x01\x00\x00\x00x\x85R"), "numpy.f2py"),
    "a dotted name": (b"\x80\x04\x8c\x08builtins\x8c\x0ddict.fromkeys\x93\x8c\x01a\x85R.", "dict.fromkeys"),
    "a class by another's module": (b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tobytes\x93.", "ndarray.tobytes"),
    "numpy's array by itself": (global_("numpy", "ndarray", b"K\x05\x85\x85R"), "makes an array"),
    "a new object": (global_("numpy", "ndarray", b"K\x05\x85\x81"), ""),
    "a state for a function": (global_("builtins", "set", b"}X\x01\x00\x00\x00aK\x01sb"), "state"),
    "an extension": (b"\x80\x02\x82\x01.", ""),
    "a persistent object": (b"\x80\x02X\x01\x00\x00\x00aQ.", ""),
    "a buffer from elsewhere": (b"\x80\x05\x97.", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HARM)
def test_nothing_else_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    harm, named = HARM[name]
    for protocol in range(2, 6):
        data = harm if isinstance(harm, bytes) else pickle.dumps({"a": [harm]}, protocol)
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(DocumentError, match=r"cannot be read as a test(.|\n)*nothing in them is run") as raised:
            read_pickle(tmp_path / "x", what="a test")
        assert named in str(raised.value) and not (tmp_path / "MARK").exists()
    if not isinstance(harm, bytes):
        np.save(tmp_path / "x.npy", np.array([None, harm], dtype=object))
        with pytest.raises(DocumentError, match="cannot be read as records"):
            read_object_array(tmp_path / "x.npy", what="records")
        assert not (tmp_path / "MARK").exists()


def array_of(dtype: Any, content: Any, shape: Any = (1,), state: Any = None) -> bytes:
    """The pickle of an array with a dtype's arguments and state, and content, of one's own."""
    stream = io.BytesIO()

    class Dtype:
        def __reduce__(self) -> tuple[Any, ...]:
            return np.dtype, dtype, state or (3, "|", None, None, None, -1, -1, 0)

    class Array:
        def __reduce__(self) -> tuple[Any, ...]:
            kind = np.zeros(1).__reduce__()[0]
            return kind, (np.ndarray, (0,), b"b"), (1, shape, Dtype(), False, content)

    pickle.dump(Array(), stream, protocol=2)
    return stream.getvalue()


@pytest.mark.parametrize(("data", "words"), [
    (array_of(("O8", False, True), b"\x41" * 8), "does not fill"),  # pointers made of bytes
    (array_of(("V8", False, True), b"\x41" * 8, state=(3, "|", None, ("a",), {"a": ("O", 0)}, 8, 1, 0)), "dtype 'V8"),
    (array_of(("f8", False, True), b"\x41" * 8, state=(3, "|", None, ("a",), {}, 8, 1, 0)), "with parts"),
    (array_of(("f8", False, True), b"\x41" * 8, state=(3, "x", None, None, None, 8, 1, 0)), "byte order"),
    (array_of(("f8", False, True), b"\x41" * 8, shape=(2,)), "does not fill"),
    (array_of(("f8", False, True), b"\x41" * 8, shape=(-1,)), "without a shape"),
    (array_of(("f8", False, True), b"\x41" * 8, shape=(2**40, 2**40)), "does not fill"),
    (array_of(("M8[s]", False, True), b"\x41" * 8), "dtype 'M8"),
    (array_of(("f8,O", False, True), b"\x41" * 16), "dtype 'f8,O"),
])  # fmt: skip
def test_arrays_whose_state_would_break_numpy_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(DocumentError, match=words):
        read_pickle(tmp_path / "x", what="a test")


def test_deep_nesting_ends_in_a_value_or_an_error(tmp_path: Path) -> None:
    depth = 200_000
    for opening, closing in ((b"]", b"a"), (b")", b"\x85")):
        nest = opening * depth + closing * (depth - 1) if opening == b"]" else opening + closing * depth
        (tmp_path / "x").write_bytes(b"\x80\x04" + nest + b".")
        value = read_pickle(tmp_path / "x", what="a test")
        assert isinstance(value, list | tuple)
        del value


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    whole = pickle.dumps(VALUE)
    for data in (b"", b"text", whole[:-20], b"\x80\x04."):
        file.write_bytes(data)
        with pytest.raises(DocumentError, match="cannot be read as a test"):
            read_pickle(file, what="a test")
        with pytest.raises(DocumentError, match=r"not a NumPy \.npy file"):
            read_object_array(file, what="records")
    with pytest.raises(DocumentError, match="No such file"):
        read_pickle(tmp_path / "absent", what="a test")
    for array, words in ((np.zeros(3), "dtype float64"), (np.empty((2, 2), dtype=object), r"shape \(2, 2\)")):
        np.save(file, array)
        with pytest.raises(DocumentError, match=words):
            read_object_array(file, what="records")
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"shape": (3,), "fortran_order": False, "descr": "|O"})
        pickle.dump([1, 2, 3], stream)
    with pytest.raises(DocumentError, match="no 3 objects"):
        read_object_array(file, what="records")


def test_strings_of_python_2_stay_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x80\x02}U\x04dataU\x02\xff\xfes.")
    assert read_pickle(tmp_path / "x", what="a test", encoding="bytes") == {b"data": b"\xff\xfe"}
