"""Keys on disk: there and back, OpenSSH's own files, and what is refused."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest

from docleak.errors import FederationError
from docleak.training.federated.secure.fixed_point import FixedPoint
from docleak.training.federated.secure.keys import read_identity, read_pinned, write_key_pair
from docleak.training.federated.secure.messages import Session
from docleak.training.federated.secure.primitives import is_signed, sign
from docleak.training.federated.secure.simulate import simulate

NAMES = ["north", "silo.two", "süd"]


def silos(folder: Path) -> dict[str, Path]:
    """Each silo's own folder with its private key, and one folder ``pinned`` of all public keys."""
    (folder / "pinned").mkdir()
    private = {}
    for name in NAMES:
        private[name] = write_key_pair(folder / f"of-{name}", name)
        shutil.copy(private[name].with_name(name + ".pub"), folder / "pinned")
    return private


def test_silos_from_files_make_a_sum(tmp_path: Path) -> None:
    identities = {name: read_identity(path, tmp_path / "pinned") for name, path in silos(tmp_path).items()}
    fixed = FixedPoint(10, 3)
    session = Session.new(NAMES, round_number=1, words=2, fixed=fixed, entropy=lambda count: bytes(count))
    inputs = {name: fixed.encode(np.array([len(name), -0.5])) for name in NAMES}
    assert fixed.decode(simulate(session, inputs, identities).total).tolist() == [16.0, -1.5]


def test_files_are_private_and_never_written_over(tmp_path: Path) -> None:
    path = write_key_pair(tmp_path, "north")
    before = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FederationError, match="exists already"):
        write_key_pair(tmp_path, "north")
    path.with_name("north.pub").unlink()
    with pytest.raises(FederationError, match="exists already"):
        write_key_pair(tmp_path, "north")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["north"]


@pytest.mark.parametrize("name", ["a/b", "../a", ""])
def test_names_that_are_no_file_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(FederationError):
        write_key_pair(tmp_path / "keys", name)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_keys_of_ssh_keygen(tmp_path: Path) -> None:
    def make(kind: str, name: str, passphrase: str = "") -> Path:
        command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(tmp_path / name)]
        subprocess.run(command, check=True)
        return tmp_path / name

    identity = read_identity(make("ed25519", "north"), tmp_path)
    assert is_signed(identity.pinned["north"], b"statement", sign(identity.private_key, b"statement"))
    with pytest.raises(FederationError, match="without a passphrase"):
        read_identity(make("ed25519", "locked", "a passphrase"), tmp_path)
    with pytest.raises(FederationError, match="no OpenSSH Ed25519 private key"):
        read_identity(make("ecdsa", "curve"), tmp_path)
    with pytest.raises(FederationError, match=r"curve\.pub is no OpenSSH Ed25519 public key"):
        read_pinned(tmp_path)


def test_files_that_are_no_keys(tmp_path: Path) -> None:
    private = silos(tmp_path)
    with pytest.raises(FederationError, match=r"no NAME\.pub"):
        read_pinned(tmp_path)
    with pytest.raises(FederationError, match="cannot be read"):
        read_identity(tmp_path / "absent", tmp_path / "pinned")
    (tmp_path / "west").write_bytes(b"no key")
    with pytest.raises(FederationError, match="no OpenSSH Ed25519 private key"):
        read_identity(tmp_path / "west", tmp_path / "pinned")
    shutil.copy(private["north"], tmp_path / "süd")
    with pytest.raises(FederationError, match="not that of its private key"):
        read_identity(tmp_path / "süd", tmp_path / "pinned")
    (tmp_path / "pinned" / "north.pub").write_text("ssh-ed25519 AAAA")
    with pytest.raises(FederationError, match=r"north\.pub is no OpenSSH"):
        read_pinned(tmp_path / "pinned")
