"""Where the searches of a unit, of which each may take hours, keep how far they are: a folder of the unit's own.

Whoever computes a unit opens it (``searches_in``); whoever searches, in whatever depth, takes the next number there.
The same unit takes the same numbers again when it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from pathlib import Path

_OPEN: ContextVar[tuple[Path, Iterator[int]] | None] = ContextVar("searches", default=None)


@contextmanager
def searches_in(folder: Path) -> Iterator[None]:
    """Searches within are kept in ``folder``, and go on from what is there. Whoever finishes the unit deletes it; only
    the same unit of the same run may find it."""
    token = _OPEN.set((folder, count()))
    try:
        yield
    finally:
        _OPEN.reset(token)


def next_search() -> tuple[Path, int] | None:
    """The folder that is open, and the next number in it; None where none is."""
    opened = _OPEN.get()
    return (opened[0], next(opened[1])) if opened else None
