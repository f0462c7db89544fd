"""row.json: what one row of a table was asked to do, so that a folder is never continued with other settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docleak
from docleak.errors import RunError
from docleak.files import read_stored, reported, write_json
from docleak.runs.identity import changed_sources, sources_of

MANIFEST = "row.json"


def require_version(note: Mapping[str, Any], folder: Path) -> None:
    """RunError unless this docleak trained what is kept in ``folder``: what ``note`` says there is read no further."""
    if (before := note.get("docleak", "an older version")) != docleak.__version__:
        raise RunError(
            f"{folder} was trained by docleak {before}, this is {docleak.__version__}; what the older one claims or "
            "measured is not taken over. Delete the folder, or give another --out."
        )


def require_same(folder: Path, asked: Mapping[str, Any]) -> None:
    """RunError naming every setting in which the row in ``folder`` differs from ``asked``; none if there is no row.

    The version of docleak and the files that the settings name must be the same, too.
    """
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return
    row = read_stored(manifest)
    if row["docleak"] != docleak.__version__:
        raise RunError(
            f"{folder} was begun by docleak {row['docleak']}, this is {docleak.__version__}; their numbers do not "
            "belong in one table. Pass another --out."
        )
    if changed := changed_sources(row.get("sources", {}), sources_of(asked, apart_from=folder)):
        raise RunError(
            f"{folder} holds results of other weights or pages under the same names:{changed}\nPass another --out."
        )
    found = row["config"]
    if wrong := [key for key in {**found, **asked} if found.get(key) != asked.get(key)]:
        told = "; ".join(f"{key} is {found.get(key)!r} there, {asked.get(key)!r} now" for key in wrong)
        raise RunError(f"{folder} holds another row: {told}. Give the same settings, or another --out.")


def note_row(folder: Path, asked: Mapping[str, Any], command: str) -> None:
    """Write row.json; RunError as ``require_same`` raises it."""
    require_same(folder, asked)
    with reported(folder):
        sources = sources_of(asked, apart_from=folder)
        row = {"docleak": docleak.__version__, "command": command, "config": asked, "sources": sources}
        write_json(folder / MANIFEST, row)
