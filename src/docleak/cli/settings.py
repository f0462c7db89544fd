"""Parsing of option values, once, at the edge."""

from __future__ import annotations

import os

from docleak.errors import DocleakError


def pick_device(name: str) -> str:
    """``auto`` is the GPU where there is one; anything else must be a device torch can use."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise DocleakError(f"device {name!r} cannot be used here ({reason}). Try --device auto or cpu.") from error
    return name


def default_workers() -> int:
    """One worker per core this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
