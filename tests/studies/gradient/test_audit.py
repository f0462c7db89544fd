"""The audit as a whole: one unit per model, page and attack, computed once and kept."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import save_file

from docleak.attacks.gradients import Finding
from docleak.documents import Field, Page, Question, Word, blank_template
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, DocumentError, GradientError, ModelError, RunError, SelfTestError
from docleak.metrics import Reading
from docleak.models import load_model
from docleak.runs.run import Run
from docleak.studies.engine import Silence, carry_out
from docleak.studies.given import given_pages
from docleak.studies.gradient import models
from docleak.studies.gradient.case import build_case, pages_for
from docleak.studies.gradient.config import Exposure, GradientConfig, threat_model
from docleak.studies.gradient.exposed import signed
from docleak.studies.gradient.models import TrainingPages
from docleak.studies.gradient.study import GradientStudy
from docleak.studies.identity import data_hash, title_key, weights_hash
from docleak.studies.registry import report_on
from tests.small import small_donut

SMALL = (64, 64)


class FakeEngine:
    """Reads the mean grey level, which any change of a picture changes."""

    name, version = "fake", "1"

    def read(self, crops: list[Any]) -> list[Reading]:
        return [Reading(f"{crop.mean():.3f}", 0.5) for crop in crops]


@pytest.fixture
def _fake_ocr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GradientStudy, "engine", FakeEngine())


def small_page(value: str) -> Page:
    picture = Image.new("RGB", SMALL, "white")
    pen = ImageDraw.Draw(picture)
    pen.text((3, 3), "Total", fill="black", font=ImageFont.load_default(10))
    pen.text((32, 40), value, fill="black", font=ImageFont.load_default(12))
    words = (Word("Total", (3, 3, 30, 14)), Word(value, (32, 40, 46, 54)))
    question = Question("Total?", (value,), "total")
    return Page(f"small-{value}", np.asarray(picture), words, (Field("total", value, (1,)),), (question,))


@pytest.fixture(scope="module")
def small_config(tmp_path_factory: pytest.TempPathFactory) -> GradientConfig:
    """A Donut of 64 x 64 pixels and two pages, on disk: an attack takes a second."""
    folder = tmp_path_factory.mktemp("small")
    small_donut(size=SMALL).save(str(folder / "model"))
    save([small_page("42"), small_page("17")], folder / "pages")
    return GradientConfig(
        models=(str(folder / "model"),),
        documents=str(folder / "pages"),
        attacks=("random", "gi-dqa"),
        budget=30,
        seed=0,
    )


def quiet(unit: str, number: int, budget: int) -> None:
    """No progress."""


class Told(Silence):
    """Passes on how far units are."""

    def __init__(self, on_progress: Callable[..., None]) -> None:
        self.reached = on_progress  # type: ignore[method-assign]


def run_one(config: GradientConfig, out: Path, *, workers: int = 1, on_progress: Callable[..., None] = quiet) -> Run:
    return carry_out(GradientStudy(config), out, workers=workers, watcher=Told(on_progress))


def units_by_attack(run: Run) -> dict[str, dict[str, Any]]:
    return {unit["attack"]: unit for unit in run.units()}


def comparable(unit: dict[str, Any]) -> dict[str, Any]:
    """A unit's record without what may differ between two runs of it."""
    timed = {part: unit[part] for part in ("finding", "recovered") if unit[part]}
    return {**unit, **{part: {key: v for key, v in entry.items() if key != "seconds"} for part, entry in timed.items()}}


def pictures(run: Run, unit: dict[str, Any]) -> dict[str, bytes]:
    folder = run.folder(unit["unit"])
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.png"))}


def assert_same_but_for_rounding(run: Run, unit: dict[str, Any], other: Run, whole: dict[str, Any]) -> None:
    """Another order of summation or another process may round differently."""
    assert unit["images"] == whole["images"] and unit["snapshots"] == whole["snapshots"]
    for name in [*unit["images"].values(), *(name for _, name in unit["snapshots"])]:
        one, two = (r.read_image(u["unit"], name).astype(float) for r, u in ((run, unit), (other, whole)))
        assert np.abs(one - two).mean() < 0.1, name
    finding, expected = unit["finding"], whole["finding"]
    assert finding["explained"] == pytest.approx(expected["explained"], abs=0.02)
    assert [number for number, _ in finding["history"]] == [number for number, _ in expected["history"]]


@pytest.fixture(scope="module")
def finished(small_config: GradientConfig, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small audit in one process, left untouched by the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientStudy, "engine", FakeEngine())
        return run_one(small_config, tmp_path_factory.mktemp("finished") / "run")


