"""Pix2Struct against its processor and transformers' own training of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from docleak.attacks.gradients.algebra.order import recover_answers
from docleak.attacks.gradients.algebra.recover import recover_set
from docleak.attacks.gradients.selftest import self_test
from docleak.attacks.gradients.view import GradientView
from docleak.documents import Question
from docleak.documents.fonts import BROADEST, font_path
from docleak.documents.synthetic import make_pages
from docleak.models import load_model, pixels_of
from docleak.models.vlm.alone import fed_alone, gradient_alone
from docleak.models.vlm.pix2struct import Pix2Struct
from tests.models.vlm.conftest import model_of

#: Narrower than the page is wide, and wider: the page is left alone, or widened.
QUESTIONS = ("Due?", "Who is the person that this invoice was sent to?")


@pytest.mark.parametrize("asked", QUESTIONS)
def test_patches_are_the_processors_own(asked: str, folder: Path) -> None:
    """Of noise of several contrasts, which the whole sheet is divided by."""
    model = model_of("pix2struct", folder)
    page = model.fit(make_pages(1, seed=3)[0])
    width, height = model.image_size
    for seed, (low, high) in enumerate([(0, 256), (100, 140), (254, 256)]):
        image = np.random.default_rng(seed).integers(low, high, (height, width, 3)).astype(np.uint8)
        noise, question = replace(page, image=image), Question(asked, ("1",))
        fed = fed_alone(model, noise, question)
        shown = model._shown(pixels_of(image)[None], model.encode(noise, question))
        ours, theirs = shown["flattened_patches"], fed["flattened_patches"]
        torch.testing.assert_close(ours, theirs[:, : ours.shape[1]], rtol=0, atol=1e-4 if high - low < 10 else 1e-5)
        assert int(fed["attention_mask"].sum()) == ours.shape[1] == int(shown["attention_mask"].sum())


@pytest.mark.parametrize("asked", QUESTIONS)
def test_loss_and_gradient_are_those_of_transformers(asked: str, folder: Path) -> None:
    model = model_of("pix2struct", folder)
    page, question = model.fit(make_pages(1, seed=3)[0]), Question(asked, ("FA 434434",))
    pixels, example = pixels_of(page.image)[None], model.encode(page, question)
    view = GradientView(model, gradient_alone(model, page, question))
    assert self_test(view, pixels, [example]).distance < 1e-6
    other = model.encode(page, Question(asked.replace("?", "!"), ("FA 434434",)))
    assert self_test(view, pixels, [other]).distance > 1e-4, "the question is not on the sheet"
    assert self_test(view, 0.5 + pixels / 2, [example]).distance > 1e-3
    answers = recover_answers(view)
    assert answers.tokens == (tuple(example.tensors["labels"].tolist()[:-1]),) and answers.exact
    words = recover_set(view)
    assert set(words.tokens) == model.tokens_moved(example) and words.exact


def test_every_pixel_has_its_derivative_which_is_that_of_the_sheet(folder: Path) -> None:
    model = model_of("pix2struct", folder)
    assert isinstance(model, Pix2Struct)
    model.sheet, smooth = replace(model.sheet, rounds=False), model.sheet
    example = model.encode(model.fit(make_pages(1, seed=3)[0]), Question(QUESTIONS[1], ("1",)))
    draw = torch.Generator().manual_seed(0)
    pixels = torch.rand(1, 3, *model.image_size[::-1], generator=draw, dtype=torch.float64)
    weights = torch.randn(model._shown(pixels, example)["flattened_patches"].shape, generator=draw, dtype=torch.float64)

    def summed(x: torch.Tensor) -> torch.Tensor:
        return (model._shown(x, example)["flattened_patches"] * weights).sum()

    free = pixels.clone().requires_grad_(True)
    (derivative,) = torch.autograd.grad(summed(free), free)
    assert bool((derivative != 0).all())
    direction = torch.randn(pixels.shape, generator=draw, dtype=torch.float64)
    step = 1e-5 * direction
    along = float(summed(pixels + step) - summed(pixels - step)) / 2e-5
    assert float((derivative * direction).sum()) == pytest.approx(along, rel=1e-6)
    model.sheet = smooth


def test_answers_are_what_generate_says(folder: Path) -> None:
    model = model_of("pix2struct", folder)
    page = model.fit(make_pages(1, seed=3)[0])
    fed = fed_alone(model, page, page.questions[0])
    del fed["labels"]
    told = model.module.generate(**fed, max_new_tokens=6, do_sample=False)
    model.max_answer_tokens = 6
    (answer,) = model.answer(pixels_of(page.image)[None], [model.encode(page, page.questions[0])])
    model.max_answer_tokens = 64
    assert answer.text == model.tokenizer.decode(told[0], skip_special_tokens=True).strip()


def test_what_is_not_known_is_drawn(folder: Path) -> None:
    model = model_of("pix2struct", folder)
    page = model.fit(make_pages(1, seed=3)[0])
    true = model.encode(page, page.questions[0])
    drawn = model.scramble(true, question=True, answer=True, generator=torch.Generator().manual_seed(0))
    told, right = model.transcript(drawn), model.transcript(true)
    assert (right.question, right.answer) == (page.questions[0].text, page.questions[0].answers[0])
    assert told.question != right.question and told.answer != right.answer
    assert [len(word) for word in told.question.split()] == [len(word) for word in right.question.split()]
    assert all(drawn.tensors[name].shape == value.shape for name, value in true.tensors.items())


def test_without_a_header_nothing_is_asked(folder: Path, tmp_path: Path) -> None:
    model_of("pix2struct", folder)
    copy = shutil.copytree(folder / "pix2struct", tmp_path / "plain")
    for file in copy.glob("*processor_config.json"):
        settings = json.loads(file.read_text())
        settings.get("image_processor", settings)["is_vqa"] = False
        file.write_text(json.dumps(settings))
    model = load_model(str(copy))
    page = model.fit(make_pages(1, seed=3)[0])
    examples = [model.encode(page, Question(asked, ("1",))) for asked in QUESTIONS]
    assert model.transcript(examples[0]).question == ""
    assert len(set(model.loss(pixels_of(page.image)[None], examples, [0, 0]).tolist())) == 1


def test_a_typeface_beside_the_weights_is_taken(folder: Path, tmp_path: Path) -> None:
    model_of("pix2struct", folder)
    copy = shutil.copytree(folder / "pix2struct", tmp_path / "typed")
    bold = font_path(f"{BROADEST}-bold") or font_path("roboto-bold")
    assert bold is not None
    shutil.copyfile(bold, copy / "ours.ttf")
    model = load_model(str(copy))
    page = model.fit(make_pages(1, seed=3)[0])
    pixels, inputs = pixels_of(page.image)[None], [model.encode(page, page.questions[0])]
    assert isinstance(model, Pix2Struct) and model.sheet.font == str(copy / "ours.ttf")
    assert not torch.allclose(model.loss(pixels, inputs), model_of("pix2struct", folder).loss(pixels, inputs))
