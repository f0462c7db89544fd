"""Record what any Flower server of one's own receives, for ``docleak audit updates``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from docleak.errors import FederationError
from docleak.training.federated.capture import KINDS, write_update

S = TypeVar("S", bound=Strategy)
#: Where Flower's own strategies keep the number of a client's examples.
EXAMPLES = "num-examples"


def tap(strategy: S, directory: str | Path, *, kind: str = "weights") -> S:
    """``strategy``, which from now on records in ``directory`` every update it receives, and what it started from.

    ``kind`` says what your clients send: their new "weights" (as Flower's strategies expect), the "delta"
    theta_t - y_k, or the "gradient". The configuration your server sends and the numbers your clients reply with are
    recorded beside the arrays, so that what they say of the local training is at hand in the audit.
    Error replies are left to the strategy. Works in SuperLink deployments too: give an absolute path, and protect it as
    you protect the pages.
    """
    if kind not in KINDS:
        raise FederationError(f"updates are {kind!r}; expected one of {', '.join(KINDS)}.")
    tapped = copy(strategy)
    folder = Path(directory)
    sent: dict[str, Any] = {}

    def configure_train(server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        sent["start"] = {name: array.numpy() for name, array in arrays.items()}
        sent["config"] = dict(config)
        return strategy.__class__.configure_train(tapped, server_round, arrays, config, grid)

    def aggregate_train(
        server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        received = list(replies)
        for reply in received:
            if not reply.has_error():
                _record(folder, server_round, reply, sent, kind)
        return strategy.__class__.aggregate_train(tapped, server_round, received)

    tapped.configure_train = configure_train  # type: ignore[method-assign]
    tapped.aggregate_train = aggregate_train  # type: ignore[method-assign]
    return tapped


def _record(folder: Path, server_round: int, reply: Message, sent: dict[str, Any], kind: str) -> None:
    content = reply.content
    records: Sequence[ArrayRecord] = list(content.array_records.values())
    metrics: dict[str, Any] = {
        name: value for record in content.metric_records.values() for name, value in record.items()
    }
    if len(records) != 1:
        raise FederationError(
            f"round {server_round}: node {reply.metadata.src_node_id} sent {len(records)} array records; expected one."
        )
    write_update(
        folder,
        round=server_round,
        client=str(reply.metadata.src_node_id),
        start=sent["start"],
        received={name: array.numpy() for name, array in records[0].items()},
        kind=kind,
        examples=int(metrics.get(EXAMPLES, 0)),
        details={**sent["config"], **metrics},
    )