# -- what is asked for ------------------------------------------------------------------------------------------------


def test_units_come_by_attack_so_that_pictures_of_every_model_come_early() -> None:
    config = GradientConfig(models=("donut-start", "layoutlmv3-start"), attacks=("gi-dqa", "dlg"), pages=2)
    ids = [unit.id for unit in GradientStudy(config).units()]
    assert ids[:4] == [
        "donut-start--000--gi-dqa", "donut-start--001--gi-dqa", "layoutlmv3-start--000--gi-dqa",
        "layoutlmv3-start--001--gi-dqa",
    ]  # fmt: skip
    assert len(ids) == len(set(ids)) == 8


def test_models_of_the_same_last_name_have_different_keys() -> None:
    assert title_key("donut-start") == "donut-start"
    assert title_key("/a/model") != title_key("/b/model")
    assert title_key("/a/model").startswith("model-")
    assert title_key("owner/model") == title_key("owner/model")


@pytest.mark.parametrize("field", ["pages", "budget", "batch_size"])
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_below_one_are_refused(field: str, value: int) -> None:
    with pytest.raises(AttackError, match=f"{field} is {value}; expected at least 1"):
        GradientConfig(**{field: value})  # type: ignore[arg-type]


def test_unknown_attacks_are_refused() -> None:
    with pytest.raises(AttackError, match="unknown attack 'gidqa'"):
        GradientConfig(attacks=("dlg", "gidqa"))


# -- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_fake_ocr")
def test_an_audit_of_the_shipped_layoutlmv3(tmp_path: Path) -> None:
    config = GradientConfig(models=("layoutlmv3-start",), attacks=("random", "gi-dqa"), budget=30, seed=0)
    events: list[tuple[str, int, int]] = []
    run = run_one(config, tmp_path / "run", on_progress=lambda *event: events.append(event))
    model = load_model("layoutlmv3-start")
    (page,) = pages_for(model, "synthetic", count=1, seed=0)
    units = units_by_attack(run)
    assert set(units) == {"random", "gi-dqa"}
    for name, unit in units.items():
        assert unit["unit"] == f"layoutlmv3-start--000--{name}"
        assert (unit["model"], unit["architecture"], unit["moment"]) == ("layoutlmv3-start", "layoutlmv3", "start")
        assert (unit["page"], unit["provider"]) == (page.name, page.provider)
        assert (unit["question"], unit["answer"]) == (page.questions[0].text, page.questions[0].answers[0])
        assert [f["value"] for f in unit["fields"]] == [f.value for f in page.private_fields]
        assert unit["self_test"]["passed"] and unit["self_test"]["distance"] < 1e-6
        assert (run.read_image(unit["unit"], "truth.png") == page.image).all()
        assert (run.read_image(unit["unit"], "template.png") == blank_template(page)).all()
        assert unit["ceiling"]["mse"] == 0 < unit["floor"]["mse"]
        assert unit["view"]["numbers"] == sum(p.numel() for p in model.module.parameters())
        assert events[[e[0] for e in events].index(unit["unit"]) :]
    finding = units["gi-dqa"]["finding"]
    assert finding["evaluations"] == finding["budget"] == 30
    assert finding["history"][0][0] == 18, "17 evaluations went into the whitening"
    assert (finding["start"], finding["loss"]) == ("uniform", "float"), "the gradient is not small"
    assert finding["explained"] > units["random"]["finding"]["explained"]
    assert units["random"]["finding"]["start"] == units["random"]["finding"]["loss"] == "", "it does not search"
    assert units["random"]["finding"]["matching"] is None and units["random"]["snapshots"] == []
    assert units["gi-dqa"]["score"]["mse"] < units["random"]["score"]["mse"]
    assert [number for number, _ in units["gi-dqa"]["snapshots"]] == [18, 21, 24, 27, 30]
    assert {unit for unit, number, budget in events if number == budget == 30} == {u["unit"] for u in units.values()}
    assert run.info["models"]["layoutlmv3-start"]["hash"] == weights_hash(model)
    assert run.info["threat_model"] == threat_model(config)
    for part in ("seed 0", f"data {data_hash([page])}", f"layoutlmv3-start:{weights_hash(model)}", "30 evaluations"):
        assert part in run.info["signature"]


