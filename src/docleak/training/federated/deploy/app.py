"""The code that a server may ship to a silo: docleak's own few lines, byte for byte, and nothing else.

Flower executes what a run brings along at every silo. A silo's limits would bind nobody who can send other code.
"""

from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path

#: What is filled in for each party; and the folder of the silos' public keys of secure aggregation, at every party,
#: with a silo's own private key. They are not in ``folders``, since a node that waits does without PyTorch.
TEMPLATES, PINNED = Path(__file__).parent / "templates", "pinned"
#: What an app bundle holds of Flower's own, and what of docleak's.
MANIFEST_FOLDER = ".info/"
PROJECT = "pyproject.toml"
PACKAGE = "docleak_app"
CLIENT = "docleak_app.client:app"
LARGEST = 2**20


def foreign_code(bundle: bytes) -> str:
    """Why a Flower app bundle is not the app of this docleak; empty if it is."""
    templates = {
        f"{PACKAGE}/{file.name.removesuffix('.txt')}": file for file in (TEMPLATES / "server/app").rglob("*.py.txt")
    }
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            names = [name for name in archive.namelist() if not name.startswith(MANIFEST_FOLDER)]
            if len(archive.namelist()) != len(set(archive.namelist())):
                return "it holds a file twice"
            if strange := sorted(set(names) ^ {PROJECT, *templates}):
                return f"it has, or lacks, {strange[0]!r}"
            if any(part.file_size > LARGEST for part in archive.infolist()):
                return "it holds a file of more than a megabyte"
            for name, file in templates.items():
                if archive.read(name) != file.read_bytes():
                    return f"{name} is not that of the docleak installed here"
            project = tomllib.loads(archive.read(PROJECT).decode())
    # zipfile: NotImplementedError for a compression that it does not know, RuntimeError for an encrypted part
    except (zipfile.BadZipFile, ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        return f"it cannot be read ({error})"
    runs = project.get("tool", {}).get("flwr", {}).get("app", {}).get("components", {}).get("clientapp")
    return "" if runs == CLIENT else f"it runs {runs!r}; expected {CLIENT!r}"
