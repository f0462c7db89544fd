"""Studies by name, one's own by "module:Class", and the report of whatever runs there are."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from docleak import __version__
from docleak.documents.pages import gathered
from docleak.errors import DocleakError, RunError
from docleak.files import require_place, undamaged
from docleak.options import stored_fault
from docleak.registry import importing_nothing, may_import, raised, resolve
from docleak.report.about import About
from docleak.report.page import PAGE, REDACTED_PAGE, Reading, write_report
from docleak.report.redaction import places, private_values
from docleak.runs.run import Run
from docleak.spec import counted_words, split_name
from docleak.studies.kinds import STUDIES
from docleak.studies.study import Study

#: Kind -> class, of studies that this process was given as classes: what a script or notebook defines.
_GIVEN: dict[str, type[Study[Any]]] = {}


def remember(study: type[Study[Any]]) -> None:
    """Let runs of ``study`` be read in this process wherever its class is from; RunError for a shipped kind's name, and
    for one that is not whole."""
    require_whole(study)
    if study.kind in STUDIES and load_study(study.kind) is not study:
        raise RunError(f"the kind {study.kind!r} is docleak's own; name that of your study 'module:Class'.")
    _GIVEN[study.kind] = study


def load_study(kind: str) -> type[Study[Any]]:
    """The study of that kind, or the one at "module:Class"; RunError lists the known ones."""
    if kind in _GIVEN:
        return _GIVEN[kind]
    place = STUDIES[kind].place if kind in STUDIES else kind
    if not split_name(place)[1]:
        raise RunError(f"there is no study {kind!r}; known: {', '.join(STUDIES)}, or MODULE:CLASS of one's own.")
    if kind not in STUDIES and not may_import(place):
        raise RunError(
            f"the run names {kind!r} as its study, and reading a run imports no file that it names: whoever wrote the "
            f"run could have any code carried out. If you trust it, name it yourself: --study {kind}, or import "
            f"{split_name(place)[0]} in Python before."
        )
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # for good: worker processes are given these folders
    try:
        study = resolve(place)
    except (Exception, SystemExit) as fault:  # whatever the file raises while it is imported
        where = " Its file has to be in the current folder, or installed." * isinstance(fault, ModuleNotFoundError)
        raise RunError(f"the study {place!r} cannot be loaded: {raised(fault)}.{where}") from fault
    if not (isinstance(study, type) and issubclass(study, Study)):
        raise RunError(f"{place!r} is no study; expected a class made of docleak.studies.study.Study.")
    require_whole(study)
    return study


def require_whole(study: type[Study[Any]]) -> None:
    """RunError for a study that lacks what every one has (see ``Study``)."""
    lacking = sorted(getattr(study, "__abstractmethods__", ()))
    if not isinstance(getattr(study, "kind", None), str):
        lacking.append("kind, its name or 'module:Class'")
    config = getattr(study, "Config", None)
    if not (isinstance(config, type) and is_dataclass(config)):
        lacking.append("Config, a dataclass of its settings")
    if lacking:
        raise RunError(f"the study {study.__qualname__} lacks {'; '.join(lacking)}. docs/studies.md has a whole one.")


def read_runs(runs: Sequence[Run]) -> list[Reading]:
    """What the runs say, kind by kind in the order of STUDIES, one's own last, all but the first one briefly; intervals
    are drawn by the seed of each kind's first run. Runs of a kind with other questions (``Study.asks``) are read apart.
    """
    kinds: dict[tuple[str, str], list[Run]] = {}
    with importing_nothing():
        for run in runs:
            study = load_study(run.kind)
            if fault := stored_fault(study.Config, run.config):
                raise RunError(
                    f"{run.path / 'run.json'}: {fault}. It was changed, or another version wrote it. Put it back "
                    "as docleak wrote it, or name another run."
                )
            kinds.setdefault((run.kind, study.asks(run)), []).append(run)
    where = Path(os.path.commonpath([run.path.absolute() for run in runs])) if len(runs) > 1 else runs[0].path
    order = [*STUDIES, *(kind for kind, _ in kinds)]
    with undamaged(where), importing_nothing():
        return [
            _with_versions(_read(kind, group, beside=number > 0), group)
            for number, ((kind, _), group) in enumerate(sorted(kinds.items(), key=lambda one: order.index(one[0][0])))
        ]


def _read(kind: str, runs: Sequence[Run], *, beside: bool) -> Reading:
    """What the study says of its runs; of a study of one's own, RunError with the place where it failed."""
    rng = np.random.default_rng(int(runs[0].config.get("seed") or 0))
    try:
        reading: object = load_study(kind).read(runs, rng, beside=beside)
    except (Exception, SystemExit) as fault:
        if kind in STUDIES or isinstance(fault, DocleakError):
            raise
        raise RunError(
            f"{runs[0].path} cannot be read by its study {kind}: {raised(fault)}. The study is wrong, or a file of the "
            "run was changed."
        ) from fault
    if not isinstance(reading, Reading):
        raise RunError(f"read of the study {kind} gave {type(reading).__name__}; expected a Reading (docs/studies.md).")
    return reading


