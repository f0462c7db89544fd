"""A run on disk: ``run.json`` says what was asked for, one folder per unit holds what came out of it.

    OUT/run.json                      kind, config; build of docleak, hashes of weights, pages and named files; info
    OUT/units/UNIT/truth.png ...      the pictures of a unit, written first
    OUT/units/UNIT/snapshots/00050.png
    OUT/units/UNIT/search/...         how far a unit is that takes long; deleted when it is done
    OUT/units/UNIT/unit.json          written last: without it the unit does not count as done
    OUT/attempts/UNIT.json            how earlier attempts at a unit ended that is not done
    OUT/failed/UNIT.json              a unit that was given up, and why

Every file appears whole or not at all, so a killed run is resumed by opening it again. Worker processes may write
different units of one run at the same time; ``run.json`` is written only by the process that opened the run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import PIL.Image

from docleak.documents.page import Image
from docleak.errors import RunError, denied
from docleak.files import (
    TEMPORARY,
    drafted_folder,
    json_values,
    private_folder,
    read_json_object,
    read_stored,
    reported,
    write_json,
    write_png,
)
from docleak.runs.claim import claimed
from docleak.runs.content import objects_in
from docleak.runs.identity import SCHEMA, build, changed_sources, other_build, sources_of

#: Packages whose version may change a number.
VERSIONED = ("torch", "transformers", "numpy", "scipy", "rapidocr", "rapidfuzz")
#: What stays of an attempt where a worker died.
BEGAN = "began"
#: Under a privacy plan, what is spent of it.
LEDGER = "ledger.json"
#: What of a run another one may not take the place of: finished units, those of runs within units, too, what is spent,
#: and what clients have sent.
RESULTS = ("units/**/unit.json", LEDGER, f"units/**/{LEDGER}", "updates/**/*.*")
#: What run.json was called in the folders of trainings up to schema 1.
BEFORE = ("federation.json", "records.json")
#: Below a unit's folder, while it is computed.
SEARCH = "search"
FOLDER_LENGTH = 100  # characters of a unit id that are kept in its folder's name


@dataclass(frozen=True)
class Run:
    """A run directory that exists. Cheap to make and to pickle: everything else is read from disk when asked for."""

    path: Path

    @classmethod
    def open(
        cls,
        path: Path,
        config: Mapping[str, object],
        *,
        kind: str = "",
        identity: Mapping[str, str] | None = None,
        command: str = "",
    ) -> Run:
        """Begin a run in ``path``, or resume the one that is there if it is the same.

        The same are ``kind``, ``config`` (a key that only one of two configs has counts as None in the other), build of
        docleak, the files that the config names, and ``identity``: hashes of weights and pages by name. A run without
        a finished unit holds no results, so another one simply takes its place. Raises RunError if the directory
        belongs to something else or to another run, or cannot be written.
        """
        run, objects = cls(Path(path)), objects_in(config)  # which count where there are any
        wanted = {
            **build(),
            "kind": kind,
            "config": json_values(config, "the config of a run") | ({"objects": objects} if objects else {}),
            "identity": dict(identity or {}),
            "sources": sources_of(config, apart_from=run.path),
            "command": command,
        }
        with reported(run.path):
            private_folder(run.path)
            if (run.path / "run.json").exists():
                fault = run._unresumable(wanted)
                if fault and any(any(run.path.glob(pattern)) for pattern in RESULTS):
                    raise RunError(fault)
                if fault:
                    run._begin_again(wanted)
                return run
            run._refuse_older()
            foreign = sorted(item.name for item in run.path.iterdir() if not item.name.startswith(TEMPORARY))
            if foreign:
                raise RunError(
                    f"{run.path} is no docleak run: it has no run.json but holds {', '.join(foreign[:5])}"
                    f"{' ...' if len(foreign) > 5 else ''}. Expected an empty or new directory as out."
                )
            write_json(run.path / "run.json", _manifest(wanted))
        return run

    @classmethod
    def load(cls, path: Path) -> Run:
        """The run that is in ``path``; raises RunError if there is none, or its ``run.json`` is damaged."""
        run = cls(Path(path))
        run.manifest()
        return run

    def manifest(self) -> dict[str, Any]:
        """What ``run.json`` says now: docleak (version), config, environment, created, info."""
        file = self.path / "run.json"
        if not self.path.is_dir() or not file.is_file():
            self._refuse_older()
            raise RunError(f"{self.path} is no docleak run: {self._lacks()}")
        manifest = _read(file)
        if manifest.get("schema") != SCHEMA and isinstance(manifest.get("docleak"), str):
            raise RunError(other_build(manifest, self.path))
        kinds = {"docleak": str, "kind": str, "config": dict, "environment": dict, "created": str, "info": dict,
                 "command": str, "identity": dict, "sources": dict}  # fmt: skip
        faults = [key for key, kind in kinds.items() if not isinstance(manifest.get(key), kind)]
        if faults:
            raise RunError(f"{file} lacks {', '.join(faults)}: it is damaged or no docleak run. Delete it or rerun.")
        return manifest

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.manifest()["config"])

    @property
    def kind(self) -> str:
        """Which study it is of."""
        return str(self.manifest()["kind"])

    @property
    def info(self) -> dict[str, Any]:
        """Facts about the whole run that ``write_info`` wrote."""
        return dict(self.manifest()["info"])

    def write_info(self, key: str, value: object) -> None:
        """Set one fact about the whole run. Only for the process that opened the run, not for its workers."""
        manifest = self.manifest()
        manifest["info"][key] = json_values({key: value}, "the info of a run")[key]
        with reported(self.path):
            write_json(self.path / "run.json", manifest)

    def folder(self, unit_id: str) -> Path:
        """Where the unit's files are; different ids have different folders, also where case is ignored."""
        return self.path / "units" / _folder_name(unit_id)

    def has(self, unit_id: str) -> bool:
        """Whether the unit is finished."""
        return (self.folder(unit_id) / "unit.json").is_file()

    def write_unit(self, unit_id: str, record: Mapping[str, Any], images: Mapping[str, Image]) -> None:
        """Finish a unit: the pictures first, then ``unit.json``, so that it exists only if they do.

        ``images`` maps "truth.png" (or "truth") and so on to uint8 RGB (H, W, 3). The record is saved with ``unit``
        (its id), ``images`` (name -> file) and ``snapshots``; numbers that are not finite become null.
        """
        folder = self.folder(unit_id)
        files = {name.removesuffix(".png"): f"{name.removesuffix('.png')}.png" for name in images}
        with reported(folder):
            for file, image in zip(files.values(), images.values(), strict=True):
                write_png(_inside(folder, file), image)
            saved = {"images": files, "snapshots": self._snapshots(folder), **record, "unit": unit_id}
            write_json(folder / "unit.json", json_values(saved, f"unit {unit_id!r}"))
            shutil.rmtree(self.search(unit_id), ignore_errors=True)

    def search(self, unit_id: str) -> Path:
        """Where an unfinished unit may keep how far it is."""
        return self.folder(unit_id) / SEARCH

    def searched(self, unit_id: str) -> str:
        """How far it is: "-" and the name of the last file there, or nothing."""
        return next((f"-{file.stem}" for file in sorted(self.search(unit_id).glob("[!.]*"), reverse=True)), "")

    def same_as(self, other: Run, **instead: object) -> bool:
        """Whether both were begun for the same: build of docleak, environment, configuration, weights and pages.
        ``instead``: what this run's manifest is taken to say in the place of what it says."""
        ours, theirs = self.manifest() | instead, other.manifest()
        return all(ours.get(key) == theirs.get(key) for key in (*build(), "kind", "config", "identity", "sources",
                                                                "environment"))  # fmt: skip

    def take_over(self, unit_id: str, other: Run) -> None:
        """Copy a finished unit of a run that is the ``same_as`` this one; RunError if that cannot be done."""
        with reported(self.path), drafted_folder(self.folder(unit_id)) as draft:
            shutil.copytree(other.folder(unit_id), draft, dirs_exist_ok=True)

    def write_snapshot(self, unit_id: str, evaluation: int, image: Image) -> str:
        """Save how far an attack has come after so many gradient evaluations; returns the name for the record."""
        relative = f"snapshots/{evaluation:05d}.png"
        with reported(self.folder(unit_id)):
            write_png(self.folder(unit_id) / relative, image)
        return relative

    def write_image(self, relative: str, image: Image) -> Path:
        """Save a picture of the whole run at ``relative`` to the run's directory."""
        file = _inside(self.path, relative)
        with reported(file):
            write_png(file, image)
        return file

    def read_image(self, unit_id: str, relative: str) -> Image:
        """A picture of a unit, uint8 RGB (H, W, 3); raises RunError if it is missing or damaged."""
        file = _inside(self.folder(unit_id), str(relative))
        try:
            with PIL.Image.open(file) as picture:
                return np.asarray(picture.convert("RGB"), dtype=np.uint8)
        except PermissionError as fault:
            raise RunError(denied(file)) from fault
        except (OSError, ValueError) as fault:
            raise RunError(f"{file} cannot be read ({fault}). Delete the folder and rerun the audit.") from fault

    def record(self, unit_id: str) -> dict[str, Any]:
        """The record of a finished unit; RunError for one that docleak did not write."""
        return _record(self.folder(unit_id) / "unit.json")

    def units(self) -> list[dict[str, Any]]:
        """The records of all finished units, sorted by id, page 1000 after page 999; RunError as ``record``."""
        records = [_record(file) for file in (self.path / "units").glob("*/unit.json")]
        return sorted(records, key=lambda record: _in_order(str(record["unit"])))

    def _snapshots(self, folder: Path) -> list[list[object]]:
        files = sorted((folder / "snapshots").glob("*.png"), key=lambda file: int(file.stem))
        return [[int(file.stem), f"snapshots/{file.name}"] for file in files]

    def _refuse_older(self) -> None:
        """RunError, with the version that reads it, for a folder of a docleak that called run.json otherwise."""
        for name in BEFORE:
            if (self.path / name).is_file():
                raise RunError(other_build(_read(self.path / name), self.path))

    def _lacks(self) -> str:
        """Why the folder is no run, and what to name instead."""
        if self.path.is_file():
            return "it is a file. Give the folder of a run."
        if not self.path.is_dir():
            return "there is no such folder. Give the folder of a run."
        inside = sorted(file.parent.name for file in self.path.glob("*/run.json"))
        if not inside:
            return "it has no run.json. Give the folder of a run."
        more = f" and {len(inside) - 5} more" if len(inside) > 5 else ""
        return f"it has no run.json, but its folders {', '.join(inside[:5])}{more} have one: name these."

    def attempts(self, unit_id: str) -> list[str]:
        """What became of each attempt at a unit so far; BEGAN stays where a worker died."""
        file = self._file_of("attempts", unit_id)
        return [str(item) for item in read_stored(file)] if file.is_file() else []

    def note_attempts(self, unit_id: str, attempts: Sequence[str]) -> None:
        """Record ``attempts``; none leaves no file."""
        file = self._file_of("attempts", unit_id)
        with reported(self.path):
            if attempts:
                write_json(file, list(attempts))
            else:
                file.unlink(missing_ok=True)

    def give_up(self, unit_id: str, error: str) -> None:
        """Record that a unit failed for good."""
        with reported(self.path):
            write_json(self._file_of("failed", unit_id), {"unit": unit_id, "error": error})

    def failures(self) -> dict[str, str]:
        """Units that were given up: id -> the last error."""
        records = [_read(file) for file in sorted((self.path / "failed").glob("*.json"))]
        return {str(record["unit"]): str(record["error"]) for record in records}

    def _file_of(self, folder: str, unit_id: str) -> Path:
        return self.path / folder / f"{_folder_name(unit_id)}.json"

    def _begin_again(self, wanted: dict[str, Any]) -> None:
        """Put another run in the place of one that has no finished unit; its pictures are of other units."""
        with self.claimed():
            for file in [*(self.path / "units").glob("*/*.png"), *(self.path / "units").glob("*/snapshots/*.png")]:
                file.unlink(missing_ok=True)
            for folder in (self.path / "units").glob(f"*/{SEARCH}"):
                shutil.rmtree(folder)
            write_json(self.path / "run.json", _manifest(wanted))

    def claimed(self) -> AbstractContextManager[None]:
        """Keep other processes from computing in this directory; RunError if one is at work here, and which."""
        return claimed(self.path)

    def _unresumable(self, wanted: Mapping[str, Any]) -> str:
        """Why results of ``wanted`` may not be added to what is there; "" if they may."""
        advice = "Give another folder (out), or delete the directory."
        noted = _read(self.path / "run.json")
        if isinstance(noted.get("docleak"), str) and (why := other_build(noted, self.path)):
            return why
        manifest = self.manifest()
        if manifest["kind"] != wanted["kind"]:
            return f"{self.path} holds a run of the kind {manifest['kind']!r}, not {wanted['kind']!r}. {advice}"
        config, asked = manifest["config"], wanted["config"]
        differing = list(_differences(config, asked))
        if not differing:
            changed = "".join(changed_sources(manifest[key], wanted[key]) for key in ("identity", "sources"))
            what = f"{self.path} holds results of other weights, pages or records, or of other code:{changed}"
            return f"{what}\n{advice}" if changed else ""
        lines = [f"\n  - {path}: {there} there, {now} asked for" for path, there, now in differing]
        return f"{self.path} holds a run with another config:{''.join(lines)}\n{advice}"


