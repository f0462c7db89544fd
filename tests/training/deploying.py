"""What tests of deployments share: the federation, processes that end with the test, and ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from docleak.models import load_model
from docleak.models.t5 import T5Reader
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.training.federated.deploy.watch import end_with_parent
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import FedOpt
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.secure.plan import SecurePlan

BIN = Path(sys.executable).parent
#: Two rounds: the second one goes on from the optimiser's moments and the silos' orders that the first one left.
FEDERATION = Federation(
    rounds=2, holdout=0.0, seed=1, local=LocalPlan(max_steps=1, batch_size=2), server=FedOpt("fedadam", 0.01)
)
#: One more round on the same nodes, with secure aggregation.
HIDDEN = replace(FEDERATION, rounds=1, secure=SecurePlan())
#: A private one.
PLAN = DpPlan(Mechanism(1.0, 2), clip_norm=0.5, denominator=1, delta=1e-3)
PRIVATE = replace(FEDERATION, rounds=2, server=FedOpt(), privacy=PLAN)
QUIET = {
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "BIN": str(BIN),
    "OMP_NUM_THREADS": "1",
}
PATIENCE = 600.0


def smaller_model(folder: Path) -> str:
    """vt5-start with one layer in its encoder and one in its decoder: Flower sends each array by itself."""
    model = load_model("vt5-start")
    assert isinstance(model, T5Reader)
    for part in (model.module.t5.encoder, model.module.t5.decoder):
        del part.block[1:]
    model.module.t5.config.update({"num_layers": 1, "num_decoder_layers": 1})
    model.save(str(folder))
    return str(folder)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def running(command: list[str], log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all its children, ended at the end, and when this process is killed."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, start_new_session=True, env={**os.environ, **QUIET, **variables},
            preexec_fn=end_with_parent,
        )  # fmt: skip
    try:
        yield process
    finally:
        for end in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, end)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.2)
        process.wait(10)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.3)
    raise AssertionError(f"nothing listens on {port}")
