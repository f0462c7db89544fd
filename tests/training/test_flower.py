"""The federation on Flower: equals a loop without it, resumes, fails closed, and records what the server received."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import docleak
from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.errors import FederationError, RunError
from docleak.models import load_model
from docleak.models.base import trainable
from docleak.runs.claim import claimed
from docleak.training.federated import party
from docleak.training.federated.capture import read_updates
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import FedOpt, ServerState, step
from docleak.training.federated.flower import client as client_module
from docleak.training.federated.flower.app import client_app
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.flower.grid import LocalGrid
from docleak.training.federated.flower.server import SETTINGS, train_alone
from docleak.training.federated.local import parameters_of
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.record import FederatedRun, load_run
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.silo import open_party
from docleak.training.federated.wire import Compression
from docleak.training.lineage import read_fingerprints

PLAN = LocalPlan(max_steps=1, batch_size=2, dropout=True)
FEDERATION = Federation(rounds=3, participation=0.67, holdout=0.3, seed=3, local=PLAN, server=FedOpt("fedadam", 0.01))


@pytest.fixture(scope="module")
def silos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("federation") / "silos"
    division = divide(["synthetic"], 3, by="providers", seed=0, count=14)
    write_silos(division.shares, division.sources, out, by="providers", seed=0)
    return {item.name: item for item in sorted(out.iterdir())}


def run(out: Path, silos: dict[str, Path], federation: Federation = FEDERATION, **options: Any) -> ServerState:
    options.setdefault("evaluate_every", 0)
    return train_embedded(FederatedRun.open(out, federation), silos, **options)


def same(first: ServerState, second: ServerState) -> bool:
    return all(
        (getattr(first, part)[name] == getattr(second, part)[name]).all()
        for part in ("parameters", "momentum", "second")
        for name in first.parameters
    )


def test_flower_equals_a_loop_without_it_bit_for_bit(silos: dict[str, Path], tmp_path: Path) -> None:
    model = load_model("vt5-start")
    state = ServerState.of(parameters_of(model))
    for number in (1, 2, 3):
        weights = {name: value.astype(np.float32) for name, value in state.parameters.items()}
        sampled = FEDERATION.sampled(tuple(silos), number)
        assert len(sampled) == 2
        updates = [
            party.train_round(open_party(silos[name], FEDERATION), model, weights, FEDERATION, number).update
            for name in sampled
        ]
        state = step(state, updates, FEDERATION.server)
    final = run(tmp_path / "run", silos)
    assert final.round == 3 and same(final, state)


def test_a_killed_training_goes_on_to_the_same_model_and_table(silos: dict[str, Path], tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", silos, evaluate_every=1)

    def killed(row: Any, scores: Any) -> None:
        if row is not None and row.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", silos, evaluate_every=1, on_round=killed)
    assert load_run(tmp_path / "killed").last_round() == 2
    assert same(whole, run(tmp_path / "killed", silos, evaluate_every=1))
    first, second = load_run(tmp_path / "whole"), load_run(tmp_path / "killed")
    assert [r.clients[0].loss for r in first.rows()] == [r.clients[0].loss for r in second.rows()]
    assert all(first.scores(n) == second.scores(n) and first.scores(n) for n in range(4))
    again = run(tmp_path / "killed", silos, replace(FEDERATION, rounds=4))
    assert again.round == 4, "more rounds may be asked for later"


def test_another_federation_or_other_silos_are_not_mixed_in(silos: dict[str, Path], tmp_path: Path) -> None:
    short = replace(FEDERATION, rounds=1)
    run(tmp_path, silos, short)
    with pytest.raises(RunError, match="seed: 3 there, 4 asked for"):
        run(tmp_path, silos, replace(short, seed=4))
    with pytest.raises(RunError, match="trained by other silos"):
        run(tmp_path, {"other": silos["synthetic-0"]}, replace(short, rounds=2))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_text("mine")
    with pytest.raises(RunError, match="holds file"):
        FederatedRun.open(tmp_path / "foreign", short)


def test_a_silo_without_a_question_is_refused_before_the_first_round(silos: dict[str, Path], tmp_path: Path) -> None:
    mute = shutil.copytree(silos["synthetic-1"], tmp_path / "silos" / "synthetic-1")
    rows = [json.loads(line) for line in (mute / "pages.jsonl").read_text(encoding="utf-8").splitlines()]
    (mute / "pages.jsonl").write_text("".join(json.dumps({**row, "questions": []}) + "\n" for row in rows))
    turns: list[str] = []
    expected = r"'synthetic-1': it has \d+ pages? and no question with an answer to train on"
    with pytest.raises(FederationError, match=expected):
        run(tmp_path / "run", {**silos, "synthetic-1": mute}, on_silo=lambda number, silo, kind: turns.append(kind))
    assert set(turns) == {"query"}


def test_a_training_does_not_go_on_with_changed_pages(silos: dict[str, Path], tmp_path: Path) -> None:
    short, longer = replace(FEDERATION, rounds=1), replace(FEDERATION, rounds=2)
    mine = {name: shutil.copytree(path, tmp_path / "silos" / name) for name, path in silos.items()}
    run(tmp_path / "run", mine, short)
    index = mine["synthetic-0"] / "pages.jsonl"
    text = index.read_text(encoding="utf-8")
    index.write_text(text.replace("What is", "What was"), encoding="utf-8")
    with pytest.raises(RunError, match=r"other pages of synthetic-0: .*\. A training goes on with the silos it began"):
        run(tmp_path / "run", mine, longer)
    index.write_text(text, encoding="utf-8")
    picture = min(mine["synthetic-1"].rglob("*.png"))
    content = picture.read_bytes()
    picture.write_bytes(content + b"more")
    with pytest.raises(RunError, match="other pages of synthetic-1: "):
        run(tmp_path / "run", mine, longer)
    picture.write_bytes(content)
    (mine["synthetic-1"] / "notes.txt").write_text("no page")
    assert run(tmp_path / "run", mine, longer).round == 2
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    del manifest["info"]["contents"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(manifest))
    assert run(tmp_path / "run", mine, replace(FEDERATION, rounds=3)).round == 3, "of before they were noted"
    hidden = Federation(rounds=1, holdout=0.0, seed=3, local=PLAN, secure=SecurePlan())
    run(tmp_path / "hidden", mine, hidden)
    assert "contents" not in load_run(tmp_path / "hidden").run.info, "nor how many pages there are"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[dict], dict]], None]:
    """Make one silo send something else than what it should."""
    real = client_module.pack

    def change(how: Callable[[dict], dict]) -> None:
        turns = iter(range(100))
        monkeypatch.setattr(
            client_module, "pack", lambda delta, c: how(real(delta, c)) if next(turns) == 1 else real(delta, c)
        )

    return change


def raising(arrays: dict) -> dict:
    raise RuntimeError("disk on fire")


def hanging(arrays: dict) -> dict:
    threading.Event().wait(600)
    return arrays


FAULTS: list[tuple[Callable[[dict], dict], str]] = [
    (raising, "failed: .*disk on fire"),
    (lambda a: {k: np.full_like(v, np.nan) for k, v in a.items()}, "not finite"),
    (lambda a: {k + "x": v for k, v in a.items()}, "lacks .* parameters"),
    (lambda a: {k: v[None] for k, v in a.items()}, r"of shape \(1, "),
    (lambda a: {k: np.full_like(v, 3e38) for k, v in a.items()}, r"sent an update of length .*e\+4\d; what the plan"),
    (lambda a: {k: v + np.float32(1.0) for k, v in a.items()}, "sent an update of length"),
    (hanging, "is stopped: it did not answer within 3 s"),
]


#: Seconds are enough for a silo that answers, here.
HURRY: dict[str, Any] = {"timeout": 3.0}


@pytest.mark.parametrize(("how", "said"), FAULTS)
def test_a_broken_reply_stops_the_round_and_names_the_silo(
    how: Callable[[dict], dict], said: str, silos: dict[str, Path], tmp_path: Path, broken: Any
) -> None:
    federation = replace(FEDERATION, participation=1.0, rounds=2)
    run(tmp_path, silos, replace(federation, rounds=1))
    broken(how)
    with pytest.raises(FederationError, match=said) as error:
        run(tmp_path, silos, federation, **(HURRY if how is hanging else {}))
    assert "'synthetic-1'" in str(error.value) and "round 2" in str(error.value)
    assert load_run(tmp_path).last_round() == 1, "the last good round is kept"


@pytest.mark.parametrize(("how", "said"), FAULTS)
def test_with_a_minimum_the_others_are_averaged_and_the_table_says_who_was_not(
    how: Callable[[dict], dict], said: str, silos: dict[str, Path], tmp_path: Path, broken: Any
) -> None:
    broken(how)
    federation = replace(FEDERATION, participation=1.0, rounds=1, minimum=2)
    run(tmp_path, silos, federation, **(HURRY if how is hanging else {}))
    (row,) = load_run(tmp_path).rows()
    assert [client.silo for client in row.clients] == ["synthetic-0", "synthetic-2"]
    assert len(row.absent) == 1 and "'synthetic-1'" in row.absent[0]


def test_a_silo_counts_no_more_often_than_it_said(
    silos: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that says it has 10^15 examples would be the whole average; so would one whose reply has no number."""
    real = client_module.metric_record
    federation = replace(FEDERATION, participation=1.0, rounds=1)
    for value, said in (
        (10**15, "'synthetic-0' says it counts 1000000000000000 examples; it introduced itself with"),
        (float("nan"), "'synthetic-0' sent a reply that is no update .*num-examples is nan"),
        ("many", "'synthetic-0' failed|'synthetic-0': failed"),
    ):
        monkeypatch.setattr(client_module, "metric_record", lambda values, v=value: real({**values, "num-examples": v}))
        with pytest.raises(FederationError, match=said):
            run(tmp_path / str(value), silos, federation)
        assert load_run(tmp_path / str(value)).last_round() == 0
        assert not list((tmp_path / str(value)).rglob("*.safetensors"))


