"""The guard in front of a Flower client: a mod for any of one's own, and docleak's silo before it trains."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Context, Error, Message
from torch import Tensor, nn

from docleak.errors import DocleakError, DocumentError, FederationError, PrivacyError
from docleak.models.base import DocumentModel
from docleak.training.federated.federation import Federation
from docleak.training.federated.local import parameters_of, set_parameters
from docleak.training.federated.silo import Party
from docleak.training.guard.checkpoint import probe as loss_on
from docleak.training.guard.guard import Guard
from docleak.training.objectives.tasks import QUESTIONS

#: Of Flower's error replies: below 100 are Flower's own.
REFUSED = 121
#: The entry of a silo's node configuration that names its guard's folder; without it nothing is inspected.
GUARDED = "guard"
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


def inspect_first(
    folder: Path, arrays: Mapping[str, np.ndarray], party: Party, model: DocumentModel, federation: Federation,
    on_note: Callable[[str], None],
) -> None:  # fmt: skip
    """PrivacyError where the guard in ``folder`` refuses the model that a silo of docleak's is asked to train.

    ``model`` holds the silo's own checkpoint where no model of this training is remembered, which then is the last one;
    afterwards it holds ``arrays``. One training is remembered, the latest. A gradient is tried
    on a few of the silo's questions; not under a privacy plan, since a refusal would be an answer about them that no
    noise covers, nor where other things than answers are learnt. The reasons are for ``on_note`` alone.
    """
    training = hashlib.sha256(replace(federation, rounds=1).to_json().encode()).hexdigest()[:16]
    for earlier in folder.glob("*"):
        if earlier.name != training:
            shutil.rmtree(earlier)
    guard = Guard(folder / training)
    guard.begin(parameters_of(model))
    set_parameters(model, dict(arrays))
    tried: dict[str, Any] = {}
    if federation.privacy is None and federation.local.objective == QUESTIONS:
        try:
            tried = {"module": model.module, "loss": loss_on(model, party.training)}
        except DocumentError as nothing:
            on_note(f"the guard looks at weights alone: {nothing}")
    opinion = guard.check(arrays, **tried)
    if opinion.refused:
        on_note("its guard refuses the model that the server sends: " + "; ".join(opinion.reasons) + ".")
        raise PrivacyError("its guard refuses the model that was sent; nothing of it was trained")
