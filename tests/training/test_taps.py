"""Taps of other people's trainings: refused at once or never in the way; names, partial sends, half precision, disk."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from safetensors.torch import save_file

import docleak
from docleak.errors import FederationError
from docleak.training.federated.capture import CapturedUpdate, naming, read_updates
from docleak.training.federated.flower.grid import LocalGrid
from docleak.training.federated.flower.tap import _record
from docleak.training.taps.recorder import Recorder, Sent, plain
from docleak.training.taps.weights import weights_pair

START = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a.bias": np.zeros(3, np.float32)}
SHAPES = {name: value.shape for name, value in START.items()}


def strategy(counted: str) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, weighted_by_key=counted)


def trained(
    folder: Path, replies: dict[str, dict[str, Any]], *, mods: Any = (), rounds: int = 1, counted: str = "num-examples"
) -> Any:
    """A real strategy and ClientApp, recorded: each reply has these array records; the training's result."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        records = {key: ArrayRecord({name: Array(value) for name, value in arrays.items()}) for key, arrays in
                   replies.items()}  # fmt: skip
        numbers = MetricRecord({counted: 2, "partition-id": 5})
        return Message(RecordDict({**records, "metrics": numbers}), reply_to=message)

    tapped = docleak.tap(strategy(counted), folder)
    arrays = ArrayRecord({name: Array(value) for name, value in START.items()})
    grid = LocalGrid(app, {70: {"partition-id": "5"}})
    return tapped.start(grid, arrays, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.5}))


def one(folder: Path) -> CapturedUpdate:
    (update,) = read_updates(folder)
    return update


def moved(by: float) -> dict[str, Any]:
    return {name: value + np.float32(by) for name, value in START.items()}


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="docleak.tap")
    return caplog


def test_what_cannot_be_recorded_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"older interface.*Use its namesake in flwr.serverapp.strategy"):
        docleak.tap(LegacyFedAvg(), tmp_path / "a")  # type: ignore[type-var]
    with pytest.raises(FederationError, match=r"str is no strategy of flwr\.serverapp"):
        docleak.tap("FedAvg", tmp_path / "a")  # type: ignore[type-var]
    with pytest.raises(FederationError, match="limit_gb is 0; expected gigabytes"):
        docleak.tap(FedAvg(), tmp_path / "a", limit_gb=0)
    tapped = docleak.tap(FedAvg(), tmp_path / "b")
    private = DifferentialPrivacyServerSideFixedClipping(tapped, 1.0, 1.0, 2)
    for again in (tapped, private):
        with pytest.raises(FederationError, match="recorded already"):
            docleak.tap(again, tmp_path / "c")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FederationError, match=r"file cannot be written to: .*exists.*another directory"):
        docleak.tap(FedAvg(), tmp_path / "file")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "a.tex").write_text("x")
    with pytest.raises(FederationError, match=r"holds a\.tex"):
        docleak.tap(FedAvg(), tmp_path / "thesis")


def test_a_second_training_does_not_overwrite_the_first(tmp_path: Path) -> None:
    trained(tmp_path / "u", {"arrays": moved(1.0)}, rounds=2)
    with pytest.raises(FederationError, match="holds 2 rounds of an earlier training"):
        docleak.tap(FedAvg(), tmp_path / "u")
    (first, _) = read_updates(tmp_path / "u")
    np.testing.assert_array_equal(first.received()["a.bias"], moved(1.0)["a.bias"])
    assert first.details["lr"] == 0.5 and first.details["recorded_by"] == "docleak.tap" and first.examples == 2


def test_an_update_is_counted_from_what_the_client_was_sent(tmp_path: Path) -> None:
    """Of a strategy that sends other weights than it was given, these were recorded as the start."""

    class Halving(FedAvg):
        def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Any:
            half = ArrayRecord({name: Array(value.numpy() / np.float32(2)) for name, value in arrays.items()})
            return super().configure_train(server_round, half, config, grid)

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        came = message.content["arrays"]
        after = ArrayRecord({name: Array(value.numpy() + np.float32(1)) for name, value in came.items()})
        return Message(RecordDict({"arrays": after, "metrics": MetricRecord({"num-examples": 2})}), reply_to=message)

    tapped = docleak.tap(Halving(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1), tmp_path / "u")
    arrays = ArrayRecord({name: Array(value) for name, value in START.items()})
    tapped.start(LocalGrid(app, {70: {}}), arrays, num_rounds=1)
    assert {float(moved) for value in one(tmp_path / "u").delta().values() for moved in value.flat} == {-1.0}