def test_a_step_of_the_server_that_overflows_is_not_saved(silos: dict[str, Path], tmp_path: Path) -> None:
    wild = replace(FEDERATION, rounds=1, server=FedOpt("fedavg", 1e300))
    with pytest.raises(FederationError, match=r"the server's step gives .* float32 cannot hold"):
        run(tmp_path, silos, wild)
    assert load_run(tmp_path).last_round() == 0


def test_settings_that_so_many_silos_cannot_be_trained_by(silos: dict[str, Path], tmp_path: Path) -> None:
    for federation, said in (
        (replace(FEDERATION, minimum=99), "minimum is 99, and 2 of 3 silos train in a round; expected at most 2"),
        (
            replace(FEDERATION, participation=1.0, secure=SecurePlan(threshold=4)),
            "the secure threshold is 4, and 3 of 3",
        ),
    ):
        with pytest.raises(FederationError, match=said):
            run(tmp_path, silos, federation)


def test_silos_that_cannot_train_together(silos: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "empty" / "none").mkdir(parents=True)
    with pytest.raises(FederationError, match=r"cannot train together:(.|\n)*none"):
        run(tmp_path / "a", {**silos, "none": tmp_path / "empty" / "none"})
    state = FederatedRun.open(tmp_path / "b", FEDERATION)
    from docleak.training.federated.flower.strategy import FederatedStrategy

    first, second = silos["synthetic-0"], silos["synthetic-1"]
    for nodes, said in (
        ({1: {"silo": str(first)}, 2: {"silo": str(first)}}, "2 silos are called 'synthetic-0'"),
        (
            {1: {"silo": str(first)}, 2: {"silo": str(second), "model": "fedocvqa-start"}},
            "'synthetic-1' has a model of",
        ),
        ({1: {"silo": str(first)}, 2: {"name": "lost"}}, "names no silo"),
    ):
        grid = LocalGrid(client_app(), nodes)
        model = load_model("vt5-start")
        strategy = FederatedStrategy(state, parameters_of(model), party.fingerprint(model), expected=2)
        with pytest.raises(FederationError, match=said):
            strategy.train(grid)


