"""A federation in one process: the objects that a deployment runs, without sockets."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from docleak.privacy.randomness import Randomness
from docleak.training.federated.fedopt import ServerState
from docleak.training.federated.flower.client import client_app
from docleak.training.federated.flower.grid import LocalGrid, OnSilo
from docleak.training.federated.flower.strategy import FederatedStrategy, OnRound
from docleak.training.federated.local import parameters_of
from docleak.training.federated.party import fingerprint, fresh_model_of, private_units
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.secure.keys import make_identities


def train_embedded(
    run: FederatedRun,
    silos: Mapping[str, Path],
    *,
    device: str = "cpu",
    evaluate_every: int = 1,
    capture: Path | None = None,
    on_silo: OnSilo = lambda number, silo, kind: None,
    on_round: OnRound = lambda row, scores: None,
    randomness: Callable[[], Randomness] = Randomness.fresh,
) -> ServerState:
    """Train (or go on training) over the silos' folders in this process; the state after the last round.

    ``randomness`` makes the streams of a private training; anything else than fresh ones is for tests. With secure
    aggregation the silos' keys are made here: one process has nobody to hide from, and shows what a server would see.
    Raises PrivacyError for a unit of the privacy plan that is in two silos.
    """
    if run.federation.privacy is not None:
        private_units(silos, run.federation)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    model = fresh_model_of(run.federation, device)
    nodes = {
        number: {"silo": str(path), "name": name} for number, (name, path) in enumerate(sorted(silos.items()), start=1)
    }
    own = make_identities(sorted(silos), entropy=secrets.token_bytes) if run.federation.secure else {}
    app = client_app(device, randomness, lambda config: own[str(config["name"])])
    grid = LocalGrid(app, nodes, on_silo=on_silo)
    strategy = FederatedStrategy(
        run, parameters_of(model), fingerprint(model), expected=len(nodes), evaluate_every=evaluate_every,
        capture=capture, on_round=on_round, randomness=randomness,
        pinned=next(iter(own.values())).pinned if own else {},
    )  # fmt: skip
    return strategy.train(grid)
