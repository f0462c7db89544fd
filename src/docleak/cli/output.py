"""What commands print: plain text or JSON, progress with ETA on stderr, errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from docleak.evidence.workers import OnProgress


def emit(value: Mapping[str, object], text: str, *, json_output: bool) -> None:
    """Print ``text``, or ``value`` as one JSON object where --json was given."""
    print(json.dumps(value, indent=2, default=str) if json_output else text)


def fail(message: str, *, json_output: bool, code: int = 1) -> NoReturn:
    """Print the error and exit with ``code``."""
    if json_output:
        print(json.dumps({"error": message}))
    print(f"docleak: {message}", file=sys.stderr)
    raise SystemExit(code)


@contextmanager
def progress(units: Mapping[str, int], *, finished: Collection[str] = (), quiet: bool) -> Iterator[OnProgress]:
    """A bar over all units' budgets with ETA, on stderr; a line per finished unit where it is no terminal.

    It begins at what was ``finished`` before; the ETA is about the rest, at the speed of this call.
    """
    total = sum(units.values()) or 1
    done = {unit: budget if unit in finished else 0 for unit, budget in units.items()}
    if quiet:
        yield lambda unit, number, budget: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total, completed=sum(done.values()))

        def report(unit: str, number: int, budget: int) -> None:
            first = done.get(unit, 0) < budget <= number
            done[unit] = min(budget, max(number, done.get(unit, 0)))
            bar.update(task, completed=sum(done.values()), description=unit)
            if first and not console.is_terminal:
                console.print(f"{unit}: {sum(done.values())} of {total} evaluations", highlight=False)

        yield report


@contextmanager
def counter(*, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar over finished units with ETA, on stderr; a line per unit where it is no terminal."""
    if quiet:
        yield lambda done, total, label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("ETA"),
               TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)
            if not console.is_terminal:
                console.print(f"{label}: {done} of {total} units", highlight=False)

        yield report


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Tell whoever presses Ctrl-C that nothing finished is lost."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nInterrupted. What is finished is in {out}; the same command goes on from there.", file=sys.stderr)
        raise
