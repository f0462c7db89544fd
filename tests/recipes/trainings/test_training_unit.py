"""Real trainings of the shipped tiny model: resumed, watched, tested; and a whole recipe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from docleak.documents.loaders import load_pages
from docleak.documents.page import Page, Question
from docleak.errors import FederationError, RunError
from docleak.models.loading import load_model
from docleak.recipes import Recipe, Row
from docleak.recipes.runner import jobs_of, reproduce
from docleak.recipes.trainings import unit
from docleak.recipes.trainings.config import TrainingConfig
from docleak.recipes.trainings.data import Places, prepare
from docleak.recipes.trainings.experiment import experiments, plan, reads_less
from docleak.recipes.trainings.table import write_table
from docleak.recipes.trainings.unit import read_points, read_result, run_training
from docleak.training.federated.local import parameters_of
from docleak.training.federated.record import load_run
from docleak.training.federated.validation import mean_loss, metric_of
from docleak.training.objectives.table import objective_of

MODEL = "fedocvqa-start"
CONFIG = TrainingConfig(
    MODEL, documents=("synthetic", "synthetic"), pages=5, test_share=0.2, validation_share=0.2, clients=2, rounds=2,
    batch_size=4, max_steps=2, learning_rate=2e-3, dropout=False, pretraining="tlm", pretraining_rounds=1,
    pretraining_participation=0.5, evaluate_every=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return prepare(CONFIG, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, places: Places) -> Path:
    out = tmp_path_factory.mktemp("whole") / "unit"
    torch.set_num_threads(1)
    run_training(CONFIG, 3, places, out, "cpu")
    return out


def test_a_training_leaves_scores_costs_and_curves(whole: Path, places: Places) -> None:
    result = read_result(whole)
    assert result is not None and sorted(result.scores) == sorted(places.test)
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
    each = 4 * sum(value.size for value in parameters_of(model).values())
    turns = 1 + 2 * 2  # one of two clients pretrains, both fine-tune twice
    assert 2 * turns * each < result.bytes < 2.05 * turns * each
    assert set(result.seconds) == {"pretraining", "finetuning"} and min(result.seconds.values()) > 0
    points = read_points(whole)
    assert {(p.phase, p.round) for p in points} == {("pretraining", 1), ("finetuning", 1), ("finetuning", 2)}
    assert all((p.score is None) == (p.phase == "pretraining") and p.loss > 0 for p in points)


def test_fine_tuning_begins_where_self_pretraining_ends(whole: Path) -> None:
    federation = load_run(whole / "finetuning").federation
    assert federation.model == str(whole / "pretraining" / "model")
    assert load_model(federation.model).tokenizer.convert_tokens_to_ids("<extra_id_0>") > 0  # type: ignore[attr-defined]


def test_a_killed_training_goes_on_to_the_same_result(
    whole: Path, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = unit.Watch.look

    def killed(self: unit.Watch) -> None:
        if self.phase == "finetuning" and self.run.last_round() == 1:
            raise KeyboardInterrupt
        look(self)

    monkeypatch.setattr(unit.Watch, "look", killed)
    with pytest.raises(KeyboardInterrupt):
        run_training(CONFIG, 3, places, tmp_path / "unit", "cpu")
    assert read_result(tmp_path / "unit") is None
    monkeypatch.setattr(unit.Watch, "look", look)
    run_training(CONFIG, 3, places, tmp_path / "unit", "cpu")
    first, second = read_result(whole), read_result(tmp_path / "unit")
    assert first is not None and second is not None
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
    found = mean_loss(model, pages, "qa", batch_size=3, rng=np.random.default_rng(0))
    assert found == pytest.approx(np.mean(losses), rel=1e-5)
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
    SETTINGS, {"tiny": {"models": {"m": MODEL}}}, kind="training",
)  # fmt: skip


def test_a_whole_recipe_gives_a_table_beside_the_papers(tmp_path: Path) -> None:
    planned = experiments(RECIPE, "tiny", tmp_path, {})
    assert [job.id for job in jobs_of(planned, "cpu")] == ["seed-0", "seed-0", "seed-1"]
    reproduce(RECIPE, planned, tmp_path, scale="tiny", device="cpu", workers=1)
    write_table(RECIPE, "tiny", planned, tmp_path, {"Command": "test"})
    text = (tmp_path / "table.md").read_text()
    assert "| untrained | 0.0%" in text and "(paper 50.0%)" in text and ", trainings " in text
    saved = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [len(row["bytes"]) for row in saved] == [1, 2] and saved[0]["bytes"] == [0]
    assert saved[1]["paper"] == {"score": 0.5} and len(saved[1]["ours"]["by_training"]) == 2
    assert (tmp_path / "pictures.png").is_file() and "two-stage" not in (tmp_path / "table.html").read_text()[:200]
    assert load_model(str(tmp_path / "models" / f"{MODEL}-60")).config.max_tokens == 60  # type: ignore[attr-defined]
    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("rows/*/seed-*/result.json")}
    reproduce(RECIPE, planned, tmp_path, scale="tiny", device="cpu", workers=1)
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.glob("rows/*/seed-*/result.json")}
    other = experiments(RECIPE, "tiny", tmp_path, {"pages": 5})
    with pytest.raises(RunError, match="pages is 4 there, 5 now"):
        reproduce(RECIPE, other, tmp_path, scale="tiny", device="cpu", workers=1)


def test_a_plan_counts_the_bytes_that_are_sent(tmp_path: Path, whole: Path) -> None:
    settings = {key: value for key, value in CONFIG.to_json().items() if key != "model"}
    recipe = Recipe("t", "t", "t", "t", (Row("r", ("m",), settings),), {}, {"tiny": {"models": {"m": MODEL}}},
                    kind="training")  # fmt: skip
    (found,) = plan(experiments(recipe, "tiny", tmp_path, {}))
    result = read_result(whole)
    assert result is not None and found.units == 1
    assert found.facts["bytes"] == pytest.approx(result.bytes, rel=0.02)


def test_what_cannot_read_less_says_so() -> None:
    from docleak.errors import RecipeError

    assert reads_less(load_model(MODEL), 5000).config.max_tokens == 1024, "never more than the checkpoint"
    with pytest.raises(RecipeError, match="expected vt5 or fedocvqa"):
        reads_less(load_model("layoutlmv3-start"), 10)
