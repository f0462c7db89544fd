"""UDOP against transformers' own training of it: inputs, loss, gradient, answers, and what comes out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from docleak.attacks.gradients.algebra.order import recover_answers
from docleak.attacks.gradients.algebra.recover import recover_set
from docleak.attacks.gradients.selftest import self_test
from docleak.attacks.gradients.view import GradientView
from docleak.documents import Question
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import load_model, pixels_of
from docleak.models.vlm.alone import fed_alone, gradient_alone
from docleak.models.vlm.udop import MOST_TOKENS
from tests.models.vlm.conftest import model_of


def test_inputs_loss_and_gradient_are_those_of_transformers(folder: Path) -> None:
    model = model_of("udop", folder)
    page = model.fit(make_pages(1, seed=3)[0])
    question, pixels = page.questions[0], pixels_of(page.image)[None]
    example, fed = model.encode(page, question), fed_alone(model, page, question)
    assert torch.equal(example.tensors["input_ids"], fed["input_ids"][0])
    assert torch.equal(example.tensors["bbox"].float() / 1000, fed["bbox"][0])
    assert torch.equal(example.tensors["labels"], fed["labels"][0])
    torch.testing.assert_close(model.picture(pixels)["pixel_values"], fed["pixel_values"], rtol=0, atol=1e-5)
    view = GradientView(model, gradient_alone(model, page, question))
    assert self_test(view, pixels, [example]).distance < 1e-6
    moved = replace(page, words=(replace(page.words[0], text="Xq"), *page.words[1:]))
    assert self_test(view, pixels, [model.encode(moved, question)]).distance > 1e-5, "words do not matter"
    assert self_test(view, torch.ones_like(pixels), [example]).distance > 1e-5, "the picture does not matter"


def test_an_example_is_read_back_and_what_is_not_known_drawn(folder: Path) -> None:
    model = model_of("udop", folder)
    page = model.fit(make_pages(1, seed=3)[0])
    example = model.encode(page, page.questions[0])
    told = model.transcript(example)
    assert (told.question, told.answer) == (page.questions[0].text, page.questions[0].answers[0])
    assert [word.text for word in told.words] == [word.text for word in page.words]
    for word, true in zip(told.words, page.words, strict=True):
        assert all(abs(a - b) <= 0.25 for a, b in zip(word.box, true.box, strict=True))
    drawn = model.scramble(example, question=True, answer=True, generator=torch.Generator().manual_seed(0))
    other = model.transcript(drawn)
    assert other.question != told.question and other.answer != told.answer and other.words == told.words


def test_answers_are_what_generate_says(folder: Path) -> None:
    model = model_of("udop", folder)
    page = model.fit(make_pages(1, seed=3)[0])
    fed = fed_alone(model, page, page.questions[0])
    del fed["labels"]
    told = model.module.generate(**fed, max_new_tokens=6, do_sample=False)
    model.max_answer_tokens = 6
    (answer,) = model.answer(pixels_of(page.image)[None], [model.encode(page, page.questions[0])])
    model.max_answer_tokens = 64
    assert answer.text == model.tokenizer.decode(told[0], skip_special_tokens=True).strip()


def test_a_gradient_gives_away_the_answer_in_order_and_the_set_of_words(folder: Path) -> None:
    model = model_of("udop", folder)
    page = model.fit(make_pages(1, seed=3)[0])
    example = model.encode(page, page.questions[0])
    view = GradientView(model, gradient_alone(model, page, page.questions[0]))
    answers = recover_answers(view)
    assert answers.tokens == (tuple(example.tensors["labels"].tolist()[:-1]),) and answers.exact
    words = recover_set(view)
    assert set(words.tokens) == model.tokens_moved(example) and not words.exact, "the table is the output layer, too"


def test_what_does_not_fit_is_left_out_and_a_long_question_refused(folder: Path) -> None:
    model = model_of("udop", folder)
    page = model.fit(make_pages(1, seed=3)[0])
    many = replace(page, words=page.words * 6, fields=(), questions=())
    tensors = model.encode(many, page.questions[0]).tensors
    assert len(tensors["input_ids"]) == MOST_TOKENS and int(tensors["input_ids"][-1]) == model.tokenizer.eos_token_id
    with pytest.raises(ModelError, match=f"UDOP reads {MOST_TOKENS}"):
        model.encode(page, Question("total " * 200, ("1",), None))


def test_clients_that_leave_boxes_in_0_to_1000_are_imitated_when_told(folder: Path, tmp_path: Path) -> None:
    """The network clips them to 1, so that places no longer matter."""
    model_of("udop", folder)
    copy = shutil.copytree(folder / "udop", tmp_path / "udop")
    config = json.loads((copy / "config.json").read_text()) | {"box_range": 1000}
    (copy / "config.json").write_text(json.dumps(config))
    page = model_of("udop", folder).fit(make_pages(1, seed=3)[0])
    left = load_model(str(copy))
    fed = fed_alone(left, page, page.questions[0])  # type: ignore[arg-type]
    loss = left.module(**{**fed, "bbox": 1000 * fed["bbox"]}).loss
    pixels, inputs = pixels_of(page.image)[None], [left.encode(page, page.questions[0])]
    torch.testing.assert_close(left.loss(pixels, inputs)[0], loss, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(loss, model_of("udop", folder).loss(pixels, inputs)[0], rtol=1e-4)
