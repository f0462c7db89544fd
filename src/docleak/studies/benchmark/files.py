"""The benchmark's folders: what is in them, that nothing in them was changed, and the edition that answers are to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docleak.documents.page import fault_list
from docleak.documents.pages import gathered
from docleak.errors import RunError
from docleak.files import read_json_object, write_json
from docleak.studies.benchmark.tracks import VERSION

ABOUT, MANIFEST, CASE, KEY, ENTRY, ANSWER = (
    "benchmark.json", "manifest.json", "case.json", "key.json", "entry.json", "answer.json"
)  # fmt: skip
CASES, MODELS = "cases", "models"
ADVICE = "Export the benchmark anew: docleak benchmark export."


@dataclass(frozen=True)
class Benchmark:
    """An exported benchmark, unchanged: ``about`` is its benchmark.json, ``cases`` the case.json of each by name."""

    folder: Path
    about: Mapping[str, Any]
    cases: Mapping[str, Mapping[str, Any]]

    @property
    def edition(self) -> str:
        """A digest of pages, models and protocol, the same on every machine for one seed and version."""
        return str(self.about["edition"])

    def of_track(self) -> dict[str, list[str]]:
        """Track -> its cases, in order."""
        return gathered((str(case["track"]), name) for name, case in self.cases.items())


def seal(folder: Path) -> None:
    """Write the manifest: size and SHA-256 of every other file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    write_json(folder / MANIFEST, {"files": {path.relative_to(folder).as_posix(): _of(path) for path in files}})


def opened(folder: Path) -> Benchmark:
    """The benchmark in ``folder``; RunError lists every file that is changed, missing or strange."""
    if not (folder / MANIFEST).is_file():
        raise RunError(f"{folder} holds no {MANIFEST}: it is no exported benchmark. {ADVICE}")
    told = read_json_object(folder / MANIFEST, error=RunError, advice=ADVICE).get("files")
    if not isinstance(told, dict) or not {ABOUT} <= set(told):
        raise RunError(f"{folder / MANIFEST} does not list the benchmark's files. {ADVICE}")
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    faults = [f"{name} is missing" for name in told if name not in there]
    faults += [f"{name} is no file of the benchmark" for name in there if name not in told and name != MANIFEST]
    faults += [f"{name} was changed" for name, path in there.items() if name in told and _of(path) != told[name]]
    if faults:
        raise RunError(f"{folder} is not as it was exported:{fault_list(faults)}\n{ADVICE}")
    about = read_json_object(folder / ABOUT, error=RunError, advice=ADVICE)
    if about.get("version") != VERSION:
        raise RunError(f"{folder} is version {about.get('version')} of the benchmark; this docleak scores {VERSION}.")
    if strange := [name for name in about["cases"] if f"{CASES}/{name}/{CASE}" not in told]:
        raise RunError(f"{folder / ABOUT} names the case {strange[0]!r}, of which there is no {CASE}. {ADVICE}")
    cases = {
        str(name): read_json_object(folder / CASES / str(name) / CASE, error=RunError, advice=ADVICE)
        for name in about["cases"]
    }
    return Benchmark(folder, about, cases)


def edition_of(folder: Path, exact: Mapping[str, bytes]) -> str:
    """Sixteen hexadecimal digits over the cases' descriptions, the models and ``exact``: tracks and pixels, by name.

    Updates are not in it: machines round their last digits differently. The manifest has them.
    """
    digest = hashlib.sha256(str(VERSION).encode())
    paths = [*folder.rglob(CASE), *folder.glob(f"{MODELS}/*/*.safetensors"), *folder.glob(f"{MODELS}/*/tokenizer.json")]
    parts = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths} | dict(exact)
    for name, content in sorted(parts.items()):
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _of(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