@pytest.mark.usefixtures("_fake_ocr")
@pytest.mark.parametrize("there", [True, False])
def test_an_answer_that_the_model_does_not_find_was_neither_trained_on_nor_given(tmp_path: Path, there: bool) -> None:
    page = small_page("42")
    value = "42" if there else "forty-two"
    question = Question("Total?", (value,), "total" if there else "sum")
    save([replace(page, questions=(question,))], tmp_path / "pages")
    config = GradientConfig(("layoutlmv3-start",), str(tmp_path / "pages"), attacks=("gi-dqa",), budget=20)
    run = run_one(config, tmp_path / "run")
    (unit,) = run.units()
    assert (unit["answer"], unit["view"]["answer_known"]) == (value if there else "", there)
    said = "no answer (the client trained on none)"
    assert any(said in sentence for sentence in unit["knowledge"]) is not there
    text = html.unescape(report_on([run.path])[0].read_text("utf-8"))
    assert (f"The client trained on the question “Total?” with the answer “{value}”" in text) is there
    assert ("its answer is not in what the model takes, so the client trained on none." in text) is not there
    assert ("which the attacker was given" in text) is there


def test_the_score_is_that_of_the_picture_on_disk(finished: Run) -> None:
    page = small_page("42")
    for unit in finished.units():
        picture = finished.read_image(unit["unit"], "reconstruction.png").astype(float)
        boxes = [box for field in unit["fields"] for box in field["boxes"]]
        ((x0, y0, x1, y1),) = [[int(v) for v in box] for box in boxes]
        region = (slice(y0 - 1, y1 + 1), slice(x0 - 1, x1 + 1))
        assert unit["score"]["mse"] == pytest.approx(np.mean((picture[region] - page.image[region]) ** 2))
        outside = np.ones(SMALL, dtype=bool)
        outside[region] = False
        assert (picture[outside] == page.image[outside]).all()


def test_every_picture_and_record_can_be_read(finished: Run) -> None:
    for unit in finished.units():
        json.dumps(unit, allow_nan=False)
        for name in unit["images"].values():
            assert finished.read_image(unit["unit"], name).shape == (*SMALL, 3)
        for _, name in unit["snapshots"]:
            assert PIL.Image.open(finished.folder(unit["unit"]) / name).size == SMALL