def _differences(there: Mapping[str, Any], asked: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, str, str]]:
    """Path of a setting, what it is in one configuration, and in the other; within settings, where both have those."""
    for key in sorted({*there, *asked}):
        before, now = there.get(key), asked.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, f"{place}{key}.")
        elif before != now:
            yield f"{place}{key}", _shown(there, key), _shown(asked, key)


def _manifest(wanted: Mapping[str, Any]) -> dict[str, Any]:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {**wanted, "environment": _environment(), "created": created, "info": {}}


def _environment() -> dict[str, Any]:
    versions = {}
    for package in VERSIONED:
        try:
            versions[package] = installed_version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        **versions,
    }


def _in_order(unit_id: str) -> str:
    """What an id sorts by: a page's number of more than the three digits that it is filled up to comes behind those of
    three; a number elsewhere in it is a text."""
    longer = r"(?:(?<=--)|(?<=^page-))[1-9]\d{3,}(?=--|$)"
    return re.sub(longer, lambda number: "~" * (len(number[0]) - 3) + number[0], unit_id)


def _folder_name(unit_id: str) -> str:
    """The id itself where it is a safe and portable file name, else its safe part and a digest of all of it."""
    safe = re.sub(r"[^a-z0-9._-]+", "-", unit_id.lower()).strip(".-")[:FOLDER_LENGTH]
    if safe and safe == unit_id:
        return safe
    return f"{safe}~{hashlib.sha256(unit_id.encode(errors='surrogatepass')).hexdigest()[:10]}"


def _inside(folder: Path, relative: str) -> Path:
    parts = PurePosixPath(relative)
    if not relative or parts.is_absolute() or ".." in parts.parts or "\\" in relative or "\0" in relative:
        raise RunError(f"{relative!r} is not the name of a file inside {folder}")
    return folder / parts


def _shown(config: Mapping[str, Any], key: str) -> str:
    return json.dumps(config[key]) if key in config else "nothing"


def _record(file: Path) -> dict[str, Any]:
    """A unit's record, which holds what every one does: its id, and its pictures by name."""
    record, folder = _read(file), file.parent
    if isinstance(record.get("images"), dict) and _folder_name(str(record.get("unit", ""))) == folder.name:
        return record
    raise RunError(
        f"{file} says that its unit is {record.get('unit')!r} and its pictures are {record.get('images')!r}; expected "
        f"that of {folder.name}, and its pictures by name: it was changed, or is damaged. Delete {folder} and repeat "
        "the command that made the run, which then does that unit again."
    )


def _read(file: Path) -> dict[str, Any]:
    what = "the folder, or give another folder (out)" if file.name == "run.json" else "it and rerun the audit"
    return read_json_object(file, error=RunError, advice=f"Delete {what}.")
