"""Flower's quickstarts for Hugging Face and for PyTorch with a document model, recorded by docleak.tap, and audited.

    python examples/flower_quickstart.py OUT huggingface|pytorch [--client]

The folders flower-quickstart-* are apps as Flower's templates lay them out; their messages are handed over in this
process, since Flower's simulation needs ray; under ``flwr run`` they record the same. Optimisers, rates, batch sizes,
shuffling, padding and dropout are those of Flower's own quickstarts; model, data and the tap are not. ``--client``
records at the clients instead of at the server, with docleak.tap_client.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
APPS = ("huggingface", "pytorch")


def run(name: str, out: Path, *, at_client: bool = False) -> Path:
    """Both of an app's parts in this process, on messages handed over by docleak; the folder that was recorded."""
    sys.path[:0] = [str(HERE), str(HERE / f"flower-quickstart-{name}")]
    from flwr.app import Context, RecordDict
    from somebodys_app import make_clients

    from docleak.training.federated.flower.grid import LocalGrid

    seen = out.absolute() / ("at-clients" if at_client else "updates")
    if at_client:
        os.environ["UPDATES_AT_CLIENT"] = str(seen)
    settings = tomllib.loads((HERE / f"flower-quickstart-{name}" / "pyproject.toml").read_text("utf-8"))
    config = settings["tool"]["flwr"]["app"]["config"]
    config |= {"pages": str(make_clients(out.absolute() / "pages", 2)), "updates": str(out.absolute() / "updates")}
    client_app, server_app = (importlib.import_module(f"{name}_quickstart.{part}_app") for part in ("client", "server"))
    grid = LocalGrid(client_app.app, {7000 + number: {"partition-id": number} for number in range(2)})
    for node in grid._contexts.values():
        node.run_config.update(config)
    server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
    return seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("app", choices=APPS)
    parser.add_argument("--client", action="store_true", help="record at the clients")
    asked = parser.parse_args()
    made = run(asked.app, asked.out, at_client=asked.client)
    from somebodys_app import MODEL, audit

    audit(made, asked.out / "pages", "--model", str(MODEL))