# -- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_fake_ocr")
def test_a_finished_audit_computes_nothing_again(
    finished: Run, small_config: GradientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a finished unit was computed again")

    monkeypatch.setattr(GradientStudy, "compute", refuse)
    before = {file: file.stat().st_mtime_ns for file in finished.path.rglob("units/**/*") if file.is_file()}
    assert before
    again = run_one(small_config, finished.path)
    assert again.units() == finished.units()
    assert {file: file.stat().st_mtime_ns for file in before} == before


@pytest.mark.usefixtures("_fake_ocr")
def test_a_killed_audit_is_completed(finished: Run, small_config: GradientConfig, tmp_path: Path) -> None:
    def kill(unit: str, number: int, budget: int) -> None:
        if unit.endswith("gi-dqa") and number >= 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(small_config, tmp_path / "run", on_progress=kill)
    killed = Run.load(tmp_path / "run")
    assert set(units_by_attack(killed)) == {"random"}
    kept = killed.folder(units_by_attack(killed)["random"]["unit"]) / "unit.json"
    written = kept.stat().st_mtime_ns
    run = run_one(small_config, tmp_path / "run")
    assert kept.stat().st_mtime_ns == written, "the finished unit was computed again"
    for name, unit in units_by_attack(run).items():
        whole = units_by_attack(finished)[name]
        assert comparable(unit) == comparable(whole)
        assert pictures(run, unit) == pictures(finished, whole)


@pytest.mark.usefixtures("_fake_ocr")
@pytest.mark.parametrize("change", [{"seed": 1}, {"budget": 31}, {"exposure": Exposure(answer_known=False)}])
def test_another_config_in_the_same_directory_is_refused(
    change: dict[str, Any], finished: Run, small_config: GradientConfig
) -> None:
    before = (finished.path / "run.json").read_bytes()
    with pytest.raises(RunError, match="another config") as caught:
        run_one(replace(small_config, **change), finished.path)
    assert next(iter(change)) in str(caught.value)
    assert (finished.path / "run.json").read_bytes() == before


@pytest.mark.usefixtures("_fake_ocr")
@pytest.mark.parametrize("changed", ["weights", "pages"])
def test_other_weights_or_pages_under_the_same_name_are_refused(
    changed: str, small_config: GradientConfig, tmp_path: Path
) -> None:
    """Otherwise half of the units would be of the old ones, under the signature of the new ones."""
    small_donut(size=SMALL).save(str(tmp_path / "model"))
    save([small_page("42")], tmp_path / "pages")
    config = replace(
        small_config, models=(str(tmp_path / "model"),), documents=str(tmp_path / "pages"), attacks=("random",)
    )
    run = run_one(config, tmp_path / "run")
    signature = run.info["signature"]
    models._model.cache_clear()
    models._pages.cache_clear()
    assert run_one(config, tmp_path / "run").info["signature"] == signature
    if changed == "weights":
        small_donut(seed=1, size=SMALL).save(str(tmp_path / "model"))
    else:
        (image,) = (tmp_path / "pages").glob("*.png")
        Image.fromarray(small_page("17").image).save(image)
    with pytest.raises(RunError, match="other weights, pages or records"):
        run_one(config, tmp_path / "run")
    assert run.info["signature"] == signature


class Own:
    """An attack of one's own, which does ``to`` before it answers with the true page."""

    name, paper, summary = "own", "none", "an attack of one's own"

    def __init__(self, to: Callable[[Any, Any], Any]) -> None:
        self.to = to

    def run(self, view: Any, knowledge: Any, **options: Any) -> Finding:
        return Finding(self.to(view, knowledge), 0.0, 1.0, 1, 0.0)


@pytest.mark.usefixtures("_fake_ocr")
def test_an_attack_that_writes_into_the_template_has_the_same_floor(
    small_config: GradientConfig, tmp_path: Path
) -> None:
    def filled(view: Any, knowledge: Any) -> torch.Tensor:
        knowledge.template[knowledge.private[:, None].expand_as(knowledge.template)] = 0.5
        return knowledge.template  # type: ignore[no-any-return]

    config = replace(small_config, models=("layoutlmv3-start",), pages=1)
    records = [
        run_one(replace(config, attacks=(Own(to),)), tmp_path / name).units()[0]
        for name, to in (("copy", lambda view, known: filled(view, deepcopy(known))), ("place", filled))
    ]
    assert records[0]["floor"] == records[1]["floor"] != records[1]["score"] == records[0]["score"]


@pytest.mark.usefixtures("_fake_ocr")
@pytest.mark.parametrize("done", ["weights", "frozen", "raised"])
def test_an_attack_that_changes_the_model_is_told_and_the_model_loaded_again(
    done: str, small_config: GradientConfig, tmp_path: Path
) -> None:
    def change(view: Any, knowledge: Any) -> torch.Tensor:
        for parameter in view.model.module.parameters():
            parameter.requires_grad_(done != "frozen")
            parameter.data.mul_(1.0 if done == "frozen" else 0.5)
        if done == "raised":
            raise ValueError("its own")
        return knowledge.template  # type: ignore[no-any-return]

    config = replace(small_config, models=("layoutlmv3-start",), pages=1)
    study = GradientStudy(replace(config, attacks=("random",)))
    before = study.identity()
    with pytest.raises(
        ValueError if done == "raised" else AttackError, match=r"its own|attack .own. leaves layoutlmv3"
    ):
        run_one(replace(config, attacks=(Own(change),)), tmp_path / "run")
    assert study.identity() == before
    assert all(p.requires_grad for p in models.model_of(config, "layoutlmv3-start", "cpu").module.parameters())


# -- what is wrong is told before anything is written ------------------------------------------------------------------


def test_fewer_pages_than_a_batch_are_told_by_the_error_alone(small_config: GradientConfig) -> None:
    told: list[str] = []
    with pytest.raises(DocumentError, match="has 2 pages with private fields, fewer than a batch of 5"):
        GradientStudy(replace(small_config, attacks=("random",), batch_size=5)).check(told.append)
    assert told == []


def test_a_page_made_in_python_whose_private_value_is_empty_is_refused(
    small_config: GradientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = small_page("42")
    blank = replace(page, fields=tuple(replace(field, value=" ") for field in page.fields))
    monkeypatch.setattr(models, "pages_for", lambda *given, **options: [blank])
    with pytest.raises(DocumentError, match="the value of total is empty; expected what the page shows there"):
        models.audited_pages("layoutlmv3-start", "cpu", replace(small_config, models=("layoutlmv3-start",), seed=77))


def test_copies_of_a_page_are_one_document(small_config: GradientConfig, tmp_path: Path) -> None:
    """Under names of their own they were two documents to every interval."""
    one, other = small_page("42"), small_page("17")
    pages = [replace(one, name="a"), replace(other, name="b", document="d"), *(replace(one, name=n) for n in "ce")]
    save(pages, tmp_path / "copies")
    config = replace(small_config, models=("layoutlmv3-start",), documents=str(tmp_path / "copies"), pages=4)
    attacked = models.audited_pages("layoutlmv3-start", "cpu", config)
    assert [page.document or page.name for page in attacked] == ["a", "d", "a", "a"]


def test_no_copy_of_an_attacked_page_is_trained_on(tmp_path: Path) -> None:
    """Pages of no named document were all taken for one, and none was left; of named ones a copy was left."""
    one, other = small_page("42"), small_page("17")
    for document in ("", "d"):
        pages = [replace(one, name="a", document=document), replace(one, name="b"), replace(other, name="c")]
        save(pages, tmp_path / f"pages-{document}")
        first = models.TrainingPages(str(tmp_path / f"pages-{document}"), 1, 0, None)._others()
        assert [page.name for page in first] == ["c"]


def test_two_different_pages_of_one_name_are_refused(small_config: GradientConfig, tmp_path: Path) -> None:
    """They would be counted as one; one picture with two lines is one page."""
    one, other = small_page("42"), replace(small_page("17"), name=small_page("42").name)
    asked = replace(one, questions=(Question("How much?", ("42",), "total"),))
    configs = []
    for name, pages in (("two", [one, other]), ("same", [one, asked])):
        save(pages, tmp_path / name)
        configs.append(replace(small_config, models=("layoutlmv3-start",), documents=str(tmp_path / name), pages=2))
    with pytest.raises(DocumentError, match=f"two different pages of the name {one.name!r}"):
        models.audited_pages("layoutlmv3-start", "cpu", configs[0])
    assert len(models.audited_pages("layoutlmv3-start", "cpu", configs[1])) == 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"models": ("donut-strat",)}, ModelError),
        ({"documents": "no/such/folder"}, DocumentError),
        ({"ocr": "no-such-engine"}, ModelError),
        ({"batch_size": 3}, DocumentError),
        ({"exposure": Exposure(gradient_file="no.safetensors")}, GradientError),
    ],
)
def test_a_mistyped_name_leaves_nothing_behind(
    change: dict[str, Any], error: type[Exception], small_config: GradientConfig, tmp_path: Path
) -> None:
    """So that the corrected command can use the same directory."""
    with pytest.raises(error):
        run_one(replace(small_config, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("_fake_ocr")
def test_a_file_in_the_way_of_the_directory(small_config: GradientConfig, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunError, match="there is a file in the way"):
        run_one(small_config, tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.usefixtures("_fake_ocr")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([True, True], ""),
        ([True, False], "1 of 2 pages has no question with an answer; there the question that the client trains on was "
                        "made by docleak, for the first private field."),
    ],
)  # fmt: skip
def test_of_how_many_pages_the_question_was_made(
    asked: list[bool], said: str, small_config: GradientConfig, tmp_path: Path
) -> None:
    """Said before the audit, and in its report."""
    pages = [replace(page, questions=page.questions if own else ()) for page, own in
             zip(map(small_page, ("42", "17")), asked, strict=True)]  # fmt: skip
    save(pages, tmp_path / "pages")
    config = replace(small_config, documents=str(tmp_path / "pages"), pages=2, attacks=("random",))
    told: list[str] = []
    GradientStudy(config).check(told.append)
    assert told == [said] * bool(said)
    page, (reading,) = report_on([run_one(config, tmp_path / "run").path])
    assert list(reading.notices) == told and ("made by docleak" in page.read_text()) is bool(said)


@pytest.mark.usefixtures("_fake_ocr")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pages": 5}, r"Asked for 5 pages; .* has 2 with private fields, so 2 are audited\."),
        ({"pages": 2, "batch_size": 2}, r"Asked for 2 pages in batches of 2; .* has 2 .*, so 1 is audited\."),
        ({"pages": 2}, ""),
        ({"pages": 1, "batch_size": 2}, ""),
    ],
)
def test_more_pages_than_there_are(
    change: dict[str, Any], said: str, small_config: GradientConfig, tmp_path: Path
) -> None:
    config = replace(small_config, attacks=("random",), **change)
    run = run_one(config, tmp_path / "run")
    units = GradientStudy(config).units()
    assert [unit["unit"] for unit in run.units()] == [unit.id for unit in units]
    assert [unit["page"] for unit in run.units()] == ["small-42", "small-17"][: len(units)]
    assert re.fullmatch(said, run.info["shortage"])
    page = report_on([run.path])[0].read_text()
    assert ("Asked for" in page) is bool(said)


