"""Flower's messages handed to a ClientApp in this process, with a time limit: a silo that hangs hangs nobody else."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from docleak.training.federated.flower.discretion import told
from docleak.training.federated.flower.messages import config_record

#: Seconds a silo of this process has for a message, unless it is said otherwise.
TURN_SECONDS = 6 * 3600.0
LONGEST_TURN = 366 * 86400.0
#: Seconds that work which cannot be interrupted (a library that does not return) has left to come back.
GRACE_SECONDS = 60.0
#: Exit code of a process that had to end because of such work.
STUCK = 70


class TurnOver(BaseException):
    """The time is up. No Exception: nothing between the silo's work and who set the limit may take it for a fault."""


@contextmanager
def turn(seconds: float, what: str, *, grace: float = GRACE_SECONDS) -> Iterator[None]:
    """Raise TurnOver in this block once ``seconds`` are over; ``what`` names the block's work.

    In the main thread the work is interrupted by a signal. Where that is not possible, or the work does not come back
    within ``grace`` more seconds, the whole process is ended with exit code STUCK after a sentence on stderr: files
    are written whole or not at all, so that whatever was running can be continued. Work that never lets another line
    of Python run is ended by faulthandler a little later, with exit code 1 and where it was.
    """
    if not 0 < seconds <= LONGEST_TURN:
        raise ValueError(f"a time limit of {seconds} seconds; expected more than 0, and at most a year")
    ended = threading.Event()
    interruptible = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM")

    def end() -> None:
        if not ended.wait(seconds + grace):
            print(f"docleak: {what} did not answer within {seconds:g} s and cannot be interrupted; this process ends. "
                  "The same command goes on from the last round.", file=sys.stderr, flush=True)  # fmt: skip
            os._exit(STUCK)

    def over(number: int, frame: FrameType | None) -> None:
        raise TurnOver

    watching = threading.Thread(target=end, name="docleak-turn", daemon=True)
    watching.start()
    if last_resort := sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds + 2 * grace, exit=True, file=sys.__stderr__)
    if interruptible:
        before = signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if interruptible:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if last_resort:
            faulthandler.cancel_dump_traceback_later()
        ended.set()


#: Codes of error replies: Flower's own for what a silo raised, and one that Flower does not have.
RAISED, TIMED_OUT = 2, 100

#: Told of every silo that is at work: (round, silo, what it does).
OnSilo = Callable[[int, str, str], None]


class LocalGrid(Grid):
    """Flower's messages handed to a ClientApp in this process: no sockets, no other processes, one silo at a time.

    ``nodes`` maps node ids to node configurations. A silo runs when its reply is asked for, so that one update is in
    memory at a time, and has the timeout of ``send_and_receive`` for it: then it is interrupted (see ``turn``).
    """

    def __init__(
        self, app: ClientApp, nodes: Mapping[int, Mapping[str, str]], *, on_silo: OnSilo = lambda n, s, k: None
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self._app, self._on_silo, self._run = app, on_silo, Run.create_empty(run_id=1)
        self._waiting: dict[str, Message] = {}
        self._contexts = {node: Context(1, node, dict(config), RecordDict(), {}) for node, config in nodes.items()}

    def set_run(self, run: Run) -> None:
        """Flower calls this; one process has one run."""
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep the messages until their replies are pulled; returns their ids."""
        sent = [(uuid.uuid4().hex, message) for message in messages]
        self._waiting.update(sent)
        return [number for number, _ in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run each silo when its reply is taken."""
        return self._pulled(message_ids, TURN_SECONDS)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies, each made when it is taken, within ``timeout`` seconds of its own."""
        return self._pulled(self.push_messages(messages), timeout or TURN_SECONDS)

    def _pulled(self, message_ids: Iterable[str], seconds: float) -> Iterator[Message]:
        return (self._executed(number, self._waiting.pop(number), seconds) for number in message_ids)

    def _executed(self, number: str, message: Message, seconds: float) -> Message:
        about, content = message.metadata, message.content
        context = self._contexts[about.dst_node_id]
        copied = RecordDict({name: config_record(record) for name, record in content.config_records.items()})
        for name, record in content.array_records.items():
            copied[name] = ArrayRecord(dict(record))  # a container of its own: messages of a round share theirs
        sent = Message(copied, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id)
        sent.metadata.__dict__["_message_id"] = number
        silo = context.node_config.get("name") or Path(str(context.node_config.get("silo", ""))).name
        self._on_silo(int(about.group_id or 0), str(silo), about.message_type)
        try:
            with turn(seconds, f"silo {str(silo)!r}"):
                return self._app(sent, context)
        except TurnOver:
            return Message(Error(code=TIMED_OUT, reason=f"it did not answer within {seconds:g} s"), reply_to=sent)
        except Exception as error:  # as the real engine does: an exception of a silo becomes an error reply
            return Message(Error(code=RAISED, reason=told(error, sent.content, context.node_config)), reply_to=sent)
