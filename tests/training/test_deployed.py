"""Deployments that run, over TLS on loopback, one behind the other: most of their time they wait for Flower to poll.

One equals the embedded federation bit for bit and lets nobody else in; in the other a silo, its training and the
SuperLink fail.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.training.federated.deploy.check import connect
from docleak.training.federated.deploy.folders import Deployment, write_deployment
from docleak.training.federated.deploy.keys import node_keys
from docleak.training.federated.deploy.watch import end_with_parent
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.record import FederatedRun, load_run
from docleak.training.federated.silo_ledger import SiloLedger
from tests.training.deploying import (
    BIN,
    FEDERATION,
    HIDDEN,
    PATIENCE,
    PRIVATE,
    QUIET,
    free_ports,
    running,
    wait_for_port,
)


@pytest.mark.slow
def test_a_deployment_equals_the_embedded_federation_and_refuses_strangers(tmp_path: Path) -> None:
    division = divide(["synthetic"], 2, by="providers", seed=0, count=6)
    write_silos(division.shares, division.sources, tmp_path / "pages", by="providers", seed=0)
    silos = {item.name: item for item in sorted((tmp_path / "pages").iterdir())}
    embedded = train_embedded(FederatedRun.open(tmp_path / "embedded", FEDERATION), silos, evaluate_every=0)

    gate, superlink, *nodes = free_ports(5)
    out = tmp_path / "deployment"
    write_deployment(Deployment(tuple(silos), "127.0.0.1", gate, superlink), FEDERATION, out)
    logs = {name: tmp_path / f"{name}.log" for name in ("superlink", "gate", "stranger", "plain", *silos)}
    server = out / "server"
    with running([str(server / "start-superlink.sh")], logs["superlink"]):
        wait_for_port(superlink)
        with running([str(server / "start-gate.sh")], logs["gate"], LISTEN="127.0.0.1"):
            wait_for_port(gate)
            connect(f"127.0.0.1:{gate}", out / "silos" / next(iter(silos)) / "ca.crt")
            environment = {**os.environ, **QUIET}
            _the_control_path_is_closed(gate, server / "ca.crt")
            first, second = silos
            with (
                running([str(out / "silos" / first / "start.sh")], logs[first], SILO=str(silos[first]),
                        NODE_PORT=str(nodes[0]), GUARD="true"),
                running([str(out / "silos" / second / "start.sh")], logs[second], SILO=str(silos[second]),
                        NODE_PORT=str(nodes[1])),
            ):  # fmt: skip
                _strangers_are_refused(gate, nodes[2], tmp_path, logs)
                done = subprocess.run(
                    [str(server / "train.sh")], env=environment, capture_output=True, timeout=PATIENCE, check=False
                )
                said = done.stdout.decode() + done.stderr.decode()
                assert done.returncode == 0, said + logs[first].read_text() + logs["superlink"].read_text()
                (server / "federation.json").write_text(HIDDEN.to_json())
                hidden = subprocess.run(
                    [str(server / "train.sh")], env={**environment, "OUT": str(server / "hidden")},
                    capture_output=True, timeout=PATIENCE, check=False,
                )  # fmt: skip
                assert hidden.returncode == 0, hidden.stdout.decode() + hidden.stderr.decode()
                with (server / "app" / "docleak_app" / "client.py").open("a") as client:
                    client.write("import os\n")
                other = subprocess.run(
                    [str(server / "train.sh")], env={**environment, "OUT": str(server / "other")},
                    capture_output=True, timeout=PATIENCE, check=False,
                )  # fmt: skip
                assert other.returncode == 1 and b"refuses the code that the server sends" in other.stderr, other.stdout
                assert "client.py is not that of the docleak installed here" in logs[first].read_text()
    deployed = load_run(server / "run").state()
    assert deployed is not None and deployed.round == 2
    for part in ("parameters", "momentum", "second"):
        for name, value in getattr(embedded, part).items():
            assert (getattr(deployed, part)[name] == value).all(), f"{part} of {name} differs"
    assert (server / "run" / "model" / "config.json").is_file()
    (remembered,) = (out / "silos" / first / "guard").iterdir()  # of the latest training, by the guarded silo alone
    assert (remembered / "last.safetensors").is_file() and not (out / "silos" / second / "guard").exists()
    alike = train_embedded(FederatedRun.open(tmp_path / "embedded-hidden", HIDDEN), silos, evaluate_every=0)
    masked = load_run(server / "hidden").state()
    assert masked is not None and masked.round == 1
    for name, value in alike.parameters.items():
        assert (masked.parameters[name] == value).all(), f"secure: {name} differs"


def _the_control_path_is_closed(gate: int, authority: Path) -> None:
    with httpx.Client(base_url=f"https://127.0.0.1:{gate}", verify=ssl.create_default_context(cafile=authority)) as web:
        for path in (
            "/v1/control/list-runs",
            "/v1/control/start-run",
            "/v1/runtime/acquire-task",
            "/v1/fleet/../control",
        ):
            assert web.post(path, content=b"").status_code == 403
        assert web.get("/health").status_code != 403
        assert web.post("/v1/fleet/create-node", content=b"").status_code != 403


def _strangers_are_refused(gate: int, port: int, folder: Path, logs: dict[str, Path]) -> None:
    """A key that was not registered, and a node without TLS."""
    private, _ = node_keys("stranger")
    key = folder / "stranger"
    key.write_bytes(private)
    key.chmod(0o600)
    common = [str(BIN / "flower-supernode"), "--superlink", f"127.0.0.1:{gate}", "--max-retries", "0"]
    common += ["--host", "127.0.0.1", "--port", str(port)]
    authority = str(folder / "deployment" / "server" / "ca.crt")
    for name, options in (
        ("stranger", ["--root-certificates", authority, "--auth-supernode-private-key", str(key)]),
        ("plain", ["--insecure"]),
    ):
        home = {"FLWR_HOME": str(folder / f"home-{name}")}
        with running([*common, *options], logs[name], **home) as process:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.3)
            assert process.poll() not in (None, 0), f"{name}: {logs[name].read_text()}"


SECRET = "provider 'ACME secret GmbH' page 7"
#: What a test does to the code that a deployment ships: a silo's training fails, or one silo's never ends.
RAISES = f"""
import docleak.training.federated.flower.client as ours
def failing(party, *arguments, **more):
    try:
        raise KeyError({SECRET!r})
    except KeyError as error:
        raise ValueError({SECRET!r}) from error
