"""Look before starting: what would keep a party of a deployment from working, in words."""

from __future__ import annotations

import datetime as dt
import os
import re
import socket
import ssl
import sys
from pathlib import Path

from docleak.errors import DocleakError, FederationError
from docleak.privacy.accounting import rounded_up
from docleak.training.federated.deploy.folders import days_left
from docleak.training.federated.federation import Federation
from docleak.training.federated.silo import open_party
from docleak.training.federated.silo_ledger import SiloLedger
from docleak.training.federated.silo_limits import LEDGER, LIMITS, WITNESS, has_limits

SERVER_FILES = ("ca.crt", "server.pem", "server.key", "federation.json")
SILO_FILES = ("ca.crt", "node", "node.pub")
#: Files with no key in them that are secret all the same, and folders that are looked after elsewhere.
SECRET = ("server.key", "node", LIMITS, LEDGER, WITNESS, "silo.log")
NOT_OURS = ("app", "flwr", "run")
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
SOON = 14.0  # days
PATIENCE = 10.0  # seconds


def check_folder(folder: Path, *, silo: str = "", server: str = "") -> list[str]:
    """Notes about a server's or silo's folder; FederationError, naming it, says everything that will not work.

    ``silo`` are the pages of a silo, which are opened; ``server`` is the gate's host and port, to which a TLS
    connection is made.
    """
    wanted = SERVER_FILES if (folder / "server.pem").exists() else SILO_FILES
    faults = [f"it lacks {name}" for name in wanted if not (folder / name).is_file()]
    notes: list[str] = []
    faults += exposed(folder)
    for name in ("ca.crt", "server.pem"):
        if (folder / name).is_file():
            _check_certificate(folder / name, faults, notes)
    if (folder / "federation.json").is_file():
        _noted(lambda: Federation.from_json((folder / "federation.json").read_text(encoding="utf-8")), faults)
    if has_limits(folder):
        _noted(lambda: notes.append(_spent(SiloLedger.load(folder))), faults)
    if silo:
        _noted(lambda: open_party(Path(silo), Federation(holdout=0.0)), faults)
    if server and not faults:
        _noted(lambda: connect(server, folder / "ca.crt"), faults)
    if faults:
        raise FederationError(f"{folder.resolve().name} cannot start:" + "".join(f"\n  - {fault}" for fault in faults))
    return notes


def secrets_in(folder: Path) -> list[Path]:
    """The files of a party's folder that nobody else may read: keys by what is in them, the rest by name."""
    secrets = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in NOT_OURS]
        for file in (Path(parent) / name for name in sorted(names)):
            if not file.is_file():
                continue
            with file.open("rb") as stream:
                key = PRIVATE_KEY.search(stream.read(4096)) is not None
            if key or file.name in SECRET:
                secrets.append(file)
    return secrets


def exposed(folder: Path) -> list[str]:
    """Which secrets of a party's folder others may read, and what to do about each; so for the folders they are in."""
    secret = secrets_in(folder)
    faults = [
        f"{file.relative_to(folder)} can be read by others; run: chmod 600 {file}"
        for file in secret
        if file.stat().st_mode & 0o077
    ]
    return faults + [
        f"the folder {place.relative_to(folder.parent)} with {name} is open to others; run: chmod 700 {place}"
        for place, name in {file.parent: file.name for file in secret}.items()
        if place.stat().st_mode & 0o077
    ]


def _spent(ledger: SiloLedger) -> str:
    limits = ledger.limits
    return (
        f"{ledger.counted()} begun, epsilon {rounded_up(ledger.epsilon())} of at most "
        f"{limits.epsilon:.6g} at delta {rounded_up(limits.delta)} per {limits.unit}, towards who sees sums; towards "
        f"who sees this silo's own updates {rounded_up(ledger.epsilon_alone())}"
    )


def connect(server: str, authority: Path) -> None:
    """Make a TLS connection to ``host:port`` that ``authority`` vouches for; FederationError says what is wrong."""
    host, _, port = server.rpartition(":")
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE) as raw,
            ssl.create_default_context(cafile=str(authority)).wrap_socket(raw, server_hostname=host.strip("[]")),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise FederationError(
            f"the server {server} shows a certificate that ca.crt does not vouch for ({error.verify_message}). Ask its "
            "operator for the current silo folder; do not go on without."
        ) from error
    except ssl.SSLError as error:
        raise FederationError(f"{server} does not speak TLS ({error.reason}). Check host and port.") from error
    except (OSError, ValueError) as error:
        raise FederationError(
            f"{server} cannot be reached ({error}). Is the gate running, and its port open?"
        ) from error


def _check_certificate(file: Path, faults: list[str], notes: list[str]) -> None:
    try:
        left = days_left(file.read_bytes(), now=dt.datetime.now(dt.UTC))
    except DocleakError as error:
        faults.append(f"{file.name}: {error}")
        return
    if left < 0:
        faults.append(f"{file.name} expired {-left:.0f} days ago; write a new deployment and hand it to all silos")
    elif left < SOON:
        notes.append(f"{file.name} expires in {left:.0f} days")


def _noted(attempt: object, faults: list[str]) -> None:
    assert callable(attempt)
    try:
        attempt()
    except DocleakError as error:
        faults.append(str(error))


if __name__ == "__main__":
    try:
        check_folder(Path(sys.argv[1]), silo=sys.argv[2])
    except DocleakError as error:
        raise SystemExit(str(error)) from None
