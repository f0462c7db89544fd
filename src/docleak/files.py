"""Write files whole or not at all, so that a killed process leaves nothing half done, and for their owner only.

What docleak writes shows pages of people, or was computed from them: files are 0600 and folders 0700, whatever the
umask says. A folder that was there before keeps its mode. JSON is read with every fault as a
JSONDecodeError, also those for which Python's reader has other names, and held against dataclasses by pydantic.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from docleak.errors import DocleakError, RunError, denied

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pydantic import TypeAdapter

T = TypeVar("T")
#: Path, size and time of change of files.
Stamps: TypeAlias = frozenset[tuple[str, int, int]]

#: How the names of files begin that are being written.
TEMPORARY = ".docleak-"
#: Here nothing is replaced, not even by root: /dev/null would be gone for everybody.
DEVICES = Path("/dev")
#: Modes of files and folders that docleak makes.
OWNERS_FILE, OWNERS_FOLDER = 0o600, 0o700
#: The bits of a folder's mode.
ALL_RIGHTS = 0o7777
#: What the operating system says where nothing more fits: a full disk, a quota, a limit on the size of files.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Objects and lists within one another, at most; Python's reader fails at its own depth of calls.
DEEPEST = 100
#: Characters of a value that a fault of its shape shows, and faults that are told; the others are counted.
SHOWN, MOST_TOLD = 60, 20
#: How hard pictures are pressed, of 9: of synthetic pages and of scans 3 makes smaller files than 6, in half the time.
PNG_LEVEL = 3
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def write_json(file: Path, value: object) -> None:
    """Put a JSON value at ``file``, whole or not at all; what UTF-8 cannot hold is escaped."""
    write_atomically(file, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))


def json_values(value: Mapping[str, object], what: str, *, error: type[DocleakError] = RunError) -> dict[str, Any]:
    """``value`` as JSON holds it: arrays as lists, paths as text, numbers that are not finite as None.

    ``error``, which says ``what`` holds it, for anything else.
    """
    import numpy as np

    def plain(item: Any) -> Any:
        if isinstance(item, np.generic | np.ndarray):
            item = item.tolist()
        if isinstance(item, Mapping):
            return {str(key): plain(inner) for key, inner in item.items()}
        if isinstance(item, list | tuple):
            return [plain(inner) for inner in item]
        if isinstance(item, float):
            return item if math.isfinite(item) else None
        if item is None or isinstance(item, str | int):
            return item
        if isinstance(item, os.PathLike):
            return str(item)
        raise error(f"{what} holds a {type(item).__name__}; expected what JSON can hold.")

    return {str(key): plain(item) for key, item in value.items()}


def read_json_object(file: Path, *, error: type[DocleakError], advice: str) -> dict[str, Any]:
    """The JSON object that ``write_json`` put at ``file``; ``error``, ending with ``advice``, where there is none."""
    content = read_stored(file, error=error, advice=advice)
    if not isinstance(content, dict):
        raise error(f"{file} holds a {type(content).__name__}, expected an object. {advice}")
    return content


def read_stored(
    file: Path, *, error: type[DocleakError] = RunError, advice: str = "Delete it and run it again."
) -> Any:
    """The JSON value that docleak wrote at ``file``; ``error``, ending with ``advice``, where it cannot be read."""
    try:
        return parse_json(file.read_text(encoding="utf-8"), strict=False)
    except PermissionError as fault:
        raise error(denied(file)) from fault
    except (OSError, ValueError) as fault:
        raise error(f"{file} cannot be read ({fault}). {advice}") from fault


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Turn what reading records of another shape raises into a RunError that names ``path`` and what was missing."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError) as fault:
        if isinstance(fault, DocleakError):
            raise
        what = f"{type(fault).__name__}: {fault}".splitlines()[0][:200]
        raise RunError(
            f"{path} holds records that this docleak cannot read ({what}): a file in it was changed, or another "
            "version wrote it. Delete that folder, or pass one that docleak left as it is."
        ) from fault


def png_bytes(image: NDArray[np.uint8]) -> bytes:
    """The picture as a PNG file; at PNG_LEVEL the files are smaller than at Pillow's default and take half the time."""
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(image).save(buffer, format="PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()


def write_png(file: Path, image: NDArray[np.uint8]) -> None:
    """Save a picture, whole or not at all; raises RunError if it is not uint8 RGB (H, W, 3)."""
    if not hasattr(image, "dtype"):
        raise RunError(
            f"{file.name}: the picture is of type {type(image).__name__}; expected an array, uint8 (H, W, 3)"
        )
    if image.dtype != "uint8" or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise RunError(f"{file.name}: the picture is {image.dtype} of shape {image.shape}; expected uint8 (H, W, 3)")
    write_atomically(file, png_bytes(image))


def write_atomically(file: Path, content: bytes) -> None:
    """Put ``content`` at ``file``, whole or not at all, surviving a power cut; makes missing parent folders."""
    with drafted(file) as draft:
        draft.write_bytes(content)


def require_place(file: Path, advice: str = "") -> None:
    """RunError, with ``advice`` as ``reported`` has it, where ``write_atomically`` could not put a file: a folder lies
    there, a file lies where a folder should, or one may not write. Makes nothing."""
    there = next(place for place in (file.absolute(), *file.absolute().parents) if place.exists())
    with reported(file, advice):
        if there == file.absolute():
            if there.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
            there = there.parent
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))