def test_an_update_of_a_client_that_was_sent_no_weights_is_not_recorded(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """It was recorded as one of what had been sent a round before."""

    class Once(FedAvg):
        def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Any:
            for message in super().configure_train(server_round, arrays, config, grid):
                if server_round > 1:
                    del message.content["arrays"]
                yield message

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        after = ArrayRecord({name: Array(value) for name, value in moved(1.0).items()})
        return Message(RecordDict({"arrays": after, "metrics": MetricRecord({"num-examples": 2})}), reply_to=message)

    tapped = docleak.tap(Once(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1), tmp_path / "u")
    arrays = ArrayRecord({name: Array(value) for name, value in START.items()})
    tapped.start(LocalGrid(app, {70: {}}), arrays, num_rounds=2)
    assert one(tmp_path / "u").round == 1 and "round 2, client 70: not recorded" in said.text


def test_examples_go_by_the_name_that_quickstarts_give_them_too(tmp_path: Path) -> None:
    trained(tmp_path / "u", {"arrays": moved(1.0)}, counted="num_examples")
    assert one(tmp_path / "u").examples == 2


@pytest.mark.parametrize(
    ("replies", "warning"),
    [
        ({"arrays": {**moved(1.0), "a.bias": np.float32([np.nan, 0, 0])}}, "'a.bias' with values that are not finite"),
        ({"arrays": {name: value for name, value in moved(1.0).items() if name == "x"}}, "not recorded"),
    ],
)
def test_a_training_goes_on_whatever_comes(
    replies: dict[str, Any], warning: str, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """Flower's strategy is given the reply as it came; what it makes of it is its own affair."""
    trained(tmp_path / "u", replies)
    assert warning in said.text
    with pytest.raises(FederationError, match="holds no update yet"):
        read_updates(tmp_path / "u")


def test_of_two_array_records_that_of_the_model_is_recorded(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path / "u", waiting=True)
    LocalGrid(ClientApp(), {7: {}})  # without a grid no message can be made
    content = RecordDict({
        "control": ArrayRecord({"c": Array(np.ones(2, np.float32))}),
        "arrays": ArrayRecord({name: Array(value) for name, value in moved(1.0).items()}),
    })  # fmt: skip
    asked = Message(RecordDict(), dst_node_id=7, message_type="train")
    asked.metadata.__dict__["_message_id"] = "m"
    start = {name: Array(value) for name, value in START.items()}
    _record(recorder, 3, Message(content, reply_to=asked), start, {})
    update = one(tmp_path / "u")
    assert set(update.shapes()) == set(START) and update.round == 3
    assert "2 array records came; 'arrays' is recorded" in said.text


def test_adapters_wrappers_and_lists_are_recorded_by_the_names_that_were_sent(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path / "u", waiting=True)
    sends = {
        "part": {"a.bias": START["a.bias"] + 1}, "wrapped": {f"module.{n}": v for n, v in moved(1.0).items()},
        "list": {str(i): v for i, v in enumerate(moved(1.0).values())}, "more": {**moved(1.0), "b": np.ones(2)},
    }  # fmt: skip
    for client, arrays in sends.items():
        recorder.record(Sent(1, client, START, arrays))
    updates = {update.client: update for update in read_updates(tmp_path / "u")}
    assert set(updates["part"].shapes()) == {"a.bias"}
    for client in ("wrapped", "list", "more"):
        assert updates[client].shapes() == SHAPES
    assert updates["more"].details["left_out"] == ["b"] and "first 'b'" in said.text
    recorder.record(Sent(1, "part", START, moved(5.0)))
    assert "recorded before, and is left as it was" in said.text


def test_recording_ends_at_the_limit_and_the_training_goes_on(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path / "u", limit_gb=200e-9)
    for number in range(1, 9):
        recorder.record(Sent(number, "a", START, moved(1.0)))
    recorder.settle()
    assert 1 <= len(read_updates(tmp_path / "u")) <= 2
    assert said.text.count("recording ends before round") == 1 and "limit_gb" in said.text
    assert "about 0.0 MB for each client's update" in said.text, "an estimate that a hundred updates exceed is said"


def test_a_client_mod_records_what_leaves_and_whose_it_is(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    def clipping(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        reply.content["arrays"] = ArrayRecord({n: Array(v - np.float32(0.5)) for n, v in moved(1.0).items()})
        return reply

    mods = (docleak.tap_client(tmp_path / "client"), clipping)
    trained(tmp_path / "server", {"arrays": moved(1.0)}, mods=mods)
    at_client, at_server = one(tmp_path / "client"), one(tmp_path / "server")
    assert (at_client.client, at_server.client, at_client.examples) == ("5", "70", 2)
    for update in (at_client, at_server):
        np.testing.assert_array_equal(update.received()["a.bias"], START["a.bias"] + 0.5)
        assert int(update.details["partition-id"]) == 5
    again = LocalGrid(ClientApp(mods=[docleak.tap_client(tmp_path / "client")]), {70: {"partition-id": "5"}})
    assert again is not None, "a client's processes begin anew in the same folder"


class Answering(LocalGrid):
    """SecAgg+'s workflow goes through the replies twice."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        return list(super().send_and_receive(messages, timeout=timeout))


@pytest.mark.parametrize("outer", [True, False])
def test_of_flowers_secure_aggregation_no_masked_word_is_recorded_and_what_it_hides_is_said(
    outer: bool, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """SecAgg+ itself, three clients. Before its mod "no weights were asked for" was said nine times and "has no
    arrays, of the start's 2" three times; behind it, that an update "holds a bytes", and it was lost."""

    class Client(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [value + 1 for value in parameters], 2, {}

    tapped = docleak.tap_client(tmp_path / "u")
    mods = [tapped, secaggplus_mod] if outer else [secaggplus_mod, tapped]
    app = ClientApp(client_fn=lambda context: Client().to_client(), mods=mods)
    grid = Answering(app, {70 + number: {"partition-id": str(number)} for number in range(3)})
    strategy = LegacyFedAvg(
        fraction_evaluate=0.0, min_fit_clients=3, min_available_clients=3,
        initial_parameters=ndarrays_to_parameters(list(START.values())),
    )  # fmt: skip
    context = LegacyContext(
        Context(1, 1, {}, RecordDict(), {}), ServerConfig(num_rounds=1), strategy, SimpleClientManager()
    )
    DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2))(grid, context)
    if outer:
        assert said.text.count("what was masked (secure aggregation) is not recorded") == 3
        assert said.text.count("docleak.tap: round") == 3 and not list((tmp_path / "u").glob("round-*/*.json"))
    else:
        updates = read_updates(tmp_path / "u")
        assert "docleak.tap" not in said.text and [update.client for update in updates] == ["0", "1", "2"]
        assert {update.details["hidden_by"] for update in updates} == {"Flower's SecAgg+"}
        np.testing.assert_array_equal(updates[0].received()["1"], START["a.bias"] + 1)


def test_bfloat16_is_kept_as_float32() -> None:
    values = torch.tensor([1.5, -2.25, 3e38]).bfloat16()
    bits = values.view(torch.int16).numpy().view("V2")
    np.testing.assert_array_equal(plain(bits), values.float().numpy())
    assert plain(np.float16([1.5])).dtype == np.float16


def test_names_are_mapped_where_it_is_sure() -> None:
    lora = {"q.lora_A.default.weight": (2, 3), "q.lora_B.default.weight": (3, 2)}
    assert naming({"base_model.model.q.lora_A.weight": (2, 3)}, [lora]) == {
        "base_model.model.q.lora_A.weight": "q.lora_A.default.weight"
    }
    called = {"base_model.model.q.lora_A.my-docs.weight": (2, 3), "base_model.model.q.lora_B.my-docs.weight": (3, 2)}
    assert {*naming(called, [lora]).values()} == {*lora}, "adapters by a name of their own"
    both = {**called, "base_model.model.q.lora_A.other.weight": (2, 3)}
    assert {*naming(both, [lora]).values()} == {"q.lora_B.default.weight"}, "two A for one"
    assert naming({"t.lora_embedding_A.docs": (2, 3)}, [{"t.lora_embedding_A.default": (2, 3)}]), "of a table"
    assert naming({"a.modules_to_save.default2.bias": (3,)}, [{"a2.bias": (3,)}]) == {}, "a copy of another adapter's"
    assert naming({"0": (2, 3), "1": (3,)}, [SHAPES]) == {"0": "a.weight", "1": "a.bias"}
    layers = {"module.a._orig_mod.weight": (2, 3), "module.a._orig_mod._checkpoint_wrapped_module.bias": (3,)}
    assert naming(layers, [SHAPES]) == dict(zip(layers, SHAPES, strict=True)), "layers that were compiled one by one"
    leaf = {"base_model.model.q._orig_mod.lora_A.docs.weight": (2, 3), "q._orig_mod.lora_B.docs.weight": (3, 2)}
    assert {*naming(leaf, [lora]).values()} == {*lora}, "adapters of a layer that was compiled by itself"
    copied = {"base_model._orig_mod.model.a._checkpoint_wrapped_module.modules_to_save.docs.bias": (3,)}
    assert {*naming(copied, [SHAPES]).values()} == {"a.bias"}, "a copy within one, of a base that was compiled"
    assert naming({"1": (3,), "0": (2, 3)}, [SHAPES]) == {"0": "a.weight", "1": "a.bias"}
    assert naming({"0": (9,), "1": (3,)}, [SHAPES]) == {}, "other shapes: another model"
    assert naming({"module.a.bias": (4,)}, [SHAPES]) == {}
    assert naming({"module.a.bias": (3,), "model.a.bias": (3,)}, [SHAPES]) == {}, "two for one"
    wrapped = {"net.module.a.weight": "a.weight", "net.module.a.bias": "a.bias"}
    assert naming({name: SHAPES[other] for name, other in wrapped.items()}, [SHAPES]) == wrapped
    assert naming({"net.a.bias": (3,), "head.a.weight": (2, 3)}, [SHAPES]) == {}, "no prefix of all"


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "bin", "folder"])
def test_weights_before_and_after_are_an_update(suffix: str, tmp_path: Path) -> None:
    tensors = [{n: torch.from_numpy(v.copy()) for n, v in arrays.items()} for arrays in (START, moved(1.0))]
    places = [tmp_path / f"{name}.{suffix}" for name in ("before", "after")]
    for place, state in zip(places, tensors, strict=True):
        if suffix == "safetensors":
            save_file({name: value.bfloat16() for name, value in state.items()}, place)
        elif suffix == "folder":
            place.mkdir()
            torch.save(state, place / "pytorch_model.bin")
        else:
            torch.save({"state_dict": {f"module.{n}": v for n, v in state.items()}, "epoch": 3}, place)
    update = weights_pair(*places)
    assert (update.kind, update.round, update.client) == ("weights", 1, "given")
    assert {name.removeprefix("module."): value.tolist() for name, value in update.delta().items()} == {
        "a.weight": [[-1.0] * 3] * 2, "a.bias": [-1.0] * 3
    }  # fmt: skip
    with pytest.raises(FederationError, match="hold the same weights"):
        weights_pair(places[0], places[0])
    with pytest.raises(FederationError, match="is not there; expected a file or folder"):
        weights_pair(places[0], tmp_path / "nowhere")


def test_files_that_are_no_weights_are_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"a": SimpleNamespace(x=1)}, tmp_path / "objects.pt")
    torch.save({"epoch": 3}, tmp_path / "numbers.pt")
    save_file({"other": torch.ones(2)}, tmp_path / "other.safetensors")
    save_file({name: torch.from_numpy(value) for name, value in START.items()}, tmp_path / "start.safetensors")
    for name, match in (
        ("objects.pt", "holds more than plain weights"), ("numbers.pt", "holds no tensors by name"),
        ("other.safetensors", "no weights in common"),
    ):  # fmt: skip
        with pytest.raises(FederationError, match=match):
            weights_pair(tmp_path / "start.safetensors", tmp_path / name)
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    torch.save({"net": {"a": torch.ones(2)}, "ema": {"a": torch.ones(2)}, "epoch": 3}, tmp_path / "two.pt")
    for name, match in (
        ("objects.pt", r"\(types.SimpleNamespace\); nothing in it was run\. Where you trust it, load it yourself"),
        ("list.pt", r"list\.pt is a list; expected weights by name"),
        ("two.pt", r"expected a state of weights\. It holds 'net', 'ema', 'epoch': save one of them alone"),
    ):
        with pytest.raises(FederationError, match=match):
            weights_pair(tmp_path / "start.safetensors", tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FederationError, match=r"empty has no weights; expected one of adapter_model\.safetensors"):
        weights_pair(tmp_path / "empty", tmp_path / "empty")


