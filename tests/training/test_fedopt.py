"""FedAvg, FedAvgM and FedAdam against independent numpy oracles, and rounds that must not be averaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docleak.errors import FederationError
from docleak.training.federated.fedopt import Averaging, ClientUpdate, FedOpt, ServerState, average, step

SHAPES = {"a.weight": (3, 4), "b.bias": (5,), "scale": ()}


def vector(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in SHAPES])


def draw(rng: np.random.Generator, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {name: np.asarray(rng.normal(size=shape), dtype=dtype) for name, shape in SHAPES.items()}


def rounds(rng: np.random.Generator, count: int = 7) -> list[list[ClientUpdate]]:
    """Unequal n_k, and another subset of five clients each round."""
    updates = []
    for _ in range(count):
        chosen = rng.permutation(5)[: int(rng.integers(1, 5))]
        updates.append([ClientUpdate(f"silo-{k}", int(rng.integers(1, 900)), draw(rng)) for k in chosen])
    return updates


def oracle(start: np.ndarray, plan: list[list[ClientUpdate]], o: FedOpt) -> np.ndarray:
    """The paper's formulas on one long vector, written without the code under test."""
    theta, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for updates in plan:
        n = np.array([u.examples for u in updates], np.float64)
        stacked = np.stack([vector(dict(u.delta)) for u in updates])
        delta = (n / n.sum()) @ stacked
        if o.divide_by_clients:
            delta = delta / len(updates)
        if o.rule == "fedavg":
            theta = theta - o.learning_rate * delta
            continue
        m = o.beta1 * m + (1.0 - o.beta1) * delta
        if o.rule == "fedavgm":
            theta = theta - o.learning_rate * m
            continue
        v = o.beta2 * v + (1.0 - o.beta2) * delta**2
        theta = theta - o.learning_rate * m / np.sqrt(v + o.epsilon)
    return theta


@pytest.mark.parametrize(
    "o",
    [
        FedOpt(),
        FedOpt("fedavg", learning_rate=0.3, divide_by_clients=True),
        FedOpt("fedavgm"),
        FedOpt("fedavgm", learning_rate=0.5, beta1=0.5),
        FedOpt("fedadam", learning_rate=0.01),
        FedOpt("fedadam", learning_rate=0.1, beta2=0.9, epsilon=1e-3),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_seven_rounds_equal_the_oracle(o: FedOpt, seed: int) -> None:
    rng = np.random.default_rng(seed)
    start, plan = draw(rng), rounds(rng)
    state = ServerState.of(start)
    for updates in plan:
        state = step(state, updates, o)
    assert state.round == len(plan)
    np.testing.assert_allclose(vector(dict(state.parameters)), oracle(vector(start), plan, o), rtol=0, atol=1e-12)


def test_the_order_of_replies_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    updates = [ClientUpdate(name, 1 + int(rng.integers(99)), draw(rng)) for name in "abcde"]
    state = ServerState.of(draw(rng))
    first, second = average(state, updates), average(state, updates[::-1])
    assert all((first[name] == second[name]).all() for name in SHAPES)


def test_fedavg_of_one_client_is_its_model() -> None:
    rng = np.random.default_rng(1)
    start, end = draw(rng, np.float64), draw(rng, np.float64)
    delta = {name: start[name] - end[name] for name in SHAPES}
    after = step(ServerState.of(start), [ClientUpdate("only", 7, delta)], FedOpt())
    np.testing.assert_allclose(vector(dict(after.parameters)), vector(end), rtol=0, atol=1e-15)


def test_the_state_is_float64_and_nothing_is_changed_in_place() -> None:
    rng = np.random.default_rng(2)
    state = ServerState.of(draw(rng))
    before = vector(dict(state.parameters)).copy()
    after = step(state, rounds(rng, 1)[0], FedOpt("fedadam"))
    assert (vector(dict(state.parameters)) == before).all() and not state.momentum
    assert {value.dtype for part in (after.parameters, after.momentum, after.second) for value in part.values()} == {
        np.dtype(np.float64)
    }


def broken(update: ClientUpdate, name: str, value: np.ndarray | None) -> ClientUpdate:
    delta = {key: array for key, array in update.delta.items() if key != name}
    return replace(update, delta=delta if value is None else {**delta, name: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda u: broken(u, "b.bias", None), r"client 'bad' lacks 1 parameters, first 'b.bias'"),
        (lambda u: broken(u, "c.bias", np.zeros(1)), r"client 'bad' sent 1 unknown parameters, first 'c.bias'"),
        (lambda u: broken(u, "b.bias", np.zeros(4)), r"'b.bias' of shape \(4,\), expected \(5,\)"),
        (lambda u: broken(u, "b.bias", np.full(5, np.nan)), r"'b.bias' with values that are not finite"),
        (lambda u: replace(u, examples=0), r"client 'bad' has 0 examples"),
        (lambda u: replace(u, client="good"), r"client 'good' sent 2 updates or more"),
    ],
)
def test_a_broken_update_stops_the_round(change: object, said: str) -> None:
    rng = np.random.default_rng(3)
    state = ServerState.of(draw(rng))
    good, bad = ClientUpdate("good", 3, draw(rng)), ClientUpdate("bad", 4, draw(rng))
    assert callable(change)
    with pytest.raises(FederationError, match=said) as error:
        step(state, [good, change(bad)], FedOpt())
    assert "round 1" in str(error.value) and "last good model is kept" in str(error.value)
    assert "start again: no round has ended yet, that model is the start." in str(error.value)
    with pytest.raises(FederationError, match="start again from that model"):
        step(replace(state, round=1), [good, change(bad)], FedOpt())


def test_no_update_at_all() -> None:
    with pytest.raises(FederationError, match="no client sent an update"):
        step(ServerState.of(draw(np.random.default_rng(0))), [], FedOpt())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rule": "fedsgd"}, "known: fedavg, fedavgm, fedadam"),
        ({"beta1": 1.0}, "beta1 is 1.0"),
        ({"beta2": -0.1}, "beta2 is -0.1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"epsilon": float("nan")}, "epsilon is nan"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, object], said: str) -> None:
    with pytest.raises(FederationError, match=said):
        FedOpt(**options)  # type: ignore[arg-type]


def test_a_sum_on_a_shelf_is_in_files_and_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    (updates,) = rounds(rng, 1)
    state = ServerState.of(draw(rng))
    here, shelved = Averaging(state), Averaging(state, shelf=tmp_path)
    for update in updates:
        here.add(update)
        shelved.add(update)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert sorted(file.stat().st_size for file in files) == [8, 8 * 5, 8 * 12], "float64 of each parameter"
    n = np.array([update.examples for update in updates], np.float64)
    expected = (n / n.sum()) @ np.stack([vector(dict(update.delta)) for update in updates])
    for averaged in (here, shelved):
        np.testing.assert_allclose(vector(dict(averaged.result())), expected, rtol=1e-12)
