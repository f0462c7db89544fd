"""Meeting the silos before the first round, and what their replies say went wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from docleak.errors import FederationError
from docleak.training.federated.flower.messages import settings_in
from docleak.training.federated.party import Introduction


def awaited(grid: Grid, expected: int, *, timeout: float) -> list[int]:
    """The nodes, once there are as many as ``expected``; FederationError if they are not there in time."""
    began = time.monotonic()
    while len(nodes := list(grid.get_node_ids())) < expected:
        if time.monotonic() - began > timeout:
            raise FederationError(
                f"{len(nodes)} of {expected} silos are connected after {timeout:g} s. Start the others, or look into "
                "their logs."
            )
        time.sleep(1.0)
    return nodes


def fault_of(name: str, reply: Message) -> str:
    """What went wrong at a silo, in words that name it; empty if nothing did."""
    if reply.has_error():
        return f"silo {name!r} failed: {reply.error.reason or f'code {reply.error.code}'}"
    if "fault" in reply.content:
        said = settings_in(reply.content, "fault")
        return f"silo {said['silo'] or name!r}: {said['message']}"
    return ""


def meeting_faults(silos: Sequence[Introduction], wanted: str) -> list[str]:
    """Why these silos cannot train together, if so; ``wanted`` is the fingerprint of the server's model."""
    names = [silo.name for silo in silos]
    faults = [
        f"{names.count(name)} silos are called {name!r}" for name in dict.fromkeys(names) if names.count(name) > 1
    ]
    faults += [
        f"silo {silo.name!r} has a model of other parameters ({silo.model}) than the server ({wanted}); give both the "
        "same checkpoint"
        for silo in silos
        if silo.model != wanted
    ]
    return faults + [f"silo {silo.name!r} has no page to train on" for silo in silos if not silo.pages]
