"""Arrays kept in files: the same training, less memory."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import (
    PREFIX,
    Averaging,
    ClientUpdate,
    FedOpt,
    ServerState,
    Shelf,
    average,
    clear_shelves,
    shapes_of,
)
from docleak.training.federated.flower import embedded
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.flower.strategy import FederatedStrategy
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.record import FederatedRun


def test_a_shelf_holds_what_was_put_on_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"a/b": rng.normal(size=(3, 4)), "..": rng.normal(size=()), "": rng.normal(size=(0, 2))}
    shelf = Shelf(tmp_path, arrays)
    assert list(shelf) == list(arrays) and shapes_of(shelf) == shapes_of(arrays)
    for name, value in arrays.items():
        assert np.array_equal(shelf[name], value) and shelf[name].shape == value.shape
    taken = shelf["a/b"]
    taken += 1
    assert np.array_equal(shelf["a/b"], arrays["a/b"])  # a copy
    shelf["a/b"] = taken
    assert np.array_equal(shelf["a/b"], arrays["a/b"] + 1)
    del shelf[".."]
    assert ".." not in shelf and len(shelf) == 2
    del shelf
    gc.collect()
    assert not list(tmp_path.iterdir())
    (tmp_path / f"{PREFIX}left").mkdir()
    clear_shelves(tmp_path)
    assert not list(tmp_path.iterdir())


def test_sums_on_a_shelf_are_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    state = ServerState.of({"w": rng.normal(size=(5, 3)), "b": rng.normal(size=7)})
    updates = [
        ClientUpdate(f"c{k}", 3 + k, {name: rng.normal(size=value.shape) for name, value in state.parameters.items()})
        for k in range(4)
    ]
    averaging = Averaging(state.on_shelf(tmp_path), shelf=tmp_path)
    for update in updates:
        averaging.add(update)
    mean, expected = averaging.result(), average(state, updates)
    assert isinstance(mean, Shelf)
    assert all(np.array_equal(mean[name], expected[name]) for name in expected)


@pytest.mark.parametrize("server", [FedOpt(), FedOpt("fedadam", 0.01)])
def test_a_federation_with_its_state_on_shelves_trains_the_same_model(
    server: FedOpt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    division = divide(["synthetic"], 2, by="providers", seed=0, count=6)
    write_silos(division.shares, division.sources, tmp_path / "silos", by="providers", seed=0)
    silos = {item.name: item for item in sorted((tmp_path / "silos").iterdir())}
    local = LocalPlan(max_steps=1, batch_size=2, dropout=False)
    federation = Federation(rounds=2, holdout=0.0, local=local, server=server)
    plain = train_embedded(FederatedRun.open(tmp_path / "plain", federation), silos, evaluate_every=0)
    monkeypatch.setattr(embedded, "FederatedStrategy", partial(FederatedStrategy, shelve_above=0))
    train_embedded(FederatedRun.open(tmp_path / "shelf", replace(federation, rounds=1)), silos, evaluate_every=0)
    shelf = train_embedded(FederatedRun.open(tmp_path / "shelf", federation), silos, evaluate_every=0)  # resumed
    assert isinstance(shelf.parameters, Shelf)
    for part in ("parameters", "momentum", "second"):
        ours, theirs = getattr(shelf, part), getattr(plain, part)
        assert set(ours) == set(theirs)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    del shelf, ours, theirs
    gc.collect()
    assert not list((tmp_path / "shelf").glob(f"{PREFIX}*"))
