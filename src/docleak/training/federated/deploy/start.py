"""Start a party of a deployment and keep it running: the SuperLink with its silos' keys, or a silo's node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from docleak.errors import FederationError, MissingExtraError
from docleak.training.federated.deploy.app import PINNED
from docleak.training.federated.deploy.watch import supervise, wait_for_port

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
#: Entry of the node's configuration (``flower.guard``, which brings PyTorch), and the guard's folder.
GUARDED = "guard"
NODE = "docleak.training.federated.flower.node"
CHECK = "docleak.training.federated.deploy.check"


def run_superlink(folder: Path, *, port: int) -> None:
    """Flower's SuperLink on loopback, with the keys of ``folder``/keys registered after each of its starts.

    FederationError, before anything is started, for a folder that ``check_folder`` refuses.
    """
    check_apart(folder)
    here = folder.resolve()
    command = [
        _program("flower-superlink"), "--host", "127.0.0.1", "--port", str(port),
        "--ssl-ca-certfile", str(here / "ca.crt"), "--ssl-certfile", str(here / "server.pem"),
        "--ssl-keyfile", str(here / "server.key"), "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    environment = _environment(here)

    def register(process: subprocess.Popen[bytes]) -> None:
        if not wait_for_port(process, port):
            return
        for key in sorted((here / "keys").glob("*.pub")):
            done = subprocess.run(
                [_program("flwr"), "supernode", "register", str(key)], env=environment, cwd=environment["FLWR_HOME"],
                capture_output=True, check=False,
            )  # fmt: skip
            said = (done.stdout + done.stderr).decode(errors="replace").strip()
            outcome = "is registered" if not done.returncode else f"is not registered: {said}"
            print(f"docleak: silo {key.stem!r} {outcome}", file=sys.stderr, flush=True)

    supervise(command, environment=environment, after_start=register)


def run_node(
    folder: Path, pages: Path, *, name: str, server: str, port: int, model: str = "", least_threshold: int = 2,
    any_code: bool = False, guard: bool = False,
) -> None:  # fmt: skip
    """A silo's node, connected to the gate at ``server`` (host:port); ``port`` is its own, on loopback.

    It executes no code of the server but docleak's own app, unless ``any_code`` allows it to. With ``guard`` it
    inspects every model before it trains it, and remembers the last one in ``folder``/guard.

    FederationError, before anything is started, for what ``check_folder`` refuses.
    """
    check_apart(folder, silo=str(pages))
    here = folder.resolve()
    config = {
        "silo": str(pages.resolve()), "name": name, "keep": str(here), "secure-key": str(here / PINNED / name),
        "secure-pinned": str(here / PINNED), **({"model": model} if model else {}),
        **({GUARDED: str(here / GUARDED)} if guard else {}),
    }  # fmt: skip
    if wrong := [value for value in config.values() if '"' in value or "\\" in value]:
        raise FederationError(f"{wrong[0]} holds a quotation mark or a backslash, which Flower's nodes cannot be told.")
    told = " ".join(f'{key}="{value}"' for key, value in config.items())
    command = [
        sys.executable, "-m", NODE, "--superlink", server, "--root-certificates", str(here / "ca.crt"),
        "--auth-supernode-private-key", str(here / "node"), "--host", "127.0.0.1", "--port", str(port),
        "--node-config", f"{told} secure-threshold={least_threshold}",
    ]  # fmt: skip
    told_node = {"DOCLEAK_KEEP": str(here), "DOCLEAK_ANY_CODE": "1" if any_code else ""}
    supervise(command, environment={**_environment(here), **told_node})


def check_apart(folder: Path, *, silo: str = "") -> None:
    """``check_folder`` in a process that ends: what reads pages is 60 MB that a party that waits does not need."""
    command = [sys.executable, "-m", CHECK, str(folder), silo]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FederationError(done.stderr.strip() or f"{folder} could not be checked (status {done.returncode}).")


def _environment(here: Path) -> dict[str, str]:
    home = os.environ.get("FLWR_HOME", str(here / "flwr"))
    Path(home).mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, **QUIET, "FLWR_HOME": home, "PATH": path}


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    program = str(beside) if beside.is_file() else shutil.which(name)
    if program is None:
        raise MissingExtraError(f"{name} is not installed. Install it with: pip install 'docleak[federated]'")
    return program
