"""What silos' replies say, from the meeting before the first round on, read with the suspicion that what comes from
outside deserves."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from docleak.errors import FederationError
from docleak.training.federated.bounds import MOST_EXAMPLES
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.flower.client import NOISED_NUMBERS, SCORE_NUMBERS
from docleak.training.federated.flower.discretion import REDACTED
from docleak.training.federated.flower.grid import TIMED_OUT
from docleak.training.federated.flower.messages import arrays_in, metrics_in, settings_in, wire_bytes
from docleak.training.federated.party import DocumentScore, Introduction
from docleak.training.federated.record import ClientRow
from docleak.training.federated.scores import SiloScore
from docleak.training.federated.wire import Compression, unpack

#: The number that every update comes with.
EXAMPLES = "num-examples"


def update_in(
    reply: Message, silo: str, shapes: Mapping[str, tuple[int, ...]], compression: Compression, *, down: int
) -> tuple[ClientUpdate, ClientRow, Mapping[str, Any]]:
    """An update as it was sent, its row of the table, and all numbers that its silo says of it.

    FederationError, in words that go on from the silo's name, for a reply that is no update.
    """
    try:
        numbers = metrics_in(reply.content)
        delta = unpack(arrays_in(reply.content), shapes, compression)
        loss = _number(numbers, "loss") if "loss" in numbers else None
        row = ClientRow(
            silo, int(_number(numbers, EXAMPLES)), int(_number(numbers, "steps")), loss, _number(numbers, "seconds"),
            wire_bytes(reply), down, _number(numbers, "compression-error"),
        )  # fmt: skip
    except FederationError as error:
        raise FederationError(f"sent an update that cannot be unpacked: {error}") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FederationError(f"sent a reply that is no update ({type(error).__name__}: {error})") from error
    return ClientUpdate(silo, row.examples, delta), row, numbers


def scores_in(reply: Message, source: str, *, noised: bool) -> list[DocumentScore] | list[SiloScore]:
    """A silo's scores, document by document or as noised sums; FederationError, in words that go on from its name, for
    what no answers can have given."""
    try:
        return _scores(metrics_in(reply.content), source, noised=noised)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FederationError(f"sent scores that are none ({type(error).__name__}: {error})") from error


def _scores(numbers: Mapping[str, Any], source: str, *, noised: bool) -> list[DocumentScore] | list[SiloScore]:
    if noised:
        sums = SiloScore(source, *(float(numbers[column]) for column in NOISED_NUMBERS))
        if not (math.isfinite(sums.score) and math.isfinite(sums.units) and 0 <= sums.std < math.inf):
            raise ValueError(f"{sums.score} of {sums.units} with noise of {sums.std}")
        return [sums]
    columns = [numbers[column] for column in SCORE_NUMBERS]
    scores = [DocumentScore(source, float(a), float(b), int(n)) for a, b, n in zip(*columns, strict=True)]
    for score in scores:
        if not all(0 <= part <= score.questions + 1e-6 for part in (score.anls, score.accuracy)):
            raise ValueError(f"{score.anls} and {score.accuracy} right of {score.questions}")
    return scores


def _number(metrics: Mapping[str, Any], key: str) -> float:
    """A number of a silo's reply, 0 where it gives none and may; ValueError for one that is none, or not finite."""
    value = metrics[key] if key == EXAMPLES else metrics.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is {value!r}")
    return value


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
