"""Meeting the silos before the first round, and what their replies say went wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from docleak.errors import FederationError
from docleak.training.federated.bounds import MOST_EXAMPLES
from docleak.training.federated.flower.discretion import REDACTED
from docleak.training.federated.flower.grid import TIMED_OUT
from docleak.training.federated.flower.messages import settings_in
from docleak.training.federated.party import Introduction

#: What the names of nodes begin with that have not said which silo they are.
UNNAMED = "node "
#: What Flower's own error codes mean here.
SAID = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "could not load docleak; install the server's version there",
    ErrorCode.MESSAGE_UNAVAILABLE: "is gone: its reply never came whole",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "is gone: its reply did not come in time",
    ErrorCode.NODE_UNAVAILABLE: "is gone: its node is not connected any more",
    ErrorCode.INVALID_FAB: "refuses the code that the server sends; its own log says why",
    ErrorCode.CLIENT_APP_CRASHED: "is gone: its training process ended without a reply",
}


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


def fault_of(name: str, reply: Message, *, reticent: bool) -> str:
    """What went wrong at a silo, in words that name it; empty if nothing did.

    ``name`` is who was asked, or "node ..." before the silos have said their names: a reply may claim any. Of a
    ``reticent`` federation no reason is passed on that a silo's engine gives: it may name what the silo protects.
    """
    if reply.has_error():
        code, reason = reply.error.code, reply.error.reason
        if code in SAID:
            return f"silo {name!r} {SAID[code]}"
        if code == TIMED_OUT:
            return f"silo {name!r} is stopped: {reason}"
        return f"silo {name!r} failed: " + (REDACTED if reticent else reason or f"code {code}")
    if "fault" in reply.content:
        said = settings_in(reply.content, "fault")
        claimed = said.get("silo")
        who = str(claimed) if claimed and name.startswith(UNNAMED) else name
        return f"silo {who!r}: {REDACTED if reticent else said.get('message', 'it says no reason')}"
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
    faults += [f"silo {silo.name!r} has no page to train on" for silo in silos if not silo.pages]
    return faults + [
        f"silo {silo.name!r} says that it has {silo.examples} examples; expected at most {MOST_EXAMPLES}"
        for silo in silos
        if not 0 <= silo.examples <= MOST_EXAMPLES
    ]
