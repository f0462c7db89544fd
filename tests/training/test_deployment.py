"""What a deployment is made of: its folders and keys, what is looked at before it starts, its gate, its processes."""

from __future__ import annotations

import datetime as dt
import io
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from starlette.testclient import TestClient

from docleak.errors import FederationError
from docleak.privacy.accounting import guarantee
from docleak.privacy.mechanism import Mechanism
from docleak.training.federated.deploy.app import foreign_code
from docleak.training.federated.deploy.check import check_folder, connect, secrets_in
from docleak.training.federated.deploy.folders import Authority, Deployment, days_left, silo_names, write_deployment
from docleak.training.federated.deploy.gate import gate_app, may_pass
from docleak.training.federated.deploy.start import check_apart
from docleak.training.federated.deploy.watch import at_work, was_killed
from docleak.training.federated.federation import Federation
from docleak.training.federated.secure.keys import read_identity, read_pinned
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.silo_limits import SiloLimits
from tests.training.deploying import PLAN, PRIVATE, free_ports, running


def test_a_deployment_is_complete_private_and_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folders = write_deployment(Deployment(("a", "b"), "fl.example.org", days=30), Federation(), out)
    assert [folder.relative_to(out).as_posix() for folder in folders] == ["server", "silos/a", "silos/b"]
    text = "".join(file.read_text() for file in out.rglob("*") if file.is_file())
    assert not re.search(r"@[A-Z_]+@", text) and "fl.example.org:9443" in text
    assert not [item for item in (out, *out.rglob("*")) if item.stat().st_mode & 0o077], "all of it is its owner's"
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
    (folders[1] / "node").chmod(0o600)
    (folders[0] / "federation.json").write_text('{"modle": "x"}')
    with pytest.raises(FederationError, match="modle is an unknown key"):
        check_folder(folders[0])
    with pytest.raises(FederationError, match="nowhere"):
        check_folder(folders[2], silo=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(("threshold", "silos", "told"), [(9, 3, "2 to 3"), (1, 3, "2 to 3"), (2, 9, "5 to 9")])
def test_what_no_round_could_keep_to_is_not_deployed(tmp_path: Path, threshold: int, silos: int, told: str) -> None:
    deployment = Deployment(silo_names(str(silos)), "localhost")
    sentence = (
        f"the secure threshold is {threshold}, and {silos} of {silos} silos train in a round; expected more than half "
        f"of these and no more: {told}."
    )
    with pytest.raises(FederationError, match=f"^{re.escape(sentence)}$"):
        write_deployment(deployment, Federation(secure=SecurePlan(threshold)), tmp_path / "out")
    with pytest.raises(FederationError, match=f"minimum is 4, and 2 of {silos} silos train"):
        write_deployment(deployment, Federation(minimum=4, participation=2.5 / silos), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_party_that_waits_is_checked_in_a_process_that_ends_and_does_without_pytorch(tmp_path: Path) -> None:
    folders = write_deployment(Deployment(("a",), "localhost"), Federation(), tmp_path / "out")
    check_apart(folders[0])
    (folders[1] / "node").chmod(0o644)
    with pytest.raises(FederationError, match=r"^a cannot start:\n  - .*chmod 600 .*node"):
        check_apart(folders[1])
    code = "import sys, {0}; print(*(name for name in ('torch', 'transformers', 'scipy') if name in sys.modules))"
    for module, heavy in (("deploy.start", ""), ("flower.node", ""), ("deploy.check", "scipy")):
        told = subprocess.run([sys.executable, "-c", code.format(f"docleak.training.federated.{module}")],
                              capture_output=True, text=True, check=True)  # fmt: skip
        assert told.stdout.strip() == heavy, module


def test_the_check_knows_every_secret_and_the_folder_it_lies_in(tmp_path: Path) -> None:
    out = tmp_path / "out"
    server, silo = write_deployment(Deployment(("a",), "localhost"), PRIVATE, out)
    (silo / "copy-of-a-key").write_bytes((silo / "pinned" / "a").read_bytes())
    (silo / "copy-of-a-key").chmod(0o600)
    (silo / "silo.log").touch(0o600)
    secrets = {file.relative_to(out).as_posix() for place in (server, silo) for file in secrets_in(place)}
    names = ("node", "pinned/a", "copy-of-a-key", "limits.json", "ledger.json", "witness.json", "silo.log")
    assert secrets == {"server/server.key", *(f"silos/a/{name}" for name in names)}
    assert check_folder(server) == [] and "0 private rounds begun" in check_folder(silo)[0]
    for name in sorted(secrets):
        for mode in (0o640, 0o604):
            (out / name).chmod(mode)
            with pytest.raises(FederationError, match=f"can be read by others; run: chmod 600 .*{name}"):
                check_folder(server if name.startswith("server") else silo)
            (out / name).chmod(0o600)
    for place in (server, silo, silo / "pinned"):
        place.chmod(0o755)
        with pytest.raises(FederationError, match=f"is open to others; run: chmod 700 {place}"):
            check_folder(server if place == server else silo)
        place.chmod(0o700)
    (silo / "witness.json").unlink()
    with pytest.raises(FederationError, match=r"witness\.json cannot be read"):
        check_folder(silo)


def test_limits_of_a_private_deployment_let_its_own_rounds_run(tmp_path: Path) -> None:
    """With clients that are drawn by coins: as many rounds as any of them may be drawn for."""
    rare = replace(PLAN, mechanism=Mechanism(1.0, 6, client_rate=0.5))
    federation = replace(PRIVATE, rounds=6, participation=0.5, privacy=rare)
    names = ("a", "b", "c", "d")
    write_deployment(Deployment(names, "localhost"), federation, tmp_path / "out")
    limits = SiloLimits.load(tmp_path / "out" / "silos" / "a")
    assert limits.epsilon == pytest.approx(guarantee(Mechanism(1.0, 6), 1e-3).epsilon, rel=1e-5)
    assert limits.clients == 2 and limits.denominator == 1 and not limits.evaluation


def test_the_gate_says_that_the_superlink_is_not_there(tmp_path: Path) -> None:
    server, _ = write_deployment(Deployment(("a",), "localhost"), Federation(), tmp_path / "out")
    (port,) = free_ports(1)
    with TestClient(gate_app(f"https://127.0.0.1:{port}", server / "ca.crt")) as web:
        assert web.post("/v1/fleet/pull-messages", content=b"").status_code == 503
        assert web.get("/health").status_code == 503
        assert web.post("/v1/control/start-run", content=b"").status_code == 403
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes the connection and says nothing in TLS
        threading.Thread(target=lambda: deaf.accept()[0].close(), daemon=True).start()
        with TestClient(gate_app(f"https://127.0.0.1:{deaf.getsockname()[1]}", server / "ca.crt")) as web:
            assert web.post("/v1/fleet/pull-messages", content=b"").status_code == 503


def bundle(app: Path, **changes: str) -> bytes:
    """The app as Flower ships it, with some files replaced or added."""
    files = {file.relative_to(app).as_posix(): file.read_text() for file in app.rglob("*") if file.is_file()}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in {**files, ".info/CONTENT": "", **changes}.items():
            if text != "-":
                archive.writestr(name, text)
    return content.getvalue()


def test_a_silo_takes_no_code_but_docleaks_own_app(tmp_path: Path) -> None:
    server, _ = write_deployment(Deployment(("a",), "localhost"), Federation(), tmp_path / "out")
    app = server / "app"
    assert foreign_code(bundle(app)) == ""
    assert foreign_code(build_fab_from_disk(app)) == ""
    project = (app / "pyproject.toml").read_text()
    for changes, said in (
        ({"docleak_app/client.py": "import os"}, "docleak_app/client.py is not that of the docleak installed here"),
        ({"docleak/__init__.py": ""}, "it has, or lacks, 'docleak/__init__.py'"),
        ({"torch.py": ""}, "it has, or lacks, 'torch.py'"),
        ({"docleak_app/server.py": "-"}, "it has, or lacks, 'docleak_app/server.py'"),
        ({"pyproject.toml": project.replace("docleak_app.client:app", "os:system")}, "it runs 'os:system'"),
        ({"pyproject.toml": "["}, "it cannot be read"),
        ({"pyproject.toml": project + " " * 2**21}, "more than a megabyte"),
    ):
        assert said in foreign_code(bundle(app, **changes)), changes
    assert "cannot be read" in foreign_code(b"no bundle")


def test_a_supervised_process_is_started_again_and_ends_with_its_parent(tmp_path: Path) -> None:
    script = f"""
import sys
from docleak.training.federated.deploy import watch
watch.FIRST_PAUSE = 0.05
count = {str(tmp_path / "count")!r}
child = f"open({{count!r}}, 'a').write('x'); import time; time.sleep(600 if len(open({{count!r}}).read()) > 2 else 0)"
watch.supervise([sys.executable, "-c", child], environment={{}}, say=lambda text: None)
"""
    for number in (signal.SIGKILL, signal.SIGTERM):
        (tmp_path / "count").write_text("")
        with running([sys.executable, "-c", script], tmp_path / "log") as process:
            until = time.monotonic() + 60
            while (tmp_path / "count").read_text() != "xxx" and time.monotonic() < until:
                time.sleep(0.05)
            assert (tmp_path / "count").read_text() == "xxx", (tmp_path / "log").read_text()
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.send_signal(number)
            process.wait(30)
            while Path(f"/proc/{child}").exists() and time.monotonic() < until:
                time.sleep(0.05)
            assert not Path(f"/proc/{child}").exists()


def test_a_process_that_was_killed_at_work_is_noticed(tmp_path: Path) -> None:
    assert not was_killed(tmp_path)
    with at_work(tmp_path):
        assert not was_killed(tmp_path), "this one lives"
        assert (tmp_path / ".at-work").read_text() == f"{os.getpid()}\n"
    assert not was_killed(tmp_path) and not (tmp_path / ".at-work").exists()
    code = f"""
import os, pathlib
from docleak.training.federated.deploy.watch import at_work
with at_work(pathlib.Path({str(tmp_path)!r})):
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert was_killed(tmp_path)


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
        ({"host": "server.example:9443"}, "expected one alone, and its port in --port"),
        ({"host": "foo:bar"}, "'foo:bar' is no host name"),
        ({"host": "[::1]"}, "'[::1]' is no host name"),
        ({"port": 9442}, "the ports are 9442 and 9442"),
        ({"timeout": 0}, "timeout is 0"),
    ],
)
def test_deployments_that_make_no_sense(change: dict[str, object], said: str) -> None:
    with pytest.raises(FederationError, match=re.escape(said)):
        replace(Deployment(("a",), "localhost"), **change)


@pytest.mark.parametrize("host", ["::1", "fe80::1", "2001:db8::8:800:200c:417a", "192.0.2.7", "fl.example.org"])
def test_a_host_is_a_name_or_an_address(host: str, tmp_path: Path) -> None:
    _, silo = write_deployment(Deployment(("a",), host), Federation(), tmp_path / "out")
    assert (f"[{host}]:9443" if ":" in host else f"{host}:9443") in (silo / "start.sh").read_text()


def test_silo_names() -> None:
    assert silo_names("2") == ("silo-1", "silo-2") and silo_names("a, b") == ("a", "b")
