"""Carries studies out: every unit once, kept as soon as it is finished, in as many processes as there are.

A unit that raises or kills its worker is tried once more, alone, where ``keep_going`` says that others shall not suffer
for it; failing again it is given up (``Run.failures``) and reports count it. Without ``keep_going`` the first error is
raised. The same command goes on where the last one stopped; where that was killed, what it was at counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from docleak.documents.page import Image
from docleak.errors import DocleakError, RunError
from docleak.runs.claim import CLAIM, sweep
from docleak.runs.content import code_digest_of
from docleak.runs.pool import OnProgress, WorkerDied, results
from docleak.runs.run import BEGAN, Run
from docleak.runs.searches import searches_in
from docleak.studies.study import Study, Unit

ATTEMPTS = 2
#: What a unit may raise without the others suffering for it.
KNOWN = (DocleakError, RuntimeError, ValueError, MemoryError, OSError)
#: What ``Run.write_unit`` adds to a record.
RESERVED = {"images", "snapshots", "unit"}
DIED = "the worker process died (out of memory, or killed)"


class Watcher(Protocol):
    """Is told how far things are. Classes made of it may leave out what they do not listen to."""

    def began(self, sizes: Mapping[str, int], finished: Collection[str]) -> None:
        """These units there are, by label, and which of them were finished before."""
        return

    def reached(self, label: str, number: int, of: int) -> None:
        """A unit is so far; at ``of`` it is finished."""
        return

    def said(self, text: str) -> None:
        """A line for people: a training's epoch, say."""
        return


class Silence(Watcher):
    """A watcher that tells nobody."""


SILENCE = Silence()


class Lines(Silence):
    """A watcher that says which units are finished, and what studies say."""

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self.say = say or (lambda text: None)
        self.done: set[str] = set()
        self.total = 0

    def began(self, sizes: Mapping[str, int], finished: Collection[str]) -> None:
        """How many units there are."""
        self.done, self.total = set(finished), len(sizes)

    def reached(self, label: str, number: int, of: int) -> None:
        """A line for a unit that is finished."""
        if number >= of and label not in self.done:
            self.done.add(label)
            self.say(f"{label}: {len(self.done)} of {self.total} units")

    def said(self, text: str) -> None:
        """A line of the study's own."""
        self.say(text)


@dataclass(frozen=True)
class Assignment:
    """A study, and the run in which its units are kept."""

    study: Study[Any]
    run: Run


@dataclass(frozen=True)
class Task:
    """A unit of the assignment of that number; ``label`` names it among the units of all of them."""

    number: int
    unit: Unit
    label: str

    def __str__(self) -> str:
        return self.label


class Computing:
    """Computes tasks, in whatever process it finds itself."""

    def __init__(self, assignments: Sequence[Assignment]) -> None:
        self.assignments = list(assignments)

    def __call__(self, task: Task, report: OnProgress) -> None:
        """Compute the unit and keep it. What became of the attempt is noted first and last."""
        study, run, unit = self.assignments[task.number].study, self.assignments[task.number].run, task.unit
        name = unit.id + study.progress(unit, run)
        before = run.attempts(name)
        run.note_attempts(name, [*before, BEGAN])
        try:
            try:
                with searches_in(run.search(unit.id)):
                    measured = study.compute(unit, run, lambda number: report(task.label, number, unit.size))
            except SystemExit as fault:  # with which the command would end as one that is done
                why = f"unit {unit.id!r}: its code called sys.exit({fault.code!r}); expected an error, or a result."
                raise RunError(f"{why} Take the call out of the code of your own.") from fault
            run.write_unit(unit.id, *_whole(study, measured))
        except KNOWN as error:
            reached = unit.id + study.progress(unit, run)
            earlier = before if reached == name else run.attempts(reached)
            run.note_attempts(reached, [*earlier, f"{type(error).__name__}: {error}"])
            raise
        except BaseException:
            run.note_attempts(name, before)  # whoever stops it does not count as a failure
            raise
        run.note_attempts(name, before)
        report(task.label, unit.size, unit.size)


def _whole(study: Study[Any], measured: object) -> tuple[Mapping[str, Any], Mapping[str, Image]]:
    """A unit's record and pictures as ``compute`` gave them; RunError for anything else."""
    match measured:
        case (Mapping() as record, Mapping() as images):
            if taken := sorted(RESERVED & set(record)):
                raise RunError(
                    f"compute of the study {study.kind} gave a record with {', '.join(taken)}, which docleak adds to "
                    "every record itself. Call it otherwise."
                )
            return record, images
    raise RunError(
        f"compute of the study {study.kind} gave {type(measured).__name__} {measured!r:.80}; expected a record and "
        "pictures by name, as in return {'words': 3}, {} (docs/studies.md)."
    )


def identity_of(study: Study[Any]) -> dict[str, str]:
    """Hashes of the weights and pages that results rest on, and of the code of a study of one's own."""
    code = code_digest_of(type(study))
    return {**study.identity(), **({f"code of {study.kind}": code} if code else {})}


def begin(study: Study[Any], out: Path, *, command: str = "") -> Run:
    """Begin or resume the study's run in ``out`` without computing a unit; RunError if another one is there."""
    run = Run.open(out, study.settings(), kind=study.kind, identity=identity_of(study), command=command)
    for key, value in study.facts().items():
        run.write_info(key, value)
    return run


