"""Parsing of option values, once, at the edge."""

from __future__ import annotations

import os

from docleak.models.device import pick_device as pick_device


def default_workers(device: str = "cpu") -> int:
    """One worker per core this process may use; one on a GPU, whose memory each would fill with models of its own."""
    if device != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
