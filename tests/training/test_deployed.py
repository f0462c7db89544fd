"""A deployment that runs, over TLS on loopback: most of its time it waits for Flower to poll.

It equals the embedded federation bit for bit and lets nobody else in; then the SuperLink, a training and a silo fail.
"""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

import httpx
import pytest

from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.training.federated.deploy.check import connect
from docleak.training.federated.deploy.folders import Deployment, node_keys, write_deployment
from docleak.training.federated.deploy.watch import end_with_parent
from docleak.training.federated.federation import Federation
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.record import FederatedRun, load_run
from docleak.training.federated.silo_ledger import SiloLedger
from docleak.training.federated.silo_limits import LEDGER, LIMITS, WITNESS
from tests.training.deploying import (
    BIN,
    FEDERATION,
    HIDDEN,
    PATIENCE,
    PRIVATE,
    QUIET,
    free_ports,
    running,
    smaller_model,
    wait_for_port,
)

#: Stands for SuperLink and gate where parties are named.
SERVER = "server"
ANY_CODE = {"ANY_CODE": "true"}


@pytest.mark.slow
def test_a_deployment_equals_the_embedded_federation_refuses_strangers_and_bears_faults(tmp_path: Path) -> None:
    """The first silo guards itself and takes no code but docleak's, until the SuperLink fails; then it takes any."""
    division = divide(["synthetic"], 2, by="providers", seed=0, count=6)
    write_silos(division.shares, division.sources, tmp_path / "pages", by="providers", seed=0)
    silos = {item.name: item for item in sorted((tmp_path / "pages").iterdir())}
    gate, superlink, *nodes, strange = free_ports(5)
    ports = {SERVER: superlink, **dict(zip(silos, nodes, strict=True))}
    out, server = tmp_path / "deployment", tmp_path / "deployment" / "server"
    deployment = Deployment(tuple(silos), "127.0.0.1", gate, superlink)
    model = smaller_model(tmp_path / "model")
    plain, hidden, private = (replace(one, model=model) for one in (FEDERATION, HIDDEN, PRIVATE))
    write_deployment(deployment, plain, out)
    first, second = silos
    with parties(out, silos, ports, {SERVER: {}, second: ANY_CODE}) as most:
        with parties(out, silos, ports, {first: {"GUARD": "true"}}):
            for port in (gate, *nodes):
                wait_for_port(port)
            connect(f"127.0.0.1:{gate}", out / "silos" / first / "ca.crt")
            _the_control_path_is_closed(gate, server / "ca.crt")
            _strangers_are_refused(gate, strange, tmp_path)
            _it_equals_the_embedded_federation(out, silos, {"run": plain, "hidden": hidden})
            _foreign_code_is_refused(out, tmp_path / f"{first}.log")
        if not sys.platform.startswith("linux"):
            return  # the rest looks for processes in /proc
        _nothing_lives(out / "silos" / first)
        _a_killed_superlink_comes_back(out, gate, superlink)
        with parties(out, silos, ports, {first: ANY_CODE}) as other:
            write_deployment(deployment, private, tmp_path / "private")
            (server / "federation.json").write_text(private.to_json())
            for name in silos:
                for file in (LIMITS, LEDGER, WITNESS):
                    shutil.copy2(tmp_path / "private" / "silos" / name / file, out / "silos" / name)
            _a_silos_fault_stays_there(out)
            _a_killed_silo_is_named(out, tmp_path / "hanging")
            for parent in (other, most):
                parent.kill()
                parent.join(10)
            _nothing_lives(tmp_path)


@contextmanager
def parties(
    out: Path, silos: Mapping[str, Path], ports: Mapping[str, int], started: Mapping[str, Mapping[str, str]]
) -> Iterator[ForkProcess]:
    """Some parties of a deployment, each with variables of its own, in a process that ends with the one that tests."""
    process = get_context("fork").Process(target=_started, args=(out, silos, ports, started))
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join(60)
        process.kill()


def _started(
    out: Path, silos: Mapping[str, Path], ports: Mapping[str, int], started: Mapping[str, Mapping[str, str]]
) -> None:
    """Start parties and wait, until told to end them or killed."""
    end_with_parent()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    with ExitStack() as stack:
        for name, variables in started.items():
            if name == SERVER:
                for part, more in (("superlink", {}), ("gate", {"LISTEN": "127.0.0.1"})):
                    log = out.parent / f"{part}.log"
                    stack.enter_context(running([str(out / "server" / f"start-{part}.sh")], log, **more))
                    wait_for_port(ports[SERVER])
            else:
                told = {"SILO": str(silos[name]), "NODE_PORT": str(ports[name]), **variables}
                script = [str(out / "silos" / name / "start.sh")]
                stack.enter_context(running(script, out.parent / f"{name}.log", **told))
        time.sleep(2 * PATIENCE)