@pytest.mark.usefixtures("_fake_ocr")
def test_a_value_printed_again_is_blanked_and_counted(small_config: GradientConfig, tmp_path: Path) -> None:
    page = small_page("4711")
    picture = page.image.copy()
    picture[20:34, 2:30] = picture[40:54, 32:60]
    again = replace(page, image=picture, words=(*page.words, Word("4711", (2, 20, 16, 34))))
    save([again], tmp_path / "pages")
    config = replace(small_config, documents=str(tmp_path / "pages"), attacks=("random",))
    (unit,) = (run := run_one(config, tmp_path / "run")).units()
    assert unit["repeats"] == [{"key": "total", "value": "4711", "boxes": [[2, 20, 16, 34]]}]
    template = run.read_image(unit["unit"], "template.png")
    assert (template[20:34, 2:16] == 255).all() and (template[:14] == picture[:14]).all()
    assert "printed again at 1 other place" in report_on([run.path])[0].read_text()


@pytest.mark.usefixtures("_fake_ocr")
def test_pages_of_another_size(small_config: GradientConfig, tmp_path: Path) -> None:
    config = replace(small_config, image_size=(75, 90), attacks=("gi-dqa",), budget=20)
    (unit,) = (run := run_one(config, tmp_path / "run")).units()
    assert run.config["image_size"] == [75, 90] and unit["size"] == [75, 90]
    assert run.read_image(unit["unit"], "reconstruction.png").shape == (90, 75, 3)
    assert unit["model"].endswith("-75x90") and unit["model_title"] == "model, at 75 x 90 pixels"
    assert list(run.info["models"]) == [unit["model"]] and "-75x90:" in run.info["signature"]
    assert unit["self_test"]["passed"]


