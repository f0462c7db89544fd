"""The recorded recipe of the tiny checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from docleak.documents import Page
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import Answer, load_model, trainable
from docleak.training import checkpoints
from docleak.training.checkpoints import RECIPES, VARIANTS, make_checkpoints, measure, phases_of


class Oracle:
    """Answers every question with what ``reply`` makes of the right answer."""

    def __init__(self, reply: Any) -> None:
        self.reply, self.module = reply, torch.nn.Linear(1, 1)

    def fit(self, page: Page) -> Page:
        return page

    def encode(self, page: Page, question: Any) -> Any:
        return question

    def answer(self, pixels: torch.Tensor, inputs: Sequence[Any]) -> list[Answer]:
        assert pixels.shape[0] == len(inputs) and not self.module.training
        return [Answer(self.reply(question.answers[0]), 1.0) for question in inputs]


def test_measure() -> None:
    pages = make_pages(2, seed=0)
    count = sum(len(page.questions) for page in pages)
    right = measure(Oracle(lambda text: text), pages)  # type: ignore[arg-type]
    assert right == {"anls": 1.0, "accuracy": 1.0, "anls_questions": count}
    wrong = measure(Oracle(lambda text: ""), pages)  # type: ignore[arg-type]
    assert wrong == {"anls": 0.0, "accuracy": 0.0, "anls_questions": count}
    near = measure(Oracle(lambda text: text + "?"), pages)  # type: ignore[arg-type]
    assert near["accuracy"] == 0 and 0.5 < near["anls"] < 1


@pytest.mark.parametrize("architecture", RECIPES)
def test_shortened_phases_keep_their_shares(architecture: str) -> None:
    whole = phases_of(architecture, None)
    assert whole == RECIPES[architecture]
    total = sum(p.steps for p in whole)
    half = phases_of(architecture, total // 2)
    assert [p.steps for p in half] == [p.steps // 2 for p in whole]
    assert [p.text_only_steps for p in half] == [p.text_only_steps // 2 for p in whole]
    assert [p.steps for p in phases_of(architecture, 1)] == [1] * len(whole)


@pytest.fixture
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(count: int, **arguments: Any) -> Sequence[Page]:
        return make_pages(min(count, 2), **arguments)

    monkeypatch.setattr(checkpoints, "make_pages", few)
    monkeypatch.setattr(checkpoints, "measure", lambda model, pages: measure(model, pages[:1]))


@pytest.mark.usefixtures("few_pages")
@pytest.mark.parametrize("architecture", RECIPES)
def test_the_whole_recipe_in_miniature(architecture: str, tmp_path: Path) -> None:
    card = make_checkpoints(architecture, tmp_path / "new" / "folder", steps=1, seed=3, quiet=True)
    base = VARIANTS.get(architecture, architecture)
    folder = tmp_path / "new" / "folder"
    start, trained = folder / f"{base}-start", folder / (f"{base}-trained" if base == architecture else architecture)
    models = [load_model(str(directory)) for directory in (start, trained)]
    assert [m.architecture for m in models] == [base] * 2
    before, after = (dict(trainable(m.module)) for m in models)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert json.loads((trained / "docleak.json").read_text()) == card
    assert json.loads((start / "docleak.json").read_text())["parameters"] == card["parameters"]
    assert card["parameters"] == sum(p.numel() for p in models[0].module.parameters())
    assert 0 <= card["anls"] <= 1 and card["anls_questions"] >= 4  # type: ignore[operator]
    assert "seed 3" in card["recipe"] and "1 steps" in card["recipe"]  # type: ignore[operator]


@pytest.mark.usefixtures("few_pages")
def test_the_same_seed_makes_the_same_weights(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_checkpoints("layoutlmv3", tmp_path / name, steps=1, seed=0, quiet=True)
    files = [(tmp_path / name / "layoutlmv3-trained" / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"unknown architecture 'bert'.*donut, layoutlmv3"):
        make_checkpoints("bert", tmp_path, steps=1, seed=0)
    assert not list(tmp_path.iterdir())
