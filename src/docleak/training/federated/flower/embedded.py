"""A federation in one process: the objects that a deployment runs, without sockets."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from docleak.errors import DocleakError, FederationError, refuse
from docleak.privacy.mechanism import Unit
from docleak.privacy.randomness import Randomness
from docleak.runs.claim import claimed
from docleak.training.federated.federation import impossible
from docleak.training.federated.fedopt import ServerState
from docleak.training.federated.flower.app import client_app
from docleak.training.federated.flower.discretion import KEEP
from docleak.training.federated.flower.grid import LONGEST_TURN, TURN_SECONDS, LocalGrid, OnSilo
from docleak.training.federated.flower.guard import GUARDED
from docleak.training.federated.flower.strategy import FederatedStrategy, OnRound
from docleak.training.federated.local import parameters_of
from docleak.training.federated.party import fingerprint, fresh_model_of
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.secure.keys import make_identities
from docleak.training.federated.silo import contents_digest, open_party, private_units
from docleak.training.federated.silo_limits import SiloLimits, has_limits
from docleak.training.lineage import drop_fingerprints, keep_fingerprints, keep_idle
from docleak.training.private.units import unit_names


def train_embedded(
    run: FederatedRun, silos: Mapping[str, Path], *, device: str = "cpu", evaluate_every: int = 1,
    capture: Path | None = None, on_silo: OnSilo = lambda number, silo, kind: None,
    on_round: OnRound = lambda row, scores: None, randomness: Callable[[], Randomness] = Randomness.fresh,
    timeout: float = TURN_SECONDS, guard: bool = False,
) -> ServerState:  # fmt: skip
    """Train (or go on training) over the silos' folders in this process; the state after the last round.

    A silo that takes longer than ``timeout`` seconds for a message is stopped. One whose folder has limits of its own
    (``docleak deploy silo``) keeps its ledger there, and to them. With ``guard`` silos inspect a model before they
    train it; those of one process are sent the same one, and share a guard, in the run's folder.

    ``randomness`` makes the streams of a private training; anything else than fresh ones is for tests. With secure
    aggregation the silos' keys are made here: one process has nobody to hide from, and shows what a server would see.
    Raises PrivacyError for a unit of the privacy plan that is in two silos, FederationError for settings that so many
    silos cannot be trained by.
    """
    faults = impossible(run.federation, len(silos))
    if not 0 < timeout <= LONGEST_TURN:
        faults.append(f"timeout is {timeout:g} s; expected more than 0 and at most {LONGEST_TURN:g}, a year")
    if evaluate_every and run.federation.privacy is not None and run.federation.holdout:
        faults += [
            f"silo {name!r} keeps limits of its own, by which it answers no questions on the documents it keeps; train "
            "without evaluations (evaluate_every 0), or let it (docleak deploy silo FOLDER --evaluation)"
            for name, path in sorted(silos.items())
            if has_limits(path) and not SiloLimits.load(path).evaluation
        ]
    refuse(FederationError, faults, "the silos cannot train together: ")
    if run.federation.privacy is not None:
        private_units(silos, run.federation)
    with claimed(run.path):  # before anything is read that another process may be writing
        # Here alone, where one process has the folders anyway: a silo on a machine of its own sends nothing of its
        # pages. Nor does a reticent federation note even how many there are.
        if not run.federation.reticent:
            run.write_contents({name: contents_digest(path) for name, path in silos.items()})
        providers = _note_lineage(run, silos, repeatable=randomness != Randomness.fresh)
        logging.getLogger("flwr").setLevel(logging.WARNING)
        model = fresh_model_of(run.federation, device)
        nodes = {
            number: {"silo": str(path), "name": name, **({KEEP: str(path)} if has_limits(path) else {}),
                     **({GUARDED: str(run.path / GUARDED)} if guard else {})}
            for number, (name, path) in enumerate(sorted(silos.items()), start=1)
        }  # fmt: skip
        identities = make_identities(sorted(silos), entropy=secrets.token_bytes) if run.federation.secure else {}
        app = client_app(device, randomness, lambda config: identities[str(config["name"])])
        grid = LocalGrid(app, nodes, on_silo=on_silo)
        strategy = FederatedStrategy(
            run, parameters_of(model), fingerprint(model), expected=len(nodes), evaluate_every=evaluate_every,
            capture=capture, on_round=on_round, randomness=randomness,
            pinned=next(iter(identities.values())).pinned if identities else {}, timeout=timeout,
        )  # fmt: skip
        state = strategy.train(grid)
        _note_idle(run, providers)
        return state


def _note_lineage(run: FederatedRun, silos: Mapping[str, Path], *, repeatable: bool) -> dict[str, set[str]]:
    """Keep whose data is trained on, as keyed hashes, before the first round; the providers of each silo.

    Where a page names no provider there are none, nor those of the same training when all did."""
    if repeatable:
        run.run.write_info("repeatable", True)
    names: dict[str, set[str]] = {}
    for name, path in silos.items():
        try:
            names[name] = set(unit_names(open_party(path, run.federation, name=name).training, Unit.PROVIDER))
        except DocleakError:  # the meeting refuses this silo, by its name
            names[name] = {""}
    together = set().union(*names.values())
    if "" in together:
        drop_fingerprints(run.path, run.identity)
        return {}
    keep_fingerprints(run.path, run.identity, together, start=run.federation.model)
    return names


def _note_idle(run: FederatedRun, providers: Mapping[str, set[str]]) -> None:
    """Keep which of these providers the model never saw, as no round drew a silo of theirs."""
    drawn = {client.silo for row in run.rows() for client in row.clients}
    seen = set().union(*(providers[name] for name in drawn & providers.keys()))
    if providers and not run.federation.reticent:
        keep_idle(run.path, run.identity, set().union(*providers.values()) - seen)