@contextmanager
def drafted(file: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``file`` at the end, unless an exception came. What is no file (a
    device, a pipe) stays what it is, and is written to."""
    if (file.exists() and not file.is_file() and not file.is_dir()) or file.parent == DEVICES:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY) as place:
            yield Path(place) / "draft"
            with file.open("ab") as device:  # /dev/stdout may be a file, which goes on
                device.write((Path(place) / "draft").read_bytes())
        return
    private_folder(file.parent)
    draft = file.parent / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with reported_full(file):
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNERS_FILE))
            yield draft
            draft.chmod(OWNERS_FILE)  # whoever wrote may have put another file in its place
            with draft.open("r+b") as stream:
                os.fsync(stream.fileno())
            os.replace(draft, file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if sys.platform != "win32":
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def drafted_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write to, which takes ``folder``'s place and mode at the end, unless an exception came."""
    private_folder(folder.parent)
    draft = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{folder.name}-", dir=folder.parent))
    try:
        with reported_full(folder, goes_on=""):
            yield draft
            make_private(draft)
            if folder.is_dir():
                draft.chmod(folder.stat().st_mode & ALL_RIGHTS)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def private_folder(folder: Path) -> Path:
    """Make the folder and those above it that are not there, for their owner only; returns it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=OWNERS_FOLDER, exist_ok=True)
    if not folder.is_dir():
        folder.mkdir()  # raises what the operating system calls it
    return folder


def make_private(folder: Path) -> None:
    """Take the folder, and all files and folders in it, from everybody but their owner."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(OWNERS_FOLDER if path.is_dir() else OWNERS_FILE)


@contextmanager
def reported_full(path: Path, goes_on: str = ": it continues where it stopped") -> Iterator[None]:
    """Turn a full disk, of which the operating system names no file, into a RunError about ``path``; safetensors tells
    it in a text alone, torch raises another error over it."""
    try:
        yield
    except DocleakError:  # which is told already
        raise
    except Exception as fault:
        beneath = fault if isinstance(fault, OSError) else fault.__cause__ or fault.__context__
        told = re.search(r"\(os error (\d+)\)", str(fault))
        number = int(told[1]) if told else beneath.errno if isinstance(beneath, OSError) else None
        if number not in FULL:
            raise
        full = "a limit on the size of files was reached" if number == errno.EFBIG else "the disk is full"
        raise RunError(f"cannot write {path}: {full}. Make room and run the same command again{goes_on}.") from fault


@contextmanager
def reported(path: Path, advice: str = "") -> Iterator[None]:
    """Turn the operating system's refusals into RunErrors that say what to do: ``advice``, or to name another path."""
    try:
        with reported_full(path):
            yield
    except OSError as fault:
        in_the_way = fault.errno in (errno.EEXIST, errno.ENOTDIR)
        what = f"there is a file in the way ({fault})" if in_the_way else f"{fault}"
        advice = advice or ("Name another path." if in_the_way else "Name a path that you may write to.")
        raise RunError(f"cannot write {path}: {what}. {advice}") from fault


def parse_json(text: str, *, strict: bool = True) -> Any:
    """The value of ``text``. Raises json.JSONDecodeError, a ValueError, for what is no JSON and for what is too deep.

    ``strict`` is for files of others: a key given twice, NaN and infinities, and halves of characters (lone
    surrogates), which JSON can spell and UTF-8 cannot, are refused as well. Files that docleak wrote may hold them.
    An error about a value, not a place, has an empty ``doc``.
    """
    _check_depth(text)
    if not strict:
        return json.loads(text, parse_int=_integer)
    value = json.loads(text, parse_int=_integer, object_pairs_hook=_object, parse_constant=_constant)
    if "\\u" in text and (half := _half_character(value)) is not None:
        raise json.JSONDecodeError(f"the text {half[:60]!r} holds half of a character (a lone surrogate)", "", 0)
    return value


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match.group(), 0)
        if depth > DEEPEST:
            raise json.JSONDecodeError(f"nested more than {DEEPEST} deep", text, match.start())


