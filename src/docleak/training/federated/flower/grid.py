"""Flower's messages handed to a ClientApp in this process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from docleak.training.federated.flower.discretion import told
from docleak.training.federated.flower.messages import config_record
from docleak.training.federated.turn import TURN_SECONDS, TurnOver, turn

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
