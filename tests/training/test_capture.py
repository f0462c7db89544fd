"""Captured updates: what was received comes back bit for bit, and what cannot be an update is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from docleak.errors import FederationError
from docleak.training.federated.capture import read_updates, write_update

RNG = np.random.default_rng(0)
START = {
    "a.weight": RNG.normal(size=(3, 4)).astype(np.float32),
    "a.bias": RNG.normal(size=4).astype(np.float32),
    "scale": np.float32([[2.0]]).reshape(()),
}
DETAILS: dict[str, Any] = {"optimiser": "adamw", "learning_rate": 5e-4, "steps": 3, "loss": 1.5, "sizes": [1, 2]}


def moved(by: float) -> dict[str, Any]:
    return {name: np.asarray(value + np.float32(by)) for name, value in START.items()}


def write(directory: Path, client: str = "silo-0", **changes: Any) -> Path:
    values: dict[str, Any] = {
        "round": 1, "client": client, "start": START, "received": moved(0.25), "kind": "weights", "examples": 7,
        "details": DETAILS,
    }  # fmt: skip
    return write_update(directory, **{**values, **changes})


def test_what_was_received_comes_back_bit_for_bit(tmp_path: Path) -> None:
    half = {name: value.astype(np.float16) for name, value in moved(0.5).items()}
    write(tmp_path, "b", received=half)
    written = write(tmp_path, "a")
    write(tmp_path, "a", round=12, start=moved(1.0))
    assert written.relative_to(tmp_path).as_posix() == "round-0001/a.json"
    first, second, later = read_updates(tmp_path)
    assert [(u.round, u.client, u.kind, u.examples) for u in (first, second, later)] == [
        (1, "a", "weights", 7), (1, "b", "weights", 7), (12, "a", "weights", 7)
    ]  # fmt: skip
    assert first.details == DETAILS and first.name == "round 1, client a"
    for name, value in START.items():
        np.testing.assert_array_equal(first.start()[name], value)
        np.testing.assert_array_equal(first.received()[name], moved(0.25)[name])
        np.testing.assert_array_equal(later.start()[name], moved(1.0)[name])
        assert second.received()[name].dtype == np.float16
        np.testing.assert_array_equal(second.received()[name], half[name])
    json.loads((tmp_path / "capture.json").read_text())
    assert not list(tmp_path.rglob(".docleak-*")), "no draft is left"


def test_the_delta_has_the_sign_of_the_federation(tmp_path: Path) -> None:
    """theta_t - y_k, and the same from what a client sent as a delta itself."""
    write(tmp_path, "weights")
    delta = {name: START[name] - moved(0.25)[name] for name in START}
    write(tmp_path, "delta", received=delta, kind="delta")
    write(tmp_path, "gradient", received=delta, kind="gradient")
    by_client = {update.client: update for update in read_updates(tmp_path)}
    for name in START:
        np.testing.assert_array_equal(by_client["weights"].delta()[name], delta[name])
        np.testing.assert_array_equal(by_client["delta"].delta()[name], delta[name])
    with pytest.raises(FederationError, match=r"is a gradient.*received\(\)"):
        by_client["gradient"].delta()


def test_arrays_are_read_only_when_asked_for(tmp_path: Path) -> None:
    write(tmp_path)
    (update,) = read_updates(tmp_path)
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    assert update.examples == 7
    with pytest.raises(FederationError, match="is missing"):
        update.start()


@pytest.mark.parametrize(
    "client", ["start", "Start", "../up", "a/b", "x" * 200, "Bäckerei 3", ".", "..", "a\0b", "%2F"]
)
def test_any_name_of_a_client_is_a_file_of_its_own_inside(client: str, tmp_path: Path) -> None:
    file = write(tmp_path, client)
    assert file.parent == tmp_path / "round-0001"
    write(tmp_path, "other")
    assert sorted(update.client for update in read_updates(tmp_path)) == sorted([client, "other"])
    np.testing.assert_array_equal(load_file(file.parent / "start.safetensors")["a.bias"], START["a.bias"])


def test_an_update_sent_again_replaces_the_first(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, received=moved(3.0), examples=9)
    (update,) = read_updates(tmp_path)
    assert update.examples == 9
    np.testing.assert_array_equal(update.received()["a.bias"], moved(3.0)["a.bias"])


def test_a_part_of_the_arrays_is_recorded_as_it_came(tmp_path: Path) -> None:
    write(tmp_path, received={k: v for k, v in moved(1.0).items() if k != "scale"})
    (update,) = read_updates(tmp_path)
    assert set(update.shapes()) == set(update.delta()) == set(update.start()) - {"scale"}


def test_details_are_what_json_can_hold(tmp_path: Path) -> None:
    write(tmp_path, details={"loss": float("nan"), "n": np.int64(3), "rate": np.float32(0.5), "on": True, 1: (1, 2)})
    assert read_updates(tmp_path)[0].details == {"loss": None, "n": 3, "rate": 0.5, "on": True, "1": [1, 2]}
    with pytest.raises(FederationError, match="holds a set; expected what JSON can hold"):
        write(tmp_path, details={"x": {1, 2}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"received": {}}, "has no arrays"),
        ({"received": {**moved(1.0), "more": np.zeros(2, np.float32)}}, "has 1 arrays that the start has not.*'more'"),
        ({"received": {**moved(1.0), "a.bias": np.zeros(5, np.float32)}}, r"'a.bias' of shape \(5,\), expected \(4,\)"),
        ({"received": {**moved(1.0), "a.bias": np.float32([0, np.nan, 0, 0])}}, "'a.bias' with values that are not"),
        ({"start": moved(np.inf), "received": moved(0.0)}, "start.safetensors.*not finite"),
        ({"kind": "weight"}, "kind 'weight'.*expected one of weights, delta, gradient"),
        ({"examples": -1}, "-1 examples"),
        ({"client": ""}, "0 characters"),
        ({"client": "ä" * 100}, "600 characters"),
    ],
)
def test_what_is_no_update_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=rf"(?s){said}"):
        write(tmp_path, **changes)
    assert not list(tmp_path.rglob("*.json")) or not list(tmp_path.glob("round-*/*.json"))


def test_other_weights_under_the_same_round_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(FederationError, match="holds other weights than those this round"):
        write(tmp_path, "silo-1", start=moved(0.5))
    write(tmp_path, "silo-1")


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(FederationError, match=r"no capture: it has no capture.json but holds thesis.tex"):
        write(tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(FederationError, match="no capture"):
        read_updates(tmp_path)


def test_the_folder_of_a_training_is_told_where_its_updates_are(tmp_path: Path) -> None:
    write(tmp_path / "updates")
    with pytest.raises(FederationError, match=r"is a training; .* Give .*/updates\.$"):
        read_updates(tmp_path)


def test_what_was_damaged_is_said_all_at_once(tmp_path: Path) -> None:
    for client in "abcd":
        write(tmp_path, client)
    folder = tmp_path / "round-0001"
    (folder / "a.safetensors").unlink()
    (folder / "b.json").write_text("{")
    save_file({**moved(0.0), "a.bias": np.zeros(9, np.float32)}, folder / "c.safetensors")
    with pytest.raises(FederationError) as caught:
        read_updates(tmp_path)
    said = str(caught.value)
    assert "a.safetensors is missing" in said and "b.json cannot be read" in said and "(9,)" in said
    assert "d." not in said


def test_weights_of_a_round_that_are_not_there_are_said_once(tmp_path: Path) -> None:
    for client in ("a", "b"):
        write(tmp_path, client=client)
    (tmp_path / "round-0001" / "start.safetensors").unlink()
    with pytest.raises(FederationError) as told:
        read_updates(tmp_path)
    assert str(told.value).count("start.safetensors") == 1 and "is missing" in str(told.value)
    assert "finite" not in str(told.value) and "record the training anew" in str(told.value)


def test_not_a_number_on_disk_is_noticed_when_read(tmp_path: Path) -> None:
    write(tmp_path)
    broken = {**moved(0.0), "a.bias": np.float32([np.nan] * 4)}
    save_file(broken, tmp_path / "round-0001" / "silo-0.safetensors")
    with pytest.raises(FederationError, match=r"(?s)round 1, client silo-0.*'a.bias' with values that are not finite"):
        read_updates(tmp_path)[0].delta()


def test_captures_of_another_format_and_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "capture.json").write_text('{"format": 2}')
    with pytest.raises(FederationError, match="says format 2; this docleak reads 1"):
        read_updates(tmp_path)
    with pytest.raises(FederationError, match="says format 2"):
        write(tmp_path)
    (tmp_path / "capture.json").write_text('{"format": 1}')
    with pytest.raises(FederationError, match="holds no update yet"):
        read_updates(tmp_path)
