"""Capture an update as the server received it, with all that the server knows of its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from docleak.training.federated.capture import write_update
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import ClientUpdate, ServerState


def record_update(
    capture: Path, federation: Federation, state: ServerState, update: ClientUpdate, said: Mapping[str, Any]
) -> None:
    """Write an update of the round after ``state`` to ``capture``; ``said`` is what its silo says besides."""
    write_update(
        capture,
        round=state.round + 1,
        client=update.client,
        start={key: value.astype(np.float32) for key, value in state.parameters.items()},
        received={key: value.astype(np.float32) for key, value in update.delta.items()},
        kind="delta",
        examples=update.examples,
        details={
            **asdict(federation.local),
            "seed": federation.seed,
            "privacy": None if federation.privacy is None else federation.privacy.to_dict(),
            "model": federation.model,
            "holdout": federation.holdout,
            "compression": str(federation.compression),
            "secure": None if federation.secure is None else asdict(federation.secure),
            **said,
        },
    )
