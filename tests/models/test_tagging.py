"""LayoutLMv3 and LiLT that tag words, against transformers' own training, and what comes out of their gradients."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

from docleak.attacks.gradients.algebra.layoutlmv3 import recover_text
from docleak.attacks.gradients.algebra.span import head_of
from docleak.attacks.gradients.local_steps import Batching
from docleak.attacks.gradients.selftest import self_test
from docleak.attacks.gradients.view import GradientView
from docleak.documents import Page, Question
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import load_model, pixels_of, trainable
from docleak.models.base import IGNORED, pad
from docleak.models.files import tokenizer_of
from docleak.models.lora import Lora, adapt
from docleak.models.shipped import CHECKPOINTS
from docleak.models.start import spread
from docleak.models.tagging import LiltTagger, Tagger
from docleak.studies.engine import carry_out
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.study import GradientStudy

KINDS = ("customer_name", "date", "document_number", "total", "unheard")
#: In no order of docleak's.
LABELS = [f"I-{kind}" for kind in KINDS] + ["O"] + [f"B-{kind}" for kind in KINDS]

#: Of the kind, too, that the first question of a synthetic invoice asks for.
ASKED = [*LABELS, "B-invoice_number", "I-invoice_number"]


def make(folder: Path, kind: str, labels: list[str] = LABELS) -> str:
    """A network as transformers' scripts save it, beside the tiny LayoutLMv3's tokenizer."""
    tokenizer = tokenizer_of(str(CHECKPOINTS / "layoutlmv3-start"))
    shared: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 192, "max_position_embeddings": 514, "pad_token_id": 1, "bos_token_id": 0,
        "eos_token_id": 2, "id2label": dict(enumerate(labels)), "label2id": {x: i for i, x in enumerate(labels)},
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "lilt":
        network = t.LiltForTokenClassification(t.LiltConfig(**shared, channel_shrink_ratio=2, type_vocab_size=1))
    else:
        sizes = {"coordinate_size": 16, "shape_size": 16, "input_size": 224, "max_2d_position_embeddings": 1024}
        network = t.LayoutLMv3ForTokenClassification(t.LayoutLMv3Config(**shared, **sizes))
        t.LayoutLMv3ImageProcessorPil(apply_ocr=False).save_pretrained(folder)
    spread(network, generator=torch.Generator().manual_seed(0))
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", params=["layoutlmv3", "lilt"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tagger:
    loaded = load_model(make(tmp_path_factory.mktemp("tags") / "model", request.param))
    assert isinstance(loaded, LiltTagger if request.param == "lilt" else Tagger) and loaded.name == "model"
    return loaded


def theirs(model: Tagger, page: Page) -> dict[str, torch.Tensor]:
    """What transformers' own tokenizer makes of words, boxes and the words' labels, and the loss of it."""
    label2id, tags = model.module.config.label2id, ["O"] * len(page.words)
    for field in page.fields:
        if field.key in KINDS:
            for number, word in enumerate(field.words):
                tags[word] = f"{'I' if number else 'B'}-{field.key}"
    words, sides = [word.text for word in page.words], (page.width, page.height) * 2
    boxes = [[int(1000 * edge / side) for edge, side in zip(word.box, sides, strict=True)] for word in page.words]
    fed = model.tokenizer(words, boxes=boxes, word_labels=[label2id[tag] for tag in tags], return_tensors="pt")
    seen = {} if isinstance(model, LiltTagger) else {"pixel_values": model.normalise(pixels_of(page.image)[None])}
    return {**fed, **seen}


def test_inputs_loss_and_gradient_are_those_of_transformers(model: Tagger) -> None:
    page = model.fit(make_pages(1, seed=3)[0])
    example, pixels, fed = model.encode(page, page.questions[0]), pixels_of(page.image)[None], theirs(model, page)
    for name in ("input_ids", "bbox", "labels"):
        assert torch.equal(example.tensors[name], fed[name][0]), name
    assert set(fed["labels"].unique().tolist()) > {IGNORED, LABELS.index("O")}
    named = dict(trainable(model.module))
    values = torch.autograd.grad(model.module(**fed).loss, list(named.values()), allow_unused=True)
    gradient = {n: torch.zeros_like(named[n]) if v is None else v for n, v in zip(named, values, strict=True)}
    view = GradientView(model, gradient)
    assert self_test(view, pixels, [example]).distance < 1e-6
    other = model.tagged(example, [0] * len(page.words))
    assert self_test(view, pixels, [other]).distance > 1e-3, "tags do not matter"
    recovered = recover_text(view)
    assert recovered.exact, [vars(condition) for condition in recovered.conditions if not condition.holds]
    assert all(torch.equal(value, recovered.inputs[0].tensors[name]) for name, value in example.tensors.items())
    head = head_of(view)
    assert head == ("classifier.weight" if isinstance(model, LiltTagger) else "classifier.out_proj.weight")
    unsure = recover_text(replace(view, gradient={**gradient, head: 2 * gradient[head]}))
    assert not unsure.exact, "tags that are not whole were believed"


def test_a_loss_of_padded_text_is_that_of_transformers(model: Tagger) -> None:
    """Clients pad to the longest of a batch or to a length; an audit that looks for the cause of a failed self-test
    tries both."""
    page = model.fit(make_pages(1, seed=3)[0])
    example, pixels = model.encode(page, page.questions[0]), pixels_of(page.image)[None]
    length = len(example.tensors["input_ids"]) + 7
    fed = theirs(model, page)
    texts = {"input_ids": 1, "bbox": 0, "labels": IGNORED, "attention_mask": 0}
    fed |= {name: pad([fed[name][0], fed[name].new_zeros((length, *fed[name].shape[2:]))], value, pixels.device)[:1]
            for name, value in texts.items()}  # fmt: skip
    padded = model.padded(example, length)
    with torch.no_grad():
        ours = Batching(length).loss(model, pixels, [example], [0])
        torch.testing.assert_close(ours, model.module(**fed).loss, rtol=2e-6, atol=0)
        assert model.answer(pixels, [padded])[0].text == model.answer(pixels, [example])[0].text
    assert model.transcript(padded) == model.transcript(example)
    assert int((padded.tensors["labels"] != IGNORED).sum()) == int((example.tensors["labels"] != IGNORED).sum())


def test_an_answer_is_the_words_of_the_kind_that_is_asked_for(model: Tagger) -> None:
    page = model.fit(make_pages(1, seed=3)[0])
    for question in page.questions:
        told = model.transcript(model.encode(page, question))
        assert told.question == "" and [word.text for word in told.words] == [word.text for word in page.words]
        assert told.answer == (question.answers[0] if question.key in KINDS else "")
    example = model.encode(page, Question("?", (), "total"))
    (answer,) = model.answer(pixels_of(page.image)[None], [example])
    scores = model._scores(pixels_of(page.image)[None], [example])[0].argmax(-1)
    at = {int(w): int(s) for w, s in reversed(list(zip(example.tensors["word_ids"], scores, strict=True))) if w >= 0}
    wanted = {LABELS.index("B-total"), LABELS.index("I-total")}
    assert answer.text == " ".join(page.words[w].text for w in sorted(at) if at[w] in wanted)
    drawn = model.scramble(example, question=True, answer=True, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(drawn.tensors["labels"], example.tensors["labels"])
    assert torch.equal(drawn.tensors["labels"] == IGNORED, example.tensors["labels"] == IGNORED)


def test_a_batch_is_its_examples_and_comes_back_from_disk(model: Tagger, tmp_path: Path) -> None:
    pages = [model.fit(page) for page in make_pages(3, seed=4)]
    inputs = [model.encode(page, page.questions[0]) for page in pages]
    pixels = torch.stack([pixels_of(page.image) for page in pages])
    model.save(str(tmp_path / "copy"))
    again = load_model(str(tmp_path / "copy"))
    with torch.no_grad():
        together = model.loss(pixels, inputs)
        alone = torch.cat([model.loss(pixels[i : i + 1], [e]) for i, e in enumerate(inputs)])
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
        assert torch.equal(together, again.loss(pixels, inputs)) and len(set(together.tolist())) == 3
        assert (model.text_loss(inputs) != together).all() == getattr(model, "sees", True)


@pytest.mark.parametrize(("kind", "labels"), [("layoutlmv3", ASKED), ("lilt", LABELS)])
def test_an_audit_reads_the_fields_by_their_words(kind: str, labels: list[str], tmp_path: Path) -> None:
    """A tagger that knows no kind of what a page asks answers nothing, and no route is counted that could not give a
    field."""
    source = make(tmp_path / "model", kind, labels)
    config = GradientConfig((source,), attacks=("closed-form",), pages=1, budget=20, seed=3)
    (record,) = carry_out(GradientStudy(config), tmp_path / "run").units()
    assert record["recovered"]["exact"] and all(record["recovered"]["fields_by"]["words"])
    routes = {"words", "answer", "question"} if labels is ASKED else {"words"}
    assert set(record["recovered"]["fields_by"]) == routes and bool(record["answer"]) == (labels is ASKED)
    adapt(source, tmp_path / "lora", Lora.parsed("r=2,targets=query+value"), seed=0)
    assert all(".lora_" in name for name, _ in trainable(load_model(str(tmp_path / "lora")).module))


def test_other_labels_are_refused(tmp_path: Path) -> None:
    source = make(tmp_path / "model", "lilt", ["yes", "no"])
    with pytest.raises(ModelError, match="expected O and, for each kind of entity, B-KIND and I-KIND"):
        load_model(source)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == ["LiltForTokenClassification"]
