"""What does not apply is told before anything is computed, and left out of an audit of several models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docleak.attacks.gradients.algebra.patches import obstacle
from docleak.attacks.registries import ATTACKS
from docleak.documents import Page
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import load_model, trainable
from docleak.models.layoutlmv3 import LayoutLMv3
from docleak.models.vlm.tiny import make_tiny
from docleak.report.measure import EXPLAINED
from docleak.report.severity import Severity
from docleak.studies.engine import carry_out
from docleak.studies.gradient.case import build_case
from docleak.studies.gradient.config import (
    ENOUGH,
    DefenceConfig,
    Exposure,
    GradientConfig,
    least_budget,
    require_budget,
    with_closed_form,
)
from docleak.studies.gradient.defences import DefenceStudy
from docleak.studies.gradient.models import inapplicable, require_applicable, skipped
from docleak.studies.gradient.study import GradientStudy
from docleak.studies.gradient.texts import text_record


def test_the_closed_form_is_tried_by_itself_on_single_pages() -> None:
    assert with_closed_form(("gi-dqa",), batch_size=1) == ("gi-dqa", "closed-form")
    assert with_closed_form(("closed-form", "dlg"), batch_size=1) == ("closed-form", "dlg")
    assert with_closed_form(("gi-dqa",), batch_size=2) == ("gi-dqa",)
    assert "closed-form" in GradientConfig().attacks


def test_a_budget_that_the_draws_would_spend_is_refused_beforehand() -> None:
    assert least_budget("gi-dqa", 1) == 18 and least_budget("random", 1) == least_budget("closed-form", 1) == 1
    assert least_budget("gi-dqa:rounds=all", 3) == 54 and least_budget("gi-dqa", 3) == 18
    assert max(least_budget(name, 1) for name in ATTACKS.entries) <= ENOUGH
    require_budget(("gi-dqa", "dlg"), 18, rounds=1)
    with pytest.raises(AttackError, match="expected at least: gi-dqa 18"):
        GradientConfig(attacks=("random", "gi-dqa"), budget=17)


@pytest.fixture
def two_models(tmp_path: Path, make_small_page: Callable[[str], Page]) -> GradientConfig:
    save([make_small_page("42")], tmp_path / "pages")
    return GradientConfig(
        ("donut-start", "layoutlmv3-start"), str(tmp_path / "pages"), attacks=("closed-form",), budget=5
    )


def test_what_applies_to_one_of_two_models_runs_there(two_models: GradientConfig) -> None:
    left_out = skipped(two_models, "cpu")
    assert list(left_out) == [("donut-start", "closed-form")] and "is a donut" in left_out["donut-start", "closed-form"]
    planned = [(unit.what[0], unit.what[2]) for unit in GradientStudy(two_models).units()]
    assert planned == [("layoutlmv3-start", "closed-form"), ("donut-start", "random")], "the text of both is read"
    require_applicable(two_models, "cpu")
    with pytest.raises(AttackError, match="none of the attacks applies: closed-form needs"):
        require_applicable(replace(two_models, models=("donut-start",)), "cpu")


def test_why_it_does_not_apply(two_models: GradientConfig) -> None:
    model = load_model("layoutlmv3-start")
    assert inapplicable(model, "closed-form", two_models) == ""
    unsent = replace(two_models, exposure=Exposure(stages=("text",)))
    assert "lacks layoutlmv3.pos_embed" in inapplicable(model, "closed-form", unsent)
    for spec in ("freeze", "freeze:stages=vision"):
        frozen = replace(two_models, models=("layoutlmv3-start",), exposure=Exposure(defense=spec))
        why = inapplicable(model, "closed-form", frozen)
        assert "lacks layoutlmv3.pos_embed" in why and "the client has to train them and to send their gradient" in why
        both = replace(frozen, attacks=("random", "closed-form"))
        assert [unit.what[2] for unit in GradientStudy(both).units()] == ["random"], "nothing fails after the work"
    kept = replace(two_models, exposure=Exposure(defense="freeze:stages=text"))
    sent = [name for name, _ in trainable(model.module) if model.stage(name) != "text"]
    assert inapplicable(model, "closed-form", kept) == obstacle("layoutlmv3", model.name, sent, 1).rstrip(".")
    adapters = obstacle("layoutlmv3", model.name, ["layoutlmv3.encoder.layer.0.query.lora_A.default.weight"], 1)
    assert "of adapters alone" in adapters and "whole gradient" not in adapters
    donut = load_model("donut-start")
    recovered = replace(two_models, exposure=Exposure(recover_text=True))
    assert inapplicable(donut, "gi-dqa", recovered) == ""
    assert "--recover-text" in inapplicable(donut, "gi-dqa", replace(recovered, batch_size=2))
    assert inapplicable(donut, "gi-dqa:recompute=yes", two_models) == ""
    assert "recompute=yes is for the blocks of a Donut" in inapplicable(model, "gi-dqa:recompute=yes", two_models)


def test_fields_behind_the_token_limit_never_entered_the_model() -> None:
    model = load_model("layoutlmv3-start")
    assert isinstance(model, LayoutLMv3)
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    whole = text_record(build_case(model, [page], Exposure(), seed=0))
    assert whole is not None and all(whole["fields_seen"]) and all(whole["fields_by"]["words"])  # type: ignore[index, call-overload]
    model.max_tokens = len(model.encode(page, page.questions[0]).tensors["input_ids"]) - 8
    case = build_case(model, [page], Exposure(), seed=0)
    record = text_record(case)
    assert record is not None and record["exact"] and record["token_limit"] == model.max_tokens
    seen, read = record["fields_seen"], record["fields_by"]["words"]  # type: ignore[index, call-overload]
    assert not all(seen) and any(seen)
    assert read == seen, "all that entered it is read, and nothing else"
    asked = [field.value == case.question.answers[0] for field in page.private_fields]
    assert record["fields_by"]["answer"] == asked or not seen[asked.index(True)]  # type: ignore[index, call-overload]


ADAPTED = "lora:donut-start,r=2,targets=q_proj+v_proj"


@pytest.mark.parametrize(
    ("exposure", "said"),
    [
        (Exposure(stages=("vision",)), "trains no parameters of vision, only of text, fusion. Name stages that it has"),
        (Exposure(stages=("output", "vision")), "trains no parameters of output or vision, only of text, fusion"),
        (Exposure(defense="freeze:stages=vision"), "trains no parameters of vision, only of text, fusion"),
        (
            Exposure(defense="freeze:stages=text+fusion"),
            "freezing text.fusion leaves nothing to send of .*, which",
        ),
        (Exposure(stages=("text",), defense="freeze"), "freezing vision.text leaves nothing to send of .*, which"),
    ],
)
def test_stages_that_a_model_does_not_train_are_refused_by_those_that_it_does(
    exposure: Exposure, said: str, tmp_path: Path
) -> None:
    """Where nothing was sent torch failed, and where nothing was frozen the report named a defence in place."""
    config = GradientConfig((ADAPTED,), attacks=("random",), pages=1, budget=1, exposure=exposure)
    with pytest.raises(AttackError, match=said):
        carry_out(GradientStudy(config), tmp_path / "run")
    assert not list(tmp_path.rglob("unit.json"))


def test_a_defence_that_would_freeze_nothing_is_not_tried() -> None:
    audit = GradientConfig((ADAPTED,), attacks=("random",), pages=1, budget=1)
    study = DefenceStudy(DefenceConfig(audit, ("freeze:stages=vision", "freeze"), utility_steps=0))
    assert list(study.inapplicable) == ["freeze:stages=vision"]
    assert "trains no parameters of vision, only of text, fusion" in study.inapplicable["freeze:stages=vision"]


def test_of_a_model_that_reads_no_picture_none_is_said_to_be_attacked(tmp_path: Path) -> None:
    """LiLT's report counted "picture 0 of 7", called the template computed, and named a command that was refused."""
    make_tiny("lilt", tmp_path / "lilt", seed=0)
    save(make_pages(2, seed=0), tmp_path / "pages")
    config = GradientConfig(
        (str(tmp_path / "lilt"),), str(tmp_path / "pages"), pages=2, attacks=("closed-form",), budget=1
    )
    reading = GradientStudy.read(
        [carry_out(GradientStudy(config), tmp_path / "run", workers=1)], np.random.default_rng(0)
    )
    said = " ".join([reading.counted, *reading.lines, reading.articles])
    assert "words " in said and "picture 0 of" not in said and "picture by" not in said and "Yardsticks" not in said
    assert "computed from the gradient by linear algebra" not in said
    assert "reads words and boxes and no picture" in said
    assert [one.estimate.value for one in reading.measures if one.what == EXPLAINED] == [None]
    assert "--attack closed-form" in reading.scope.remedy


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"batch_size": 2, "pages": 2}, "closed-form recovery needs one page"),
        ({"exposure": Exposure(stages=("output",))}, "the client has to train them and to send their gradient"),
        ({"exposure": Exposure(defense="freeze:stages=text")}, "the client has to train them and to send"),
    ],
)
def test_words_that_were_not_tried_are_not_said_to_be_unread(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    """Of a gradient of the output alone, which nothing can read, LiLT's report said "no field read", words 0 of 6."""
    make_tiny("lilt", tmp_path / "lilt", seed=0)
    save(make_pages(2, seed=0), tmp_path / "pages")
    config = GradientConfig(
        (str(tmp_path / "lilt"),), str(tmp_path / "pages"), **{"pages": 1, **change}, attacks=("closed-form",), budget=1
    )
    run = carry_out(GradientStudy(config), tmp_path / "run", workers=1)
    reading = GradientStudy.read([run], np.random.default_rng(0))
    (part,) = reading.parts
    assert part.severity is Severity.UNTOLD and why in part.sentence
    said = " ".join([reading.counted, part.sentence, *reading.lines])
    assert "words not tried" in said and "words 0 of" not in said and "Text looked for" not in said
    assert "no place on the page" not in said and "gi-dqa" not in said
    (model,) = reading.results["models"]
    assert {field["found"] for field in model["verdict"]["fields"]} == {"not tried"}
