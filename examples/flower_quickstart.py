"""Flower's quickstart (examples/flower-quickstart) with a document model, recorded by docleak.tap, and audited.

    python examples/flower_quickstart.py OUT [--simulation] [--client]

Both apps are Flower's own and run as they are: in this process, or by ``flwr run`` with ``--simulation`` (a process for
every message, about a minute). ``--client`` records at the clients instead of at the server, with docleak.tap_client.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "flower-quickstart")]


def run(out: Path, *, at_client: bool = False) -> Path:
    """Both apps in this process, on messages handed over by docleak; the folder that was recorded."""
    from flwr.app import Context, RecordDict

    from docleak.training.federated.flower.grid import LocalGrid

    config = {**_config(out, at_client=at_client), "fraction-train": 1.0, "local-epochs": 1, "learning-rate": 1e-3}
    config |= {"batch-size": 2, "num-server-rounds": 1}
    from quickstart import client_app, server_app

    grid = LocalGrid(client_app.app, {7000 + number: {"partition-id": number} for number in range(2)})
    for node in grid._contexts.values():
        node.run_config.update(config)
    server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
    return out / ("at-clients" if at_client else "updates")


def simulate(out: Path, *, at_client: bool = False) -> Path:
    """The same by ``flwr run``."""
    said = " ".join(f'{key}="{value}"' for key, value in _config(out, at_client=at_client).items())
    command = ["flwr", "run", str(HERE / "flower-quickstart"), "--stream", "--run-config", said]
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths})
    return out / ("at-clients" if at_client else "updates")


def _config(out: Path, *, at_client: bool) -> dict[str, str]:
    from somebodys_app import make_clients

    if at_client:
        os.environ["UPDATES_AT_CLIENT"] = str(out / "at-clients")
    out = out.absolute()
    return {"pages": str(make_clients(out / "pages", 2)), "updates": str(out / "updates")}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    made = (simulate if "--simulation" in sys.argv else run)(folder, at_client="--client" in sys.argv)
    from somebodys_app import MODEL, audit

    audit(made, folder / "pages", "--model", str(MODEL), "--steps", "1", "--batch-sizes", "1", "--budget", "60")
