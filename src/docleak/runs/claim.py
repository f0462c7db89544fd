"""One process at a time in a folder: others are refused, or wait for their turn.

    FOLDER/.docleak-claim            locked while somebody is at work; the operating system ends a dead process's lock
    FOLDER/.docleak-claim.json       who: process, machine, since when. Still there after the lock ended: it was killed
    PARENT/.docleak-claim-FOLDER     the same for a folder that appears as a whole

Every long command claims its folder for all of its time, see ``cli.output.working_in``.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from docleak.errors import RunError
from docleak.files import OWNERS_FILE, TEMPORARY, private_folder, reported

CLAIM = f"{TEMPORARY}claim"
#: What a file system says that has no locks: there the file itself is the lock, and names its process.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
#: Seconds after which who waits says for whom.
SILENT_SECONDS = 30.0
#: What ``tempfile.mkdtemp`` puts behind its prefix.
SUFFIX = r"[a-z0-9_]{8}"

#: (process, thread, lock) -> how many claims within one another.
_held: dict[tuple[int, int, Path], int] = {}


@contextmanager
def claimed(folder: Path, *, whole: bool = False, wait: bool = False) -> Iterator[None]:
    """Keep other processes (and threads) from working in ``folder``, which is made if it is not there.

    ``whole``: the folder is written elsewhere and appears as a whole, so that its name is claimed, beside it. What a
    process that was killed left half-written there is removed. Claims of one thread may lie within one another. Raises
    RunError, which names the process that is at work there, unless ``wait`` says to wait until it is done; and where
    the folder cannot be written to.
    """
    folder = Path(folder)
    place = folder.parent if whole else folder
    made = [path for path in (place, *place.parents) if not path.exists()]  # the innermost first
    with reported(place):
        private_folder(place)
    file = place.resolve() / (f"{CLAIM}-{folder.name}" if whole else CLAIM)
    key = (os.getpid(), threading.get_ident(), file)
    if _held.get(key):
        _held[key] += 1
        try:
            yield
        finally:
            _held[key] -= 1
        return
    lock = _locked(file, folder, wait=wait)
    holder = file.with_name(f"{file.name}.json")
    try:
        with reported(folder):
            killed = holder.exists()
            since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
            here = {"process": os.getpid(), "machine": socket.gethostname(), "since": f"{since} UTC"}
            holder.write_text(json.dumps(here), encoding="utf-8")
            if killed:
                _sweep(folder, file, whole=whole)
        _held[key] = 1
        yield
    finally:
        _held.pop(key, None)
        holder.unlink(missing_ok=True)
        _release(lock, file)
        for path in made:
            with suppress(OSError):  # it is not empty
                path.rmdir()


def sweep(folder: Path) -> None:
    """Remove what workers that were ended did not finish writing in ``folder``, which this process has claimed."""
    _sweep(folder, folder.resolve() / CLAIM, whole=False)


def _locked(file: Path, folder: Path, *, wait: bool) -> BaseFileLock:
    timeout = SILENT_SECONDS if wait else 0
    with reported(folder):
        if not file.exists():  # where no file can be made, FileLock tells of another process, or waits for ever
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, OWNERS_FILE))
        try:
            lock: BaseFileLock = FileLock(file)
            try:
                lock.acquire(timeout=timeout)
            except OSError as fault:
                if isinstance(fault, Timeout) or fault.errno not in NO_LOCKS:
                    raise
                lock = SoftFileLock(file.with_name(f"{file.name}-soft"))
                lock.acquire(timeout=timeout)
        except Timeout as fault:
            if not wait:
                there = f"another docleak is at work in {folder}{_who(file)}"
                raise RunError(f"{there}. Wait until it is done, or give another folder (out).") from fault
            there = f"another process, of this run or another, is at work in {folder}{_who(file)}"
            print(f"docleak waits: {there}.", file=sys.stderr, flush=True)
            lock.acquire()
    return lock


def _release(lock: BaseFileLock, file: Path) -> None:
    """Unlock; the file goes first, which FileLock allows for: whoever locks a file without a name tries again."""
    if os.name != "nt":
        file.unlink(missing_ok=True)
    lock.release()
    if os.name == "nt":
        with suppress(OSError):  # somebody else holds it by now
            file.unlink(missing_ok=True)


def _who(file: Path) -> str:
    try:
        holder = json.loads(file.with_name(f"{file.name}.json").read_text(encoding="utf-8"))
        return f" (process {holder['process']} on {holder['machine']}, since {holder['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _sweep(folder: Path, held: Path, *, whole: bool) -> None:
    """Remove what a process that was killed in ``folder``, or while making it, did not finish writing."""
    if whole:
        mine = re.compile(re.escape(f"{TEMPORARY}{folder.name}-") + SUFFIX)
        for draft in [item for item in folder.parent.iterdir() if mine.fullmatch(item.name)]:
            shutil.rmtree(draft, ignore_errors=True)
    for path, folders, files in os.walk(folder):
        here = Path(path)
        drafts = [name for name in folders if name.startswith(TEMPORARY)]
        folders[:] = [name for name in folders if name not in drafts]
        for name in drafts:
            shutil.rmtree(here / name, ignore_errors=True)
        for name in files:
            if name.startswith(CLAIM):
                _remove_if_free(here / name, held)
            elif name.startswith(TEMPORARY):
                (here / name).unlink(missing_ok=True)


def _remove_if_free(file: Path, held: Path) -> None:
    """Remove a claim within the folder that nobody holds, with its holder; ``held`` is that held by this process."""
    if file.suffix == ".json" or file.resolve() == held:
        return
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except (OSError, Timeout):
        return
    file.with_name(f"{file.name}.json").unlink(missing_ok=True)
    _release(lock, file)
