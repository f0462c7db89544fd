"""Vision-language models against transformers' own training: its conversation, its loss, its gradient, its answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from docleak.attacks.gradients.local_steps import Batching
from docleak.attacks.gradients.matching import relative
from docleak.attacks.gradients.selftest import self_test
from docleak.attacks.gradients.view import GradientView
from docleak.documents import Page, Question
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import load_model, pixels_of
from docleak.models.vlm.alone import fed_alone, gradient_alone
from docleak.models.vlm.model import VisionLanguage
from docleak.models.vlm.processor import common
from docleak.models.vlm.tiny import FAMILIES, make_tiny
from docleak.training.taps.trainer import labels_of
from tests.models.vlm.conftest import model_of


def page_of(model: VisionLanguage) -> Page:
    return model.fit(make_pages(1, seed=3)[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_loss_and_gradient_are_those_of_transformers(family: str, folder: Path) -> None:
    """A client that never heard of docleak computes the gradient; docleak's own fits it to 1e-6."""
    model = model_of(family, folder)
    page = page_of(model)
    fed = fed_alone(model, page, page.questions[0])
    example = model.encode(page, page.questions[0])
    ids, labels = fed["input_ids"][0], fed["labels"][0]
    assert torch.equal(example.tensors["input_ids"], ids[: len(example.tensors["input_ids"])])
    assert torch.equal(labels[labels != -100], example.tensors["labels"][example.tensors["labels"] != -100])
    loss = model.module(**fed, use_cache=False).loss
    pixels = pixels_of(page.image)[None]
    torch.testing.assert_close(model.loss(pixels, [example])[0], loss, rtol=1e-5, atol=1e-5)
    theirs = gradient_alone(model, page, page.questions[0])
    test = self_test(GradientView(model, theirs), pixels, [example])
    assert test.passed and test.distance < 1e-6
    blank = torch.ones_like(pixels)
    view = GradientView(model, theirs)
    assert self_test(view, blank, [example]).distance > 1e-3
    assert float(relative(view)(theirs)) == 0


@pytest.mark.parametrize(("family", "behind"), [("qwen2_vl", ["\n"]), ("paligemma", [])])
def test_labels_may_go_on_behind_the_answer_or_begin_before_it(family: str, behind: list[str], folder: Path) -> None:
    """As TRL trains prompts and completions, and as language modelling does; a tap tells which from a batch."""
    model = model_of(family, folder)
    page = page_of(model)
    fed = fed_alone(model, page, page.questions[0])
    example = model.encode(page, page.questions[0])
    ids, answer = fed["input_ids"][0], int((fed["labels"][0] == -100).int().cumprod(0).sum())
    assert [model.tokenizer.decode([token]) for token in model.processor.behind()] == behind
    assert labels_of(fed, model.tokenizer) == "answer"
    answer_end = ids[-1 - len(behind)] if behind else ids[answer]
    for how, first in (("turn", answer), ("all", 1)):
        trained = model.labelled(example, whole=how == "all")
        labels = torch.where(torch.arange(len(ids)) < first, -100, ids)
        assert torch.equal(trained.tensors["input_ids"], ids) and torch.equal(trained.tensors["labels"], labels)
        told = {**fed, "labels": labels[None]}
        if behind or how == "all":  # nothing is behind an answer: both are one
            assert labels_of(told, model.tokenizer) == how
        loss, pixels = model.module(**told, use_cache=False).loss, pixels_of(page.image)[None]
        one = Batching(labels=how, mean="tokens").loss(model, pixels, [example], [0])
        torch.testing.assert_close(one, loss, rtol=1e-5, atol=1e-5)
    assert labels_of({**fed, "labels": None}, model.tokenizer) == ""
    without_end = torch.where(labels == answer_end, -100, labels)
    assert labels_of({**fed, "labels": without_end[None]}, model.tokenizer) == ("" if behind else "answer")


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_what_generate_says(family: str, folder: Path) -> None:
    model = model_of(family, folder)
    page = page_of(model)
    example = model.encode(page, page.questions[0])
    inputs = model.processor.read(page.image, page.questions[0].text)
    inputs.pop("labels", None)
    told = model.module.generate(**inputs, max_new_tokens=6, do_sample=False, pad_token_id=1)
    model.max_answer_tokens = 6
    (answer,) = model.answer(pixels_of(page.image)[None], [example])
    model.max_answer_tokens = 64
    said = told[0] if model.two_sided else told[0, inputs["input_ids"].shape[1] :]
    assert answer.text == model.tokenizer.decode(said, skip_special_tokens=True).strip()


