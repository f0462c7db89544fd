"""Flower's quickstart (examples/flower-quickstart) with a document model, recorded by docleak.tap, and audited.

    python examples/flower_quickstart.py OUT [--client]

The folder is an app as Flower's templates lay it out, and its two apps are Flower's own objects; their messages are
handed over in this process, since Flower's simulation needs ray; under ``flwr run`` it records the same. ``--client``
records at the clients instead of at the server, with docleak.tap_client.
"""

from __future__ import annotations

import os
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


def _config(out: Path, *, at_client: bool) -> dict[str, str]:
    from somebodys_app import make_clients

    if at_client:
        os.environ["UPDATES_AT_CLIENT"] = str(out / "at-clients")
    out = out.absolute()
    return {"pages": str(make_clients(out / "pages", 2)), "updates": str(out / "updates")}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    made = run(folder, at_client="--client" in sys.argv)
    from somebodys_app import MODEL, audit

    audit(made, folder / "pages", "--model", str(MODEL))
