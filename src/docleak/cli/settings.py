"""Parsing of option values, once, at the edge."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, cast

from docleak import spec
from docleak.errors import AttackError
from docleak.models.device import pick_device as pick_device

if TYPE_CHECKING:
    from docleak.models.base import Stage

#: Pixels of a model's input at most; Donut's own size, 1920 x 2560, has 4.9 million.
MOST_MODEL_PIXELS = 16_000_000


def default_workers() -> int:
    """One worker per core this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_size(text: str) -> tuple[int, int] | None:
    """``WIDTHxHEIGHT`` in pixels, or None for an empty text; AttackError for anything else."""
    if not text:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})[xX]([1-9][0-9]{0,5})", text.strip())
    if found is None:
        raise AttackError(f"image size {text!r} is not WIDTHxHEIGHT in pixels; expected for instance 320x608.")
    size = int(found[1]), int(found[2])
    if size[0] * size[1] > MOST_MODEL_PIXELS:
        raise AttackError(
            f"image size {text!r} has {size[0] * size[1]:,} pixels; expected at most {MOST_MODEL_PIXELS:,}, for a "
            "model's memory grows with them."
        )
    return size


def split_stages(text: str) -> tuple[Stage, ...]:
    """Stages named in a comma-separated list; AttackError names the known ones."""
    from docleak.models.base import STAGES

    names = spec.items(text)
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise AttackError(f"unknown stage {', '.join(unknown)}; expected some of {', '.join(STAGES)}.")
    return cast("tuple[Stage, ...]", names)
