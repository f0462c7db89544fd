"""The one pool: tasks in worker processes of one thread each, on this machine or on a Dask cluster.

A worker ends with the process that started it. One that dies takes the others with it, and ``WorkerDied`` says at which
task it was; who began the pool decides what to do about that (``docleak.studies.engine`` tries it once more, alone).
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import lru_cache
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, TypeVar

from docleak.errors import MissingExtraError, RunError

#: Called with (task, how far it is, of how much); from worker processes through a queue, from a cluster never.
OnProgress = Callable[[str, int, int], None]
Task = TypeVar("Task")
#: What is done to a task; it is pickled once for each process, and may keep things from task to task.
Work = Callable[[Task, OnProgress], None]
#: Seconds between two looks at whether the process that started this one is still there.
WATCH_SECONDS = 1.0
#: Seconds in which a worker ends that is told to after another died.
GATHERED_WITHIN = 10.0
CLUSTER_TIMEOUT = "10s"
#: Of which a worker imports nothing that the process had which started the first: 2 s of a worker's processor time.
LIBRARIES = ("docleak", "transformers", "sklearn", "matplotlib", "rapidocr", "onnxruntime", "cv2")

#: In a worker process: what it was started with.
_started_with: dict[str, Any] = {}


class WorkerDied(RunError):
    """A worker process ended in the middle of a task, or, not ``at_work``, before any of them began one."""

    def __init__(self, why: str, *, at_work: bool) -> None:
        super().__init__(why)
        self.at_work = at_work


def results(
    work: Work[Task],
    tasks: Sequence[Task],
    *,
    workers: int,
    on_progress: OnProgress,
    apart: bool = False,
    cluster: str = "",
) -> Generator[tuple[Task, Exception | None]]:
    """Each task as it comes to its end, with the error that it ended with; ``str(task)`` names it in what is told.

    One worker works in this process, unless ``apart`` asks for another; ``cluster`` is the address of a Dask scheduler,
    whose workers do the work instead. Raises WorkerDied; Ctrl-C ends all
    workers, and so does closing it early.
    """
    if cluster:
        yield from _on_cluster(work, tasks, cluster)
    elif (workers > 1 and len(tasks) > 1) or apart:
        yield from _in_processes(work, tasks, min(workers, len(tasks)), on_progress)
    else:
        _one_thread()
        for task in tasks:
            yield task, _error(work, task, on_progress)


def _error(work: Work[Task], task: Task, on_progress: OnProgress) -> Exception | None:
    try:
        work(task, on_progress)
    except Exception as error:
        return error
    return None


def _sent(error: Exception | None) -> Exception | None:
    """The error, with where it was raised, which no process sends along; as the nearest kind that can be sent."""
    if error is None:
        return None
    sent = error
    for kind in type(error).__mro__:
        with suppress(Exception):
            pickle.loads(pickle.dumps(sent))
            break
        with suppress(Exception):
            sent = kind(f"{type(error).__name__}: {error}")
    sent.add_note(f"In the worker process:\n{''.join(traceback.format_exception(error))}")
    return sent


def _in_processes(
    work: Work[Task], tasks: Sequence[Task], workers: int, on_progress: OnProgress
) -> Iterator[tuple[Task, Exception | None]]:
    import cloudpickle  # classes of notebooks and scripts, too

    context = _context()
    main = sys.modules["__main__"]
    if getattr(main, "__file__", "") == "<stdin>":  # a script that is piped in: no worker finds it, and none needs it
        del main.__file__
    events = context.SimpleQueue()
    pickled = cloudpickle.dumps((work, list(tasks)))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(pickled, events))
    processes: dict[int, BaseProcess] = {}
    at_work: dict[int, str] = {}
    try:
        with _interrupted_after():  # a worker that is being started would not be known, and so not ended
            futures = {pool.submit(_in_worker, number): task for number, task in enumerate(tasks)}
        waiting: set[Future[Exception | None]] = set(futures)
        while waiting:
            processes |= dict(pool._processes or {})
            done, waiting = wait(waiting, timeout=0.3, return_when=FIRST_COMPLETED)
            _tell(events, at_work, on_progress)
            for future in done:
                yield futures[future], future.result()
    except BrokenProcessPool as fault:
        _tell(events, at_work, on_progress)
        processes |= dict(pool._processes or {})
        for process in processes.values():  # one that was being started as the other died may be forgotten
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)  # gathers them: how one ended can be asked by one thread only
        for process in processes.values():
            process.join(GATHERED_WITHIN)
        why = _told_of_death(processes, at_work)
        raise WorkerDied(why, at_work=bool(at_work)) from fault
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def _interrupted_after() -> Iterator[None]:
    """Ctrl-C within, or what else ends a command, has its effect at the end; seconds later, where the first worker
    imports its libraries. What is started within is not reached by Ctrl-C at all, which a terminal and Jupyter send to
    every process: what workers are forked from would die while it imports."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in before.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    came: list[tuple[int, FrameType | None]] = []
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append((number, frame)))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if os.name == "posix" else set()
    try:
        yield
    finally:
        if os.name == "posix":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        handlers[signal.Signals(came[0][0])](*came[0])