def test_synthetic_pages_are_made_at_the_size(tmp_path: Path) -> None:
    model = load_model("donut-start", image_size=(200, 240))
    (page,) = pages_for(model, "synthetic", count=1, seed=2)
    assert (page.image == make_pages(1, seed=2, size=(200, 240))[0].image).all()


@pytest.mark.parametrize("size", [(0, 5), (-3, 200), (320, 20_000)])
def test_impossible_sizes_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(AttackError, match=r"image_size is .*; expected width and height of 1 to 10000"):
        GradientConfig(image_size=size)


@pytest.mark.usefixtures("_fake_ocr")
def test_a_batch(small_config: GradientConfig, tmp_path: Path) -> None:
    """Two pages in the client's gradient, the first one is scored."""
    run = run_one(replace(small_config, batch_size=2, attacks=("gi-dqa",), budget=20), tmp_path / "run")
    (unit,) = run.units()
    assert (unit["page"], unit["view"]["batch_size"]) == ("small-42", 2)
    assert (run.read_image(unit["unit"], "truth.png") == small_page("42").image).all()
    assert unit["self_test"]["passed"]
    assert "B = 2" in run.info["signature"]


# -- exposures ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_fake_ocr")
def test_a_failed_self_test_stops_the_audit_unless_allowed(small_config: GradientConfig, tmp_path: Path) -> None:
    config = replace(small_config, exposure=Exposure(train_mode=True), attacks=("random",))
    with pytest.raises(SelfTestError, match="dropout"):
        run_one(config, tmp_path / "strict")
    assert not Run.load(tmp_path / "strict").units()
    (unit,) = run_one(replace(config, allow_failed_self_test=True), tmp_path / "strict").units()
    assert not unit["self_test"]["passed"]
    assert "dropout" in unit["self_test"]["note"]
    assert unit["view"]["train_mode"] is True


@pytest.mark.usefixtures("_fake_ocr")
def test_a_recorded_gradient_gives_what_the_computed_one_gave(
    finished: Run, small_config: GradientConfig, tmp_path: Path
) -> None:
    model = load_model(small_config.models[0])
    case = build_case(model, [small_page("42")], Exposure(), seed=0)
    file = tmp_path / "update.safetensors"
    save_file(dict(case.view.gradient), file)
    config = replace(small_config, exposure=Exposure(gradient_file=str(file)), attacks=("gi-dqa",))
    (unit,) = run_one(config, tmp_path / "run").units()
    assert_same_but_for_rounding(Run.load(tmp_path / "run"), unit, finished, units_by_attack(finished)["gi-dqa"])
    save_file({name: 2 * value for name, value in case.view.gradient.items()}, file)
    with pytest.raises(RunError, match="other weights, pages or records"):
        run_one(config, tmp_path / "run")
    with pytest.raises(SelfTestError, match="is 2 times ours"):
        run_one(config, tmp_path / "other")
    file.write_bytes(b"garbage")
    with pytest.raises(GradientError, match="is not a safetensors file"):
        run_one(config, tmp_path / "garbage")


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ({}, "sees", "every trainable parameter, computed on one example, with dropout off"),
        ({"batch_size": 4}, "sees", "a batch of 4 pages"),
        ({"exposure": Exposure(train_mode=True)}, "sees", "dropout on"),
        ({"exposure": Exposure(stages=("vision", "text"))}, "sees", "of the vision and text parameters"),
        (
            {"exposure": Exposure(defense="noise:sigma=1e-3")},
            "sees",
            "sent under the defence noise:sigma=1e-3 (Gaussian noise of 0.001 on every number sent), which it knows of",
        ),
        ({"exposure": Exposure(defense="safe-template")}, "sees", "the defence safe-template leaves it as it is"),
        ({"exposure": Exposure(defense="safe-template")}, "knows", "published under the defence safe-template ("),
        ({"exposure": Exposure(question_known=False)}, "knows", "no question"),
        ({"exposure": Exposure(answer_known=False)}, "knows", "no answer"),
        ({"exposure": Exposure(recover_text=True)}, "knows", "was read out of the gradient first"),
    ],
)
def test_the_threat_model_says_what_was_exposed(change: dict[str, Any], key: str, said: str) -> None:
    model = threat_model(GradientConfig(**change))
    assert said in " ".join(model[key])  # type: ignore[arg-type]
    if change:
        assert threat_model(GradientConfig()) != model
    json.dumps(model)


