"""What the SuperLink runs: the same strategy as an embedded federation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from docleak.errors import FederationError
from docleak.training.federated.curves import draw_curves
from docleak.training.federated.federation import Federation
from docleak.training.federated.flower.strategy import FederatedStrategy
from docleak.training.federated.local import parameters_of
from docleak.training.federated.party import fingerprint, fresh_model_of
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.secure.key_files import read_pinned
from docleak.training.federated.summary import save_model

#: Keys of the run's configuration: where the federation's settings lie, where the run goes, the folder of the silos'
#: public keys for secure aggregation, how many silos there are.
SETTINGS = ("federation", "out", "pinned", "silos", "evaluate-every", "capture", "timeout")


def server_app(device: str = "cpu") -> ServerApp:
    """Train the federation of the run's configuration and leave model, table and curves in its ``out``."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)
        config = context.run_config
        missing = [key for key in SETTINGS if key not in config]
        if missing:
            raise FederationError(f"the run's configuration lacks {', '.join(missing)}; use the app docleak wrote.")
        file = Path(str(config["federation"]))
        federation = Federation.from_json(file.read_text(encoding="utf-8"))
        run = FederatedRun.open(Path(str(config["out"])), federation, command="flwr run")
        model = fresh_model_of(federation, device)
        strategy = FederatedStrategy(
            run,
            parameters_of(model),
            fingerprint(model),
            expected=int(config["silos"]),
            evaluate_every=int(config["evaluate-every"]),
            capture=run.path / "updates" if config["capture"] else None,
            timeout=float(config["timeout"]),
            pinned=read_pinned(Path(str(config["pinned"]))) if federation.secure else {},
            on_round=lambda row, scores: print(row if row is None else f"round {row.round}: loss {row.loss}"),
        )
        strategy.train(grid)
        run.write_table()
        draw_curves(run, rng=np.random.default_rng(federation.seed))
        print(f"model: {save_model(run, device)}", flush=True)

    return app
