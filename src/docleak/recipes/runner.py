"""Runs a recipe: every row x model x page is a unit, computed once, in worker processes of one thread each.

    OUT/recipe.json                   which recipe at which scale
    OUT/rows/03-model/                one run directory per row and model (see ``evidence.run``), with its units

A unit that raises or kills its worker is tried once more, alone; failing again it is recorded as failed
(``failed/UNIT.json`` in its run) and the table counts it. Running the same command again continues; failed units are
not tried a third time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from docleak.attacks.gradients.matching import dummy_gradient, relative
from docleak.documents.storage import write_atomically
from docleak.errors import DocleakError, MissingExtraError, RecipeError
from docleak.evidence.audit import AuditConfig, Unit, model_of, open_audit, planned_units, run_unit
from docleak.evidence.case import Exposure, build_case, pages_for
from docleak.evidence.run import Run
from docleak.recipes.recipe import Recipe, Row

ATTEMPTS = 2
CLUSTER_TIMEOUT = "10s"
#: Called with (units done, units in all, what was just finished).
OnUnit = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Experiment:
    """One row on one model: its config and where its results are."""

    row: Row
    model: str
    config: AuditConfig
    folder: Path


@dataclass(frozen=True)
class Job:
    """One unit of an experiment, fit to be sent to a worker."""

    folder: Path
    config: AuditConfig
    unit: Unit
    device: str

    @property
    def label(self) -> str:
        return f"{self.folder.name}: {self.unit.id}"

    @property
    def run(self) -> Run:
        return Run(self.folder)

    @property
    def attempts_file(self) -> Path:
        return self.folder / "attempts" / f"{self.run.folder(self.unit.id).name}.json"

    def attempts(self) -> list[str]:
        """What became of each attempt so far; "began" stays where a worker died."""
        file = self.attempts_file
        return [str(item) for item in json.loads(file.read_text())] if file.is_file() else []

    def note(self, attempts: Sequence[str]) -> None:
        write_atomically(self.attempts_file, json.dumps(list(attempts)).encode())


def experiments(recipe: Recipe, scale: str, out: Path, changes: Mapping[str, Any]) -> list[Experiment]:
    """Every row on each of its models."""
    if scale not in recipe.scales:
        raise RecipeError(
            f"recipe {recipe.name!r} has no scale {scale!r}; it has {', '.join(recipe.scales) or 'none'}."
        )
    pairs = [(row, model) for row in recipe.rows for model in row.models]
    return [
        Experiment(row, model, recipe.config(row, model, scale, changes), out / "rows" / f"{number:02d}-{model}")
        for number, (row, model) in enumerate(pairs)
    ]


def jobs_of(planned: Sequence[Experiment], device: str) -> list[Job]:
    """All units of all experiments, page by page, so that every row has a first number early."""
    jobs = [Job(e.folder, e.config, unit, device) for e in planned for unit in planned_units(e.config, device)]
    return sorted(jobs, key=lambda job: job.unit.page)


def seconds_per_evaluation(config: AuditConfig) -> float:
    """One timed forward, backward and double backward pass of the config's batch on this machine's CPU."""
    return _timed(config.models[0], replace(config, attacks=("random",), pages=1, exposure=Exposure()))


@lru_cache(maxsize=32)
def _timed(source: str, config: AuditConfig) -> float:
    model = model_of(config, source, "cpu")
    pages = pages_for(model, config.documents, count=config.batch_size, seed=config.seed)
    case = build_case(model, pages, config.exposure, seed=config.seed)
    pixels = case.knowledge.template.clone().requires_grad_(True)
    distance = relative(case.view)
    torch.set_num_threads(1)
    began = time.perf_counter()
    dummy = dummy_gradient(model, pixels, case.inputs, case.view.names, create_graph=True)
    torch.autograd.grad(distance(dummy), pixels)
    return time.perf_counter() - began


def failures(folder: Path) -> dict[str, str]:
    """Units of a run that were given up: id -> the last error."""
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
        open_audit(experiment.config, experiment.folder, device=device, command=command)
    jobs = jobs_of(planned, device)
    while True:
        todo = [job for job in jobs if not job.run.has(job.unit.id) and not _given_up(job)]
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
    try:
        write_atomically(file, json.dumps(wanted).encode())
    except OSError as fault:
        raise RecipeError(f"cannot write {out}: {fault}. Pass an --out that you may write to.") from fault


def _given_up(job: Job) -> bool:
    attempts = job.attempts()
    if len(attempts) < ATTEMPTS:
        return False
    file = job.folder / "failed" / job.attempts_file.name
    if not file.is_file():
        last = attempts[-1] if attempts[-1] != "began" else "the worker process died (out of memory, or killed)"
        write_atomically(file, json.dumps({"unit": job.unit.id, "error": last}).encode())
    return True


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
            options = {} if cluster else {"n_jobs": max(2, workers), "backend": "loky", "batch_size": 1}
            yield from Parallel(return_as="generator_unordered", **options)(delayed(work)(job) for job in jobs)
        except TerminatedWorkerError:
            return


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
    before = job.attempts()
    job.note([*before, "began"])
    try:
        run_unit(job.run, job.config, job.unit, job.device, lambda *event: None)
    except (DocleakError, RuntimeError, ValueError, MemoryError, OSError) as error:
        job.note([*before, f"{type(error).__name__}: {error}"])
    return job.label
