"""Runs the units of a recipe: each computed once, in worker processes of one thread each.

    OUT/recipe.json                   which recipe at which scale
    OUT/rows/03-model/                one folder per row and model, with its units

A unit that raises or kills its worker is tried once more, alone; failing again it is recorded as failed
(``failed/UNIT.json`` in its folder) and the table counts it. Running the same command again continues; failed units are
not tried a third time. Where the whole command was killed, what it was at does not count as tried.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from docleak.errors import DocleakError, MissingExtraError, RecipeError
from docleak.files import TEMPORARY, write_atomically
from docleak.recipes.recipe import Recipe, Row
from docleak.runs.pool import end_with

ATTEMPTS = 2
CLUSTER_TIMEOUT = "10s"
BEGAN = "began"
#: Called with (units done, units in all, what was just finished).
OnUnit = Callable[[int, int, str], None]
#: In a worker process: whom it ends with.
_parents: set[int] = set()


@dataclass(frozen=True)
class Job(ABC):
    """One unit of an experiment, fit to be sent to a worker. ``folder`` is the experiment's."""

    folder: Path
    device: str

    @property
    @abstractmethod
    def id(self) -> str:
        """The unit's name, unlike those of the experiment's other units."""

    @property
    @abstractmethod
    def turn(self) -> int:
        """Units of a lower turn come first, so that every row has a number early."""

    @property
    def file_name(self) -> str:
        """The id as the name of a file."""
        return self.id

    def progress(self) -> str:
        """How far an unfinished unit that can go on is, as a part of a file's name. Further on, attempts count anew."""
        return ""

    @abstractmethod
    def finished(self) -> bool:
        """Whether the unit's result is on disk."""

    @abstractmethod
    def compute(self) -> None:
        """Compute the unit, or go on with it; its result is on disk when this returns."""

    @property
    def label(self) -> str:
        """What progress shows."""
        return f"{self.folder.name}: {self.id}"

    @property
    def attempts_file(self) -> Path:
        """Where ``attempts`` are kept."""
        return self.folder / "attempts" / f"{self.file_name}{self.progress()}.json"

    def attempts(self) -> list[str]:
        """What became of each attempt so far; BEGAN stays where a worker died."""
        file = self.attempts_file
        return [str(item) for item in json.loads(file.read_text())] if file.is_file() else []

    def note(self, attempts: Sequence[str]) -> None:
        """Record ``attempts``."""
        write_atomically(self.attempts_file, json.dumps(list(attempts)).encode())