def test_the_only_state_in_a_file_is_it_whatever_it_is_called(tmp_path: Path) -> None:
    """ "net" was refused, without a word of what is in the file."""
    begun = {name: torch.from_numpy(value) for name, value in START.items()}
    ended = {name: value + 1 for name, value in begun.items()}
    for file, state in (("before.pt", begun), ("after.pt", ended)):
        torch.save({"net": state, "optimizer": {"state": {0: state}}, "epoch": 3}, tmp_path / file)
    assert set(weights_pair(tmp_path / "before.pt", tmp_path / "after.pt").shapes()) == set(START)


def sharded(folder: Path, state: dict[str, Any]) -> Path:
    """A folder as save_pretrained writes a large model: a file for every tensor, and their index."""
    folder.mkdir()
    for number, (name, value) in enumerate(state.items()):
        save_file({name: torch.from_numpy(value.copy())}, folder / f"model-{number}.safetensors")
    places = {name: f"model-{number}.safetensors" for number, name in enumerate(state)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def test_shards_are_read_by_folder_or_index_and_one_that_lacks_is_named(tmp_path: Path) -> None:
    """A missing one was Python's FileNotFoundError, and an index "holds more than plain weights"."""
    before, after = sharded(tmp_path / "before", START), sharded(tmp_path / "after", moved(1.0))
    for pair in ((before, after), (before / "model.safetensors.index.json", after / "model.safetensors.index.json")):
        assert weights_pair(*pair).delta()["a.bias"].tolist() == [-1.0] * 3
    (after / "model-1.safetensors").unlink()
    with pytest.raises(FederationError, match=r"names 2 files, of which model-1\.safetensors cannot be found"):
        weights_pair(before, after)


def test_weights_before_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    """They were audited: "nothing of the update rises above the rounding of the weights it was sent as"."""
    holed = {**START, "a.bias": np.float32([np.nan, 0, 0])}
    for name, state in (("before", holed), ("after", moved(1.0))):
        save_file(
            {key: torch.from_numpy(value.copy()) for key, value in state.items()}, tmp_path / f"{name}.safetensors"
        )
    update = weights_pair(tmp_path / "before.safetensors", tmp_path / "after.safetensors")
    with pytest.raises(
        FederationError, match=r"the weights before:\n  - has 'a\.bias' with values that are not finite"
    ):
        update.start()


def test_weights_that_were_written_over_are_read_again(tmp_path: Path) -> None:
    before, after = tmp_path / "before.safetensors", tmp_path / "after.safetensors"
    save_file({name: torch.from_numpy(value) for name, value in START.items()}, before)
    for by in (1.0, 2.0):
        save_file({name: torch.from_numpy(value.copy()) for name, value in moved(by).items()}, after)
        os.utime(after, (by, by))  # a clock's tick is longer than this test
        assert weights_pair(before, after).delta()["a.bias"].tolist() == [-by] * 3
