"""Real trainings of the shipped tiny model: resumed, watched, tested; and a whole recipe."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from docleak.documents.loaders import load_pages
from docleak.documents.page import Image, Page, Question
from docleak.documents.silos import read_silo
from docleak.errors import FederationError, RunError
from docleak.models.loading import load_model
from docleak.recipes import Recipe, Row
from docleak.recipes.rows import reproduce, rows_of, write_table
from docleak.runs.run import Run
from docleak.studies.engine import Assignment, begin, carry_out, compute, tasks_of
from docleak.studies.registry import report_on
from docleak.studies.study import TableRow, Tell, Unit
from docleak.studies.training import carrying
from docleak.studies.training.carrying import Result, read_points, run_training
from docleak.studies.training.config import TrainingConfig
from docleak.studies.training.data import Places, divide
from docleak.studies.training.study import TrainingStudy, reads_less
from docleak.training.federated.local import parameters_of
from docleak.training.federated.record import load_run
from docleak.training.federated.validation import mean_loss, metric_of
from docleak.training.objectives.objective import objective_of

MODEL = "fedocvqa-start"
CONFIG = TrainingConfig(
    MODEL, documents=("synthetic", "synthetic"), pages=5, test_share=0.2, validation_share=0.2, clients=2, rounds=2,
    batch_size=4, max_steps=2, learning_rate=2e-3, dropout=False, pretraining="tlm", pretraining_rounds=1,
    pretraining_participation=0.5, evaluate_every=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return divide(CONFIG, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, places: Places) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("whole") / "unit"
    torch.set_num_threads(1)
    told: list[int] = []
    result = run_training(CONFIG, 3, places, out, "cpu", told.append)
    assert told == [1, 2, 3]
    return out, result


@pytest.fixture
def whole(finished: tuple[Path, Result]) -> Path:
    return finished[0]


def test_a_training_leaves_scores_costs_and_curves(finished: tuple[Path, Result], places: Places) -> None:
    whole, result = finished
    assert sorted(result.scores) == sorted(places.test)
    for name, of in result.scores.items():
        pages = load_pages(f"folder:{places.test[name]}", seed=0)
        asked = sum(bool(q.answers) for page in pages for q in page.questions)
        assert sum(of.questions) == asked and of.metric == "anls"
        assert all(0 <= a <= n for a, n in zip(of.anls, of.questions, strict=True))
    model = load_model(str(whole / "finetuning" / "model"))
    for name, of in result.scores.items():
        pages = load_pages(f"folder:{places.test[name]}", seed=0)
        loss = mean_loss(model, pages, "qa", batch_size=3, rng=np.random.default_rng(0))
        assert sum(of.loss) / sum(of.questions) == pytest.approx(loss, rel=1e-5)
    size = 4 * sum(value.size for value in parameters_of(model).values())
    turns = 1 + 2 * 2  # one of two clients pretrains, both fine-tune twice
    assert 2 * turns * size < result.bytes < 2.05 * turns * size
    assert set(result.seconds) == {"pretraining", "finetuning"} and min(result.seconds.values()) > 0
    points = read_points(whole)
    assert {(p.phase, p.round) for p in points} == {("pretraining", 1), ("finetuning", 1), ("finetuning", 2)}
    assert all((p.score is None) == (p.phase == "pretraining") and p.loss > 0 for p in points)
    for point in points:
        pages = load_pages(f"folder:{places.validation[point.source]}", seed=0)
        assert len(point.losses) == len({page.document for page in pages}), "of each document"
        assert len(point.scores) == (len(point.losses) if point.score is not None else 0)
        assert min(point.losses) <= point.loss <= max(point.losses)
        if point.score is not None:
            assert min(point.scores) <= point.score <= max(point.scores)
    took = {p.source for p in points if p.phase == "pretraining" and p.trained}
    assert len(took) == 1, "one of two clients pretrains"
    (silo,) = (client.silo for client in load_run(whole / "pretraining").rows()[0].clients)
    assert took == {read_silo(places.silos[silo]).source}
    assert all(p.trained for p in points if p.phase == "finetuning")


def test_fine_tuning_begins_where_self_pretraining_ends(whole: Path) -> None:
    federation = load_run(whole / "finetuning").federation
    assert federation.model == str(whole / "pretraining" / "model")
    assert load_model(federation.model).tokenizer.convert_tokens_to_ids("<extra_id_0>") > 0  # type: ignore[attr-defined]


def test_a_killed_training_goes_on_to_the_same_result(
    finished: tuple[Path, Result], places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole, first), look = finished, carrying.Watch.look

    def killed(self: carrying.Watch) -> None:
        if self.phase == "finetuning" and self.run.last_round() == 1:
            raise KeyboardInterrupt
        look(self)

    monkeypatch.setattr(carrying.Watch, "look", killed)
    with pytest.raises(KeyboardInterrupt):
        run_training(CONFIG, 3, places, tmp_path / "unit", "cpu")
    monkeypatch.setattr(carrying.Watch, "look", look)
    second = run_training(CONFIG, 3, places, tmp_path / "unit", "cpu")
    assert first.scores == second.scores and read_points(whole) == read_points(tmp_path / "unit")
    weights = [parameters_of(load_model(str(out / "finetuning" / "model"))) for out in (whole, tmp_path / "unit")]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_mean_loss_is_that_of_the_examples_one_by_one() -> None:
    model, pages = load_model(MODEL), load_pages("synthetic", count=2, seed=1)
    task, rng = objective_of("qa"), np.random.default_rng(0)
    losses = []
    for example in task.examples(pages):
        page = model.fit(pages[example.page])
        pixels = torch.from_numpy(page.image).permute(2, 0, 1)[None] / 255
        with torch.no_grad():
            losses.append(float(model.loss(pixels, task.encode(model, page, example, rng), [0])))
    loss = mean_loss(model, pages, "qa", batch_size=3, rng=np.random.default_rng(0))
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    masked = [
        mean_loss(model_with_tokens(), pages, "tm", batch_size=2, rng=np.random.default_rng(s)) for s in (0, 0, 1)
    ]
    assert masked[0] == masked[1] != masked[2]
    with pytest.raises(FederationError, match="no question with an answer"):
        mean_loss(model, [replace(pages[0], questions=())], "qa", batch_size=2, rng=rng)


def model_with_tokens() -> object:
    model = load_model(MODEL)
    objective_of("tm").prepare(model, generator=torch.Generator().manual_seed(0))
    return model


def test_sets_of_verdicts_are_scored_by_accuracy() -> None:
    page: Page = load_pages("synthetic", count=1, seed=0)[0]
    verdicts = replace(page, questions=(Question("a", ("yes",)), Question("b", ("No",))))
    assert [metric_of(pages) for pages in ([page], [verdicts], [page, verdicts])] == ["anls", "accuracy", "anls"]
    assert metric_of([replace(page, questions=())]) == "anls"


SETTINGS = {
    "documents": ["synthetic", "synthetic"], "pages": 4, "test_share": 0.25, "clients": 2, "batch_size": 4, "rounds": 1,
    "max_steps": 1, "dropout": False, "max_tokens": 60,
}  # fmt: skip
RECIPE = Recipe(
    "test", "A test", "nobody", "none",
    (Row("untrained", ("m",), {"rounds": 0}), Row("twice", ("m",), {"seeds": 2}, {"m": {"score": 0.5}})),
    SETTINGS, {"tiny": {"models": {"m": MODEL}}}, kind="trainings",
)  # fmt: skip


def rows(out: Path, **changes: object) -> list[TableRow]:
    return rows_of(RECIPE, TrainingStudy, "tiny", out, changes)


def test_a_whole_recipe_gives_a_table_beside_the_papers(tmp_path: Path) -> None:
    planned = rows(tmp_path)
    tasks = tasks_of([Assignment(row.study, row.run) for row in planned])
    assert [task.unit.id for task in tasks] == ["seed-0", "seed-0", "seed-1"]
    reproduce(RECIPE, planned, tmp_path, scale="tiny", workers=1)
    write_table(RECIPE, "tiny", planned, tmp_path, {"Command": "test"})
    text = (tmp_path / "table.md").read_text()
    assert "| untrained | 0.0%" in text and "(paper 50.0%)" in text and "lowest training" in text
    assert "synthetic (anls) | synthetic_2 (anls) | loss" in text
    saved = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [len(row["bytes"]) for row in saved] == [1, 2] and saved[0]["bytes"] == [0]
    assert saved[1]["paper"] == {"score": 0.5} and len(saved[1]["by_training"]) == 2
    assert saved[1]["ours"]["lowest"]["value"] == min(saved[1]["by_training"])
    assert "{" not in (tmp_path / "table.csv").read_text(), "lists and objects stay in JSON"
    assert (tmp_path / "pictures.png").is_file() and "two-stage" not in (tmp_path / "table.html").read_text()[:200]
    assert load_model(str(tmp_path / "models" / f"{MODEL}-60")).config.max_tokens == 60  # type: ignore[attr-defined]
    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("rows/*/units/seed-*/unit.json")}
    assert len(before) == 3
    reproduce(RECIPE, planned, tmp_path, scale="tiny", workers=1)
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.glob("rows/*/units/seed-*/unit.json")}
    with pytest.raises(RunError, match="pages: 4 there, 5 asked for"):
        reproduce(RECIPE, rows(tmp_path, pages=5), tmp_path, scale="tiny", workers=1)
    page, (reading,) = report_on([planned[1].run.path])
    assert reading.tables["trainings"].rows[0].values["trainings"].value == 2  # type: ignore[union-attr]
    assert "Trained, not attacked" in page.read_text()


def test_a_row_by_itself_keeps_all_in_its_run_and_half_a_training_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, pages=4, test_share=0.25, validation_share=0.25, pretraining="", max_tokens=60)
    monkeypatch.setattr(carrying, "score", stop)
    with pytest.raises(KeyboardInterrupt):
        carry_out(TrainingStudy(config), tmp_path / "run")
    assert {"run.json", "data", "models", "units"} <= {item.name for item in (tmp_path / "run").iterdir()}
    with pytest.raises(RunError, match="no finished training yet"):
        report_on([tmp_path / "run"])
    with pytest.raises(RunError, match="pages: 4 there, 5 asked for"):
        carry_out(TrainingStudy(replace(config, pages=5)), tmp_path / "run")


def stop(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_a_plan_counts_the_bytes_that_are_sent(finished: tuple[Path, Result]) -> None:
    facts = TrainingStudy(CONFIG).planned_facts()
    assert facts["clients"] == 2 and facts["rounds"] == [1, 2]
    assert facts["bytes"] == pytest.approx(finished[1].bytes, rel=0.02)


def test_what_cannot_read_less_says_so() -> None:
    from docleak.errors import RecipeError

    assert reads_less(load_model(MODEL), 5000).config.max_tokens == 1024, "never more than the checkpoint"
    with pytest.raises(RecipeError, match="expected vt5 or fedocvqa"):
        reads_less(load_model("layoutlmv3-start"), 10)


class Dying(TrainingStudy):
    """Its worker dies after the first round of fine-tuning, the first time."""

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        def dying(rounds: int) -> None:
            tell(rounds)
            if rounds == 2 and not (run.path / "died").is_file():
                (run.path / "died").touch()
                os._exit(1)

        return super().compute(unit, run, dying)


def test_a_training_whose_worker_dies_goes_on_with_its_rounds(tmp_path: Path) -> None:
    config = replace(CONFIG, seed=3)
    study = Dying(config)
    run = begin(study, tmp_path / "run")
    study.prepare(run, print)
    with run.claimed():
        compute([Assignment(study, run)], workers=2, keep_going=True)
    assert (run.path / "died").is_file() and not run.failures()
    (record,) = run.units()
    assert record["seed"] == 3 and list(record["seconds"]) == ["pretraining", "finetuning"]
    assert len(load_run(run.folder("seed-3") / "finetuning").rows()) == 2
    assert not list((run.path / "attempts").glob("seed-3-3*")), "it got further, so its attempts count anew"