def _context() -> BaseContext:
    """How processes are made: on Linux they are forked from one that imports once torch and what this one has of
    LIBRARIES, and does nothing else; elsewhere forking behind torch is not safe."""
    if sys.platform != "linux":
        return get_context("spawn")
    context = get_context("forkserver")
    there = sorted(name for name in sys.modules if name.split(".")[0] in LIBRARIES)
    context.set_forkserver_preload(["docleak.runs.collector", "torch", *there])
    return context


def _on_cluster(work: Work[Task], tasks: Sequence[Task], cluster: str) -> Iterator[tuple[Task, Exception | None]]:
    import cloudpickle

    pickled = cloudpickle.dumps(work)  # with each task: what is scattered is lost with the workers that had it
    with cluster_at(cluster) as client:
        from dask.distributed import KilledWorker, as_completed

        client.wait_for_workers(1, timeout=60)
        futures = {client.submit(_remote, pickled, task, pure=False): task for task in tasks}
        for future in as_completed(list(futures)):  # type: ignore[no-untyped-call]
            task, error = futures.pop(future), future.exception()
            error = future.result() if error is None else error
            future.release()  # the result of a task that is done is not made again when its worker dies
            if isinstance(error, KilledWorker):
                error = RunError(
                    f"{task}: workers of the cluster that had it ended (out of memory, or killed). "
                    "What is finished is kept: the same command goes on from there."
                )
            yield task, error


@contextmanager
def cluster_at(address: str) -> Iterator[Any]:
    """A client of the Dask scheduler at that address; RunError where none answers."""
    try:
        from dask.distributed import Client
    except ImportError as fault:
        raise MissingExtraError("a cluster needs Dask: pip install 'docleak[cluster]'.") from fault
    try:
        client = Client(address, timeout=CLUSTER_TIMEOUT)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as fault:
        raise RunError(f"no Dask scheduler answers at {address!r} ({fault}). Start one: dask scheduler.") from fault
    try:
        yield client
    finally:
        client.close()  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1)
def _unpickled(pickled: bytes) -> Any:
    """What a worker of a cluster does to its tasks: one object, which may keep things from task to task."""
    import cloudpickle

    return cloudpickle.loads(pickled)


def _remote(pickled: bytes, task: Task) -> Exception | None:
    _one_thread()
    return _sent(_error(_unpickled(pickled), task, lambda *event: None))


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)  # other numbers of threads round differently


def _end_with(parent: int) -> None:
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


def _start(pickled: bytes, events: Any) -> None:
    import cloudpickle

    started_by = parent_process()
    if started_by is not None and started_by.pid is not None:
        _end_with(started_by.pid)
    _one_thread()
    sys.stdout = sys.stderr  # what code of somebody's own prints is no result
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled once, by the parent
    work, tasks = cloudpickle.loads(pickled)
    _started_with.update(work=work, tasks=tasks, report=lambda *event: events.put((os.getpid(), *event)))


def _in_worker(number: int) -> Exception | None:
    task, report = _started_with["tasks"][number], _started_with["report"]
    report(str(task), -1, 0)
    error = _sent(_error(_started_with["work"], task, report))
    report("", -1, 0)
    return error


def _tell(events: Any, at_work: dict[int, str], on_progress: OnProgress) -> None:
    """Pass on what the workers told since; -1 says at which task a worker is, or that it is at none."""
    while not events.empty():
        process, task, number, total = events.get()
        if number < 0:
            at_work[process] = task
        else:
            on_progress(task, number, total)


def _told_of_death(processes: Mapping[int, BaseProcess], at_work: Mapping[int, str]) -> str:
    """Which worker died, at what, and what to do, once all have ended."""
    ended = {number: process.exitcode for number, process in processes.items()}
    dead = [number for number, code in ended.items() if code not in (None, 0, -signal.SIGTERM)] or list(ended)
    tasks = [at_work[number] for number in dead if at_work.get(number)]
    codes = {ended[number] for number in dead} - {None, 0, -signal.SIGTERM}
    why = f"exit code {', '.join(map(str, codes))}" if codes else "nothing says how"
    why = "killed from outside, or for want of memory" if -9 in codes else why
    failed = -9 not in codes and any(code is not None and code > 0 for code in codes)  # by itself
    mended = ", once what it printed is mended" if failed else "; with fewer workers it needs less memory"
    return (
        f"a worker process died ({why}) {'at ' + ' or '.join(tasks) if tasks else 'before its first unit'}. What is "
        f"finished is kept: the same command goes on from there{mended}."
    )