ours.private_round = failing
"""
HANGS = """
import pathlib, time
import docleak.training.federated.flower.client as ours
real = ours.private_round
def hanging(party, *arguments, **more):
    if party.name == "synthetic-1":
        pathlib.Path({marker!r}).write_text("hangs")
        time.sleep(3600)
    return real(party, *arguments, **more)
ours.private_round = hanging
"""


def deployed(out: Path, silos: dict[str, Path], ports: list[int]) -> None:
    """Start all of a deployment and wait, in a process of its own that ends with the one that tests."""
    end_with_parent()
    gate, superlink, *nodes = ports
    logs = out.parent
    with ExitStack() as stack:
        stack.enter_context(running([str(out / "server" / "start-superlink.sh")], logs / "superlink.log"))
        wait_for_port(superlink)
        listen = {"LISTEN": "127.0.0.1"}
        stack.enter_context(running([str(out / "server" / "start-gate.sh")], logs / "gate.log", **listen))
        wait_for_port(gate)
        for (name, pages), port in zip(silos.items(), nodes, strict=True):
            variables = {"SILO": str(pages), "NODE_PORT": str(port), "ANY_CODE": "true"}
            stack.enter_context(running([str(out / "silos" / name / "start.sh")], logs / f"{name}.log", **variables))
        time.sleep(600)


def processes_of(folder: Path, *words: str) -> list[int]:
    """Living processes that were started for ``folder``, whose command has all of the words."""
    pids = []
    for item in Path("/proc").iterdir():
        try:
            if not item.name.isdigit() or int(item.name) == os.getpid():
                continue
            command = (item / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            about = command + (item / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if command and str(folder) in about and all(word in command for word in words):
            pids.append(int(item.name))
    return pids


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_faults_of_a_deployment(tmp_path: Path) -> None:
    """What a silo raises stays there; a killed SuperLink, a killed silo, and a killed parent of everything."""
    division = divide(["synthetic"], 2, by="providers", seed=0, count=6)
    write_silos(division.shares, division.sources, tmp_path / "pages", by="providers", seed=0)
    silos = {item.name: item for item in sorted((tmp_path / "pages").iterdir())}
    gate, superlink, *nodes = ports = free_ports(4)
    out = tmp_path / "deployment"
    write_deployment(Deployment(tuple(silos), "127.0.0.1", gate, superlink), PRIVATE, out)
    parent = multiprocessing.get_context("fork").Process(target=deployed, args=(out, silos, ports))
    parent.start()
    try:
        for port in (gate, *nodes):
            wait_for_port(port)
        _a_silos_fault_stays_there(out)
        _a_killed_superlink_comes_back(out, gate, superlink)
        _a_killed_silo_is_named(out, tmp_path / "hanging")
    finally:
        parent.kill()
        parent.join(10)
    until = time.monotonic() + 30
    while (left := processes_of(tmp_path)) and time.monotonic() < until:
        time.sleep(0.5)
    survivors = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left if Path(f"/proc/{pid}").exists()}
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    assert not survivors


def _trained(out: Path, run: str, more: str) -> subprocess.Popen[bytes]:
    """A training with an app that was changed by ``more``."""
    client = out / "server" / "app" / "docleak_app" / "client.py"
    client.write_text(client.read_text().partition("# test\n")[0] + "# test\n" + more)
    return subprocess.Popen(
        [str(out / "server" / "train.sh")], env={**os.environ, **QUIET, "OUT": str(out / "server" / run)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=end_with_parent,
    )  # fmt: skip


def _a_silos_fault_stays_there(out: Path) -> None:
    training = _trained(out, "leaky", RAISES)
    said = training.communicate(timeout=PATIENCE)[0].decode()
    assert training.returncode == 1 and "'synthetic-0': it could not take part; its own log says why" in said, said
    assert "Traceback" not in said
    server = [file for file in (out / "server").rglob("*") if file.is_file() and file.name != "client.py"]
    for file in [*server, out.parent / "superlink.log", out.parent / "gate.log"]:
        if "docleak_app" not in str(file) and ".fab" not in file.name:  # the app holds what this test put there
            assert b"ACME" not in file.read_bytes(), file
    assert "ACME" not in said
    for name in ("synthetic-0", "synthetic-1"):
        log = out / "silos" / name / "silo.log"
        assert log.stat().st_mode & 0o077 == 0 and log.read_text().count(SECRET) >= 2, "and its cause"
        assert len(SiloLedger.load(out / "silos" / name).begun) == 1, "counted before anything leaves"


def _a_killed_superlink_comes_back(out: Path, gate: int, superlink: int) -> None:
    (pid,) = processes_of(out, "flower-superlink", "--ssl-keyfile")
    os.kill(pid, signal.SIGKILL)
    context = ssl.create_default_context(cafile=out / "server" / "ca.crt")
    with httpx.Client(base_url=f"https://127.0.0.1:{gate}", verify=context) as web:
        assert web.post("/v1/fleet/pull-messages", content=b"").status_code == 503
        wait_for_port(superlink)
        deadline = time.monotonic() + PATIENCE  # it listens before it answers
        while web.get("/health").status_code >= 500 and time.monotonic() < deadline:
            time.sleep(0.3)
        assert web.get("/health").status_code < 500


def _a_killed_silo_is_named(out: Path, marker: Path) -> None:
    """By nodes that found the SuperLink again: its keys were registered anew."""
    training = _trained(out, "gone", HANGS.format(marker=str(marker)))
    until = time.monotonic() + PATIENCE
    while not marker.exists() and time.monotonic() < until and training.poll() is None:
        time.sleep(0.2)
    logs = "".join(file.read_text() for file in out.parent.glob("*.log"))
    assert marker.exists(), training.communicate(timeout=10)[0].decode() if training.poll() is not None else logs
    assert processes_of(out, "multiprocessing.forkserver"), "what answers a message is forked"
    (pid,) = processes_of(out, "deploy node", "synthetic-1", "docleak")[:1]
    os.kill(pid, signal.SIGKILL)
    killed = time.time()
    said = training.communicate(timeout=PATIENCE)[0].decode()
    assert training.returncode == 1
    assert (out / "server" / "gone" / "stopped.txt").stat().st_mtime - killed < 30, said
    assert "silo 'synthetic-1' is gone: its node is not connected any more" in said and "Traceback" not in said, said
    assert load_run(out / "server" / "gone").last_round() == 0
