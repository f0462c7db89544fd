"""Write what each party of a deployment needs to folders, one for the server and one for each silo: certificates of an
authority of one's own, key pairs, configurations, scripts."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docleak.documents.files import describe_folder
from docleak.errors import FederationError, MissingExtraError
from docleak.files import OWNERS_FILE, OWNERS_FOLDER
from docleak.training.federated.deploy.app import PINNED, TEMPLATES
from docleak.training.federated.federation import Federation, drawn, impossible
from docleak.training.federated.secure.keys import write_key_pair
from docleak.training.federated.silo_ledger import SiloLedger
from docleak.training.federated.silo_limits import SiloLimits

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
HOST = re.compile(r"[A-Za-z0-9.:-]{1,253}")
SCRIPT = ".sh"


@dataclass(frozen=True)
class Deployment:
    """Where a federation runs: the gate's public ``host`` and ``port``, and the SuperLink's port on loopback.

    ``evaluate_every`` and ``timeout`` (seconds a silo has for a message) are the server's.
    """

    silos: tuple[str, ...]
    host: str
    port: int = 9443
    superlink_port: int = 9442
    days: int = 365
    evaluate_every: int = 0
    timeout: int = 3600

    def __post_init__(self) -> None:
        faults = [f"{name!r} cannot name a silo; expected letters, digits, '.', '_' and '-'"
                  for name in self.silos if not NAME.fullmatch(name)]  # fmt: skip
        folded = [name.lower() for name in self.silos]
        faults += [f"{name!r} names two silos" for name in dict.fromkeys(folded) if folded.count(name) > 1]
        if not self.silos:
            faults.append("there is no silo; expected at least one")
        if not HOST.fullmatch(self.host):
            faults.append(f"{self.host!r} is no host name or address")
        elif ":" in self.host and not isinstance(_address(self.host), ipaddress.IPv6Address):
            faults.append(f"{self.host!r} is no host name or address; expected one alone, and its port in --port")
        ports = (self.port, self.superlink_port)
        if not all(0 < port < 65536 for port in ports) or ports[0] == ports[1]:
            faults.append(f"the ports are {ports[0]} and {ports[1]}; expected two of 1 to 65535")
        if self.timeout < 1 or self.evaluate_every < 0:
            faults.append(
                f"timeout is {self.timeout} and evaluate_every {self.evaluate_every}; expected 1 and 0 or more"
            )
        if faults:
            raise FederationError("this cannot be deployed:" + "".join(f"\n  - {fault}" for fault in faults))


def write_deployment(deployment: Deployment, federation: Federation, out: Path) -> tuple[Path, ...]:
    """Write OUT/server and OUT/silos/NAME, complete or not at all; the folders, the server's first.

    Private keys are made here; everything is readable by its owner only: hand each silo its folder over a channel you
    trust, and delete it here. Under a privacy plan a silo's folder has limits that just let the plan's rounds run.
    Raises FederationError if ``out`` exists and is not empty, or so many silos cannot train as the federation says.
    """
    if faults := impossible(federation, len(deployment.silos)):
        raise FederationError("; ".join(faults) + ".")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FederationError(f"{out} {describe_folder(out)}; a deployment is only written to a new folder.")
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _fill(draft, deployment, federation)
        for folder in (draft, *(item for item in draft.rglob("*") if item.is_dir())):
            folder.chmod(OWNERS_FOLDER)
        os.replace(draft, out)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return (out / "server", *(out / "silos" / name for name in deployment.silos))


def _fill(out: Path, deployment: Deployment, federation: Federation) -> None:
    authority = Authority(days=deployment.days)
    certificate, key = authority.server([deployment.host, "localhost", "127.0.0.1"])
    values = {
        "HOST": deployment.host if ":" not in deployment.host else f"[{deployment.host}]",
        "PORT": str(deployment.port),
        "SUPERLINK_PORT": str(deployment.superlink_port),
        "SILOS": str(len(deployment.silos)),
        "EVALUATE_EVERY": str(deployment.evaluate_every),
        "TIMEOUT": str(deployment.timeout),
    }
    server = out / "server"
    _write(server, {"ca.crt": authority.certificate, "server.pem": certificate, "server.key": key})
    _write(server, {"federation.json": (federation.to_json() + "\n").encode()})
    _write_templates("server", server, values)
    for name in deployment.silos:
        private, public = node_keys(name)
        folder = out / "silos" / name
        _write(folder, {"ca.crt": authority.certificate, "node": private, "node.pub": public})
        _write(server / "keys", {f"{name}.pub": public})
        _write_templates("silo", folder, {**values, "NAME": name})
        identity_file = write_key_pair(folder / PINNED, name)
        identity_file.with_name(f"{name}.pub").chmod(OWNERS_FILE)
        if federation.privacy is not None:
            limits = SiloLimits.of(federation, len(deployment.silos), rounds=_most_rounds(federation, deployment.silos))
            limits.save(folder)
            SiloLedger(limits).save(folder)
    pinned = {f"{name}.pub": (out / "silos" / name / PINNED / f"{name}.pub").read_bytes() for name in deployment.silos}
    _write(server / PINNED, pinned)
    for name in deployment.silos:
        _write(out / "silos" / name / PINNED, {file: key for file, key in pinned.items() if file != f"{name}.pub"})
    _write_templates("all", out, values)


def _most_rounds(federation: Federation, silos: Sequence[str]) -> int:
    """In how many rounds a silo takes part at most.

    Where silos are drawn by coins that are not known yet: a number that none of them passes but once in a billion
    trainings. A silo that is drawn more often than its limits allow takes no part, and the round ends.
    """
    if federation.counts_on_draws:
        rate = drawn(federation, len(silos)) / len(silos)
        from scipy.stats import binom  # takes half a second

        return max(1, int(binom.isf(1e-9 / len(silos), federation.rounds, rate)))
    taken = Counter(name for number in range(federation.rounds) for name in federation.sampled(silos, number + 1))
    return max(taken.values())


def _write_templates(kind: str, folder: Path, values: Mapping[str, str]) -> None:
    """The templates of a kind, with @WORDS@ replaced."""
    source = TEMPLATES / kind
    for file in sorted(item for item in source.rglob("*") if item.is_file()):
        text = file.read_text(encoding="utf-8")
        for word, value in values.items():
            text = text.replace(f"@{word}@", value)
        if left := re.findall(r"@[A-Z_]+@", text):
            raise FederationError(f"template {file.name} has no value for {left[0]}.")
        relative = file.relative_to(source)
        _write(folder / relative.parent, {relative.name.removesuffix(".txt"): text.encode()})


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        mode = OWNERS_FOLDER if name.endswith(SCRIPT) else OWNERS_FILE
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def silo_names(text: str) -> tuple[str, ...]:
    """``3`` as silo-1 to silo-3, or names separated by commas."""
    if text.isascii() and text.isdigit() and len(text) < 6:
        return tuple(f"silo-{number}" for number in range(1, int(text) + 1))
    return tuple(part.strip() for part in text.split(",") if part.strip())


try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise MissingExtraError(
        f"certificates need the package cryptography ({error}). Install it with: pip install 'docleak[federated]'"
    ) from error

#: Flower takes ECDSA keys on this curve for its nodes.
CURVE = ec.SECP384R1()
PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()


class Authority:
    """A certificate authority that exists for one federation; ``certificate`` (PEM) is what its silos trust."""

    def __init__(self, *, days: int) -> None:
        if days < 1:
            raise FederationError(f"certificates would be valid for {days} days; expected at least 1.")
        self._key = ec.generate_private_key(CURVE)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "docleak federation")])
        self._days = days
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self._certificate = (
            _begun(self._name, self._name, self._key.public_key(), days)
            .add_extension(x509.BasicConstraints(True, 0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA384())
        )

    @property
    def certificate(self) -> bytes:
        return self._certificate.public_bytes(PEM)

    def server(self, hosts: Sequence[str]) -> tuple[bytes, bytes]:
        """Certificate and private key (PEM) of a server that is reached under these names or addresses."""
        key = ec.generate_private_key(CURVE)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
        names = [x509.IPAddress(ip) if (ip := _address(host)) else x509.DNSName(host) for host in hosts]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _begun(subject, self._name, key.public_key(), self._days)
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA384())
        )
        return certificate.public_bytes(PEM), key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN)


def node_keys(comment: str) -> tuple[bytes, bytes]:
    """Private and public key (OpenSSH) of one silo's node."""
    key = ec.generate_private_key(CURVE)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN), public + f" {comment}\n".encode()


def days_left(certificate: bytes, *, now: dt.datetime) -> float:
    """Days until a certificate (PEM) ends, negative once it has. FederationError if it is none."""
    try:
        end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        raise FederationError(f"this is no certificate: {error}. Write the deployment again.") from error
    return (end - now).total_seconds() / 86400


def _begun(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + dt.timedelta(days=days))
    )
