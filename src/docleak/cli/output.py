"""What commands print: plain text or JSON, progress with ETA on stderr, errors."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import NoReturn

import typer

from docleak.documents.visible import visible
from docleak.errors import DocleakError
from docleak.spec import counted_words

#: Commands whose exit code 1 is a finding, so that what cannot be told is 2.
TELLING = ("check",)


def as_json() -> bool:
    """Whether --json stands on the command line, also on one that cannot be parsed."""
    return "--json" in sys.argv


def emit(value: Mapping[str, object], text: str) -> None:
    """Print ``text``, or ``value`` as one JSON object where --json was given."""
    print(json.dumps(value, indent=2, default=str) if as_json() else visible(text))


def list_all(groups: Mapping[str, Mapping[str, str]]) -> None:
    """Print what there is: under headings names, and what each is in a line; in JSON without headings."""
    rows = {name: text for group in groups.values() for name, text in group.items()}
    width, lines = max(map(len, rows), default=0) + 2, list[str]()
    for heading, group in groups.items():
        lines += ["", f"{heading}:", *(f"  {name:{width}}{text}" for name, text in group.items())]
    emit(rows, "\n".join(lines[1:]))


def note(text: str) -> None:
    """Print a line beside the result, on stderr."""
    print(visible(text), file=sys.stderr)


def fail(message: str, *, code: int | None = None) -> NoReturn:
    """Print the error and exit with ``code``: if none is said with 1, or with 2 where that is a finding."""
    if as_json():
        print(json.dumps({"error": message}))
    note(f"docleak: {message}")
    raise SystemExit(code or (2 if sys.argv[1:2] and sys.argv[1] in TELLING else 1))


def end_with(error: DocleakError) -> NoReturn:
    """Exit code 1: by the error, or in silence where the result is printed already as one JSON object, which a second
    one with the error would make unreadable."""
    raise typer.Exit(1) if as_json() else error


@contextmanager
def counter() -> Iterator[Callable[[int, int, str], None]]:
    """A bar over finished units with ETA, on stderr; a line per unit where it is no terminal; nothing with --json."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, quiet=as_json())
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("ETA"),
               TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=as_json()) as bar:
        task = bar.add_task("starting", total=None)
        first: list[tuple[float, int]] = []  # when, and how many units were finished before

        def report(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=visible(label))
            if not console.is_terminal:
                said = f"{label}: {done} of {total} units{_left(first, done, total)}"
                console.print(visible(said), highlight=False, markup=False, soft_wrap=True)
            first[:] = first or [(time.monotonic(), done)]

        yield report


def _left(first: Sequence[tuple[float, int]], done: int, total: int) -> str:
    """About how long the units take that are left, by those that were finished since the first one was."""
    if not first or done <= first[0][1] or done >= total:
        return ""
    began, before = first[0]
    seconds = (time.monotonic() - began) / (done - before) * (total - done)
    return f", about {seconds:.0f} s left" if seconds < 90 else f", about {seconds / 60:.0f} min left"


class Progress:
    """Watches studies: a bar over all units' sizes with ETA on stderr, a line per unit where it is no terminal.

    The ETA is about what is left, at the speed of this call. With --json nothing is shown. ``out`` is the run's folder.
    """

    def __init__(self, *, out: Path | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.out = out
        self._sizes: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._first: list[tuple[float, int]] = []  # when, and how many units were finished before
        self._console = Console(stderr=True, quiet=as_json())
        self._bar = Bar(
            TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(), console=self._console, transient=True,
            disable=as_json(),
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._bar.stop()

    def began(self, sizes: Mapping[str, int], finished: Collection[str]) -> None:
        """How many units there are, and how many are done already."""
        self._sizes, self._first = dict(sizes), []
        self._done = {label: size if label in finished else 0 for label, size in sizes.items()}
        there = counted_words(len(sizes), "unit")
        where = f"; what is finished appears in {self.out / 'units'}" if self.out else ""
        self.said(f"{there}{f', {len(finished)} done already' if finished else ''}{where}.")
        self._bar.update(self._task, total=sum(sizes.values()) or 1, completed=sum(self._done.values()))

    def reached(self, label: str, number: int, of: int) -> None:
        """A unit is so far."""
        first = self._done.get(label, 0) < of <= number
        self._done[label] = min(of, max(number, self._done.get(label, 0)))
        self._bar.update(self._task, completed=sum(self._done.values()), description=visible(label))
        if first and not self._console.is_terminal:
            through, total = sum(self._done[one] >= size for one, size in self._sizes.items()), len(self._sizes)
            self.said(f"{label}: {through} of {total} units{_left(self._first, through, total)}")
            self._first = self._first or [(time.monotonic(), through)]

    def said(self, text: str) -> None:
        """A line of its own."""
        self._console.print(visible(text), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def working_in(out: Path, *, whole: bool = False, resumes: bool = True) -> Iterator[None]:
    """Claim the folder of a long command (``whole``: it appears as a whole), and tell whoever presses Ctrl-C what is
    kept: all that is finished, or, for a command that does not resume, nothing. With --json what code of somebody's own
    prints goes to stderr: stdout is one JSON object.

    Raises RunError if another process is at work there.
    """
    from docleak.runs.claim import claimed

    with claimed(out, whole=whole), redirect_stdout(sys.stderr) if as_json() else nullcontext():
        try:
            yield
        except KeyboardInterrupt:
            kept = f"What is finished is in {out}; the same command goes on from there."
            note(f"\nInterrupted. {kept if resumes else 'The same command begins anew.'}")
            raise
