"""FedOpt as a Flower strategy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from docleak.errors import FederationError, refuse
from docleak.privacy.randomness import Randomness
from docleak.training.federated.bounds import UpdateBounds
from docleak.training.federated.capture import record_update
from docleak.training.federated.federation import impossible
from docleak.training.federated.fedopt import (
    Averaging,
    ClientUpdate,
    ServerState,
    clear_shelves,
    faults_in,
    moved,
    shapes_of,
)
from docleak.training.federated.flower.messages import (
    array_record,
    config_record,
    metric_record,
    settings_in,
    wire_bytes,
)
from docleak.training.federated.flower.replies import UNNAMED, awaited, fault_of, meeting_faults, scores_in, update_in
from docleak.training.federated.flower.secure_round import RECORD, SecureRound
from docleak.training.federated.party import DocumentScore, Introduction
from docleak.training.federated.record import ClientRow, FederatedRun, RoundRow
from docleak.training.federated.scores import Scores, SiloScore
from docleak.training.federated.secure.fixed_point import from_words
from docleak.training.federated.secure.keys import Pinned
from docleak.training.private.rounds import stand_in

#: Bytes of float32 weights from which the server's state is kept in files of the run's folder between its steps.
SHELVE_ABOVE = 64 * 2**20
#: Told of every round that is done: the round's row (None before the first) and the scores of its model, if asked for.
OnRound = Callable[[RoundRow | None, Scores | None], None]


class FederatedStrategy(Strategy):
    """FedOpt on Flower: samples silos, averages their updates by ``fedopt``, and records every round in ``run``.

    ``expected`` silos must be there before the first round. Secure aggregation needs the silos' public keys,
    ``pinned``; its rounds end with a sum over the threshold of silos at least. With ``capture``, every update is
    recorded there as it was received, for ``docleak audit updates``. Raises FederationError, and so ends Flower's
    loop, when a silo does not answer within ``timeout`` seconds, answers with an error, or sends what does not fit.
    """

    def __init__(
        self, run: FederatedRun, initial: Mapping[str, NDArray[np.float32]], model_fingerprint: str, *, expected: int,
        evaluate_every: int = 1, capture: Path | None = None, timeout: float = 3600.0,
        on_round: OnRound = lambda row, scores: None, randomness: Callable[[], Randomness] = Randomness.fresh,
        pinned: Pinned = MappingProxyType({}), shelve_above: int = SHELVE_ABOVE,
    ) -> None:  # fmt: skip
        self.run, self.federation = run, run.federation
        clear_shelves(run.path)
        self._shelf = run.path if sum(value.nbytes for value in initial.values()) > shelve_above else None
        self.state = self._put_away(run.state() or ServerState.of(initial))
        self.expected, self.evaluate_every = expected, evaluate_every
        self.capture, self.timeout, self.on_round = capture, timeout, on_round
        self._fingerprint = model_fingerprint
        self._silos: dict[str, tuple[int, Introduction]] = {}
        self._asked: dict[int, str] = {}
        self._sent: list[Metadata] = []
        self._ledger, self._noise, self._pinned = run.ledger(), randomness(), pinned
        # Of a round: its row, who was drawn, when it began, bytes by silo, and what kept silos from answering.
        self._row: RoundRow | None = None
        self._drawn: tuple[str, ...] = ()
        self._began = 0.0
        self._up: dict[str, int] = {}
        self._down: dict[str, int] = {}
        self._lost: dict[str, str] = {}
        self._secure: SecureRound | None = None
        self._bounded: tuple[int, UpdateBounds] | None = None

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
        return array_record(self.state.weights())

    def _put_away(self, state: ServerState) -> ServerState:
        """The state in files, where it is large: clients that train in this process need the memory more."""
        return state if self._shelf is None else state.on_shelf(self._shelf)

    def summary(self) -> None:
        """Nothing: ``docleak train`` says what it does."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the next round, one for each sampled silo, in order of their names."""
        number = self.state.round + 1
        self._began = time.perf_counter()
        if self._ledger is not None:
            self._ledger = self._ledger.begin_round()
            self.run.write_ledger(self._ledger)
        sampled = self.federation.sampled(tuple(self._silos), number, self._noise.coins)  # anew if one was lost
        self._down, self._up = dict.fromkeys(sampled, 0), dict.fromkeys(sampled, 0)
        self._lost, self._drawn = {}, sampled
        secure = self._secure = self._hidden(grid, sampled, number)
        taking_part = sampled if secure is None else tuple(secure.deliveries)
        messages = self._messages(taking_part, "train", arrays, number)
        for name, message in zip(taking_part, messages, strict=True):
            if secure is not None:
                message.content[RECORD] = config_record({"data": secure.deliveries[name]})
            self._down[name] += wire_bytes(message)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """FedOpt's step; everything about the round is on disk before this returns."""
        averaging = Averaging(self.state, divide_by_clients=self.federation.server.divide_by_clients, shelf=self._shelf)
        rows: list[ClientRow] = []
        absent = self._lost | {name: self._silent(name) for name in self._asked.values()}
        averaged = 0.0
        for name, reply, fault in self._ordered(replies):
            began = time.perf_counter()
            taken = fault or self._taken(name, reply, averaging)
            del reply  # the next silo may run in this process: let it have the memory
            if isinstance(taken, ClientRow):
                rows.append(taken)
                del absent[name]
            else:
                absent[name] = taken
            averaged += time.perf_counter() - began
        if self._secure is not None:
            averaging.add(self._summed(self._secure, absent))
        elif len(rows) < self.federation.needed(len(self._asked)):
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
        self._row = RoundRow(self.state.round, tuple(rows), trained, averaged, tuple(absent.values()), self._drawn)
        self.run.write_round(self._row, self.state)
        self.state = self._put_away(self.state)
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
        if self.federation.privacy is not None:
            self.run.write_scores(self.state.round, [])  # one that is lost on the way is spent, and not asked again
        return self._messages(keeping, "evaluate", arrays, self.state.round)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Record the scores: document by document, or, under a privacy plan, a silo's noised sums."""
        if not self._asked:
            return None
        scores: list[DocumentScore | SiloScore] = []
        faults: list[str] = []
        for name, reply, fault in self._ordered(replies):
            if fault:
                faults.append(fault)
                continue
            try:
                scores += scores_in(reply, self._silos[name][1].source, noised=self.federation.privacy is not None)
            except FederationError as error:
                faults.append(f"silo {name!r} {error}")
        refuse(FederationError, faults, "evaluation: ")
        self.run.write_scores(self.state.round, scores)
        self.on_round(self._row, scores)
        return None

    def _evaluates(self, number: int) -> bool:
        if not self.evaluate_every or not any(silo.kept for _, silo in self._silos.values()):
            return False
        if self.federation.privacy is not None and self.run.evaluations() >= self.federation.scores_at_most:
            return False  # the noise is planned for so many
        return number % self.evaluate_every == 0 or number == self.federation.rounds

    def _score_now(self, grid: Grid) -> None:
        """The scores of the present model, if they are asked for and not on disk: before round 1 and after a resume."""
        number = self.state.round
        if self._evaluates(number) and self.run.scores(number) is None:
            self._row = self.run.rows()[-1] if number else None
            messages = self.configure_evaluate(0, self.arrays(), ConfigRecord(), grid)
            self.aggregate_evaluate(0, grid.send_and_receive(messages, timeout=self.timeout))

    def _messages(self, names: Iterable[str], kind: str, arrays: ArrayRecord | None, number: int) -> list[Message]:
        """A message to each silo, noted: Flower numbers them as it sends them, and replies say which they answer."""
        self._asked = {self._silos[name][0]: name for name in names}
        return self._noted(kind, arrays, number)

    def _noted(self, kind: str, arrays: ArrayRecord | None, number: int) -> list[Message]:
        said = {"federation": self.federation.to_json(), "round": number, "clients": len(self._asked)}
        messages = []
        for node in self._asked:
            content = RecordDict({"config": config_record(said), **({} if arrays is None else {"arrays": arrays})})
            messages.append(Message(content, node, kind, group_id=str(number)))
        self._sent = [message.metadata for message in messages]
        return messages

    def _ordered(self, replies: Iterable[Message]) -> Iterator[tuple[str, Message, str]]:
        """(silo, reply, what went wrong there) in order of the silos' names: sorted where all are here; embedded silos
        answer in that order."""
        for reply in sorted(replies, key=self._name_of) if isinstance(replies, Sequence) else replies:
            name = self._name_of(reply)
            yield name, reply, fault_of(name, reply, reticent=self.federation.reticent)
            del reply

    def _name_of(self, reply: Message) -> str:
        """Who was asked for this reply: for a silo that is gone, Flower's server answers in its place."""
        about = reply.metadata
        asked = {sent.message_id: sent.dst_node_id for sent in self._sent if sent.message_id}
        node = asked.get(about.reply_to_message_id, about.src_node_id)
        return self._asked.get(node, f"{UNNAMED}{node}")

    def _silent(self, name: str) -> str:
        return f"silo {name!r} did not answer within {self.timeout:g} s"

    def _hidden(self, grid: Grid, sampled: Sequence[str], number: int) -> SecureRound | None:
        """The secure aggregation of a round, its keys exchanged; None where updates are not hidden."""
        if self.federation.secure is None:
            return None
        try:
            return SecureRound.begin(
                self.federation.secure, self.federation.privacy, sampled, shapes_of(self.state.parameters),
                round_number=number, pinned=self._pinned, ask=partial(self._ask, grid),
            )  # fmt: skip
        except FederationError as error:
            raise self._no_sum(error, self._lost) from error

    def _no_sum(self, why: object, absent: Mapping[str, str]) -> FederationError:
        """What ended a secure round, with what is known of each silo that fell silent."""
        lines = "".join(f"\n  - {fault}" for fault in absent.values())
        return FederationError(
            f"round {self.state.round + 1} is not averaged, the last good model is kept: {why}{lines}"
        )

    def _ask(self, grid: Grid, step: str, payloads: Mapping[str, bytes]) -> dict[str, bytes]:
        """Each silo's reply to a step of secure aggregation; what keeps a silo from answering is noted in ``_lost``."""
        messages = self._messages(sorted(payloads), f"query.{step}", None, self.state.round + 1)
        for name, message in zip(sorted(payloads), messages, strict=True):
            message.content[RECORD] = config_record({"data": payloads[name]})
            self._down[name] += wire_bytes(message)
        replies: dict[str, bytes] = {}
        for name, reply, fault in self._ordered(grid.send_and_receive(messages, timeout=self.timeout)):
            if fault:
                self._lost[name] = fault
                continue
            try:
                replies[name] = bytes(settings_in(reply.content, RECORD)["data"])
            except (KeyError, TypeError, ValueError):
                self._lost[name] = f"silo {name!r} sent a reply that is none of this step"
                continue
            self._up[name] += wire_bytes(reply)
        self._lost |= {name: self._silent(name) for name in payloads if name not in replies and name not in self._lost}
        return replies

    def _summed(self, secure: SecureRound, absent: Mapping[str, str]) -> ClientUpdate:
        """The mean of the silos that did not fall silent; FederationError, with what was wrong, if there is none."""
        try:
            update = secure.total(drawn=len(self._drawn), private=self.federation.privacy is not None)
        except FederationError as error:
            raise self._no_sum(error, {**absent, **self._lost}) from error
        silos = len(secure.session.silos)
        if faults := self._bounds().faults(update, introduced=0, shares=silos):
            why = f"{update.client} {'; '.join(faults)}. Secure aggregation hides whose update did it."
            raise self._no_sum(why, {})
        self._record(update, {}, {"masked": False, "resolution": secure.session.fixed.error(silos) / update.examples})
        return update

    def _taken(self, name: str, reply: Message, averaging: Averaging) -> ClientRow | str:
        """Add a silo's update to the sum: its row of the table, or what is wrong with its reply."""
        if self._secure is not None:
            return self._taken_masked(name, reply, self._secure)
        try:
            shapes, down = shapes_of(self.state.parameters), self._down.get(name, 0)  # somebody else may answer, too
            update, row, numbers = update_in(reply, name, shapes, self.federation.compression, down=down)
        except FederationError as fault:
            return f"silo {name!r} {fault}"
        faults = self._faults_in(update)
        if self.federation.privacy is not None and update.examples != 1:
            faults.append(f"says it counts {update.examples} times; under a privacy plan silos count alike")
        if faults:
            return "; ".join(f"silo {name!r} {fault}" for fault in faults)
        self._record(update, numbers)
        averaging.add(update)
        return row

    def _faults_in(self, update: ClientUpdate) -> list[str]:
        """What is wrong with a silo's update, in words that go on from its name."""
        if update.client not in self._asked.values():
            return ["was not asked"]
        if faults := faults_in(self.state, update):
            return faults
        introduced = self._silos[update.client][1].examples
        return self._bounds().faults(update, introduced=introduced, shares=len(self._asked))

    def _bounds(self) -> UpdateBounds:
        """What updates of this round may be at most."""
        if self._bounded is None or self._bounded[0] != self.state.round:
            self._bounded = self.state.round, UpdateBounds.of(self.federation, self.state.parameters)
        return self._bounded[1]

    def _taken_masked(self, name: str, reply: Message, secure: SecureRound) -> ClientRow | str:
        """As ``_taken``, for words that say nothing yet; a silo whose words do not fit counts as silent."""
        try:
            words = secure.add(name, reply.content)
        except FederationError as error:
            return f"silo {name!r}: {error}"
        if self.capture is not None:
            delta, _ = from_words(words, secure.shapes, secure.session.fixed)
            self._record(ClientUpdate(name, 1, delta), {}, {"masked": True})
        return ClientRow(name, 1, 0, None, 0.0, self._up[name] + wire_bytes(reply), self._down[name])

    def _record(
        self, update: ClientUpdate, metrics: Mapping[str, Any], more: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Capture the update, if that is asked for, with all that the server knows of its training."""
        if self.capture is not None:
            said = {key: metrics.get(key) for key in ("steps", "loss")}
            record_update(self.capture, self.federation, self.state, update, {**said, **more})

    def _meet(self, grid: Grid) -> None:
        """Wait for the silos, ask who they are, and refuse what cannot be trained together."""
        nodes = awaited(grid, self.expected, timeout=self.timeout)
        self._asked = {node: f"{UNNAMED}{node}" for node in nodes}
        replies = list(grid.send_and_receive(self._noted("query", None, 0), timeout=self.timeout))
        silos, faults = [], []
        for name, reply, fault in self._ordered(replies):
            if fault:
                faults.append(fault)
                continue
            try:
                silos.append((reply.metadata.src_node_id, Introduction(**settings_in(reply.content, "introduction"))))
            except (KeyError, TypeError):
                faults.append(f"silo {name!r} did not introduce itself as this version of docleak does")
        faults += meeting_faults([said for _, said in silos], self._fingerprint)
        faults += impossible(self.federation, len(nodes))
        if len(replies) < len(nodes):
            faults.append(f"{len(nodes) - len(replies)} of {len(nodes)} nodes did not answer within {self.timeout:g} s")
        if faults:
            raise FederationError("the silos cannot train together:" + "".join(f"\n  - {fault}" for fault in faults))
        self._silos = {said.name: (node, said) for node, said in sorted(silos, key=lambda pair: pair[1].name)}
        self.run.write_silos([said for _, said in silos])
