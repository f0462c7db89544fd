"""A federation over TLS on loopback: equals the embedded one bit for bit, and lets nobody else in."""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.errors import FederationError
from docleak.training.federated.deploy.check import check_folder, connect
from docleak.training.federated.deploy.folders import Deployment, silo_names, write_deployment
from docleak.training.federated.deploy.gate import may_pass
from docleak.training.federated.deploy.keys import Authority, days_left, node_keys
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import FedOpt
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.local import LocalPlan
from docleak.training.federated.record import FederatedRun, load_run
from docleak.training.federated.secure.key_files import read_identity, read_pinned
from docleak.training.federated.secure.plan import SecurePlan

BIN = Path(sys.executable).parent
FEDERATION = Federation(
    rounds=3, holdout=0.0, seed=1, local=LocalPlan(max_steps=1, batch_size=2), server=FedOpt("fedadam", 0.01)
)
#: One more round on the same nodes, with secure aggregation.
HIDDEN = replace(FEDERATION, rounds=1, secure=SecurePlan())
QUIET = {
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "BIN": str(BIN),
    "OMP_NUM_THREADS": "1",
}
PATIENCE = 600.0


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
    """A process and all its children, ended at the end."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, start_new_session=True, env={**os.environ, **QUIET, **variables}
        )
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
            subprocess.run([str(server / "register-silos.sh")], check=True, env=environment, capture_output=True)
            _the_control_path_is_closed(gate, server / "ca.crt")
            first, second = silos
            with (
                running([str(out / "silos" / first / "start.sh")], logs[first], SILO=str(silos[first]),
                        NODE_PORT=str(nodes[0])),
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
    deployed = load_run(server / "run").state()
    assert deployed is not None and deployed.round == 3
    for part in ("parameters", "momentum", "second"):
        for name, value in getattr(embedded, part).items():
            assert (getattr(deployed, part)[name] == value).all(), f"{part} of {name} differs"
    assert (server / "run" / "model" / "config.json").is_file()
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


def test_a_deployment_is_complete_private_and_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folders = write_deployment(Deployment(("a", "b"), "fl.example.org", days=30), Federation(), out)
    assert [folder.relative_to(out).as_posix() for folder in folders] == ["server", "silos/a", "silos/b"]
    text = "".join(file.read_text() for file in out.rglob("*") if file.is_file())
    assert not re.search(r"@[A-Z_]+@", text) and "fl.example.org:9443" in text
    for secret in (folders[0] / "server.key", folders[1] / "node"):
        assert secret.stat().st_mode & 0o077 == 0
    assert not any((folder / "server.key").exists() for folder in folders[1:])
    assert (folders[1] / "node").read_bytes() != (folders[2] / "node").read_bytes()
    assert check_folder(folders[0]) == [] and check_folder(folders[1]) == []
    assert read_identity(folders[1] / "pinned" / "a", folders[1] / "pinned").silo == "a"
    assert (folders[1] / "pinned" / "a").stat().st_mode & 0o077 == 0
    assert not (folders[2] / "pinned" / "a").exists() and not (folders[0] / "pinned" / "a").exists()
    pinned = [read_pinned(folder / "pinned") for folder in folders]
    assert pinned[0] == pinned[1] == pinned[2] and set(pinned[0]) == {"a", "b"}
    with pytest.raises(FederationError, match="only written to a new folder"):
        write_deployment(Deployment(("a",), "x"), Federation(), out)
    (folders[1] / "node").chmod(0o644)
    (folders[1] / "ca.crt").unlink()
    with pytest.raises(FederationError, match=r"a cannot start:(.|\n)*lacks ca.crt(.|\n)*chmod 600"):
        check_folder(folders[1])
    (folders[0] / "federation.json").write_text('{"modle": "x"}')
    with pytest.raises(FederationError, match="did you mean 'model'"):
        check_folder(folders[0])
    with pytest.raises(FederationError, match="nowhere"):
        check_folder(folders[2], silo=str(tmp_path / "nowhere"))


def test_an_expired_certificate_and_a_server_that_is_not_ours(tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    assert 29 < days_left(Authority(days=30).certificate, now=now) < 31
    out = tmp_path / "out"
    server, silo = write_deployment(Deployment(("a",), "localhost", days=1), Federation(), out)
    assert check_folder(silo) == ["ca.crt expires in 1 days"]
    old = _certificate_of_the_past()
    (silo / "ca.crt").write_bytes(old)
    with pytest.raises(FederationError, match=r"a cannot start:(.|\n)*ca.crt expired 9 days ago"):
        check_folder(silo)
    other = write_deployment(Deployment(("a",), "localhost"), Federation(), tmp_path / "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.pem", server / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        import threading

        def answer() -> None:
            for _ in range(2):
                raw, _ = listening.accept()
                try:
                    context.wrap_socket(raw, server_side=True).close()
                except OSError:
                    raw.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        connect(f"localhost:{port}", server / "ca.crt")
        with pytest.raises(FederationError, match=r"ca.crt does not vouch for"):
            connect(f"localhost:{port}", other[1] / "ca.crt")
        thread.join(10)
    with pytest.raises(FederationError, match="cannot be reached"):
        connect(f"127.0.0.1:{port}", server / "ca.crt")


def _certificate_of_the_past() -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP384R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([])
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - dt.timedelta(days=20)).not_valid_after(now - dt.timedelta(days=9))
        .sign(key, hashes.SHA384())
    )  # fmt: skip
    return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("path", "passes"),
    [
        ("/v1/fleet/create-node", True), ("/health", True), ("/v1/control/list-runs", False), ("/", False),
        ("/v1/fleet/../control/list-runs", False), ("/v1/fleet/%2e%2e/control/list-runs", False),
        ("/v1//fleet/x", False), ("/v1/fleet", False), ("/healthy", False), ("/V1/fleet/x", False),
        ("/v1/fleet/..\\control", False),
    ],
)  # fmt: skip
def test_only_the_fleet_path_passes_the_gate(path: str, passes: bool) -> None:
    assert may_pass(path) == passes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"silos": ("a/b",)}, "'a/b' cannot name a silo"),
        ({"silos": ("a", "A")}, "'a' names two silos"),
        ({"silos": ()}, "there is no silo"),
        ({"host": "x y"}, "'x y' is no host name"),
        ({"port": 9442}, "the ports are 9442 and 9442"),
        ({"timeout": 0}, "timeout is 0"),
    ],
)
def test_deployments_that_make_no_sense(change: dict[str, object], said: str) -> None:
    with pytest.raises(FederationError, match=re.escape(said)):
        replace(Deployment(("a",), "localhost"), **change)


def test_silo_names() -> None:
    assert silo_names("2") == ("silo-1", "silo-2") and silo_names("a, b") == ("a", "b")
