"""Server steps of FedOPT (Reddi et al., 2021; Nguyen and Karatzas, 2024, Algorithm 1): pure functions of numpy arrays.

The server keeps its state in float64. Clients send Delta_k = theta_t - y_k, so steps are subtracted.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from docleak.errors import FederationError, refuse
from docleak.files import TEMPORARY

#: How the folders begin in which the server keeps its state while clients train in its process.
PREFIX = f"{TEMPORARY}shelf-"

Floats = NDArray[np.float64]
#: Parameter name -> values. A tied weight has one name.
Arrays = Mapping[str, NDArray[np.floating]]


class Shelf(MutableMapping[str, Floats]):
    """float64 arrays by name, each read from its file when it is asked for; files, in a folder of their own ``below``,
    go when the shelf does.

    What comes out is a copy: put it back to change it. Names, and so their number, may be any text.
    """

    def __init__(self, below: Path, arrays: Mapping[str, Floats] = MappingProxyType({})) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=below))
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Path] = {}
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.update(arrays)

    def __setitem__(self, name: str, value: Floats) -> None:
        file = self._files.setdefault(name, self._folder / str(len(self._files)))
        np.ascontiguousarray(value, dtype=np.float64).tofile(file)
        self.shapes[name] = value.shape

    def __getitem__(self, name: str) -> Floats:
        return np.fromfile(self._files[name], dtype=np.float64).reshape(self.shapes[name])

    def __delitem__(self, name: str) -> None:
        self._files.pop(name).unlink()
        del self.shapes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def shapes_of(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    """The shape of each array, without reading what is on a shelf."""
    return arrays.shapes if isinstance(arrays, Shelf) else {name: value.shape for name, value in arrays.items()}


def clear_shelves(below: Path) -> None:
    """Take away what a killed process left."""
    for folder in below.glob(f"{PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class FedOpt:
    """SERVEROPT: ``fedavg``, ``fedavgm`` (``beta1``) or ``fedadam`` (``beta1``, ``beta2``, epsilon inside the root).

    FedAdam corrects no bias, as printed. ``divide_by_clients`` divides by the number of sampled clients, as Algorithm 1
    does; with all clients in a round, where its weights p_k sum to one already, that is Algorithm 1 at its word. (Its
    p_k are of all K clients, by eq. 1, and sum to less over a part of them; here they are of the round's.)
    """

    rule: str = "fedavg"
    learning_rate: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    divide_by_clients: bool = False

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise FederationError(f"unknown server optimiser {self.rule!r}; known: {', '.join(RULES)}.")
        betas = (("beta1", self.beta1), ("beta2", self.beta2))
        faults = [f"{name} is {value}; expected 0 <= {name} < 1" for name, value in betas if not 0 <= value < 1]
        positive = (("learning_rate", self.learning_rate), ("epsilon", self.epsilon))
        faults += [f"{name} is {value}; expected more than 0" for name, value in positive if not 0 < value < math.inf]
        refuse(FederationError, faults)


@dataclass(frozen=True)
class ServerState:
    """The global model after ``round`` rounds, with the optimiser's moments (empty before the first round)."""

    parameters: Mapping[str, Floats]
    momentum: Mapping[str, Floats] = field(default_factory=dict)
    second: Mapping[str, Floats] = field(default_factory=dict)
    round: int = 0

    @classmethod
    def of(cls, parameters: Arrays) -> ServerState:
        """Round 0, from the initial parameters."""
        return cls({name: np.asarray(value, dtype=np.float64) for name, value in parameters.items()})

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The model as it is sent and trained from: float32."""
        return {name: value.astype(np.float32) for name, value in self.parameters.items()}

    def on_shelf(self, below: Path) -> ServerState:
        """The same state with its arrays in files, read when they are asked for."""
        parameters, momentum, second = (Shelf(below, one) for one in (self.parameters, self.momentum, self.second))
        return replace(self, parameters=parameters, momentum=momentum, second=second)


@dataclass(frozen=True)
class ClientUpdate:
    """What one client sends: Delta_k over named parameters, and the number of its training examples n_k."""

    client: str
    examples: int
    delta: Arrays


class Averaging:
    """Delta = sum p_k Delta_k of one round, p_k = n_k / N, from updates that come one at a time; float64.

    Updates need not be kept in memory together, and with a folder ``shelf`` the sum is not either. Faults are collected
    and named by ``result``, all at once.
    """

    def __init__(self, state: ServerState, *, divide_by_clients: bool = False, shelf: Path | None = None) -> None:
        self._state = state
        self._divide_by_clients = divide_by_clients
        self._sums: MutableMapping[str, Floats] = {} if shelf is None else Shelf(shelf)
        self._examples = 0
        self._clients: list[str] = []
        self.faults: list[str] = []

    def add(self, update: ClientUpdate) -> None:
        """Take one client's update into the sum, or note what is wrong with it."""
        faults = faults_in(self._state, update)
        faults += ["sent 2 updates or more"] if update.client in self._clients else []
        self.faults += [f"client {update.client!r} {fault}" for fault in faults]
        self._clients.append(update.client)
        if self.faults:
            return
        self._examples += update.examples
        for name in shapes_of(self._state.parameters):
            weighted = update.examples * np.asarray(update.delta[name], dtype=np.float64)
            if name in self._sums:
                weighted += self._sums[name]
            self._sums[name] = weighted

    def refuse(self, fault: str) -> None:
        """Note that a client's reply is not usable, in words that name the client."""
        self.faults.append(fault)

    def result(self) -> Mapping[str, Floats]:
        """Delta. Raises FederationError, naming the clients, for updates with missing, unknown, wrongly shaped or
        non-finite arrays or without examples, for two of one client, and for none at all."""
        if self.faults:
            lines = "".join(f"\n  - {fault}" for fault in self.faults)
            raise FederationError(
                f"round {self._state.round + 1} is not averaged, the last good model is kept:{lines}\n"
                "Mend or leave out these clients and start again"
                + (" from that model." if self._state.round else ": no round has ended yet, that model is the start.")
            )
        if not self._clients:
            raise FederationError(
                f"round {self._state.round + 1}: no client sent an update; the last good model is kept."
            )
        total = self._examples * (len(self._clients) if self._divide_by_clients else 1)
        for name in self._sums:
            self._sums[name] = self._sums[name] / total
        return self._sums


def average(
    state: ServerState, updates: Sequence[ClientUpdate], *, divide_by_clients: bool = False
) -> Mapping[str, Floats]:
    """``Averaging`` of updates that are all here, in order of their clients' names."""
    averaging = Averaging(state, divide_by_clients=divide_by_clients)
    for update in sorted(updates, key=lambda update: update.client):
        averaging.add(update)
    return averaging.result()


def step(state: ServerState, updates: Sequence[ClientUpdate], optimiser: FedOpt) -> ServerState:
    """One round: theta_{t+1} = SERVEROPT(theta_t, Delta)."""
    return moved(state, average(state, updates, divide_by_clients=optimiser.divide_by_clients), optimiser)


def moved(state: ServerState, delta: Mapping[str, Floats], optimiser: FedOpt) -> ServerState:
    """The state after a round whose aggregate is ``delta``; FederationError for one that float32 cannot hold."""
    after = replace(RULES[optimiser.rule](state, delta, optimiser), round=state.round + 1)
    for name in shapes_of(after.parameters):
        if not np.abs(after.parameters[name]).max(initial=0.0) <= np.finfo(np.float32).max:
            raise FederationError(
                f"round {after.round}: the server's step gives {name!r} values that float32 cannot hold; the last good "
                "model is kept. Lower the server's learning rate."
            )
    return after


def _fedavg(state: ServerState, delta: Mapping[str, Floats], o: FedOpt) -> ServerState:
    return replace(state, parameters=_stepped(state, delta, o))


def _fedavgm(state: ServerState, delta: Mapping[str, Floats], o: FedOpt) -> ServerState:
    momentum = _blended(state.momentum, delta, o.beta1)
    return replace(state, parameters=_stepped(state, momentum, o), momentum=momentum)


def _fedadam(state: ServerState, delta: Mapping[str, Floats], o: FedOpt) -> ServerState:
    momentum = _blended(state.momentum, delta, o.beta1)
    second = _blended(state.second, {name: np.square(value) for name, value in delta.items()}, o.beta2)
    direction = {name: value / np.sqrt(second[name] + o.epsilon) for name, value in momentum.items()}
    return replace(state, parameters=_stepped(state, direction, o), momentum=momentum, second=second)


def _stepped(state: ServerState, direction: Mapping[str, Floats], o: FedOpt) -> dict[str, Floats]:
    return {name: value - o.learning_rate * direction[name] for name, value in state.parameters.items()}


def _blended(before: Mapping[str, Floats], new: Mapping[str, Floats], beta: float) -> dict[str, Floats]:
    return {name: beta * before.get(name, np.zeros_like(value)) + (1 - beta) * value for name, value in new.items()}


Rule = Callable[[ServerState, Mapping[str, Floats], FedOpt], ServerState]
RULES: dict[str, Rule] = {"fedavg": _fedavg, "fedavgm": _fedavgm, "fedadam": _fedadam}


def faults_in(state: ServerState, update: ClientUpdate) -> list[str]:
    """What is wrong with one client's update, in words that go on from the client's name."""
    faults = [] if update.examples > 0 else [f"has {update.examples} examples"]
    shapes = shapes_of(state.parameters)
    missing = [name for name in shapes if name not in update.delta]
    unknown = [name for name in update.delta if name not in shapes]
    faults += [f"lacks {len(missing)} parameters, first {missing[0]!r}"] if missing else []
    faults += [f"sent {len(unknown)} unknown parameters, first {unknown[0]!r}"] if unknown else []
    for name, shape in shapes.items():
        value = update.delta.get(name)
        if value is None:
            continue
        if value.shape != shape:
            faults.append(f"sent {name!r} of shape {value.shape}, expected {shape}")
        elif not np.isfinite(value).all():
            faults.append(f"sent {name!r} with values that are not finite")
    return faults
