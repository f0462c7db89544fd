"""What the SuperLink runs: the same strategy as an embedded federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from docleak.errors import DocleakError, FederationError
from docleak.files import write_atomically
from docleak.runs.claim import claimed
from docleak.training.federated.deploy.watch import end_with_parent
from docleak.training.federated.federation import Federation
from docleak.training.federated.flower.strategy import FederatedStrategy
from docleak.training.federated.local import parameters_of
from docleak.training.federated.party import fingerprint, fresh_model_of
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.secure.keys import read_pinned
from docleak.training.federated.summary import save_model

#: Why a training ended before its last round, in its folder: Flower's own command does not say so by its exit code.
STOPPED = "stopped.txt"
#: Keys of the run's configuration: where the federation's settings lie, where the run goes, the folder of the silos'
#: public keys for secure aggregation, how many silos there are.
SETTINGS = ("federation", "out", "pinned", "silos", "evaluate-every", "capture", "timeout")


def server_app(device: str = "cpu", *, draw: Callable[[FederatedRun], object] = lambda run: None) -> ServerApp:
    """Train the federation of the run's configuration and leave table and model in its ``out``, and what ``draw``
    makes of the run."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        end_with_parent()
        torch.set_num_threads(1)
        try:
            run = train_alone(grid, context.run_config, device)
            draw(run)
        except DocleakError as error:
            print(f"docleak: error: {error}", flush=True)

    return app


def train_alone(grid: Grid, config: Mapping[str, Any], device: str) -> FederatedRun:
    """``_train`` while no other process works in the folder: two would count rounds in one ledger."""
    missing = [key for key in SETTINGS if key not in config]
    if missing:
        raise FederationError(f"the run's configuration lacks {', '.join(missing)}; use the app docleak wrote.")
    out = Path(str(config["out"]))
    with claimed(out):
        try:
            return _train(grid, config, device)
        except DocleakError as error:
            _say_stopped(out, f"error: {error}")
            raise


def _train(grid: Grid, config: Mapping[str, Any], device: str) -> FederatedRun:
    federation = Federation.from_json(Path(str(config["federation"])).read_text(encoding="utf-8"))
    run = FederatedRun.open(Path(str(config["out"])), federation, command="flwr run")
    run.run.write_info("deployed", True)
    _say_stopped(run.path, "the training was cut off; the SuperLink's log says more, and the same command goes on")
    model = fresh_model_of(federation, device)
    strategy = FederatedStrategy(
        run, parameters_of(model), fingerprint(model), expected=int(config["silos"]),
        evaluate_every=int(config["evaluate-every"]), capture=run.path / "updates" if config["capture"] else None,
        timeout=float(config["timeout"]), pinned=read_pinned(Path(str(config["pinned"]))) if federation.secure else {},
        on_round=lambda row, scores: print(row if row is None else f"round {row.round}: loss {row.loss}"),
    )  # fmt: skip
    strategy.train(grid)
    run.write_table()
    print(f"model: {save_model(run, device)}", flush=True)
    (run.path / STOPPED).unlink()
    return run


def _say_stopped(out: Path, why: str) -> None:
    if (out / "run.json").is_file():
        write_atomically(out / STOPPED, f"docleak: {why}\n".encode())
