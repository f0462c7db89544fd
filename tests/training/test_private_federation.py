"""A federation under a privacy plan: what leaves a silo, what is counted, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docleak.documents.division import divide
from docleak.documents.names import provider_key
from docleak.documents.silos import write_silos
from docleak.errors import FederationError, PrivacyError
from docleak.models import load_model
from docleak.privacy.mechanism import Mechanism, Relation, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.studies.updates.config import UpdatesConfig
from docleak.studies.updates.study import UpdatesStudy
from docleak.training.federated import party
from docleak.training.federated.capture import read_updates
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import ServerState, step
from docleak.training.federated.flower import client as client_module
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.local import parameters_of
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.record import FederatedRun, load_run
from docleak.training.federated.silo import open_party

BY_CLIENT = Mechanism(0.8, 2, client_rate=0.5, unit=Unit.CLIENT)
PLAN = DpPlan(Mechanism(0.8, 2, unit_rate=0.9), clip_norm=0.5, denominator=2, delta=1e-3)
FEDERATION = Federation(
    rounds=2, holdout=0.3, seed=3, privacy=PLAN, local=LocalPlan(max_steps=1, batch_size=2, dropout=False)
)


@pytest.fixture(scope="module")
def silos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("private") / "silos"
    division = divide(["synthetic"], 2, by="providers", seed=0, count=10)
    write_silos(division.shares, division.sources, out, by="providers", seed=0)
    return {item.name: item for item in sorted(out.iterdir())}


def seeded() -> Callable[[], Randomness]:
    """Streams that a second call makes again: one for the server, then one for each message."""
    numbers = iter(range(1000))
    return lambda: Randomness.seeded(next(numbers))


def run(out: Path, silos: dict[str, Path], federation: Federation = FEDERATION, **options: Any) -> ServerState:
    options.setdefault("evaluate_every", 0)
    return train_embedded(FederatedRun.open(out, federation), silos, **options)


def test_it_is_algorithm_1_and_its_budget_is_counted(silos: dict[str, Path], tmp_path: Path) -> None:
    final = run(tmp_path / "run", silos, randomness=seeded(), capture=tmp_path / "updates")
    again = run(tmp_path / "again", silos, randomness=seeded())
    draw, model = seeded(), load_model("vt5-start")
    draw()  # the server's
    state = ServerState.of(parameters_of(model))
    for _ in range(2):
        weights = {name: value.astype(np.float32) for name, value in state.parameters.items()}
        updates = [
            party.private_round(
                open_party(path, FEDERATION), model, weights, FEDERATION, clients_drawn=2, randomness=draw()
            )
            for _, path in sorted(silos.items())
        ]
        state = step(state, updates, FEDERATION.server)
    for name, value in state.parameters.items():
        np.testing.assert_array_equal(final.parameters[name], value)
        np.testing.assert_array_equal(again.parameters[name], value)
    other = run(tmp_path / "other", silos)
    assert any((other.parameters[name] != value).any() for name, value in state.parameters.items()), "fresh noise"
    ledger = load_run(tmp_path / "run").ledger()
    assert ledger is not None and ledger.begun == 2 and ledger.left == 0
    # what the server received has the silo's share of the noise, sigma C / sqrt(2) / M per number, and no counts
    update = read_updates(tmp_path / "updates")[0]
    unused = update.delta()["t5.shared.weight"]
    assert np.median(np.abs(unused)) == pytest.approx(0.6745 * 0.8 * 0.5 / np.sqrt(2) / 2, rel=0.05)
    assert update.examples == 1 and update.details["loss"] is None and update.details["steps"] is None
    for client in load_run(tmp_path / "run").rows()[0].clients:
        assert (client.examples, client.steps, client.loss) == (1, 0, None)
    said = json.dumps(json.loads((tmp_path / "run" / "run.json").read_text())["info"]["silos"])
    assert '"pages": 1' in said and '"kept": 1' in said, "no counts"


def test_providers_are_kept_or_trained_on_whole(silos: dict[str, Path]) -> None:
    providers: list[set[str]] = [set(), set()]
    for path in silos.values():
        silo = open_party(path, FEDERATION)
        for side, pages in enumerate((silo.training, silo.kept)):
            providers[side] |= {provider_key(pages[i].provider) for i in range(len(pages))}
    assert providers[0] and providers[1] == {name for name in providers[0] | providers[1] if FEDERATION.keeps(name)}
    assert not providers[0] & providers[1]


def test_a_lost_round_is_spent_and_the_plan_cannot_be_changed(silos: dict[str, Path], tmp_path: Path) -> None:
    real, turns = client_module.pack, iter(range(100))

    def lost(delta: Any, compression: Any) -> Any:
        if next(turns) == 3:
            raise RuntimeError("lost")
        return real(delta, compression)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "pack", lost)
        with pytest.raises(FederationError, match="'synthetic-1': it could not take part"):
            run(tmp_path, silos)
    assert load_run(tmp_path).last_round() == 1
    state = run(tmp_path, silos)
    ledger = load_run(tmp_path).ledger()
    assert state.round == 1 and ledger is not None and ledger.left == 0, (
        "the second round was begun, and cost its share"
    )
    other = replace(FEDERATION, privacy=replace(PLAN, clip_norm=1.0))
    with pytest.raises(PrivacyError, match=r"clip_norm was 0\.5 and is 1\.0"):
        FederatedRun(tmp_path, other).ledger()


def test_a_missing_silo_leaves_its_noise_behind(silos: dict[str, Path], tmp_path: Path) -> None:
    real, turns = client_module.pack, iter(range(100))

    def lost(delta: Any, compression: Any) -> Any:
        if next(turns) == 0:
            raise RuntimeError("lost")
        return real(delta, compression)

    federation = replace(FEDERATION, minimum=1, rounds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "pack", lost)
        state = run(tmp_path, silos, federation)
    start = parameters_of(load_model("vt5-start"))["t5.shared.weight"]
    moved = np.median(np.abs(state.parameters["t5.shared.weight"] - start))
    # two shares of sigma C / sqrt(2) / M, averaged over the two that were asked: sigma C / M / 2
    assert moved == pytest.approx(0.6745 * 0.8 * 0.5 / 2 / 2, rel=0.05)
    assert len(load_run(tmp_path).rows()[0].absent) == 1


def test_what_a_silo_says_of_its_faults_names_nothing(
    silos: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nameless = tmp_path / "nameless"
    shutil.copytree(silos["synthetic-1"], nameless)
    index = nameless / "pages.jsonl"
    named = index.read_text()
    nobody = re.sub('"provider": "[^"]*", ', "", named, count=1)
    together, federation = {**silos, "synthetic-1": nameless}, replace(FEDERATION, holdout=0.0)

    def taken_away(number: int, silo: str, kind: str) -> None:
        if kind == "train":
            index.write_text(nobody)

    with pytest.raises(FederationError, match="its own log says why") as error:
        run(tmp_path / "run", together, federation, on_silo=taken_away)
    assert "name no provider" not in str(error.value) and "name no provider" in capsys.readouterr().err
    with pytest.raises(PrivacyError, match=r"'synthetic-1': 1 of .* name no provider"):
        run(tmp_path / "before", together, federation)
    before = FederatedRun(tmp_path / "before", federation).ledger()
    assert before is not None and before.begun == 0, "nothing was charged"


def test_how_many_providers_a_silo_has_is_no_reason_to_refuse_it(
    silos: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = replace(FEDERATION, rounds=1, privacy=replace(PLAN, denominator=50))
    assert run(tmp_path, silos, federation).round == 1
    assert "fewer than M = 50" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds": 3}, "rounds is 3, and the privacy plan accounts for 2"),
        ({"privacy": replace(PLAN, mechanism=replace(BY_CLIENT, client_rate=1.0))},
         "protects whole clients.*holdout to 0"),
        ({"privacy": replace(PLAN, mechanism=replace(PLAN.mechanism, relation=Relation.REPLACE_ONE))},
         "counts replacing one provider.*holdout to 0"),
        ({"evaluations": -1}, "evaluations is -1"),
        ({"privacy": None, "evaluations": 2}, "evaluations is 2; expected 0 or more, and none without"),
        ({"privacy": replace(PLAN, mechanism=BY_CLIENT)},
         "participation is 1.0, and the privacy plan accounts for a client rate of 0.5"),
    ],
)  # fmt: skip
def test_federations_that_the_plan_does_not_cover(change: dict[str, Any], said: str) -> None:
    with pytest.raises(FederationError, match=said):
        replace(FEDERATION, **change)


def test_more_silos_than_the_plan_counts(silos: dict[str, Path], tmp_path: Path) -> None:
    rare = replace(PLAN, mechanism=replace(PLAN.mechanism, client_rate=0.1))
    with pytest.raises(FederationError, match=r"participation is 0\.1, which is less than one of 2 silos.*with 0\.5"):
        run(tmp_path, silos, replace(FEDERATION, participation=0.1, privacy=rare))


def test_who_is_drawn_follows_from_the_servers_own_coins(silos: dict[str, Path], tmp_path: Path) -> None:
    """Not from the federation's seed: another phase, or a round begun again, would draw the same silos."""
    plan = replace(PLAN, mechanism=replace(PLAN.mechanism, client_rate=0.5))
    federation, names = replace(FEDERATION, participation=0.5, privacy=plan), tuple(silos)
    run(tmp_path, silos, federation, randomness=seeded())
    streams = [Randomness.seeded(seed).coins for seed in range(9)]
    chosen = [[federation.sampled(names, number, coins) for number in (1, 2)] for coins in streams]
    assert [row.drawn for row in load_run(tmp_path).rows()] == chosen[0] and len(set(map(tuple, chosen))) > 1


def test_settings_with_a_plan_travel() -> None:
    assert Federation.from_json(FEDERATION.to_json()) == FEDERATION


def test_its_updates_are_not_audited_and_the_reason_is_said(silos: dict[str, Path], tmp_path: Path) -> None:
    run(tmp_path / "run", silos, replace(FEDERATION, rounds=1), capture=tmp_path / "updates")
    with pytest.raises(FederationError, match="synthetic-0, synthetic-1 trained under a privacy plan"):
        UpdatesStudy(UpdatesConfig(str(tmp_path / "updates"), documents=str(silos["synthetic-0"]))).units()
