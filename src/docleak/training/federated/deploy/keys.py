"""A certificate authority of one's own, a server certificate, and a key pair for each silo; nothing home-made."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence

from docleak.errors import FederationError, MissingExtraError

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
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _begun(subject, self._name, key.public_key(), self._days)
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
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


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
