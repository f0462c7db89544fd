"""Units of a run in worker processes of one thread each; their progress comes back through a queue."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

#: Called with (unit id, evaluations done, budget); from worker processes through a queue.
OnProgress = Callable[[str, int, int], None]
Unit = TypeVar("Unit")

#: In a worker process: what it was started with.
_started_with: dict[str, Any] = {}


def compute(
    work: Callable[[Unit, OnProgress], None], units: Sequence[Unit], *, workers: int, on_progress: OnProgress
) -> None:
    """Call ``work(unit, report)`` for every unit: in this process, if one worker or one unit is all there is.

    Else each of ``workers`` processes gets a copy of ``work``, pickled once, which may keep things from unit to unit.
    An error ends all of them and is raised.
    """
    torch.set_num_threads(1)
    if workers == 1 or len(units) <= 1:
        for unit in units:
            work(unit, on_progress)
        return
    context = get_context("spawn")
    with context.Manager() as manager:
        queue = manager.Queue()
        pool = ProcessPoolExecutor(
            min(workers, len(units)), mp_context=context, initializer=_start, initargs=(work, queue)
        )
        try:
            waiting: set[Future[None]] = {pool.submit(_in_worker, unit) for unit in units}
            while waiting:
                done, waiting = wait(waiting, timeout=0.3, return_when=FIRST_COMPLETED)
                for event in _drain(queue):
                    on_progress(*event)
                for future in done:
                    future.result()
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        pool.shutdown()


def _start(work: Callable[[Any, OnProgress], None], queue: Any) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled once, by the parent
    _started_with.update(work=work, report=lambda *event: queue.put(event))


def _in_worker(unit: Any) -> None:
    _started_with["work"](unit, _started_with["report"])


def _drain(queue: Any) -> Iterator[tuple[str, int, int]]:
    while not queue.empty():
        yield queue.get()
