"""Units in worker processes of one thread each; their progress comes back through a queue.

A worker ends with the process that started it. One that dies takes the others with it, and the error says at which unit
it was: what is finished stays on disk.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any, TypeVar

import torch

from docleak.errors import RunError

#: Called with (unit id, evaluations done, budget); from worker processes through a queue.
OnProgress = Callable[[str, int, int], None]
Unit = TypeVar("Unit")
#: Seconds between two looks at whether the process that started this one is still there.
WATCH_SECONDS = 1.0
#: Seconds in which the pool ends and gathers its other workers after one died.
GATHERED_WITHIN = 10.0

#: In a worker process: what it was started with.
_started_with: dict[str, Any] = {}


def compute(
    work: Callable[[Unit, OnProgress], None], units: Sequence[Unit], *, workers: int, on_progress: OnProgress
) -> None:
    """Call ``work(unit, report)`` for every unit: in this process, if one worker or one unit is all there is.

    Else each of ``workers`` processes gets a copy of ``work``, pickled once, which may keep things from unit to unit.
    An error ends all of them and is raised; RunError names the unit at which a worker died.
    """
    torch.set_num_threads(1)
    if workers == 1 or len(units) <= 1:
        for unit in units:
            work(unit, on_progress)
        return
    context = get_context("spawn")
    events: SimpleQueue[tuple[int, str, int, int]] = context.SimpleQueue()
    pool = ProcessPoolExecutor(
        min(workers, len(units)), mp_context=context, initializer=_start, initargs=(work, events)
    )
    processes: dict[int, BaseProcess] = {}
    at_work: dict[int, str] = {}
    try:
        waiting: set[Future[None]] = {pool.submit(_in_worker, unit) for unit in units}
        while waiting:
            processes |= dict(pool._processes or {})
            done, waiting = wait(waiting, timeout=0.3, return_when=FIRST_COMPLETED)
            _tell(events, at_work, on_progress)
            for future in done:
                future.result()
    except BrokenProcessPool as fault:
        _tell(events, at_work, on_progress)
        why = _told_of_death(processes, at_work)
        pool.shutdown(wait=True, cancel_futures=True)
        raise RunError(why) from fault
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def end_with(parent: int) -> None:
    """End this process as soon as ``parent``, which started it, is no more: nobody else would end it then."""
    started_by = parent_process()
    sentinel = started_by.sentinel if started_by is not None and started_by.pid == parent else None

    def watch() -> None:
        if sentinel is not None:
            wait_for([sentinel])
            os._exit(1)
        while os.name != "posix" or os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="ends with its parent", daemon=True).start()


def _start(work: Callable[[Any, OnProgress], None], events: Any) -> None:
    started_by = parent_process()
    if started_by is not None and started_by.pid is not None:
        end_with(started_by.pid)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled once, by the parent
    _started_with.update(work=work, report=lambda *event: events.put((os.getpid(), *event)), events=events)


def _in_worker(unit: Any) -> None:
    name = str(getattr(unit, "id", unit))
    _started_with["events"].put((os.getpid(), name, -1, 0))
    _started_with["work"](unit, _started_with["report"])
    _started_with["events"].put((os.getpid(), "", -1, 0))


def _tell(events: Any, at_work: dict[int, str], on_progress: OnProgress) -> None:
    """Pass on what the workers told since; a count of -1 says at which unit a worker is, or that it is at none."""
    while not events.empty():
        process, unit, number, budget = events.get()
        if number < 0:
            at_work[process] = unit
        else:
            on_progress(unit, number, budget)


def _told_of_death(processes: Mapping[int, BaseProcess], at_work: Mapping[int, str]) -> str:
    """Which worker died, at what, and what to do. How each ended is known once the pool has gathered them all."""
    deadline = time.monotonic() + GATHERED_WITHIN
    while any(process.exitcode is None for process in processes.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = {number: process.exitcode for number, process in processes.items()}
    dead = [number for number, code in ended.items() if code not in (None, 0, -signal.SIGTERM)] or list(ended)
    units = [at_work[number] for number in dead if at_work.get(number)]
    codes = {ended[number] for number in dead} - {None, 0, -signal.SIGTERM}
    why = f"exit code {', '.join(map(str, codes))}" if codes else "nothing says how"
    why = "killed from outside, or for want of memory" if -9 in codes else why
    return (
        f"a worker process died ({why}) {'at ' + ' or '.join(units) if units else 'before its first unit'}. What is "
        "finished is kept: the same command goes on from there; with fewer --workers it needs less memory."
    )