@pytest.mark.parametrize("family", ["paligemma", "qwen2_vl", "florence2"])
def test_what_is_not_known_is_drawn_and_the_rest_stays(family: str, folder: Path) -> None:
    model = model_of(family, folder)
    page = page_of(model)
    true = model.encode(page, page.questions[0])
    for question, answer in ((True, False), (False, True)):
        drawn = model.scramble(true, question=question, answer=answer, generator=torch.Generator().manual_seed(0))
        told, right = model.transcript(drawn), model.transcript(true)
        assert (told.question == right.question) != question and (told.answer == right.answer) != answer
        assert {name: value.shape for name, value in drawn.tensors.items()} == {
            name: value.shape for name, value in true.tensors.items()
        }
        first, last = true.tensors["question_at"].tolist()
        ids, others = true.tensors["prompt_ids"], drawn.tensors["prompt_ids"]
        assert torch.equal(ids[:first], others[:first]) and torch.equal(ids[last:], others[last:])
    model.loss(pixels_of(page.image)[None], [drawn])


def test_common_ends_do_not_overlap() -> None:
    assert common(torch.tensor([1, 2, 2, 3]), torch.tensor([1, 2, 3])) == (2, 1)
    assert common(torch.tensor([1, 1, 1]), torch.tensor([1, 1])) == (2, 0)
    assert common(torch.tensor([1, 2]), torch.tensor([3, 4])) == (0, 0)


def test_a_long_question_is_refused_in_words(folder: Path) -> None:
    model = model_of("qwen2_vl", folder)
    page = page_of(model)
    with pytest.raises(ModelError, match="1024 positions"):
        model.encode(page, type(page.questions[0])("total? " * 300, ("1",), None))


def test_without_a_template_and_without_a_known_prompt_it_is_refused(folder: Path, tmp_path: Path) -> None:
    model_of("qwen2_vl", folder)
    copy = shutil.copytree(folder / "qwen2_vl", tmp_path / "copy")
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"no chat template.*chat_template\.jinja"):
        load_model(str(copy))


def test_missing_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    model_of("llava", folder)
    copy = shutil.copytree(folder / "llava", tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 3
    config["text_config"].pop("layer_types", None)
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"lacks .* parameters"):
        load_model(str(copy))


def test_tiny_models_are_made_again_from_their_seed(tmp_path: Path) -> None:
    weights = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        card = make_tiny("paligemma", tmp_path / name, seed=seed)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
        assert card["seed"] == seed and card["parameters"] < 1_000_000
    assert weights[0] == weights[1] != weights[2]
    with pytest.raises(ModelError, match="there already"):
        make_tiny("paligemma", tmp_path / "a", seed=1)
    with pytest.raises(ModelError, match="expected one of"):
        make_tiny("paligema", tmp_path / "d", seed=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_many_answers_to_one_question_have_the_losses_that_each_has_alone(
    family: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page and question are read once where the decoder's cache may be repeated; prompts that differ, and whatever
    needs a gradient, take the plain way."""
    model = model_of(family, folder)
    page = page_of(model)
    asked = [Question(page.questions[0].text, (value,)) for value in ("12.50", "Noor Castro", "x", "RE-22-2366 b")]
    inputs, pixels = [model.encode(page, question) for question in asked], pixels_of(page.image)[None]
    calls: list[int] = []
    forward = model.module.forward
    monkeypatch.setattr(model.module, "forward", lambda **fed: calls.append(len(fed["input_ids"])) or forward(**fed))
    with torch.no_grad():
        together = model.loss(pixels, inputs, [0] * 4)
        assert calls == ([4] if model.two_sided or "image_grid_thw" in model.picture.constants else [1, 4])
        alone = torch.cat([model.loss(pixels, [one]) for one in inputs])
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
        calls.clear()
        model.loss(pixels, [*inputs[:2], model.encode(page, Question("Another one?", ("x",)))], [0] * 3)
        model.loss(pixels, [model.labelled(one, whole=True) for one in inputs], [0] * 4)
        assert calls == [3, 4]
    derived = model.loss(pixels, inputs, [0] * 4)
    assert derived.requires_grad and model.module.config.get_text_config()._attn_implementation == "eager"
    torch.testing.assert_close(together, derived.detach(), rtol=1e-5, atol=1e-5)