@pytest.mark.parametrize("compression", ["none", "fp16", "topk:0.25"])
def test_what_is_captured_is_what_was_averaged_and_bytes_are_few(
    compression: str, silos: dict[str, Path], tmp_path: Path
) -> None:
    federation = replace(
        FEDERATION, rounds=1, participation=1.0, server=FedOpt(), compression=Compression.of(compression)
    )
    state = run(tmp_path / "run", silos, federation, capture=tmp_path / "updates")
    updates = read_updates(tmp_path / "updates")
    assert [update.client for update in updates] == sorted(silos)
    total = sum(update.examples for update in updates)
    for name, value in state.parameters.items():
        start = updates[0].start()[name].astype(np.float64)
        mean = sum(update.examples * update.delta()[name].astype(np.float64) for update in updates) / total
        np.testing.assert_allclose(value, start - mean, rtol=0, atol=1e-12)
    trained = sum(p.numel() for _, p in trainable(load_model("vt5-start").module))
    wanted = {"none": 4 * trained, "fp16": 2 * trained, "topk:0.25": 2 * trained}[compression]
    for client in load_run(tmp_path / "run").rows()[0].clients:
        assert client.down <= 1.02 * 4 * trained and 0.95 * wanted <= client.up <= 1.05 * wanted
        assert (client.compression_error == 0) == (compression == "none") and client.compression_error < 0.9