@pytest.mark.parametrize(
    ("tagging", "known", "said", "unsaid"),
    [
        ([True], {}, "asked nothing, the tags of all words", "question"),
        ([True], {"answer_known": False}, "no tags: random ones", "answer"),
        ([True], {"recover_text": True}, "nothing of the text: no tags, no OCR words", "question"),
        ([False, True], {}, "the tags of all words the client's question", "no question"),
        ([False], {}, "the client's question", "tags"),
    ],
)
def test_of_models_that_tag_words_no_question_is_said_to_be_known(
    tagging: list[bool], known: dict[str, bool], said: str, unsaid: str
) -> None:
    told = " ".join(threat_model(GradientConfig(exposure=Exposure(**known)), tagging)["knows"])  # type: ignore[arg-type]
    assert said in told and unsaid not in told


@pytest.mark.parametrize(("question", "answer"), [(True, True), (False, True), (True, False), (False, False)])
def test_what_was_read_first_is_neither_made_up_nor_given(question: bool, answer: bool) -> None:
    exposure = Exposure(question_known=question, answer_known=answer, recover_text=True)
    assert not exposure.question_known and not exposure.answer_known, "it is said to know nothing of the text"
    said = " ".join(threat_model(GradientConfig(exposure=exposure))["knows"])  # type: ignore[arg-type]
    assert "random tokens" not in said and "those words" not in said


@pytest.mark.usefixtures("_fake_ocr")
@pytest.mark.parametrize(
    ("exposure", "said"),
    [
        (Exposure(), ""),
        (Exposure(stages=("vision", "text")), ", vision and text parameters alone"),
        (Exposure(train_mode=True, question_known=False), ", dropout on, question not known"),
        (Exposure(answer_known=False, random_text=True), ", random text, answer not known"),
        (Exposure(recover_text=True, gradient_file="sent.safetensors"), ", as recorded, text read out of it"),
        (Exposure(defense="safe-template", clean_template=True), ", template cleaned, defence safe-template"),
    ],
)
def test_the_signature_names_what_else_of_the_exposure_is_not_the_default(exposure: Exposure, said: str) -> None:
    assert signed(vars(exposure)) == said


def test_the_signature_names_the_defence() -> None:
    config = GradientConfig(models=("layoutlmv3-start",), attacks=("random",), budget=1)
    plain, noisy = (
        GradientStudy(replace(config, exposure=Exposure(defense=defence))).facts()["signature"]
        for defence in ("none", "noise:sigma=1e-3")
    )
    assert "B = 1 | random" in plain and noisy == plain.replace("B = 1", "B = 1, defence noise:sigma=1e-3")


# -- hashes ------------------------------------------------------------------------------------------------------------


def test_hashes_notice_any_change() -> None:
    model = small_donut(size=SMALL)
    before = weights_hash(model)
    assert before == weights_hash(small_donut(size=SMALL)) and len(before) == 10
    with torch.no_grad():
        next(model.module.parameters()).view(-1)[0] += 1e-6
    assert weights_hash(model) != before
    page, other = make_pages(2, seed=0)
    image = page.image.copy()
    image[5, 5, 1] ^= 1
    field = replace(page.fields[0], value=page.fields[0].value + "0")
    changed = [page.with_image(image), replace(page, fields=(field, *page.fields[1:])), replace(page, name="x"), other]
    assert len({data_hash([p]) for p in [page, *changed]}) == 5
    assert data_hash([page]) == data_hash([make_pages(1, seed=0)[0]])


