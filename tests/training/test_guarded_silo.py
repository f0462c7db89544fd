"""An active server in a round of Flower's: what it reads of a silo, and that a guarded silo sends it nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from docleak.attacks.registries import SERVERS
from docleak.attacks.servers.view import PublicPages, Sent
from docleak.documents.folder import save
from docleak.documents.page import Page
from docleak.errors import FederationError
from docleak.models import load_model
from docleak.studies.gradient.case import pages_for
from docleak.studies.servers.study import of_tokens, tensors
from docleak.training.federated.capture import read_updates
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.flower.app import client_app
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.flower.grid import LocalGrid
from docleak.training.federated.flower.guard import GUARDED
from docleak.training.federated.flower.strategy import FederatedStrategy
from docleak.training.federated.local import parameters_of
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.party import fingerprint, fresh_model_of
from docleak.training.federated.record import FederatedRun

MODEL = "vt5-start"
#: In float32 weights a smaller step of a model of bins is lost; the server says the rate.
STEP = LocalPlan(optimiser="sgd", learning_rate=1e6, weight_decay=0.0, max_steps=1, batch_size=1, dropout=False)
FEDERATION = Federation(MODEL, rounds=1, holdout=0.0, local=STEP)


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    """The silo's one question, and the server's own pages."""
    private, *public = pages_for(load_model(MODEL), "synthetic", count=9, seed=3)
    return [replace(private, questions=private.questions[:1]), *public]


@pytest.fixture(scope="module")
def silo(pages: list[Page], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("silo") / "a"
    save(pages[:1], folder)
    return folder


class Active(FederatedStrategy):
    """A server that takes updates of any length."""

    def _faults_in(self, update: ClientUpdate) -> list[str]:
        return []


def manipulated(spec: str, pages: list[Page]) -> Sent:
    model = load_model(MODEL)
    public = PublicPages(*tensors(model, pages[1:]))
    return SERVERS.load(spec).manipulate(model, public, generator=torch.Generator().manual_seed(0))


def round_of(sent: Sent, silo: Path, out: Path, *, guarded: bool) -> dict[str, np.ndarray]:
    """A round of Flower's in which the server begins with what it has manipulated; the update that came back."""
    fresh_model_of(FEDERATION, "cpu")  # the silo's, as its checkpoint is
    run = FederatedRun.open(out, FEDERATION)
    node = {"silo": str(silo), "name": "a", **({GUARDED: str(out / GUARDED)} if guarded else {})}
    strategy = Active(
        run, parameters_of(sent.model), fingerprint(load_model(MODEL)), expected=1, evaluate_every=0,
        capture=out / "updates",
    )  # fmt: skip
    strategy.train(LocalGrid(client_app(), {1: node}))
    (update,) = read_updates(out / "updates")
    return update.delta()


def test_an_active_server_reads_a_silo_that_is_not_guarded(silo: Path, pages: list[Page], tmp_path: Path) -> None:
    sent = manipulated("decepticons", pages)
    delta = round_of(sent, silo, tmp_path, guarded=False)
    loot = SERVERS.load("decepticons").read(sent, {name: torch.from_numpy(value) for name, value in delta.items()})
    counts = of_tokens(loot, tensors(sent.model, pages[:1])[1])
    assert counts["tokens_read"] >= 0.75 * counts["tokens"] and counts["tokens_wrong"] == 0


@pytest.mark.parametrize("spec", ["decepticons", "trap-weights:share=0.05,left=0.05"])
def test_a_guarded_silo_sends_it_nothing(
    spec: str, silo: Path, pages: list[Page], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FederationError, match="silo 'a': its guard refuses the model that was sent; nothing") as caught:
        round_of(manipulated(spec, pages), silo, tmp_path, guarded=True)
    assert not list((tmp_path / "updates").rglob("update.safetensors"))
    said = capfd.readouterr().err
    assert "moved by" in said and "moved by" not in str(caught.value)  # reasons are the silo's


def test_another_architecture_is_refused_guarded_or_not(silo: Path, pages: list[Page], tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="Server and silo must use the same model"):
        round_of(manipulated("imprint", pages), silo, tmp_path, guarded=False)


def test_a_guard_changes_no_number_of_an_honest_training(silo: Path, tmp_path: Path) -> None:
    federation = replace(FEDERATION, rounds=2, local=replace(STEP, optimiser="adamw", learning_rate=1e-3, dropout=True))
    with_guard, without = (
        train_embedded(FederatedRun.open(tmp_path / str(guard), federation), {"a": silo}, evaluate_every=0, guard=guard)
        for guard in (True, False)
    )
    assert all(np.array_equal(with_guard.parameters[name], without.parameters[name]) for name in without.parameters)
    (kept,) = (tmp_path / "True" / GUARDED).iterdir()  # of one training, the latest
    other = replace(federation, seed=5, rounds=1)
    run = FederatedRun.open(tmp_path / "True-again", other)
    (run.path / GUARDED).mkdir()
    kept.rename(run.path / GUARDED / kept.name)
    train_embedded(run, {"a": silo}, evaluate_every=0, guard=True)
    assert [folder.name for folder in (run.path / GUARDED).iterdir()] != [kept.name]