def test_the_tap_records_any_strategy_of_ones_own(tmp_path: Path) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        weights = message.content["arrays"]["w"].numpy()
        shift = float(context.node_config["shift"])
        content = RecordDict({
            "arrays": ArrayRecord({"w": Array(weights - np.float32(shift))}),
            "metrics": MetricRecord({"num-examples": int(shift), "steps": 1}),
        })  # fmt: skip
        return Message(content, reply_to=message)

    start = torch.arange(4.0)
    strategy = docleak.tap(FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2), tmp_path / "seen")
    grid = LocalGrid(app, {7: {"shift": "1"}, 8: {"shift": "3"}})
    result = strategy.start(
        grid, ArrayRecord({"w": Array(start.numpy())}), num_rounds=2, train_config=ConfigRecord({"learning_rate": 0.5})
    )
    np.testing.assert_allclose(result.arrays["w"].numpy(), start.numpy() - 2 * 2.5)
    updates = read_updates(tmp_path / "seen")
    assert [(u.round, u.client, u.examples) for u in updates] == [(1, "7", 1), (1, "8", 3), (2, "7", 1), (2, "8", 3)]
    for update in updates:
        np.testing.assert_allclose(update.delta()["w"], float(update.examples), rtol=1e-6)
        assert update.details["learning_rate"] == 0.5 and update.details["steps"] == 1
    with pytest.raises(FederationError, match="expected one of weights, delta, gradient"):
        docleak.tap(FedAvg(), tmp_path, kind="secret")


def test_only_one_package_knows_flower() -> None:
    source = Path(docleak.__file__).parent
    knowing = {
        file.relative_to(source).as_posix()
        for file in source.rglob("*.py")
        if any(line.lstrip().startswith(("import flwr", "from flwr")) for line in file.read_text().splitlines())
    }
    assert knowing and all(name.startswith("training/federated/flower/") for name in knowing)


def test_one_process_at_a_time_trains_in_a_folder(silos: dict[str, Path], tmp_path: Path) -> None:
    """Whatever runs it: the second one reads and writes nothing there, not even why it stopped."""
    opened = FederatedRun.open(tmp_path / "run", FEDERATION)
    settings = tmp_path / "federation.json"
    settings.write_text(FEDERATION.to_json())
    config = dict.fromkeys(SETTINGS, "") | {"federation": str(settings), "out": str(opened.path), "silos": 3}
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with claimed(opened.path):
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    try:
        before = {file.name: file.read_bytes() for file in opened.path.iterdir()}
        with pytest.raises(RunError, match="at work"):
            train_embedded(opened, silos)
        with pytest.raises(RunError, match="at work"):
            train_alone(LocalGrid(client_app("cpu"), {}), config, "cpu")
        assert before == {file.name: file.read_bytes() for file in opened.path.iterdir()}
    finally:
        done.set()
        holder.join()


def test_fingerprints_are_forgotten_once_a_page_names_no_provider(silos: dict[str, Path], tmp_path: Path) -> None:
    copies = {name: Path(shutil.copytree(path, tmp_path / name)) for name, path in silos.items()}
    opened = FederatedRun.open(tmp_path / "run", FEDERATION)

    def stopped(number: int, silo: str, kind: str) -> None:
        raise KeyboardInterrupt

    known = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_embedded(opened, copies, on_silo=stopped)
        saved = read_fingerprints(opened.path)
        known.append(saved is not None and opened.identity in saved.hashes)
        index = copies["synthetic-0"] / "pages.jsonl"
        index.write_text(re.sub('"provider": "[^"]*", ', "", index.read_text()))
    assert known == [True, False]
