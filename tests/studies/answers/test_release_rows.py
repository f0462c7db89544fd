"""Real targets of the shipped tiny start: trained once, gone on with, attacked by every measure, and their tables."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docleak.errors import ContradictionError, MissingExtraError, RecipeError, RunError
from docleak.models.loading import load_model
from docleak.privacy.empirical import from_counts
from docleak.recipes import Recipe, Row
from docleak.recipes.rows import reproduce, rows_of, write_table
from docleak.studies.answers import measures, store
from docleak.studies.answers.bench import Bench
from docleak.studies.answers.store import bill_of, division_of, folder_of, trained
from docleak.studies.answers.study import STORE, AnswersStudy
from docleak.studies.answers.targets import Target, target_of
from docleak.studies.study import TableRow
from docleak.training.federated.local import parameters_of
from docleak.training.federated.record import FederatedRun

MODEL = "vt5-start"
DATA = {"providers": 14, "per_provider": 3.0, "plan": {"clients": 2, "red": 0.3, "test": 0.3, "validation": 0.0}}
SHORT = {"rounds": 2, "epochs": 1, "batch_size": 8, "participation": 1.0, "denominator": 2}
SETTINGS = {"data": DATA, "training": SHORT, "minimum": [0], "seeds": 2, "searched": 0, "known": 0.3}
ROWS = (
    Row("VT5_0", ("vt5",), {}),
    Row("VT5_C", ("vt5",), {"target": "central"}, {"vt5": {"accuracy_s0": 0.5613, "red_acc": 0.8140, "anls": 0.9}}),
    Row("FL+DP", ("vt5",), {"target": "federated", "epsilon": 8.0}),
)


def recipe(measure: str, **more: object) -> Recipe:
    fixed = {**SETTINGS, "measure": measure, **more}
    return Recipe(
        measure, "A test", "nobody", "none", ROWS, fixed, {"tiny": {"models": {"vt5": MODEL}}}, kind="answers"
    )


def aim(kind: str, epsilon: float = 0.0, *, training: dict[str, Any] = SHORT, model: str = MODEL) -> Target:
    return target_of(model, "tiny", kind, epsilon, data=DATA, training=training, seed=0)


def planned_of(recipe: Recipe, out: Path, changes: dict[str, Any] | None = None) -> list[TableRow]:
    return rows_of(recipe, AnswersStudy, "tiny", out, changes or {})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("releases")


@pytest.mark.parametrize("measure", ["gap", "utility", "memorisation", "disclosure", "membership"])
def test_a_whole_table(measure: str, home: Path) -> None:
    out = home / measure
    planned = planned_of(recipe(measure, attack="apk+cls1+cls2", groups=["G1", "G2", "G3"]), out)
    before = times(home)
    reproduce(recipe(measure), planned, out, scale="tiny", workers=1)
    if before:
        assert {k: v for k, v in times(home).items() if k in before} == before, "a target is trained for all tables"
    write_table(recipe(measure), "tiny", planned, out, {"Command": "test"})
    saved = json.loads((out / "table.json").read_text())["rows"]
    assert [row["failed"] for row in saved] == [{}, {}, {}] and all(row["ours"] for row in saved)
    text = (out / "table.md").read_text()
    if measure != "disclosure":
        assert {"gap": "paper 81.4%", "utility": "paper 90.0%"}.get(measure, "|") in text
    assert "paper's counting would call it" in text and "known which clients" not in text
    assert (out / "pictures.png").stat().st_size > 2000
    if measure == "memorisation":
        assert len(list((out / "rows" / "01-vt5").glob("units/*/example-*.png"))) == 6
        assert saved[0]["ours"]["positive_n"]["value"] == saved[2]["ours"]["positive_n"]["value"] > 0
    if measure == "membership":
        claimed = [row["ours"]["epsilon_claimed"]["value"] for row in saved]
        assert claimed[:2] == [None, None] and claimed[2] == pytest.approx(8, abs=0.01)
        assert all(row["ours"]["epsilon_measured"]["value"] <= 8 for row in saved)


def times(home: Path) -> dict[str, int]:
    return {str(f): f.stat().st_mtime_ns for f in (home / STORE).rglob("*") if f.is_file() and f.suffix != ".lock"}


def test_a_killed_target_goes_on_and_is_the_same(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = aim("central")
    whole = trained(target, home / STORE, "cpu")  # as the tables above trained it
    write = FederatedRun.write_round

    def killed(self: FederatedRun, row: object, state: object) -> None:
        if self.last_round() == 1:
            raise KeyboardInterrupt
        write(self, row, state)  # type: ignore[arg-type]

    monkeypatch.setattr(FederatedRun, "write_round", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(target, tmp_path / "twice", "cpu")
    assert not (folder_of(target, tmp_path / "twice") / "run" / "model").exists()
    assert store.rounds_done(target, tmp_path / "twice") == 1
    monkeypatch.setattr(FederatedRun, "write_round", write)
    again = trained(target, tmp_path / "twice", "cpu")
    first, second = (parameters_of(load_model(str(run / "model"))) for run in (whole, again))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    start = parameters_of(load_model(MODEL))
    assert any(not np.array_equal(first[name], start[name]) for name in first) and bill_of(str(whole)).bytes == 0


def test_noise_is_new_in_every_silo_and_round_and_after_a_resume(tmp_path: Path) -> None:
    target = aim("federated", 8.0)
    assert target.training.repeatable
    plan = target.training.federation(MODEL, 8.0, 0)
    run = FederatedRun.open(tmp_path / "run", plan)
    streams = [store._randomness(target, run) for _ in range(2)]
    drawn = [[make().gaussian(4).tolist() for _ in range(3)] for make in streams]
    assert drawn[0] == drawn[1], "repeatable"
    assert len({tuple(row) for row in drawn[0]}) == 3, "never the same noise twice"
    ledger = run.ledger()
    assert ledger is not None
    run.write_ledger(ledger.begin_round())
    assert store._randomness(target, run)().gaussian(4).tolist() not in drawn[0]
    fresh = replace(target, training=replace(target.training, repeatable=False))
    assert store._randomness(fresh, run)().secret and not streams[0]().secret


def test_the_papers_own_noise_is_trained_under_a_name_that_says_it_is_no_bound(tmp_path: Path) -> None:
    """The miniature of table 3's printed FL+DP: the row's settings, on 14 providers and half of two clients."""
    training = {**SHORT, "participation": 0.5, "published_counting": True}
    target = aim("federated", 8.0, training=training)
    bill = bill_of(str(trained(target, tmp_path, "cpu")))
    assert bill.claim.epsilon is None and "by the published counting, which is no bound" in bill.claim.sentence
    assert "PRV accountant" in bill.claim.sentence and "no bound" in target.name
    sound = aim("federated", 8.0, training={**training, "published_counting": False})
    plan = target.training.plan(8.0)
    assert plan.mechanism.noise_multiplier < sound.training.plan(8.0).mechanism.noise_multiplier
    assert plan.bound().epsilon > 9 and load_model(bill.model).name
    assert "no bound" not in sound.name
    paper = target_of(MODEL, "paper", "federated", 8.0, data={}, training={"published_counting": True}, seed=0)
    assert paper.training.plan(8.0).mechanism.noise_multiplier == pytest.approx(0.7714843750, abs=1e-9)


def test_a_target_of_another_start_is_another_target_or_refused(tmp_path: Path) -> None:
    """A path's weights are part of the target's name; those of a name on the hub are compared."""
    model = load_model(MODEL)
    model.save(str(tmp_path / "mine"))
    target = aim("central", model=str(tmp_path / "mine"))
    trained(target, tmp_path / "store", "cpu")
    folder = folder_of(target, tmp_path / "store")
    next(iter(model.module.parameters())).data.add_(1.0)
    model.save(str(tmp_path / "mine"))
    assert folder_of(target, tmp_path / "store") != folder
    folder.rename(folder_of(target, tmp_path / "store"))
    with pytest.raises(RunError, match="was made from other weights"):
        trained(target, tmp_path / "store", "cpu")


def test_other_data_is_another_target(tmp_path: Path) -> None:
    one = aim("central")
    others = [replace(one, seed=1), replace(one, model="other"), replace(one, data=replace(one.data, providers=15)),
              replace(one, training=replace(one.training, epochs=2)), replace(one, epsilon=8.0)]  # fmt: skip
    assert len({folder_of(target, tmp_path) for target in (one, *others)}) == 6
    assert division_of(one.data, tmp_path).path == division_of(one.data, tmp_path).path


def test_a_measured_epsilon_above_the_claim_stops_the_row(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"target": "federated", "epsilon": 8.0, "measure": "membership", "minimum": (0,), "seeds": 1, "searched": 0,
           "known": 0.3, "data": DATA, "training": SHORT}  # fmt: skip
    planted = from_counts(100_000, 100_000, 0, 100_000, 1e-5)
    assert planted.epsilon > 8
    monkeypatch.setattr(measures, "measured_epsilon", lambda *args, **settings: planted)
    with pytest.raises(ContradictionError, match="contradicts the accounting"):
        measures.membership(bench(row, home / STORE))


def bench(settings: dict[str, Any], place: Path) -> Bench:
    config = AnswersStudy.of_row(MODEL, settings, {}, device="cpu").config
    return Bench(config, config.releases[0], place, "cpu")


def test_the_noise_of_a_row_is_the_papers() -> None:
    row = {"preset": "paper", "target": "federated", "epsilon": 8.0, "measure": "noise"}
    numbers = measures.noise(bench(row, Path("unused"))).numbers[""]
    assert numbers["noise_prv"].value == 0.771484375
    assert numbers["noise_pld"].value == pytest.approx(0.7707, abs=2e-4)
    assert (numbers["noise_ours"].value or 0) > 1.1, "known coins need more"


def test_rows_that_measure_different_things_are_no_table(tmp_path: Path) -> None:
    mixed = replace(recipe("gap"), rows=(ROWS[0], replace(ROWS[1], settings={"measure": "utility"})))
    with pytest.raises(RecipeError, match="measure different things"):
        planned_of(mixed, tmp_path)


def test_without_flower_a_table_with_targets_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "docleak.training.federated.flower", raising=False)
    monkeypatch.setitem(sys.modules, "flwr.supercore.task_identity", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'docleak\[federated\]'"):
        planned_of(recipe("gap"), tmp_path / "out")
    assert planned_of(replace(recipe("gap"), rows=ROWS[:1]), tmp_path / "out"), "the public model alone is not trained"


def test_a_row_of_other_settings_is_refused_and_plans_count_a_target_once(tmp_path: Path, home: Path) -> None:
    out = tmp_path / "out"
    planned = planned_of(recipe("gap"), out)[:1]
    reproduce(recipe("gap"), planned, out, scale="tiny", workers=1)
    other = planned_of(recipe("gap"), out, {"seed": 3})[:1]
    with pytest.raises(RunError, match="seed: 0 there, 3 asked for"):
        reproduce(recipe("gap"), other, out, scale="tiny", workers=1)
    twice = replace(recipe("gap"), rows=(ROWS[1], replace(ROWS[1], name="again")))
    first, second = planned_of(twice, tmp_path / "twice")
    assert "to be trained" in first.study.planned() and "trained" not in second.study.planned()
