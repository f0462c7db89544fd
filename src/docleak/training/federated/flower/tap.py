"""Record what any Flower app of one's own sends: at its server, or at one of its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS as SECAGG
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from docleak.errors import FederationError
from docleak.training.taps.recorder import Recorder, Sent

S = TypeVar("S", bound=Strategy)
T = TypeVar("T")
#: What the number of a client's examples is called by Flower's own strategies, and by others.
EXAMPLES = ("num-examples", "num_examples")
#: Marks a strategy that is recorded.
MARK = "_docleak_recorder"
#: A client app's function, and what it is wrapped in.
Handler = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Handler], Message]


def tap(strategy: S, directory: str | Path, *, kind: str = "weights", limit_gb: float = 10.0) -> S:
    """``strategy``, which from now on records in ``directory`` every update it receives, and what it started from.

    ``kind`` says what your clients send: their new "weights" (as Flower's strategies expect), the "delta"
    theta_t - y_k, or the "gradient". The configuration your server sends and the numbers your clients reply with are
    recorded beside the arrays, so that what they say of the local training is at hand in the audit.

    FederationError at once for what cannot be recorded: a strategy of Flower's older interface, one that is recorded
    already, a directory that holds another training or something else. Afterwards nothing is raised: a reply that
    cannot be recorded is a warning. Files are written in a thread, at most ``limit_gb`` gigabytes. Works in SuperLink
    deployments too: give an absolute path, and protect it as you protect the pages.
    """
    _require_tappable(strategy)
    recorder = Recorder(directory, kind=kind, limit_gb=limit_gb)
    tapped = copy(strategy)
    configure, aggregate, begin = tapped.configure_train, tapped.aggregate_train, tapped.start
    start: dict[int, dict[str, Array]] = {}  # by node: a strategy may send other weights than it was given
    told: dict[str, Any] = {}

    def configure_train(server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        messages = list(configure(server_round, arrays, config, grid))
        try:
            _renew(start, {message.metadata.dst_node_id: _asked_of(message, arrays) for message in messages})
            _renew(told, {**config, **_numbers(messages[:1])})
        except Exception as fault:  # a user's training must not end because it is watched
            recorder.warn(f"round {server_round}: what the server sends was not understood: {fault}")
        return messages

    def aggregate_train(
        server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        received = list(replies)
        for reply in received:
            try:
                _record(recorder, server_round, reply, start.get(reply.metadata.src_node_id, {}), dict(told))
            except Exception as fault:  # a user's training must not end because it is watched
                recorder.warn(f"round {server_round}, node {reply.metadata.src_node_id}: not recorded: {fault}")
        return aggregate(server_round, received)

    def begin_and_settle(*arguments: Any, **options: Any) -> Result:
        try:
            return begin(*arguments, **options)
        finally:
            recorder.settle()  # the process that Flower runs this in may be ended next

    tapped.configure_train = configure_train  # type: ignore[method-assign]
    tapped.aggregate_train = aggregate_train  # type: ignore[method-assign]
    tapped.start = begin_and_settle  # type: ignore[method-assign]
    setattr(tapped, MARK, recorder)
    return tapped


def tap_client(directory: str | Path, *, kind: str = "weights", limit_gb: float = 10.0) -> Mod:
    """A mod that records what leaves this client: ``ClientApp(mods=[docleak.tap_client("updates"), ...])``.

    The first of the mods sees what the others made of the update, as the server does. What Flower's secaggplus_mod
    masked is not recorded; behind that mod the update is, as the server does not see it. A client is called by its
    partition-id, or else its node's id. Otherwise as ``tap``; written before the reply leaves, since a client's
    process may end with it.
    """
    recorder = Recorder(directory, kind=kind, limit_gb=limit_gb, fresh=False, waiting=True)

    def tapped(message: Message, context: Context, call_next: Handler) -> Message:
        asked = {key: dict(record) for key, record in message.content.array_records.items()}
        reply = call_next(message, context)
        try:
            if message.metadata.message_type.partition(".")[0] == "train":
                _record_own(recorder, message, asked, reply, context)
        except Exception as fault:  # a user's training must not end because it is watched
            recorder.warn(f"this client's update was not recorded: {fault}")
        return reply

    return tapped


def _asked_of(message: Message, arrays: ArrayRecord) -> dict[str, Array]:
    """The weights that a node is sent: of the message's array records the one most like the server's own; {} if none
    came with it."""
    records = message.content.array_records.values() if message.has_content() else ()
    return dict(max(records, key=lambda one: len(one.keys() & arrays.keys()), default={}))


def _require_tappable(strategy: Any) -> None:
    if not isinstance(strategy, Strategy):
        kind = type(strategy)
        old = kind.__module__.startswith("flwr.server.") or hasattr(strategy, "aggregate_fit")
        why = (
            "of Flower's older interface (NumPyClient, start_server, secure workflows), whose messages do not pass here"
            if old
            else "no strategy of flwr.serverapp.strategy"
        )
        raise FederationError(
            f"{kind.__name__} is {why}. Use its namesake in flwr.serverapp.strategy, record at the clients with "
            "docleak.tap_client, transformers' Trainer with callbacks=[docleak.TrainerTap(DIRECTORY)], or give two "
            "files of weights, before and after any training, to docleak audit updates --before A --after B."
        )
    while strategy is not None:
        if getattr(strategy, MARK, None) is not None:
            raise FederationError(
                "this strategy, or one that it wraps, is recorded already. Tap it once, the outermost; its directory "
                "can be copied."
            )
        strategy = getattr(strategy, "strategy", None)  # Flower's wrappers call it so


def _record(recorder: Recorder, server_round: int, reply: Message, start: Any, told: dict[str, Any]) -> None:
    node = str(reply.metadata.src_node_id)
    if reply.has_error():
        recorder.warn(f"round {server_round}, node {node} replied with an error ({reply.error.reason}); nothing came.")
        return
    numbers = _numbers([reply])
    came = _arrays_of(recorder, f"round {server_round}, node {node}", reply, start)
    if came is not None:
        recorder.record(_sent(recorder, server_round, node, start, came, {**told, **numbers}, "docleak.tap"))


def _record_own(recorder: Recorder, message: Message, asked: Any, reply: Message, context: Context) -> None:
    partition = context.node_config.get("partition-id", context.node_id)
    told = {**_numbers([message]), **({} if reply.has_error() else _numbers([reply]))}
    told |= {key: value for key, value in context.node_config.items() if key in ("partition-id", "num-partitions")}
    number, masking = int(told.get("server-round", message.metadata.group_id or 1)), SECAGG in message.content
    if masking and not asked and not reply.has_error():
        return  # keys and shares, of which no update is made
    if masking:
        told["hidden_by"] = "Flower's SecAgg+"
    if reply.has_error() or not asked:
        recorder.warn(f"round {number}: no weights were asked for, or an error was replied; nothing is recorded.")
        return
    start = next(iter(asked.values()))
    came = _arrays_of(recorder, f"round {number}", reply, start)
    if came is not None:
        recorder.record(_sent(recorder, number, str(partition), start, came, told, "docleak.tap_client"))


def _sent(
    recorder: Recorder, number: int, client: str, start: Mapping[str, Array], came: Mapping[str, Array],
    details: dict[str, Any], source: str,
) -> Sent:  # fmt: skip
    examples = next((details[name] for name in EXAMPLES if name in details), None)
    return Sent(
        number, client, start, came, kind=recorder.kind,
        examples=max(0, int(examples)) if isinstance(examples, int | float) and np.isfinite(examples) else 0,
        details={**details, "recorded_by": source},
    )  # fmt: skip


def _arrays_of(recorder: Recorder, what: str, reply: Message, start: Mapping[str, Array]) -> dict[str, Array] | None:
    """The array record that is most like what the client was sent: others are a strategy's own (control variates)."""
    records = {key: dict(record) for key, record in reply.content.array_records.items() if record}
    if not records:
        recorder.warn(
            f"{what}: the reply has no arrays; what was masked (secure aggregation) is not recorded. Behind the mod "
            "that masks, docleak.tap_client records what a client computed, which the server does not see."
        )
        return None
    chosen = max(records, key=lambda key: len(set(records[key]) & set(start)))
    if len(records) > 1:
        recorder.warn(f"{what}: {len(records)} array records came; {chosen!r} is recorded.")
    return records[chosen]


def _numbers(messages: Iterable[Message]) -> dict[str, Any]:
    """All that configurations and metrics of messages say, by name."""
    records = (
        record
        for message in messages
        if message.has_content()
        for kind in (message.content.config_records, message.content.metric_records)
        for name, record in kind.items()
        if name != SECAGG
    )
    return {key: value for record in records for key, value in record.items() if not _bytes(value)}


def _bytes(value: Any) -> bool:
    return isinstance(value, bytes) or (isinstance(value, list) and any(isinstance(one, bytes) for one in value))


def _renew(there: dict[T, Any], values: Mapping[T, Any]) -> None:
    there.clear()
    there.update(values)