def _integer(digits: str) -> int:
    if len(digits) > 400:
        raise json.JSONDecodeError(f"a number of {len(digits)} digits", "", 0)
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise json.JSONDecodeError(f"the key {twice[:60]!r} is given twice", "", 0)
    return members


def _constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is no number", "", 0)


def _half_character(value: Any) -> str | None:
    """A text somewhere in the value that UTF-8 cannot hold."""
    if isinstance(value, str):
        return value if any("\ud800" <= character <= "\udfff" for character in value) else None
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return next((half for item in inner if (half := _half_character(item)) is not None), None)


def shaped(kind: Callable[..., T], value: object, error: type[DocleakError], what: str, advice: str) -> T:
    """A JSON value as ``kind``; nothing is converted but lists to tuples and sets, and whole numbers to floats.

    Raises ``error``, which begins with ``what`` and ends with ``advice``, naming every key that is missing, unknown or
    of another type.
    """
    from pydantic import ValidationError

    try:
        shape: T = _adapter(kind).validate_json(json.dumps(value), strict=True, extra="forbid")
        return shape
    except ValidationError as fault:
        faults = fault.errors(include_url=False)
        more = f"; and {len(faults) - MOST_TOLD} more" if len(faults) > MOST_TOLD else ""
        raise error(f"{what} cannot be used: {'; '.join(map(_phrase, faults[:MOST_TOLD]))}{more}. {advice}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _phrase(fault: Any) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" for part in fault["loc"]]
    place = "".join(parts).removeprefix(".") or "it"
    if fault["type"] == "missing":
        return f"{place} is missing"
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{place} is an unknown key"
    if fault["type"].startswith("bytes"):  # keys and shares are such
        return f"{place} is no such text: {fault['msg']}"
    value = repr(fault["input"])
    shown = value if len(value) <= SHOWN else f"{value[:SHOWN]} ..."
    return f"{place} is {shown}, {fault['msg'].removeprefix('Value error, ').replace('Input should be', 'expected')}"


def _printable(key: str) -> str:
    """A key that others chose, on one line."""
    return key[:SHOWN] if key.isprintable() else ascii(key)[1:-1][:SHOWN]


@contextmanager
def quietly() -> Iterator[None]:
    """Nothing of what transformers says while it loads: its bar, and its report of weights, which docleak reads."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    told = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(told)


def stamps(*named: str | Path) -> Stamps:
    """(path, size, time of change) of each file that texts name by itself, in a list or behind FORMAT:, and below the
    folders that they name: what was read of them may be kept for as long as this is the same.

    Hidden folders do not count, nor do runs below, which change while they read the files beside them.
    """
    found = set()
    for text in map(str, named):
        for part in {text, re.sub("^[^:]*:", "", text), *re.split("[,:]", text)} - {""}:
            place = os.path.expanduser(part)
            for file in [place, *_below(place)]:
                with suppress(OSError, ValueError):  # nothing of that name, or gone by now
                    status = os.stat(file)
                    if not S_ISDIR(status.st_mode):
                        found.add((file, status.st_size, status.st_mtime_ns))
    return frozenset(found)


def _below(place: str) -> Iterator[str]:
    for folder, folders, files in os.walk(place) if os.path.isdir(place) else ():
        runs = (name for name in folders if os.path.exists(os.path.join(folder, name, "run.json")))
        away = {*runs, *(name for name in folders if name.startswith("."))}
        folders[:] = [name for name in folders if name not in away]
        yield from (os.path.join(folder, name) for name in files)
