"""Files that a silo keeps for itself: a log that its owner alone may read, and one writer at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
LOCK = ".lock"


def append_private(file: Path, text: str) -> None:
    """Add to a log that its owner alone may read."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE), "a", encoding="utf-8") as log:
        log.write(text)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other process is in here for the same folder."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
