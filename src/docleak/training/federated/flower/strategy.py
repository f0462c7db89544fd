"""FedOpt as a Flower strategy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from docleak.errors import FederationError
from docleak.privacy.randomness import Randomness
from docleak.training.federated.capture import write_update
from docleak.training.federated.fedopt import Averaging, ClientUpdate, ServerState, faults_in, moved
from docleak.training.federated.flower.client import SCORE_NUMBERS
from docleak.training.federated.flower.messages import (
    array_record,
    arrays_in,
    config_record,
    metric_record,
    metrics_in,
    settings_in,
    wire_bytes,
)
from docleak.training.federated.party import DocumentScore, Introduction
from docleak.training.federated.record import ClientRow, FederatedRun, RoundRow
from docleak.training.federated.wire import unpack
from docleak.training.private.rounds import stand_in

#: Told of every round that is done: the round's row (None before the first) and the scores of its model, if asked for.
OnRound = Callable[[RoundRow | None, Sequence[DocumentScore] | None], None]


class FederatedStrategy(Strategy):
    """FedOpt on Flower: samples silos, averages their updates by ``fedopt``, and records every round in ``run``.

    ``expected`` silos must be there before the first round. With ``capture``, every update is recorded there as it was
    received, for ``docleak audit --updates``. Raises FederationError, and so ends Flower's loop, when a silo does not
    answer within ``timeout`` seconds, answers with an error, or sends what does not fit.
    """

    def __init__(
        self,
        run: FederatedRun,
        initial: Mapping[str, NDArray[np.float32]],
        model_fingerprint: str,
        *,
        expected: int,
        evaluate_every: int = 1,
        capture: Path | None = None,
        timeout: float = 3600.0,
        on_round: OnRound = lambda row, scores: None,
        randomness: Callable[[], Randomness] = Randomness.fresh,
    ) -> None:
        self.run, self.federation = run, run.federation
        self.state = run.state() or ServerState.of(initial)
        self.expected, self.evaluate_every = expected, evaluate_every
        self.capture, self.timeout, self.on_round = capture, timeout, on_round
        self._fingerprint = model_fingerprint
        self._silos: dict[str, tuple[int, Introduction]] = {}
        self._asked: dict[int, str] = {}
        self._down: dict[str, int] = {}
        self._began = 0.0
        self._row: RoundRow | None = None
        self._ledger = run.ledger()
        self._noise = randomness()

    def train(self, grid: Grid) -> ServerState:
        """Run the rounds that are not done yet; returns the last state."""
        self._meet(grid)
        self._score_now(grid)
        left = self.federation.rounds - self.state.round
        if self._ledger is not None:
            left = min(left, self._ledger.left)  # a round that was begun and lost is spent
        if left > 0:
            self.start(grid, self.arrays(), num_rounds=left, timeout=self.timeout)
        return self.state

    def arrays(self) -> ArrayRecord:
        """The global model as it is sent: float32."""
        return array_record({name: value.astype(np.float32) for name, value in self.state.parameters.items()})

    def summary(self) -> None:
        """Nothing: ``docleak train`` says what it does."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the next round, one for each sampled silo, in order of their names."""
        number = self.state.round + 1
        sampled = self.federation.sampled(tuple(self._silos), number)
        self._began = time.perf_counter()
        if self._ledger is not None:
            self._ledger = self._ledger.begin_round()
            self.run.write_ledger(self._ledger)
        messages = self._messages(sampled, "train", arrays, number)
        self._down = {name: wire_bytes(message) for name, message in zip(sampled, messages, strict=True)}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """FedOpt's step; everything about the round is on disk before this returns."""
        averaging = Averaging(self.state, divide_by_clients=self.federation.server.divide_by_clients)
        rows: list[ClientRow] = []
        absent = {name: f"silo {name!r} did not answer within {self.timeout:g} s" for name in self._asked.values()}
        averaged = 0.0
        for reply in self._ordered(replies):
            began = time.perf_counter()
            taken = self._taken(reply, averaging)
            del reply  # the next silo may run in this process: let it have the memory
            if isinstance(taken, ClientRow):
                rows.append(taken)
                del absent[taken.silo]
            else:
                absent.update(taken)
            averaged += time.perf_counter() - began
        if len(rows) < self.federation.needed(len(self._asked)):
            for fault in absent.values():
                averaging.refuse(fault)
        elif self.federation.privacy is not None:
            for number in range(len(absent)):  # their share of the noise is missing, too
                averaging.add(
                    stand_in(self.state, self.federation.privacy, shares=len(self._asked), number=number,
                             randomness=self._noise)
                )  # fmt: skip
        began = time.perf_counter()
        self.state = moved(self.state, averaging.result(), self.federation.server)
        del averaging
        averaged += time.perf_counter() - began
        trained = time.perf_counter() - self._began - averaged
        self._row = RoundRow(self.state.round, tuple(rows), trained, averaged, tuple(absent.values()))
        self.run.write_round(self._row, self.state)
        if not self._evaluates(self.state.round):
            self.on_round(self._row, None)
        return self.arrays(), metric_record({} if self._row.loss is None else {"loss": self._row.loss})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Every silo answers the questions on the documents it keeps, where it keeps some and the round asks for it."""
        if not self._evaluates(self.state.round):
            self._asked = {}
            return []
        keeping = sorted(name for name, (_, silo) in self._silos.items() if silo.kept)
        return self._messages(keeping, "evaluate", arrays, self.state.round)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Record the scores, document by document."""
        if not self._asked:
            return None
        found: list[DocumentScore] = []
        faults: list[str] = []
        for reply in self._ordered(replies):
            name = self._name_of(reply)
            if fault := _fault(name, reply):
                faults.append(fault)
                continue
            columns = [metrics_in(reply.content)[column] for column in SCORE_NUMBERS]
            source = self._silos[name][1].source
            found += [DocumentScore(source, a, b, int(n)) for a, b, n in zip(*columns, strict=True)]
        if faults or not found:
            raise FederationError("evaluation: " + "; ".join(faults or ["no silo answered a question"]) + ".")
        self.run.write_scores(self.state.round, found)
        self.on_round(self._row, found)
        return None

    def _evaluates(self, number: int) -> bool:
        if not self.evaluate_every or not any(silo.kept for _, silo in self._silos.values()):
            return False
        return number % self.evaluate_every == 0 or number == self.federation.rounds

    def _score_now(self, grid: Grid) -> None:
        """The scores of the present model, if they are asked for and not on disk: before round 1 and after a resume."""
        number = self.state.round
        if self._evaluates(number) and self.run.scores(number) is None:
            self._row = self.run.rows()[-1] if number else None
            messages = self.configure_evaluate(0, self.arrays(), ConfigRecord(), grid)
            self.aggregate_evaluate(0, grid.send_and_receive(messages, timeout=self.timeout))

    def _messages(self, names: Iterable[str], kind: str, arrays: ArrayRecord | None, number: int) -> list[Message]:
        self._asked = {self._silos[name][0]: name for name in names}
        return [self._message(node, kind, arrays, number) for node in self._asked]

    def _message(self, node: int, kind: str, arrays: ArrayRecord | None, number: int) -> Message:
        config = config_record({"federation": self.federation.to_json(), "round": number, "clients": len(self._asked)})
        content = RecordDict({"config": config})
        if arrays is not None:
            content["arrays"] = arrays
        return Message(content, node, kind, group_id=str(number))

    def _ordered(self, replies: Iterable[Message]) -> Iterable[Message]:
        """Replies in order of their silos' names: sorted where all are here; embedded silos answer in that order."""
        return sorted(replies, key=self._name_of) if isinstance(replies, Sequence) else replies

    def _name_of(self, reply: Message) -> str:
        return self._asked.get(reply.metadata.src_node_id, f"node {reply.metadata.src_node_id}")

    def _taken(self, reply: Message, averaging: Averaging) -> ClientRow | dict[str, str]:
        """Add a silo's update to the sum: its row of the table, or its name and what is wrong with its reply."""
        name = self._name_of(reply)
        if fault := _fault(name, reply):
            return {name: fault}
        metrics = metrics_in(reply.content)
        shapes = {key: value.shape for key, value in self.state.parameters.items()}
        try:
            delta = unpack(arrays_in(reply.content), shapes, self.federation.compression)
        except FederationError as error:
            return {name: f"silo {name!r}: {error}"}
        update = ClientUpdate(name, int(metrics["num-examples"]), delta)
        faults = faults_in(self.state, update) if name in self._asked.values() else ["was not asked"]
        if self.federation.privacy is not None and update.examples != 1:
            faults.append(f"says it counts {update.examples} times; under a privacy plan silos count alike")
        if faults:
            return {name: "; ".join(f"silo {name!r} {fault}" for fault in faults)}
        self._record(update, metrics)
        averaging.add(update)
        return ClientRow(
            name,
            update.examples,
            int(metrics.get("steps", 0)),
            metrics.get("loss"),
            float(metrics.get("seconds", 0.0)),
            wire_bytes(reply),
            self._down[name],
            float(metrics["compression-error"]),
        )

    def _record(self, update: ClientUpdate, metrics: Mapping[str, Any]) -> None:
        """Capture the update, if that is asked for, with all that the server knows of its training."""
        if self.capture is None:
            return
        federation = self.federation
        write_update(
            self.capture,
            round=self.state.round + 1,
            client=update.client,
            start={key: value.astype(np.float32) for key, value in self.state.parameters.items()},
            received=update.delta,
            kind="delta",
            examples=update.examples,
            details={
                **asdict(federation.local),
                "seed": federation.seed,
                "steps": metrics.get("steps"),
                "loss": metrics.get("loss"),
                "privacy": None if federation.privacy is None else federation.privacy.to_dict(),
                "model": federation.model,
                "holdout": federation.holdout,
                "compression": str(federation.compression),
            },
        )

    def _meet(self, grid: Grid) -> None:
        """Wait for the silos, ask who they are, and refuse what cannot be trained together."""
        nodes = self._awaited(grid)
        self._asked = {node: f"node {node}" for node in nodes}
        messages = [self._message(node, "query", None, 0) for node in nodes]
        replies = list(grid.send_and_receive(messages, timeout=self.timeout))
        silos, faults = [], []
        for reply in self._ordered(replies):
            if fault := _fault(self._name_of(reply), reply):
                faults.append(fault)
            else:
                silos.append((reply.metadata.src_node_id, Introduction(**settings_in(reply.content, "introduction"))))
        faults += _meeting_faults([said for _, said in silos], self._fingerprint)
        faults += self._uncounted(len(nodes))
        if len(replies) < len(nodes):
            faults.append(f"{len(nodes) - len(replies)} of {len(nodes)} nodes did not answer within {self.timeout:g} s")
        if faults:
            raise FederationError("the silos cannot train together:" + "".join(f"\n  - {fault}" for fault in faults))
        self._silos = {said.name: (node, said) for node, said in sorted(silos, key=lambda pair: pair[1].name)}
        self.run.write_silos([said for _, said in silos])

    def _uncounted(self, silos: int) -> list[str]:
        """Whether silos would take part more often than the privacy plan accounts for."""
        plan, drawn = self.federation.privacy, len(self.federation.sampled([str(i) for i in range(silos)], 1))
        if plan is None or drawn <= plan.mechanism.client_rate * silos * (1 + 1e-9):
            return []
        return [
            f"{drawn} of {silos} silos train in a round, and the privacy plan accounts for a client rate of "
            f"{plan.mechanism.client_rate}; plan with {drawn / silos:.4g}"
        ]

    def _awaited(self, grid: Grid) -> list[int]:
        began = time.monotonic()
        while len(nodes := list(grid.get_node_ids())) < self.expected:
            if time.monotonic() - began > self.timeout:
                raise FederationError(
                    f"{len(nodes)} of {self.expected} silos are connected after {self.timeout:g} s. Start the others, "
                    "or look into their logs."
                )
            time.sleep(1.0)
        return nodes


def _fault(name: str, reply: Message) -> str:
    """What went wrong at a silo, in words that name it; empty if nothing did."""
    if reply.has_error():
        return f"silo {name!r} failed: {reply.error.reason or f'code {reply.error.code}'}"
    if "fault" in reply.content:
        said = settings_in(reply.content, "fault")
        return f"silo {said['silo'] or name!r}: {said['message']}"
    return ""


def _meeting_faults(silos: Sequence[Introduction], wanted: str) -> list[str]:
    names = [silo.name for silo in silos]
    faults = [
        f"{names.count(name)} silos are called {name!r}" for name in dict.fromkeys(names) if names.count(name) > 1
    ]
    faults += [
        f"silo {silo.name!r} has a model of other parameters ({silo.model}) than the server ({wanted}); give both the "
        "same checkpoint"
        for silo in silos
        if silo.model != wanted
    ]
    return faults + [f"silo {silo.name!r} has no page to train on" for silo in silos if not silo.pages]
