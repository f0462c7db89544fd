"""The training loop."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from docleak.documents import Page
from docleak.documents.synthetic import make_pages
from docleak.models import DocumentModel, load_model, pixels_of
from docleak.models.donut import Donut
from docleak.training.pretrain import PretrainConfig, batch_loss, learning_rate_factor, pretrain
from docleak.training.reading import ReadingHead, answer_cells, pointing_loss

SHORT = PretrainConfig(steps=3, pages_per_step=1, questions_per_page=3, learning_rate=1e-3, warmup_steps=1)


@pytest.fixture(autouse=True)
def _same_dropout() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["donut-start", "layoutlmv3-start", "vt5-start", "fedocvqa-start"])
def model(request: pytest.FixtureRequest) -> DocumentModel:
    """A copy of one's own, since training changes it."""
    return load_model(request.param)


def page_for(model: DocumentModel) -> Page:
    return make_pages(1, seed=0, size=model.image_size)[0]


def loss_on(model: DocumentModel, page: Page) -> float:
    inputs = [model.encode(page, question) for question in page.questions]
    with torch.no_grad():
        return float(model.loss(pixels_of(page.image)[None], inputs, [0] * len(inputs)).mean())


def test_three_steps_lower_the_loss_of_one_page(model: DocumentModel) -> None:
    page = page_for(model)
    before, steps = loss_on(model, page), []
    pretrain(model, [page], SHORT, rng=np.random.default_rng(0), on_step=lambda *event: steps.append(event))
    assert loss_on(model, page) < before
    assert [step for step, _ in steps] == [0, 1, 2]
    assert all(math.isfinite(loss) for _, loss in steps)
    assert not model.module.training


def test_a_layoutlmv3_can_begin_with_words_alone() -> None:
    model = load_model("layoutlmv3-start")
    parameters = dict(model.module.named_parameters())
    patches, words = (parameters[f"layoutlmv3.{n}.weight"] for n in ("patch_embed.proj", "embeddings.word_embeddings"))
    before = patches.detach().clone(), words.detach().clone()
    config = replace(SHORT, steps=2, text_only_steps=2, weight_decay=0.0)
    pretrain(model, [page_for(model)], config, rng=np.random.default_rng(0))
    assert torch.equal(patches, before[0]) and not torch.equal(words, before[1])
    pretrain(model, [page_for(model)], replace(config, text_only_steps=1), rng=np.random.default_rng(0))
    assert not torch.equal(patches, before[0])


def test_the_learning_rate_warms_up_and_decays() -> None:
    config = PretrainConfig(steps=100, warmup_steps=10)
    factors = [learning_rate_factor(step, config) for step in range(101)]
    assert factors[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.51)
    assert factors[100] == pytest.approx(0.02)
    assert all(a > b for a, b in pairwise(factors[10:]))
    assert learning_rate_factor(200, config) == pytest.approx(0.02)


@pytest.mark.parametrize("warmup", [0, 5])
def test_a_run_shorter_than_its_warm_up_still_has_a_rate(warmup: int) -> None:
    config = PretrainConfig(steps=warmup, warmup_steps=warmup)
    assert all(0 < learning_rate_factor(step, config) <= 1 for step in range(10))


def test_a_batchs_loss_asks_the_chosen_questions(model: DocumentModel) -> None:
    pages = list(make_pages(2, seed=0, size=model.image_size))
    config = replace(SHORT, questions_per_page=2)
    rng = np.random.default_rng(7)
    chosen = [(i, k) for i, page in enumerate(pages) for k in rng.permutation(len(page.questions))[:2]]
    with torch.no_grad():
        loss = batch_loss(model, pages, config, np.random.default_rng(7))
        singles = [
            model.loss(pixels_of(pages[i].image)[None], [model.encode(pages[i], pages[i].questions[k])])
            for i, k in chosen
        ]
    assert float(loss) == pytest.approx(float(torch.cat(singles).mean()), rel=1e-5)


def test_dense_reading_is_added_with_its_weight() -> None:
    model: Any = load_model("donut-start")
    page = page_for(model)
    torch.manual_seed(0)
    head = ReadingHead(96)
    with torch.no_grad():
        plain = batch_loss(model, [page], SHORT, np.random.default_rng(0))
        reading = head.loss(model.encoded(pixels_of(page.image)[None]), [page], model.grid)
        for weight in (0.0, 0.5):
            config = replace(SHORT, reading_weight=weight)
            both = batch_loss(model, [page], config, np.random.default_rng(0), head)
            assert float(both) == pytest.approx(float(plain + weight * reading), rel=1e-5)


def test_every_page_is_seen_once_before_any_is_seen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Fake(Donut):
        def __init__(self) -> None:
            self.module: Any = torch.nn.Linear(1, 1)

        def fit(self, page: Page) -> Page:
            seen.append(page.name)
            return page

    monkeypatch.setattr("docleak.training.pretrain.ReadingHead", lambda width, keys: torch.nn.Linear(1, 1))
    monkeypatch.setattr(
        "docleak.training.pretrain.batch_loss", lambda model, *_, **__: model.module(torch.ones(1)).sum()
    )
    fake = Fake()
    fake.module.encoder = torch.nn.Module()
    fake.module.encoder.config = type("Config", (), {"hidden_size": 1})
    pages = list(make_pages(6, seed=0))
    pretrain(fake, pages, replace(SHORT, steps=6, pages_per_step=2), rng=np.random.default_rng(0))
    names = sorted(page.name for page in pages)
    assert sorted(seen[:6]) == names and sorted(seen[6:]) == names
    assert seen[:6] != seen[6:]


def test_a_defence_decides_which_gradients_are_used(model: DocumentModel) -> None:
    """What it leaves out stays as it is; what it passes on moves."""
    page = page_for(model)
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()}

    def only_output(gradient: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: value for name, value in gradient.items() if model.stage(name) == "output"}

    config = replace(SHORT, reading_weight=0.0)
    pretrain(model, [page], config, rng=np.random.default_rng(0), protect=only_output)
    moved = {name for name, p in model.module.named_parameters() if not torch.equal(p, before[name])}
    assert moved and {model.stage(name) for name in moved} == {"output"}


def test_showing_where_to_look_moves_the_attention() -> None:
    model = load_model("donut-start")
    page = page_for(model)
    inputs = [model.encode(page, question) for question in page.questions]

    def pointing() -> float:
        with torch.no_grad():
            cells = model.encoded(pixels_of(page.image)[None])
            _, attention, labels = model.attending_loss(cells, inputs, [0] * len(inputs))
        return float(pointing_loss(attention, labels, [answer_cells(page, q, model.grid) for q in page.questions]))

    assert isinstance(model, Donut)
    before = pointing()
    config = PretrainConfig(steps=6, pages_per_step=1, learning_rate=2e-3, warmup_steps=1, pointing_weight=1.0)
    pretrain(model, [page], config, rng=np.random.default_rng(0))
    assert pointing() < before - 0.2