def carry_out(
    study: Study[Any], out: Path, *, workers: int = 1, cluster: str = "", command: str = "", watcher: Watcher = SILENCE
) -> Run:
    """Begin or resume the study in ``out`` and compute what is missing, in ``workers`` processes or by the workers of
    the Dask scheduler at ``cluster``; the first error ends it, and takes along a run that had not begun anything."""
    fresh = not (out / "run.json").exists()
    try:
        run = begin(study, out, command=command)
        with run.claimed():
            study.prepare(run, watcher.said)
            compute([Assignment(study, run)], workers=workers, watcher=watcher, cluster=cluster)
            study.finish(run, watcher.said)
    except DocleakError:
        files = (file.name for file in out.rglob("*") if file.is_file() and CLAIM not in file.name)
        if fresh and list(files) == ["run.json"]:
            (out / "run.json").unlink()
            with suppress(OSError):  # it is claimed, or has folders
                out.rmdir()
        raise
    return run


def compute(
    assignments: Sequence[Assignment],
    *,
    workers: int,
    watcher: Watcher = SILENCE,
    cluster: str = "",
    keep_going: bool = False,
    settled: Callable[[], Collection[int]] | None = None,
) -> None:
    """Every unit that is missing, in turns over all assignments, whose runs the caller has claimed. ``settled`` is
    asked after each turn which assignments, by number, need no more of theirs."""
    work, tasks = Computing(assignments), tasks_of(assignments)
    finished = {task.label for task in tasks if assignments[task.number].run.has(task.unit.id)}
    watcher.began({task.label: task.unit.size for task in tasks}, finished)
    for task in tasks:
        if task.label not in finished:
            _forget(assignments[task.number], task, failures=not keep_going)
    while True:
        left = [task for task in tasks if not _over(assignments[task.number], task)]
        if settled is not None and left and left[0].unit.turn > tasks[0].unit.turn:
            done = settled()
            left = [task for task in left if task.number not in done]
        if not left:
            return
        if settled is not None:
            left = [task for task in left if task.unit.turn == left[0].unit.turn]
        tried = [task for task in left if _attempts(assignments[task.number], task)]
        fresh = [task for task in left if task not in tried]
        # Whoever was running when a worker died is suspected until it has run alone.
        batch, at_once = (fresh, workers) if fresh else (tried[:1], 1)
        apart = not fresh or (keep_going and workers > 1)
        try:
            with closing(
                results(work, batch, workers=at_once, on_progress=watcher.reached, apart=apart, cluster=cluster)
            ) as ended:
                for _, error in ended:
                    if error is not None and not (keep_going and isinstance(error, KNOWN)):
                        raise error
        except BaseException as fault:
            for assignment in assignments if not cluster else ():  # a cluster's workers may still be writing
                sweep(assignment.run.path)
            if not isinstance(fault, WorkerDied):
                raise
            if not fault.at_work or (not keep_going and not fresh):
                raise  # workers that do not even begin would do so for ever


def tasks_of(assignments: Sequence[Assignment]) -> list[Task]:
    """All units of all assignments, turn by turn, so that every run has a number early."""
    several = len(assignments) > 1
    tasks = [
        Task(number, unit, f"{assignment.run.path.name}: {unit.id}" if several else unit.id)
        for number, assignment in enumerate(assignments)
        for unit in _different(assignment.study)
    ]
    return sorted(tasks, key=lambda task: task.unit.turn)


def _different(study: Study[Any]) -> Sequence[Unit]:
    """The study's units; RunError for what is none, and for two different units of one id: only one of them would be
    measured."""
    units: object = study.units()
    if not isinstance(units, list | tuple) or not all(isinstance(unit, Unit) for unit in units):
        raise RunError(
            f"units of the study {study.kind} gave {type(units).__name__} {units!r:.80}; expected a list of Unit "
            "(docs/studies.md)."
        )
    first: dict[str, Unit] = {}
    for unit in units:
        if first.setdefault(unit.id, unit) != unit:
            raise RunError(f"the study has two different units of the id {unit.id!r}. Give each an id of its own.")
    return units


def _name(assignment: Assignment, task: Task) -> str:
    return task.unit.id + assignment.study.progress(task.unit, assignment.run)


def _attempts(assignment: Assignment, task: Task) -> list[str]:
    return assignment.run.attempts(_name(assignment, task))


def _forget(assignment: Assignment, task: Task, *, failures: bool) -> None:
    """Nobody is at work when a command begins: a unit that had begun was killed with its command, and is no failure.
    Other ``failures`` are forgotten where the first one ends the command, which may have been mended since."""
    attempts = _attempts(assignment, task)
    if attempts and task.unit.id not in assignment.run.failures():
        kept = [] if failures else [attempt for attempt in attempts if attempt != BEGAN]
        assignment.run.note_attempts(_name(assignment, task), kept)


def _over(assignment: Assignment, task: Task) -> bool:
    """Whether the unit is finished, or has to be given up."""
    if assignment.run.has(task.unit.id) or task.unit.id in assignment.run.failures():
        return True
    attempts = _attempts(assignment, task)
    if len(attempts) < ATTEMPTS:
        return False
    assignment.run.give_up(task.unit.id, DIED if attempts[-1] == BEGAN else attempts[-1])
    return True
