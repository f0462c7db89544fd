"""Checkpoints that are made when they are asked for, wherever a model goes.

``make:layoutlmv3-base,spread=yes,seed=1`` has random weights; ``lora:MODEL,r=8,targets=q_proj+v_proj,seed=1`` are
low-rank adapters on a model; ``wide:vt5-start,width=256,layers=6,seed=1`` is a reader like another, but larger. They
are kept in the user's cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``, then ``docleak/made``), made once, and can be
deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from docleak.documents.ranges import SEED
from docleak.errors import DocleakError, ModelError
from docleak.files import require_place
from docleak.models.published.table import HERE, published
from docleak.registry import resolve
from docleak.spec import split_name, told

#: What such a source begins with.
PREFIX, ADAPTERS, WIDE = "make", "lora", "wide"
#: What makes it, imported when something is to be made.
MAKER, ADAPTER = "docleak.models.published.making:make", "docleak.models.lora:adapt_asked"
WIDENER = "docleak.models.tiny:widened"
#: What notes its files as they were made.
SEAL = "docleak.training.lineage:seal"
#: What to do where the cache folder takes nothing.
ELSEWHERE = "Set the environment variable XDG_CACHE_HOME to a folder that you may write to."


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


@dataclass(frozen=True)
class Adapted:
    """Low-rank adapters on the model ``base``, as ``said`` (``lora.Drawn`` reads it)."""

    base: str
    said: str

    @property
    def short(self) -> str:
        """A name for files: the model's, and what was said of the adapters."""
        name = self.base.rstrip("/").split("/")[-1]
        return "-".join(filter(None, (name, ADAPTERS, "".join(c if c.isalnum() else "-" for c in self.said))))

    @property
    def title(self) -> str:
        """What it is, in words."""
        return f"LoRA ({self.said or 'as by default'}) on {self.base.rstrip('/').split('/')[-1]}"


@dataclass(frozen=True)
class Wider:
    """A reader like ``base``, with its words, of ``width``, ``layers`` and layers of the ``decoder``, drawn by
    ``seed``."""

    base: str
    width: int = 256
    layers: int = 6
    decoder: int = 4
    seed: int = 0

    @property
    def short(self) -> str:
        """A name for files: the reader's, and what it was made."""
        size = f"{self.width}x{self.layers}+{self.decoder}"
        return "-".join(filter(None, (self.base, WIDE, size, f"seed{self.seed}" * bool(self.seed))))

    @property
    def title(self) -> str:
        """What it is, in words."""
        layers = f"{self.layers} + {self.decoder} layers"
        return f"{self.base}, but {self.width} wide, {layers}, random weights (spread initialisation, seed {self.seed})"


@lru_cache(maxsize=64)
def asked_for(source: str) -> Made | Adapted | Wider | None:
    """What ``source`` asks to be made; None where it is no such text. ModelError for unknown names and options."""
    kind, rest = split_name(source)
    if kind not in (PREFIX, ADAPTERS, WIDE) or not rest:
        return None
    name, _, said = rest.partition(",")
    if kind == ADAPTERS:
        return Adapted(name.strip(), said.strip())
    if kind == PREFIX:
        published(name)
    begun = Wider(name) if kind == WIDE else Made(name)
    asked: Made | Wider = told(begun, said, what=f"model {source!r}", error=ModelError)
    if not SEED.holds(asked.seed):
        raise ModelError(f"model {source!r}: seed is {asked.seed}, expected {SEED}.")
    return asked


def base_of(source: str) -> str:
    """The model under the adapters that ``source`` asks for; ``source`` itself where it asks for none."""
    asked = asked_for(source)
    return asked.base if isinstance(asked, Adapted) else source


def folder_of(made: Made | Adapted | Wider) -> Path:
    """Where it is, whether it is there or not; another version of torch or of what is known of it is elsewhere."""
    import torch

    if isinstance(made, Adapted):
        base = Path(made.base).expanduser()
        config = base / "config.json"
        known = f"{base.resolve() if base.exists() else made.base},{made.said}".encode()
        known += config.read_bytes() if config.is_file() else b""
    elif isinstance(made, Wider):
        known = made.base.encode()
    else:
        known = (HERE / "checkpoints" / f"{made.name}.json").read_bytes()
    digest = hashlib.sha256(known + torch.__version__.encode()).hexdigest()[:8]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as fault:  # a user without a home, as in a container
        raise ModelError(
            f"{made.title} is kept in your cache folder, and you have none: {fault} {ELSEWHERE}"
        ) from fault
    return cache / "docleak" / "made" / f"{made.short}-{digest}"


def made_at(source: str) -> Path | None:
    """The folder of what ``source`` asks for, made now if it was not there; None where it asks for nothing of the kind.

    The whole network is held in memory once.
    """
    made = asked_for(source)
    if made is None:
        return None
    folder = folder_of(made)
    last = folder / ("adapter_config.json" if isinstance(made, Adapted) else "config.json")
    if not last.is_file():
        require_place(last, f"The model is made and kept in your cache folder. {ELSEWHERE}")
        try:
            if isinstance(made, Adapted):
                resolve(ADAPTER)(made.base, folder, made.said)
            elif isinstance(made, Wider):
                resolve(WIDENER)(made, folder)
            else:
                drawn, scale = "spread" if made.spread else "default", "narrow" if made.narrow else "published"
                resolve(MAKER)(made.name, folder, seed=made.seed, initialisation=drawn, scale=scale)
            resolve(SEAL)(folder)
        except DocleakError:
            if not last.is_file():  # another process may have made it meanwhile
                raise
    return folder
