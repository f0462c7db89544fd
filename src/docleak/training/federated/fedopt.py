"""Server steps of FedOPT (Reddi et al., 2021; Nguyen and Karatzas, 2024, Algorithm 1): pure functions of numpy arrays.

The server keeps its state in float64. Clients send Delta_k = theta_t - y_k, so steps are subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from docleak.errors import FederationError

Floats = NDArray[np.float64]
#: Parameter name -> values. A tied weight has one name.
Arrays = Mapping[str, NDArray[np.floating]]


@dataclass(frozen=True)
class FedOpt:
    """SERVEROPT: ``fedavg``, ``fedavgm`` (``beta1``) or ``fedadam`` (``beta1``, ``beta2``, epsilon inside the root).

    FedAdam corrects no bias, as printed. ``divide_by_clients`` is Algorithm 1 taken at its word, which divides by the
    number of sampled clients although the weights p_k sum to one already.
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
        if faults:
            raise FederationError("; ".join(faults) + ".")


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


@dataclass(frozen=True)
class ClientUpdate:
    """What one client sends: Delta_k over named parameters, and the number of its training examples n_k."""

    client: str
    examples: int
    delta: Arrays


def average(
    state: ServerState, updates: Sequence[ClientUpdate], *, divide_by_clients: bool = False
) -> dict[str, Floats]:
    """Delta = sum p_k Delta_k with p_k = n_k / N over these clients, summed in order of their names, in float64.

    Raises FederationError, naming the client, for an update with missing, unknown, wrongly shaped or non-finite
    arrays or without examples, for two of one client, and for none at all.
    """
    check(state, updates)
    ordered = sorted(updates, key=lambda update: update.client)
    total = sum(update.examples for update in ordered) * (len(ordered) if divide_by_clients else 1)
    found: dict[str, Floats] = {}
    for name, parameter in state.parameters.items():
        mean = np.zeros_like(parameter)
        for update in ordered:
            mean += update.examples / total * np.asarray(update.delta[name], dtype=np.float64)
        found[name] = mean
    return found


def step(state: ServerState, updates: Sequence[ClientUpdate], optimiser: FedOpt) -> ServerState:
    """One round: theta_{t+1} = SERVEROPT(theta_t, Delta)."""
    delta = average(state, updates, divide_by_clients=optimiser.divide_by_clients)
    return replace(RULES[optimiser.rule](state, delta, optimiser), round=state.round + 1)


def _fedavg(state: ServerState, delta: Mapping[str, Floats], o: FedOpt) -> ServerState:
    return replace(state, parameters=_moved(state, delta, o))


def _fedavgm(state: ServerState, delta: Mapping[str, Floats], o: FedOpt) -> ServerState:
    momentum = _blended(state.momentum, delta, o.beta1)
    return replace(state, parameters=_moved(state, momentum, o), momentum=momentum)


def _fedadam(state: ServerState, delta: Mapping[str, Floats], o: FedOpt) -> ServerState:
    momentum = _blended(state.momentum, delta, o.beta1)
    second = _blended(state.second, {name: np.square(value) for name, value in delta.items()}, o.beta2)
    direction = {name: value / np.sqrt(second[name] + o.epsilon) for name, value in momentum.items()}
    return replace(state, parameters=_moved(state, direction, o), momentum=momentum, second=second)


def _moved(state: ServerState, direction: Mapping[str, Floats], o: FedOpt) -> dict[str, Floats]:
    return {name: value - o.learning_rate * direction[name] for name, value in state.parameters.items()}


def _blended(before: Mapping[str, Floats], new: Mapping[str, Floats], beta: float) -> dict[str, Floats]:
    return {name: beta * before.get(name, np.zeros_like(value)) + (1 - beta) * value for name, value in new.items()}


Rule = Callable[[ServerState, Mapping[str, Floats], FedOpt], ServerState]
RULES: dict[str, Rule] = {"fedavg": _fedavg, "fedavgm": _fedavgm, "fedadam": _fedadam}


def check(state: ServerState, updates: Sequence[ClientUpdate]) -> None:
    """Refuse a round in which any update is not what the server asked for."""
    if not updates:
        raise FederationError(f"round {state.round + 1}: no client sent an update; the last good model is kept.")
    faults = []
    names = [update.client for update in updates]
    faults += [
        f"client {name!r} sent {names.count(name)} updates" for name in dict.fromkeys(names) if names.count(name) > 1
    ]
    for update in updates:
        faults += [f"client {update.client!r} {fault}" for fault in _faults(state, update)]
    if faults:
        lines = "".join(f"\n  - {fault}" for fault in faults)
        raise FederationError(
            f"round {state.round + 1} is not averaged, the last good model is kept:{lines}\n"
            "Mend or leave out these clients and start again from that model."
        )


def _faults(state: ServerState, update: ClientUpdate) -> list[str]:
    faults = [] if update.examples > 0 else [f"has {update.examples} examples"]
    missing = [name for name in state.parameters if name not in update.delta]
    unknown = [name for name in update.delta if name not in state.parameters]
    faults += [f"lacks {len(missing)} parameters, first {missing[0]!r}"] if missing else []
    faults += [f"sent {len(unknown)} unknown parameters, first {unknown[0]!r}"] if unknown else []
    for name, parameter in state.parameters.items():
        value = update.delta.get(name)
        if value is None:
            continue
        if value.shape != parameter.shape:
            faults.append(f"sent {name!r} of shape {value.shape}, expected {parameter.shape}")
        elif not np.isfinite(value).all():
            faults.append(f"sent {name!r} with values that are not finite")
    return faults
