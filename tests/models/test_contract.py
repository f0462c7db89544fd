"""What every model offers, asked of each shipped one by name and of a tiny one of each vision-language family."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from docleak.documents import Field, Page, Question
from docleak.documents.synthetic import make_pages
from docleak.models import SHIPPED, STAGES, DocumentModel, Encoded, load_model, pixels_of, trainable
from docleak.models.base import image_of
from docleak.models.layoutlmv3 import MAX_ANSWER_TOKENS, LayoutLMv3
from docleak.models.t5 import QUESTION, T5Reader
from docleak.models.vlm.model import VisionLanguage
from docleak.models.vlm.pix2struct import Pix2Struct
from docleak.models.vlm.tiny import KNOWN as MADE
from docleak.models.vlm.tiny import make_tiny

#: LiLT looks at no pixel: tests/models/test_lilt.py.
KNOWN = [name for name in MADE if name != "lilt"]


@lru_cache(maxsize=32)
def shipped(name: str) -> DocumentModel:
    if name not in KNOWN:
        return load_model(name)
    with tempfile.TemporaryDirectory() as folder:
        make_tiny(name, Path(folder, name), seed=0)
        return load_model(str(Path(folder, name)))


@pytest.fixture(params=[*SHIPPED, *KNOWN])
def model(request: pytest.FixtureRequest) -> DocumentModel:
    return shipped(request.param)


@lru_cache(maxsize=4)
def pages_of_size(size: tuple[int, int]) -> tuple[Page, ...]:
    return tuple(make_pages(3, seed=0, size=size))


def pages_of(model: DocumentModel) -> tuple[Page, ...]:
    return pages_of_size(model.image_size)


def batch_of(model: DocumentModel, count: int = 2) -> tuple[Tensor, list[Encoded]]:
    """Different pages with questions of different lengths."""
    pages = pages_of(model)[:count]
    inputs = [model.encode(page, page.questions[i]) for i, page in enumerate(pages)]
    return torch.stack([pixels_of(page.image) for page in pages]), inputs


def test_loads_by_name_ready_for_an_audit(model: DocumentModel) -> None:
    assert model.name in (*SHIPPED, *KNOWN) and model.name.startswith(model.architecture.partition("_vision")[0])
    assert not model.module.training and model.drawn == ""
    assert all(p.dtype == torch.float32 for p in model.module.parameters())
    assert all(p.requires_grad != name.startswith("dit.") for name, p in model.module.named_parameters())


def test_fit_gives_the_models_size_and_moves_the_boxes(model: DocumentModel) -> None:
    page = make_pages(1, seed=1, size=(300, 230))[0]
    fitted = model.fit(page)
    assert (fitted.width, fitted.height) == model.image_size
    assert [w.text for w in fitted.words] == [w.text for w in page.words]
    x0, y0, x1, y1 = (int(v) for v in fitted.words[0].box)
    assert fitted.image[y0 : y1 + 1, x0 : x1 + 1].min() < 128, "the first word's ink is not in its box"
    assert fitted.words[0].box != page.words[0].box


def test_the_loss_is_twice_differentiable_in_the_pixels(model: DocumentModel) -> None:
    """The double backward is finite, not zero, and what finite differences say (in float64)."""
    double = copy.copy(model)
    double.module = copy.deepcopy(model.module).double()
    if isinstance(double, Pix2Struct):
        double.sheet = replace(double.sheet, rounds=False)
    elif isinstance(double, VisionLanguage) and double.picture.overview is not None:
        # Of the scaling: rounding to grey levels, as Pillow does, has no derivative of its own.
        smooth = replace(double.picture.overview, rounds=False)
        double.picture = replace(double.picture, overview=smooth)
    parameters = [p for _, p in trainable(double.module)]
    pixels, inputs = batch_of(model, 1)
    pixels = pixels.double()

    def power(x: Tensor, *, graph: bool) -> Tensor:
        """|dL/dθ|², what gradient matching differentiates."""
        values = torch.autograd.grad(double.loss(x, inputs).mean(), parameters, create_graph=graph, allow_unused=True)
        return torch.stack([v.square().sum() for v in values if v is not None]).sum()

    free = pixels.clone().requires_grad_(True)
    (second,) = torch.autograd.grad(power(free, graph=True), free)
    assert torch.isfinite(second).all()
    assert float(second.abs().max()) > 0
    if isinstance(model, T5Reader | VisionLanguage):
        # T5's and Qwen's norms and softmaxes round to float32 inside: the steepest direction stands out above that.
        # The tiny Qwen3.5's linear attention is steep, and so are readers that were trained: over longer steps than
        # these they are no parabolas any more.
        step = {"qwen3_5": 1e-4, "llava": 1e-3, "aya_vision": 1e-3}.get(
            model.architecture, 3e-2 if isinstance(model, T5Reader) else 1e-2
        )
        direction, rel = second / second.norm(), 2e-3
    else:
        direction = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0), dtype=pixels.dtype)
        step, rel = 1e-5, 1e-4
    ahead, behind = (power(pixels + s * step * direction, graph=False) for s in (1, -1))
    assert float((second * direction).sum()) == pytest.approx(float(ahead - behind) / (2 * step), rel=rel)


def test_a_batchs_losses_are_the_single_ones(model: DocumentModel) -> None:
    """Padding must not change a loss."""
    pixels, inputs = batch_of(model, 3)
    lengths = {len(next(iter(e.tensors.values()))) for e in inputs}
    assert len(lengths) > 1, "the examples need no padding, so this test would prove nothing"
    with torch.no_grad():
        together = model.loss(pixels, inputs)
        alone = torch.cat([model.loss(pixels[i : i + 1], [e]) for i, e in enumerate(inputs)])
    assert together.shape == (3,)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert len(set(alone.tolist())) == 3


def test_pages_says_which_picture_each_question_is_about(model: DocumentModel) -> None:
    pixels, (a, b) = batch_of(model)
    owners = [1, 0, 1]
    inputs = [b, a, a]
    with torch.no_grad():
        shared = model.loss(pixels, inputs, owners)
        repeated = model.loss(pixels[owners], inputs)
        swapped = model.loss(pixels, inputs, [0, 1, 0])
    torch.testing.assert_close(shared, repeated, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(shared, swapped, rtol=1e-6, atol=1e-6)


def test_encode_can_be_read_back(model: DocumentModel) -> None:
    page = pages_of(model)[0]
    for question in page.questions:
        tensors = model.encode(page, question).tensors
        tokenizer = model.tokenizer  # type: ignore[attr-defined]
        if isinstance(model, LayoutLMv3):
            words, start, end = tensors["word_ids"].tolist(), int(tensors["start"]), int(tensors["end"])
            answer = " ".join(page.words[w].text for w in sorted(set(words[start : end + 1])))
            assert answer == question.answers[0]
            asked = [i for i, w in zip(tensors["input_ids"].tolist(), words, strict=True) if w < 0]
            assert tokenizer.decode(asked, skip_special_tokens=True).strip() == question.text
        elif isinstance(model, T5Reader):
            words, ids, labels = (tensors[key] for key in ("word_ids", "input_ids", "labels"))
            assert tokenizer.decode(ids[words == QUESTION]).strip() == question.text
            text = " ".join(word.text for word in page.words)
            assert tokenizer.decode(ids[words >= 0]).strip() == text.lower()
            assert tokenizer.decode(labels) == f" {question.answers[0].lower()}</s>"
            assert tokenizer.decode(ids[words < QUESTION]) == " question: context:</s>"
        elif isinstance(model, VisionLanguage):
            # Words of a page beside it are read back in tests/models/vlm/test_udop.py.
            told, labels = model.transcript(model.encode(page, question)), tensors["labels"]
            assert (told.question, told.answer) == (question.text, question.answers[0])
            said = tokenizer.decode(labels[labels != -100], skip_special_tokens=True)
            assert said.strip() == question.answers[0]
            assert int(labels[-1]) in tokenizer.all_special_ids, "nothing says where the answer ends"
        else:
            ids = [*tensors["decoder_input_ids"].tolist(), tokenizer.eos_token_id]
            prompt = f"<s_docvqa><s_question>{question.text}</s_question><s_answer>"
            assert tokenizer.decode(ids) == f"<s>{prompt}{question.answers[0]}</s_answer></s>"
            assert tokenizer.decode(tensors["prompt_ids"]) == f"<s>{prompt}"
            labels = tensors["labels"]
            assert tokenizer.decode(labels[labels != -100]) == f"{question.answers[0]}</s_answer></s>"
            assert labels[labels != -100].tolist() == ids[1:][int((labels == -100).sum()) :]


def test_layoutlmv3_gives_every_token_its_words_box() -> None:
    model = shipped("layoutlmv3-start")
    page = pages_of(model)[0]
    tensors = model.encode(page, page.questions[0]).tensors
    for word, box in zip(tensors["word_ids"].tolist(), tensors["bbox"].tolist(), strict=True):
        if word < 0:
            assert box == [0, 0, 0, 0]
        else:
            scaled = [
                v * 1000 / side for v, side in zip(page.words[word].box, (page.width, page.height) * 2, strict=True)
            ]
            assert all(0 <= s - b < 1 for s, b in zip(scaled, box, strict=True))


def brief(model: DocumentModel) -> DocumentModel:
    """``model``, but that Donut and vision-language models end their answers after eight tokens."""
    short = copy.copy(model)
    short.max_answer_tokens = 8  # type: ignore[attr-defined]
    return short


def test_answers_are_text_with_a_confidence(model: DocumentModel) -> None:
    model = brief(model)
    pixels, inputs = batch_of(model)
    answers = model.answer(pixels, inputs)
    assert len(answers) == 2
    assert all(isinstance(a.text, str) and 0 <= a.confidence <= 1 for a in answers)
    alone = model.answer(pixels[1:], inputs[1:])[0]
    assert alone.text == answers[1].text
    assert alone.confidence == pytest.approx(answers[1].confidence, rel=1e-3)


def test_answers_do_not_look_at_the_labels(model: DocumentModel) -> None:
    pixels, (example, _) = batch_of(model)
    wrong = dict(example.tensors)
    for name in ("labels", "decoder_input_ids", "start", "end"):
        if name in wrong:
            wrong[name] = torch.full_like(wrong[name], 7)
    with torch.no_grad():
        right_loss, wrong_loss = model.loss(pixels, [example, replace(example, tensors=wrong)], [0, 0])
    assert right_loss != wrong_loss
    model = brief(model)
    assert model.answer(pixels[:1], [replace(example, tensors=wrong)]) == model.answer(pixels[:1], [example])


def test_donut_decodes_as_without_a_cache() -> None:
    model = shipped("donut-start")
    pixels, (example, _) = batch_of(model)
    module, tokenizer = model.module, model.tokenizer  # type: ignore[attr-defined]
    ids, confidence, stop = example.tensors["prompt_ids"][None], 1.0, {tokenizer.eos_token_id}
    stop.add(tokenizer.convert_tokens_to_ids("</s_answer>"))
    with torch.no_grad():
        for _ in range(8):
            logits = module(pixel_values=pixels[:1] * 2 - 1, decoder_input_ids=ids).logits[0, -1]
            probability, token = logits.softmax(-1).max(-1)
            confidence *= float(probability)
            if int(token) in stop:
                break
            ids = torch.cat([ids, token.view(1, 1)], 1)
    answer = brief(model).answer(pixels[:1], [example])[0]
    written = ids[0, len(example.tensors["prompt_ids"]) :]
    assert answer.text == tokenizer.decode(written, skip_special_tokens=True).strip()
    assert answer.confidence == pytest.approx(confidence, rel=1e-4)


def test_layoutlmv3_answers_with_the_best_span_of_words() -> None:
    word_ids = [-1, -1, 0, 0, 1, 2, -1, 3, *range(4, 60), -1]
    words = tuple(f"w{i}" for i in range(60))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        start, end = (torch.rand(len(word_ids), generator=generator).softmax(0) for _ in range(2))
        end = torch.cat([end, torch.rand(9, generator=generator) + 1])  # the visual tokens behind the text
        best, span = -1.0, (0, 0)
        for i, first in enumerate(word_ids):
            for j, last in enumerate(word_ids):
                if first >= 0 and last >= 0 and i <= j <= i + MAX_ANSWER_TOKENS and float(start[i] * end[j]) > best:
                    best, span = float(start[i] * end[j]), (i, j)
        covered = sorted({w for w in word_ids[span[0] : span[1] + 1] if w >= 0})
        example = Encoded({"word_ids": torch.tensor(word_ids)}, ("token",) * len(word_ids) + words)
        answer = LayoutLMv3._best_span(start, end, example)
        assert answer.text == " ".join(words[w] for w in covered)
        assert answer.confidence == pytest.approx(best)


def test_every_parameter_has_a_stage_and_every_stage_parameters(model: DocumentModel) -> None:
    lacking = {"output"} if model.architecture == "florence2" else set()  # its output layer is its table of tokens
    assert {model.stage(name) for name, _ in trainable(model.module)} == set(STAGES) - lacking


def test_vision_parameters_are_those_that_only_pixels_reach(model: DocumentModel) -> None:
    """The vision stage by its meaning: a vision parameter acts on the picture before a word is looked at."""
    (_, example) = batch_of(model)[1]
    pixels, _ = batch_of(model, 1)
    names = {name for name, _ in trainable(model.module) if model.stage(name) == "vision"}
    first = ("patch_embed", "patch_projection", "visual_projection", "patch_conv", "convs.0")
    assert any(part in name for name in names for part in first)
    assert not any("word_embeddings" in name or "embed_tokens" in name or "decoder" in name for name in names)
    if model.architecture.startswith("llava"):  # they go round it
        names -= {name for name in names if "post_layernorm" in name}
    loss = model.loss(pixels, [example]).sum()
    reached = torch.autograd.grad(loss, [dict(model.module.named_parameters())[n] for n in names], allow_unused=True)
    assert all(g is not None for g in reached)


def test_saved_and_loaded_again_it_is_the_same_model(model: DocumentModel, tmp_path: Path) -> None:
    model.save(str(tmp_path / "copy"))
    again = load_model(str(tmp_path / "copy"))
    pixels, inputs = batch_of(model)
    encoded = [again.encode(page, page.questions[i]) for i, page in enumerate(pages_of(model)[:2])]
    for old, new in zip(inputs, encoded, strict=True):
        assert all(torch.equal(old.tensors[key], new.tensors[key]) for key in old.tensors)
    with torch.no_grad():
        assert torch.equal(model.loss(pixels, inputs), again.loss(pixels, encoded))
    assert (again.architecture, again.image_size, again.name) == (model.architecture, model.image_size, "copy")


def test_a_tied_weight_counts_once(model: DocumentModel) -> None:
    places = [p.data_ptr() for _, p in trainable(model.module)]
    assert len(places) == len(set(places))
    if model.architecture == "donut":
        decoder = model.module.decoder
        assert decoder.lm_head.weight is decoder.model.decoder.embed_tokens.weight
        names = [name for name, _ in trainable(model.module)]
        assert sum("lm_head" in name or "embed_tokens" in name for name in names) == 1


def test_frozen_parameters_are_not_trainable() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    module[0].requires_grad_(False)
    assert [name for name, _ in trainable(module)] == ["1.weight", "1.bias"]


def test_pixels_are_normalised_inside(model: DocumentModel) -> None:
    """Pixels in [0, 1] with mean and deviation 0.5 are what twice as wide pixels are to a model that does nothing."""
    raw: DocumentModel
    if isinstance(model, Pix2Struct):  # by the whole sheet: see vlm/test_pix2struct.py
        return
    if isinstance(model, VisionLanguage):  # as its processor does: see vlm/test_picture.py
        pixels, _ = batch_of(model, 1)
        factor, offset = (value[:, None, None] for value in model.picture.channels)
        torch.testing.assert_close(model.normalise(pixels), pixels * factor + offset)
        return
    if isinstance(model, T5Reader):
        config = replace(model.config, image_mean=(0.0,) * 3, image_std=(1.0,) * 3)
        raw = type(model)(model.module, model.tokenizer, config, name="raw")
    else:
        extra = {"image_size": model.image_size} if model.architecture == "donut" else {}
        raw = type(model)(model.module, model.tokenizer, mean=(0.0,) * 3, std=(1.0,) * 3, **extra)  # type: ignore[call-arg, attr-defined]
    pixels, inputs = batch_of(model)
    with torch.no_grad():
        torch.testing.assert_close(model.loss(pixels, inputs), raw.loss(pixels * 2 - 1, inputs), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(model.loss(pixels, inputs), raw.loss(pixels, inputs), rtol=1e-5)


def test_channels_are_normalised_separately() -> None:
    model = shipped("donut-start")
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    other = type(model)(model.module, model.tokenizer, image_size=model.image_size, mean=mean, std=std)  # type: ignore[call-arg, attr-defined]
    pixels = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    done = other.normalise(pixels)  # type: ignore[attr-defined]
    for c in range(3):
        torch.testing.assert_close(done[:, c], (pixels[:, c] - mean[c]) / std[c])


@pytest.mark.parametrize("name", ["layoutlmv3-start", "layoutlmv3-trained"])
def test_layoutlmv3s_text_loss_looks_at_words_only(name: str) -> None:
    model = shipped(name)
    assert isinstance(model, LayoutLMv3)
    pixels, inputs = batch_of(model)
    text = model.text_loss(inputs)
    assert text.shape == (2,)
    torch.testing.assert_close(text[1], model.text_loss(inputs[1:])[0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(text, model.loss(pixels, inputs), rtol=1e-5)
    patches = dict(model.module.named_parameters())["layoutlmv3.patch_embed.proj.weight"]
    assert torch.autograd.grad(text.sum(), patches, allow_unused=True) == (None,)


def test_an_answer_that_is_not_on_the_page_points_at_the_first_token() -> None:
    model = shipped("layoutlmv3-start")
    page = pages_of(model)[0]
    question = replace(page.questions[0], answers=("nowhere to be seen",), key=None)
    tensors = model.encode(page, question).tensors
    assert (int(tensors["start"]), int(tensors["end"])) == (0, 0)


def test_of_two_fields_of_the_same_value_the_questions_key_decides() -> None:
    model = shipped("layoutlmv3-start")
    page = pages_of(model)[0]
    words = (*page.words[:2], replace(page.words[2], text="42"), replace(page.words[3], text="42"))
    fields = (Field("net", "42", (2,)), Field("total", "42", (3,)))
    page = replace(page, words=words, fields=fields, questions=())
    for word, key in ((2, "net"), (3, "total")):
        tensors = model.encode(page, Question("How much?", ("42",), key)).tensors
        covered = tensors["word_ids"][int(tensors["start"]) : int(tensors["end"]) + 1].tolist()
        assert set(covered) == {word}


def test_an_answer_without_a_field_is_found_among_the_words() -> None:
    model = shipped("layoutlmv3-start")
    page = replace(pages_of(model)[0], fields=())
    wanted = [page.words[3].text, page.words[4].text]
    first = next(i for i in range(len(page.words)) if [w.text for w in page.words[i : i + 2]] == wanted)
    tensors = model.encode(page, replace(page.questions[0], answers=(" ".join(wanted).upper(),), key=None)).tensors
    covered = tensors["word_ids"][int(tensors["start"]) : int(tensors["end"]) + 1].tolist()
    assert sorted(set(covered)) == [first, first + 1]


@pytest.mark.parametrize("name", ["donut-start", "layoutlmv3-start", "vt5-start"])
def test_a_question_too_long_is_refused_in_words(name: str) -> None:
    from docleak.errors import ModelError

    model = shipped(name)
    page = pages_of(model)[0]
    with pytest.raises(ModelError, match="tokens"):
        model.encode(page, replace(page.questions[0], text="What is the total? " * 200))


def test_pixels_and_images_are_each_others_inverse() -> None:
    image = pages_of(shipped("donut-start"))[0].image
    pixels = pixels_of(image)
    assert pixels.shape == (3, *image.shape[:2])
    assert 0 <= float(pixels.min()) < float(pixels.max()) <= 1
    assert (image_of(pixels) == image).all()
    wild = torch.tensor([-3.0, 0.5 / 255, 1.6 / 255, 7.0]).view(1, 1, 4).expand(3, 1, 4)
    assert image_of(wild)[0, :, 0].tolist() == [0, 0, 2, 255]
