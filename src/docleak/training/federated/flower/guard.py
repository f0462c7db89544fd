"""The guard in front of any Flower client of one's own: a mod that sees a model before the client's training does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Context, Error, Message
from torch import Tensor, nn

from docleak.errors import DocleakError, FederationError
from docleak.training.guard.guard import Guard

#: Of Flower's error replies: below 100 are Flower's own.
REFUSED = 121
#: Puts arrays into the silo's model: the network, and its loss on a few of the silo's examples.
Probe: TypeAlias = Callable[[Mapping[str, np.ndarray]], tuple[nn.Module, Callable[[], Tensor]]]
Call: TypeAlias = Callable[[Message, Context], Message]


def guard_mod(folder: str | Path, probe: Probe | None = None, guard: Guard | None = None) -> Callable[..., Message]:
    """A mod for ``ClientApp(mods=[guard_mod("my-guard")])``: a training message whose model the guard refuses is
    answered by an error, and the client's own code is not reached.

    ``folder`` keeps the last model, so that a node that is started anew remembers it; one for each training. With
    ``probe`` a gradient on a few of the silo's own examples is looked at, too; nothing of it leaves. The server is told
    that the model was refused, not why: reasons are raised from the guard's ``check``, and printed here.
    """
    watching = guard or Guard(Path(folder))

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        if message.metadata.message_type.split(".")[0] != "train":
            return call_next(message, context)
        try:
            watching.check(**_asked(message, probe)).require()
        except DocleakError as fault:
            print(f"docleak: {fault}", flush=True)
            return Message(Error(code=REFUSED, reason="the silo's guard refuses this model"), reply_to=message)
        return call_next(message, context)

    return mod


def _asked(message: Message, probe: Probe | None) -> dict[str, Any]:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise FederationError(f"a training message holds {len(records)} array records; the guard expected one model.")
    arrays = {name: array.numpy() for name, array in records[0].items()}
    if probe is None:
        return {"asked": arrays}
    module, loss = probe(arrays)
    return {"asked": arrays, "module": module, "loss": loss}
