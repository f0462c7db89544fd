"""LiLT against transformers' own training of it, and what comes out of its gradient."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from docleak.attacks.gradients.algebra.bag import bag_of_words
from docleak.attacks.gradients.algebra.layoutlmv3 import recover_text
from docleak.attacks.gradients.selftest import self_test
from docleak.attacks.gradients.view import GradientView
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import STAGES, load_model, pixels_of, trainable
from docleak.models.lilt import Lilt
from docleak.models.lora import Lora, adapt
from docleak.models.vlm.alone import fed_alone, gradient_alone
from docleak.models.vlm.tiny import make_tiny
from docleak.studies.engine import carry_out
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.study import GradientStudy


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("lilt") / "lilt"
    make_tiny("lilt", folder, seed=0)
    return str(folder)


@pytest.fixture(scope="module")
def model(source: str) -> Lilt:
    loaded = load_model(source)
    assert isinstance(loaded, Lilt)
    return loaded


def test_inputs_loss_and_gradient_are_those_of_transformers(model: Lilt) -> None:
    page = model.fit(make_pages(1, seed=3)[0])
    example, pixels = model.encode(page, page.questions[0]), pixels_of(page.image)[None]
    fed = fed_alone(model, page, page.questions[0])
    assert torch.equal(example.tensors["input_ids"], fed["input_ids"][0])
    assert torch.equal(example.tensors["bbox"], fed["bbox"][0])
    assert (example.tensors["start"], example.tensors["end"]) == (fed["start_positions"], fed["end_positions"])
    view = GradientView(model, gradient_alone(model, page, page.questions[0]))
    assert self_test(view, pixels, [example]).distance < 1e-6
    moved = replace(page, words=tuple(replace(w, box=(w.box[0] + 9, *w.box[1:])) for w in page.words))
    assert self_test(view, pixels, [model.encode(moved, page.questions[0])]).distance > 1e-4, "boxes do not matter"
    with torch.no_grad():
        assert torch.equal(model.loss(pixels, [example]), model.loss(1 - pixels, [example])), "a pixel matters"


def test_a_batch_is_its_examples_and_comes_back_from_disk(model: Lilt, tmp_path: Path) -> None:
    pages = [model.fit(page) for page in make_pages(3, seed=4)]
    inputs = [model.encode(page, page.questions[i]) for i, page in enumerate(pages)]
    pixels = torch.stack([pixels_of(page.image) for page in pages])
    assert len({len(e.tensors["input_ids"]) for e in inputs}) > 1
    model.save(str(tmp_path / "copy"))
    again = load_model(str(tmp_path / "copy"))
    with torch.no_grad():
        together = model.loss(pixels, inputs)
        torch.testing.assert_close(together, torch.cat([model.loss(pixels, [e]) for e in inputs]), rtol=1e-5, atol=1e-5)
        assert torch.equal(together, again.loss(pixels, inputs))
    answers = model.answer(pixels, inputs)
    assert all(a.text in " ".join(w.text for w in p.words) and 0 <= a.confidence <= 1
               for a, p in zip(answers, pages, strict=True))  # fmt: skip
    assert {model.stage(name) for name, _ in trainable(model.module)} == set(STAGES) - {"vision"}


@pytest.mark.parametrize("seed", [3, 4])
def test_a_gradient_gives_away_tokens_boxes_and_answer(model: Lilt, seed: int) -> None:
    page = model.fit(make_pages(1, seed=seed)[0])
    example = model.encode(page, page.questions[1])
    view = GradientView(model, gradient_alone(model, page, page.questions[1]))
    recovered = recover_text(view)
    assert recovered.exact
    assert all(torch.equal(value, recovered.inputs[0].tensors[name]) for name, value in example.tensors.items())
    bag = bag_of_words(model, view.gradient)
    assert bag.exact and set(bag.tokens) == set(example.tensors["input_ids"].tolist())
    assert set(bag.coordinates["x"]) == set(example.tensors["bbox"][:, [0, 2]].flatten().tolist())
    draw = torch.Generator().manual_seed(0)
    noisy = {name: value + torch.randn(value.shape, generator=draw) for name, value in view.gradient.items()}
    assert not recover_text(replace(view, gradient=noisy)).exact, "believed exact under noise that hides all"
    with pytest.raises(AttackError, match="lacks"):
        recover_text(replace(view, gradient={"qa_outputs.weight": view.gradient["qa_outputs.weight"]}))


def test_an_audit_reads_the_fields_by_their_words(source: str, tmp_path: Path) -> None:
    config = GradientConfig((source,), attacks=("closed-form", "gi-dqa"), pages=1, budget=20, seed=3)
    run = carry_out(GradientStudy(config), tmp_path / "run")
    (record,) = run.units()
    assert record["attack"] == "closed-form" and record["recovered"]["exact"]
    assert all(record["recovered"]["fields_by"]["words"])


def test_adapters_are_put_on_it_and_their_gradient_is_refused(source: str, tmp_path: Path) -> None:
    adapt(source, tmp_path / "lora", Lora.parsed("r=2,targets=query+value"), seed=0)
    model = load_model(str(tmp_path / "lora"))
    page = model.fit(make_pages(1, seed=3)[0])
    pixels, inputs = pixels_of(page.image)[None], [model.encode(page, page.questions[0])]
    named = dict(trainable(model.module))
    gradient = dict(zip(named, torch.autograd.grad(model.loss(pixels, inputs)[0], list(named.values())), strict=True))
    assert all(".lora_" in name for name in gradient)
    with pytest.raises(AttackError, match="adapters alone"):
        recover_text(GradientView(model, gradient))