def training(out: Path, run: str, more: str = "") -> subprocess.Popen[bytes]:
    """A training with the app as docleak wrote it and ``more`` behind it."""
    client = out / "server" / "app" / "docleak_app" / "client.py"
    client.write_text(client.read_text().partition("# test\n")[0] + (more and "# test\n" + more))
    return subprocess.Popen(
        [str(out / "server" / "train.sh")], env={**os.environ, **QUIET, "OUT": str(out / "server" / run)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=end_with_parent,
    )  # fmt: skip


def ended(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """What a training said on stdout and on stderr until it ended."""
    out, errors = process.communicate(timeout=PATIENCE)
    return out.decode(), errors.decode()


def _it_equals_the_embedded_federation(
    out: Path, silos: dict[str, Path], federations: Mapping[str, Federation]
) -> None:
    """Without secure aggregation and with it."""
    server, (first, second) = out / "server", silos
    logs = (out.parent / f"{first}.log", out.parent / "superlink.log")
    for run, federation in federations.items():
        (server / "federation.json").write_text(federation.to_json())
        process = training(out, run)
        said = ended(process)
        assert process.returncode == 0, [*said, *(log.read_text() for log in logs)]
        embedded = train_embedded(
            FederatedRun.open(out.parent / f"{run}-embedded", federation), silos, evaluate_every=0
        )
        assert load_run(server / run).run.info["deployed"], "a claim then says that nobody saw the units of two silos"
        deployed = load_run(server / run).state()
        assert deployed is not None and deployed.round == federation.rounds
        for part in ("parameters", "momentum", "second"):
            assert set(getattr(deployed, part)) == set(getattr(embedded, part))
            for name, value in getattr(embedded, part).items():
                assert (getattr(deployed, part)[name] == value).all(), f"{run}: {part} of {name} differs"
        assert (server / run / "model" / "config.json").is_file()
    (remembered,) = (out / "silos" / first / "guard").iterdir()  # of the latest training, by the guarded silo alone
    assert (remembered / "last.safetensors").is_file() and not (out / "silos" / second / "guard").exists()


def _foreign_code_is_refused(out: Path, log: Path) -> None:
    process = training(out, "other", "import os\n")
    said, errors = ended(process)
    assert process.returncode == 1 and "refuses the code that the server sends" in errors, said
    assert "client.py is not that of the docleak installed here" in log.read_text()


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


def _strangers_are_refused(gate: int, port: int, folder: Path) -> None:
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
        home, log = {"FLWR_HOME": str(folder / f"home-{name}")}, folder / f"{name}.log"
        with running([*common, *options], log, **home) as process:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.3)
            assert process.poll() not in (None, 0), f"{name}: {log.read_text()}"


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


def _nothing_lives(folder: Path) -> None:
    until = time.monotonic() + 30
    while (left := processes_of(folder)) and time.monotonic() < until:
        time.sleep(0.5)
    survivors = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left if Path(f"/proc/{pid}").exists()}
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    assert not survivors


def _a_silos_fault_stays_there(out: Path) -> None:
    process = training(out, "leaky", RAISES)
    said = "".join(ended(process))
    assert process.returncode == 1 and "'synthetic-0': it could not take part; its own log says why" in said, said
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
    """And makes its silos' keys known again."""
    log = out.parent / "superlink.log"
    known = log.read_text().count("is registered")
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
    while log.read_text().count("is registered") < 2 * known and time.monotonic() < deadline:
        time.sleep(0.3)
    assert log.read_text().count("is registered") == 2 * known == 4


def _a_killed_silo_is_named(out: Path, marker: Path) -> None:
    """By nodes that found the SuperLink again: its keys were registered anew."""
    process = training(out, "gone", HANGS.format(marker=str(marker)))
    until = time.monotonic() + PATIENCE
    while not marker.exists() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.2)
    logs = "".join(file.read_text() for file in out.parent.glob("*.log"))
    assert marker.exists(), ended(process) if process.poll() is not None else logs
    assert processes_of(out, "multiprocessing.forkserver"), "what answers a message is forked"
    (pid,) = processes_of(out, "deploy node", "synthetic-1", "docleak")[:1]
    os.kill(pid, signal.SIGKILL)
    killed = time.time()
    said = "".join(ended(process))
    assert process.returncode == 1
    assert (out / "server" / "gone" / "stopped.txt").stat().st_mtime - killed < 30, said
    assert "silo 'synthetic-1' is gone: its node is not connected any more" in said and "Traceback" not in said, said
    assert load_run(out / "server" / "gone").last_round() == 0