def _with_versions(reading: Reading, runs: Sequence[Run]) -> Reading:
    """The reading, with a notice where another version of docleak computed what this one reads."""
    others = gathered((str(run.manifest()["docleak"]), str(run.path.absolute())) for run in runs)
    told = [  # absolute, as a redacted edition strikes them
        f"{', '.join(paths)}: computed by docleak {version}, and read by {__version__}."
        for version, paths in others.items()
        if version != __version__
    ]
    return replace(reading, notices=(*told, *reading.notices)) if told else reading


def runs_at(paths: Sequence[Path]) -> list[Run]:
    """These runs, each once, then those that lie in their folders and were not named. RunError for a run and its copy,
    which would be taken for two."""
    named = once(paths)
    known = {path.resolve() for path in named}
    runs = [Run.load(path) for path in named]
    for file in (file for path in named for file in sorted(path.glob("*/run.json"))):
        run = Run(file.parent)
        if file.parent.resolve() not in known and (run.kind in STUDIES or run.kind in _GIVEN or ":" in run.kind):
            runs.append(run)
    for one, other in combinations(runs, 2):
        require_two(one, other)
    return runs


def once(paths: Sequence[Path]) -> list[Path]:
    """These folders, each by the first of its names."""
    first: dict[Path, Path] = {}
    for path in paths:
        first.setdefault(Path(path).resolve(), Path(path))
    return [*first.values()]


def require_two(one: Run, other: Run) -> None:
    """RunError where these are one run, or a run and its copy."""
    if one.path.resolve() == other.path.resolve():
        raise RunError(f"{one.path} and {other.path} are one folder. Name two runs.")
    if count := _copied(one, other):
        raise RunError(
            f"{one.path} and {other.path} are one run, which was copied: both were begun for the same at "
            f"{one.manifest()['created']}, and have {counted_words(count, 'unit')} in common, to the byte. Name "
            "one of them, and put a copy within the other's folder elsewhere: they would be taken for two runs."
        )


def _copied(one: Run, other: Run) -> int:
    """How many finished units two runs have in common to the byte, times they took included, where both were begun at
    one time for the same."""
    if not one.same_as(other) or one.manifest()["created"] != other.manifest()["created"]:
        return 0
    files = {unit.parent.name: unit for unit in other.path.glob("units/*/unit.json")}
    ours = [unit for unit in one.path.glob("units/*/unit.json") if unit.parent.name in files]
    return sum(unit.read_bytes() == files[unit.parent.name].read_bytes() for unit in ours)


def report_on(
    paths: Sequence[Path], out: Path | None = None, *, about: About | None = None, redacted: bool = False
) -> tuple[Path, list[Reading]]:
    """Write the report of ``runs_at`` these paths into ``out``; where it is, and what they say. RunError where several
    are to be joined and ``out`` does not say where. ``about`` as of ``write_report``. A redacted edition that lies
    there is renewed with the full one; ``redacted`` writes that alone."""
    paths = once(paths)
    runs = runs_at(paths)
    if len(paths) > 1 and out is None:
        raise RunError(f"{len(paths)} runs are to be joined; say into which folder (out) the report goes.")
    if out is not None and (out / "run.json").is_file() and out.resolve() not in [path.resolve() for path in paths]:
        raise RunError(f"{out} holds another run, whose report it would take the place of. Give another folder (out).")
    folder = out or paths[0]
    require_place(folder / (REDACTED_PAGE if redacted else PAGE), "Name a folder for the report with --out.")
    readings = read_runs(runs)
    with undamaged(paths[0]):
        pages = [] if redacted else [write_report(readings, folder, about=about)]
        if redacted or (folder / REDACTED_PAGE).is_file():
            private = private_values(record for run in runs for record in run.units())
            private |= places([[run.config, str(run.path.absolute())] for run in runs])
            pages.append(write_report(readings, folder, about=about, private=private))
    return pages[0], readings