class Experiment(Protocol):
    """One row on one model: what it runs, and where its results are."""

    @property
    def row(self) -> Row: ...

    @property
    def model(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    def open(self, *, device: str, command: str) -> None:
        """Make the folder ready for the units, or refuse one that holds something else."""

    def jobs(self, device: str) -> Sequence[Job]:
        """The units."""


@dataclass(frozen=True)
class Planned:
    """What ``--dry-run`` says of one experiment: how many units, of what, in words and for machines.

    How long they take is not guessed: a run says so from its finished units.
    """

    row: str
    model: str
    units: int
    words: str
    facts: Mapping[str, object] = field(default_factory=dict)


def places(recipe: Recipe, scale: str, out: Path) -> Iterator[tuple[Row, str, Path]]:
    """Every row with each of its models and the folder of that experiment."""
    if scale not in recipe.scales:
        raise RecipeError(
            f"recipe {recipe.name!r} has no scale {scale!r}; it has {', '.join(recipe.scales) or 'none'}."
        )
    pairs = [(row, model) for row in recipe.rows for model in row.models]
    for number, (row, model) in enumerate(pairs):
        yield row, model, out / "rows" / f"{number:02d}-{model}"


def jobs_of(planned: Sequence[Experiment], device: str) -> list[Job]:
    """All units of all experiments, turn by turn."""
    return sorted((job for e in planned for job in e.jobs(device)), key=lambda job: job.turn)


def failures(folder: Path) -> dict[str, str]:
    """Units of an experiment that were given up: id -> the last error."""
    found = {}
    for file in sorted((folder / "failed").glob("*.json")):
        record = json.loads(file.read_text())
        found[str(record["unit"])] = str(record["error"])
    return found


def reproduce(
    recipe: Recipe,
    planned: Sequence[Experiment],
    out: Path,
    *,
    scale: str,
    device: str,
    workers: int,
    cluster: str = "",
    command: str = "",
    on_unit: OnUnit = lambda done, total, label: None,
    work: Callable[[Job], str] | None = None,
) -> None:
    """Compute what is missing; returns when every unit is finished or given up. ``work`` stands in for ``attempt``."""
    _claim(out, recipe, scale)
    for experiment in planned:
        experiment.open(device=device, command=command)
    jobs = jobs_of(planned, device)
    for job in jobs:
        if not (job.finished() or _failed_file(job).is_file()) and job.attempts() != (kept := _ended(job)):
            job.note(kept)  # nobody is at work here: the whole command was killed then, which is no failure of the unit
    while True:
        todo = [job for job in jobs if not job.finished() and not _given_up(job)]
        if not todo:
            return
        again = [job for job in todo if job.attempts()]
        done = len(jobs) - len(todo)
        fresh = [job for job in todo if job not in again]
        # Whoever was running when a worker died is suspected until it has run alone.
        batch, at_once = (fresh, workers) if fresh else ([again[0]], 1)
        for label in _run(batch, at_once, cluster, work or attempt):
            done += 1
            on_unit(done, len(jobs), label)


def _claim(out: Path, recipe: Recipe, scale: str) -> None:
    file, wanted = out / "recipe.json", {"recipe": recipe.name, "scale": scale}
    if file.is_file():
        found = json.loads(file.read_text())
        if found != wanted:
            raise RecipeError(f"{out} holds {found}, asked for {wanted}. Pass another --out.")
        return
    if out.is_dir() and (foreign := sorted(f.name for f in out.iterdir() if not f.name.startswith(TEMPORARY))):
        raise RecipeError(
            f"{out} holds {', '.join(foreign[:5])}{' ...' if len(foreign) > 5 else ''} and no {file.name}: it is no "
            "folder of a recipe. Expected an empty or new one: pass another --out."
        )
    try:
        write_atomically(file, json.dumps(wanted).encode())
    except OSError as fault:
        raise RecipeError(f"cannot write {out}: {fault}. Pass an --out that you may write to.") from fault


def _given_up(job: Job) -> bool:
    attempts = job.attempts()
    if len(attempts) < ATTEMPTS:
        return False
    file = _failed_file(job)
    if not file.is_file():
        last = attempts[-1] if attempts[-1] != BEGAN else "the worker process died (out of memory, or killed)"
        write_atomically(file, json.dumps({"unit": job.id, "error": last}).encode())
    return True


def _failed_file(job: Job) -> Path:
    return job.folder / "failed" / job.attempts_file.name


def _run(jobs: Sequence[Job], workers: int, cluster: str, work: Callable[[Job], str]) -> Iterator[str]:
    """Run the jobs, yielding labels of those that came to an end; a death of a worker ends the batch early."""
    if workers == 1 and not cluster and not any(job.attempts() for job in jobs):
        yield from map(work, jobs)
        return
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    with _backend(cluster):
        try:
            # joblib runs a lone worker's jobs in this process, which a suspect must not take down with it.
            here = work if cluster else partial(_ending_with, os.getpid(), work)
            options = {} if cluster else {"n_jobs": max(2, workers), "backend": "loky", "batch_size": 1}
            yield from Parallel(return_as="generator_unordered", **options)(delayed(here)(job) for job in jobs)
        except TerminatedWorkerError:
            return


def _ending_with(parent: int, work: Callable[[Job], str], job: Job) -> str:
    """``work`` in a process of joblib's, which ends as soon as ``parent`` is killed; joblib's own wait for minutes."""
    if parent != os.getpid() and parent not in _parents:
        end_with(parent)
        _parents.add(parent)
    return work(job)


@contextmanager
def _backend(cluster: str) -> Iterator[None]:
    """Joblib's own worker processes, or the Dask cluster at that address."""
    if not cluster:
        yield
        return
    try:
        from dask.distributed import Client
    except ImportError as fault:
        raise MissingExtraError("--cluster needs Dask: pip install 'docleak[cluster]'.") from fault
    from joblib import parallel_config

    try:
        client = Client(cluster, timeout=CLUSTER_TIMEOUT)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as fault:
        raise RecipeError(f"no Dask scheduler answers at {cluster!r} ({fault}). Start one: dask scheduler.") from fault
    try:
        with parallel_config(backend="dask", wait_for_workers_timeout=60):
            yield
    finally:
        client.close()  # type: ignore[no-untyped-call]


def attempt(job: Job) -> str:
    """Run one unit in this process and note how it went; errors docleak knows do not stop the others."""
    torch.set_num_threads(1)
    job.note([*job.attempts(), BEGAN])
    try:
        job.compute()
    except (DocleakError, RuntimeError, ValueError, MemoryError, OSError) as error:
        job.note([*_ended(job), f"{type(error).__name__}: {error}"])
    except KeyboardInterrupt:
        job.note(_ended(job))  # whoever stops it does not count as a failure
        raise
    return job.label


def _ended(job: Job) -> list[str]:
    """The attempts at this point without the one that is coming to its end, if it began here."""
    attempts = job.attempts()
    return attempts[:-1] if attempts and attempts[-1] == BEGAN else attempts