# -- worker processes --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_worker_processes_give_what_one_process_gives(
    finished: Run, small_config: GradientConfig, tmp_path: Path
) -> None:
    """Also the text that the real OCR engine reads is there, since workers cannot be given the fake one."""
    events: list[tuple[str, int, int]] = []
    run = run_one(small_config, tmp_path / "run", workers=2, on_progress=lambda *event: events.append(event))
    assert set(units_by_attack(run)) == {"random", "gi-dqa"}
    for name, unit in units_by_attack(run).items():
        whole = units_by_attack(finished)[name]
        assert_same_but_for_rounding(run, unit, finished, whole)
        assert unit["score"]["mse"] == pytest.approx(whole["score"]["mse"], rel=0.01)
        assert "rapidocr" in unit["score"]["engine"]
        assert (unit["unit"], 30, 30) in events
    numbers = [number for unit, number, _ in events if unit.endswith("gi-dqa")]
    assert numbers == sorted(numbers) and len(numbers) > 10


# -- several rounds ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_fake_ocr")
def test_an_audit_of_two_rounds(small_config: GradientConfig, tmp_path: Path) -> None:
    save([replace(small_page(value), document=value) for value in ("42", "17")], tmp_path / "pages")
    config = replace(
        small_config, documents=str(tmp_path / "pages"), attacks=("gi-dqa:rounds=all",), budget=40, rounds=2,
        round_steps=1,
    )  # fmt: skip
    (name,) = config.models
    run = run_one(config, tmp_path / "run")
    (unit,) = run.units()
    assert unit["view"]["rounds"] == 2 and unit["self_test"]["passed"]
    assert [number for number, _ in unit["finding"]["history"]] == [36, 38, 40], "17 draws and one evaluation a round"
    assert "2 rounds" in run.info["signature"] and "in 2 rounds" in run.info["threat_model"]["sees"][0]
    (later,) = models.later_models(name, "cpu", config)
    first = weights_hash(models.model_of(config, name, "cpu"))
    assert weights_hash(later) != first
    assert weights_hash(load_model(name)) == first, "the first round's model was trained"


def _given(count: int) -> str:
    """Synthetic pages under another name, each a document of its own."""
    return given_pages(make_pages(count, seed=3, size=load_model("layoutlmv3-start").image_size))


@pytest.mark.usefixtures("_fake_ocr")
def test_training_before_the_gradient_is_on_other_pages_of_the_same_documents(tmp_path: Path) -> None:
    documents, made = _given(6), {"models": ("layoutlmv3-start",), "attacks": ("random",), "seed": 0}
    config = GradientConfig(documents=documents, pages=2, fine_tune_steps=1, **made)
    pages = TrainingPages.of(config).first(load_model("layoutlmv3-start"), 100, 0)
    attacked = models.audited_pages("layoutlmv3-start", "cpu", config)
    assert len(attacked) == 2 and len(pages) == 4
    assert not {page.document for page in pages} & {page.document for page in attacked}
    synthetic = GradientConfig(pages=2, fine_tune_steps=1, **made)
    one, other = (models.model_of(c, "layoutlmv3-start", "cpu") for c in (config, synthetic))
    assert weights_hash(one) != weights_hash(other), "trained on synthetic pages all the same"
    info = run_one(config, tmp_path / "run").info
    assert f"of the other pages of {documents}, none of a document that is attacked" in info["trained_here"]
    assert models.said_of_training(synthetic).count("other synthetic pages") == 1
    assert models.said_of_training(GradientConfig()) == ""


def test_training_takes_questions_of_private_fields_where_there_are_no_others_and_needs_pages() -> None:
    bare = [replace(page, questions=()) for page in make_pages(3, seed=3)]
    pages = TrainingPages(given_pages(bare), 1, 0, None)
    (first, _) = pages.first(load_model("layoutlmv3-start"), 2, 0)
    field = first.private_fields[0]
    assert (first.questions[0].key, first.questions[0].answers) == (field.key, (field.value,))
    with pytest.raises(DocumentError, match="no page to train on beside the 3 that are attacked"):
        replace(pages, attacked=3).first(load_model("layoutlmv3-start"), 2, 0)


def test_a_recorded_gradient_is_of_one_model_page_and_round() -> None:
    recorded = Exposure(gradient_file="update.safetensors")
    with pytest.raises(AttackError, match=r"found 2 rounds\. Name the one"):
        GradientConfig(models=("donut-start",), rounds=2, exposure=recorded)
    with pytest.raises(AttackError, match=r"found 4 models, 3 pages\. Name the one"):
        GradientConfig(pages=3, exposure=recorded)
    with pytest.raises(AttackError, match="rounds is 0; expected at least 1"):
        GradientConfig(rounds=0)
