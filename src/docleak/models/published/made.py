"""Checkpoints that are made when they are asked for: ``make:layoutlmv3-base,spread=yes,seed=1`` wherever a model goes.

They are kept in the user's cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``, then ``docleak/made``), made once, and
can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from docleak.documents.ranges import SEED
from docleak.errors import DocleakError, ModelError
from docleak.models.published.table import HERE, published
from docleak.registry import resolve
from docleak.spec import split_name, told

#: What such a source begins with.
PREFIX = "make"
#: What makes it, imported when something is to be made.
MAKER = "docleak.models.published.making:make"


@dataclass(frozen=True)
class Made:
    """A name of PUBLISHED with weights drawn by ``seed``, ``spread`` or by default, of the published size or narrow."""

    name: str
    spread: bool = False
    seed: int = 0
    narrow: bool = False

    @property
    def short(self) -> str:
        """A name for files: the checkpoint's, and what is not by default."""
        parts = (self.name, "narrow" * self.narrow, "spread" * self.spread, f"seed{self.seed}" * bool(self.seed))
        return "-".join(filter(None, parts))

    @property
    def title(self) -> str:
        """What it is, in words."""
        size = ", made narrow" if self.narrow else ""
        drawn = "spread" if self.spread else "default"
        return f"{published(self.name).repository}{size}, random weights ({drawn} initialisation, seed {self.seed})"


@lru_cache(maxsize=64)
def asked_for(source: str) -> Made | None:
    """What ``source`` asks to be made; None where it is no such text. ModelError for unknown names and options."""
    kind, rest = split_name(source)
    if kind != PREFIX or not rest:
        return None
    name, _, said = rest.partition(",")
    published(name)
    asked: Made = told(Made(name), said, what=f"model {source!r}", error=ModelError)
    if not SEED.holds(asked.seed):
        raise ModelError(f"model {source!r}: seed is {asked.seed}, expected {SEED}.")
    return asked


def folder_of(made: Made) -> Path:
    """Where it is, whether it is there or not; another version of torch or of what is known of it is elsewhere."""
    import torch

    known = (HERE / "checkpoints" / f"{made.name}.json").read_bytes()
    digest = hashlib.sha256(known + torch.__version__.encode()).hexdigest()[:8]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "docleak" / "made" / f"{made.short}-{digest}"


def made_at(source: str) -> Path | None:
    """The folder of what ``source`` asks for, made now if it was not there; None where it asks for nothing of the kind.

    The whole network is held in memory once.
    """
    made = asked_for(source)
    if made is None:
        return None
    folder = folder_of(made)
    if not (folder / "config.json").is_file():
        drawn, scale = "spread" if made.spread else "default", "narrow" if made.narrow else "published"
        try:
            resolve(MAKER)(made.name, folder, seed=made.seed, initialisation=drawn, scale=scale)
        except DocleakError:
            if not (folder / "config.json").is_file():  # another process may have made it meanwhile
                raise
    return folder
