"""A training over Flower's SuperLink with many SuperNodes on this machine, each silo's processes of its own.

    python -m scripts.scale nodes --folder work --count 20       half a GB a node; loopback only

It ends by itself where less than MEMORY_LEFT would be left. Every process that it starts it also ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.training.federated.deploy.folders import Deployment, write_deployment
from docleak.training.federated.federation import Federation
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.record import load_run

#: Bytes that stay free on this machine, or the nodes are ended.
MEMORY_LEFT = 3 * 2**30
PATIENCE = 2_400.0
#: Seconds between the starts of two nodes.
STAGGER = 5.0
FEDERATION = Federation(rounds=1, holdout=0.0, seed=1, local=LocalPlan(max_steps=1, batch_size=1))


@dataclass
class Nodes:
    """What a training over so many SuperNodes took: seconds until all were started, of the whole training and of its
    round, bytes of memory (each page of memory divided among those who share it) of a node, of the server, and how many
    processes there were. ``seconds_processor`` are of all that lived, or were waited for, at the last look."""

    count: int
    seconds_starting: float = 0.0
    seconds_training: float = 0.0
    seconds_round: float = 0.0
    bytes_of_a_node: float = 0.0
    bytes_of_the_server: float = 0.0
    processes: int = 0
    silos_averaged: int = 0
    seconds_processor: float = 0.0
    notes: list[str] = field(default_factory=list)


def nodes(folder: Path, count: int) -> Nodes:
    """Deploy, start, train a round, and end all of it; SystemExit where the training did not finish."""
    folder.mkdir(parents=True, exist_ok=True)
    here = folder.resolve()
    division = divide(["synthetic"], count, by="documents", seed=0, count=count)
    write_silos(division.shares, division.sources, here / "pages", by="documents", seed=0)
    silos = {item.name: item for item in sorted((here / "pages").iterdir())}
    gate, superlink, *ports = _free_ports(count + 2)
    out = here / "deployment"
    write_deployment(Deployment(tuple(silos), "127.0.0.1", gate, superlink, timeout=3600), FEDERATION, out)
    record, began = Nodes(count), time.perf_counter()
    with ExitStack() as stack:
        server = [_started(stack, here, "superlink", out / "server/start-superlink.sh", {})]
        _wait_for(superlink)
        server.append(_started(stack, here, "gate", out / "server/start-gate.sh", {"LISTEN": "127.0.0.1"}))
        _wait_for(gate)
        silos_at_work = []
        for port, (name, pages) in zip(ports, silos.items(), strict=True):
            at = {"SILO": str(pages), "NODE_PORT": str(port)}
            silos_at_work.append(_started(stack, here, name, out / "silos" / name / "start.sh", at))
            time.sleep(STAGGER)
        for port in ports:
            _wait_for(port)
            print(f"{_available() / 2**30:.1f} GB left", flush=True)
        record.seconds_starting, began = time.perf_counter() - began, time.perf_counter()
        training = _started(stack, here, "train", out / "server/train.sh", {})
        while training.poll() is None and time.perf_counter() - began < PATIENCE:
            _look(record, silos_at_work, server)
            time.sleep(2)
        record.seconds_training = time.perf_counter() - began
        if training.poll() != 0:
            raise SystemExit(f"the training ended with {training.poll()}: see {here}/train.log")
    (row,) = load_run(out / "server/run").rows()
    record.silos_averaged, record.seconds_round = len(row.clients), row.seconds_training + row.seconds_averaging
    print(record, flush=True)
    return record


def _started(stack: ExitStack, here: Path, name: str, script: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A start command in a process group of its own, ended with the stack."""
    log = stack.enter_context((here / f"{name}.log").open("wb"))
    process = subprocess.Popen([str(script)], stdout=log, stderr=log, process_group=0,
                               env={**os.environ, "BIN": str(Path(sys.executable).parent), **more})  # fmt: skip
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _look(found: Nodes, silos: list[subprocess.Popen[bytes]], server: list[subprocess.Popen[bytes]]) -> None:
    """Keep the most memory and processes seen so far."""
    if _available() < MEMORY_LEFT:
        raise SystemExit(f"less than {MEMORY_LEFT / 2**30:.0f} GB is left; ended")
    sizes = {process.pid: 0.0 for process in (*silos, *server)}
    alive, ticks = 0, 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            group = os.getpgid(int(entry.name))
            if group in sizes:
                lines = (entry / "smaps_rollup").read_text().splitlines()
                sizes[group] += sum(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
                spent = (entry / "stat").read_text().rpartition(")")[2].split()
                alive, ticks = alive + 1, ticks + sum(map(int, spent[11:15]))
        except OSError:  # it has ended
            continue
    found.bytes_of_a_node = max(found.bytes_of_a_node, sum(sizes[one.pid] for one in silos) / len(silos))
    found.bytes_of_the_server = max(found.bytes_of_the_server, sum(sizes[one.pid] for one in server))
    found.seconds_processor = max(found.seconds_processor, ticks / os.sysconf("SC_CLK_TCK"))
    found.processes = max(found.processes, alive)


def _available() -> int:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return 1024 * int(line.split()[1])


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise SystemExit(f"nothing listens on {port}")
