"""Write files whole or not at all, so that a killed process leaves nothing half done."""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from docleak.documents.page import Image
from docleak.errors import DocleakError, RunError

#: How the names of files begin that are being written.
TEMPORARY = ".docleak-"


def write_json(file: Path, value: object) -> None:
    """Put a JSON value at ``file``, whole or not at all; what UTF-8 cannot hold is escaped."""
    write_atomically(file, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))


def read_json_object(file: Path, *, error: type[DocleakError], advice: str) -> dict[str, Any]:
    """The JSON object that ``write_json`` put at ``file``; ``error``, ending with ``advice``, where there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise error(f"{file} cannot be read ({fault}). {advice}") from fault
    if not isinstance(found, dict):
        raise error(f"{file} holds a {type(found).__name__}, expected an object. {advice}")
    return found


def write_png(file: Path, image: Image) -> None:
    """Save a picture, whole or not at all; raises RunError if it is not uint8 RGB (H, W, 3)."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise RunError(f"{file.name}: the picture is {image.dtype} of shape {image.shape}; expected uint8 (H, W, 3)")
    buffer = io.BytesIO()
    PIL.Image.fromarray(image).save(buffer, format="PNG", optimize=True)
    write_atomically(file, buffer.getvalue())


def write_atomically(file: Path, content: bytes) -> None:
    """Put ``content`` at ``file``, whole or not at all, surviving a power cut; makes missing parent folders."""
    with drafted(file) as draft:
        draft.write_bytes(content)


@contextmanager
def drafted(file: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``file`` at the end, unless an exception came."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.parent / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        yield draft
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
    """A new folder to write to, which takes the place of ``folder`` at the end, unless an exception came."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder.parent))
    try:
        yield draft
        draft.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into RunErrors that say what to do."""
    try:
        yield
    except OSError as fault:
        if fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            full = "a limit on the size of files was reached" if fault.errno == errno.EFBIG else "the disk is full"
            what = f"{full}. Make room and run the same command again: it continues where it stopped"
        elif fault.errno in (errno.EEXIST, errno.ENOTDIR):
            what = f"there is a file in the way ({fault}). Pass another --out"
        else:
            what = f"{fault}. Pass an --out that you may write to"
        raise RunError(f"cannot write {path}: {what}.") from fault
