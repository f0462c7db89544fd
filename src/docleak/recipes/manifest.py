"""row.json: what one row of a table was asked to do, so that a folder is never continued with other settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docleak
from docleak.documents.storage import reported, write_json
from docleak.errors import RunError

MANIFEST = "row.json"


def require_same(folder: Path, asked: Mapping[str, Any]) -> None:
    """RunError naming every setting in which the row in ``folder`` differs from ``asked``; none if there is no row."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return
    found = json.loads(manifest.read_text(encoding="utf-8"))["config"]
    if wrong := [key for key in {**found, **asked} if found.get(key) != asked.get(key)]:
        told = "; ".join(f"{key} is {found.get(key)!r} there, {asked.get(key)!r} now" for key in wrong)
        raise RunError(f"{folder} holds another row: {told}. Give the same settings, or another --out.")


def note_row(folder: Path, asked: Mapping[str, Any], command: str) -> None:
    """Write row.json; RunError as ``require_same`` raises it."""
    require_same(folder, asked)
    with reported(folder):
        write_json(folder / MANIFEST, {"docleak": docleak.__version__, "command": command, "config": asked})
