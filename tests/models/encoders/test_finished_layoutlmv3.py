"""LayoutLMv3, and transformers' question answering, as extraction models: the same scores as transformers' classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import docleak
from docleak.documents import Page
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models.encoders.finished import load_finished
from docleak.models.encoders.loading import load_encoder, save_encoder
from docleak.models.encoders.questions import asked
from docleak.models.encoders.tiny import shipped_tokenizer, tiny_encoder

BASE = Path(docleak.__file__).parent / "models" / "checkpoints" / "layoutlmv3-start"
FEW, MANY = ("total", "date"), tuple(f"kind-{number}" for number in range(6))


def bio(classes: tuple[str, ...]) -> list[str]:
    return ["O", *(f"{part}-{name}" for name in classes for part in "IB")]


def saved(folder: Path, family: str, labels: list[str] | None = None) -> Any:
    """A tiny LayoutLMv3 with a head of transformers that was drawn, beside its tokenizer."""
    config = transformers.AutoConfig.from_pretrained(str(BASE))
    torch.manual_seed(1)
    names = {"id2label": dict(enumerate(labels)), "label2id": {}} if labels else {}
    values = {**config.to_dict(), "initializer_range": 0.3, **names}
    model = getattr(transformers, family)(transformers.LayoutLMv3Config(**values)).eval()
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(str(BASE)).save_pretrained(folder)
    return model


@pytest.fixture
def page() -> Page:
    return make_pages(1, seed=3, size=(224, 224))[0]


def pieces(folder: Path, page: Page, *question: str) -> dict[str, torch.Tensor]:
    """What transformers' tokenizer makes of the page."""
    boxes = [[round(v * s) for v, s in zip(w.box, (1000 / page.width, 1000 / page.height) * 2, strict=True)]
             for w in page.words]  # fmt: skip
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    out = tokenizer(*question, [word.text for word in page.words], boxes=boxes, return_tensors="pt")
    pixels = torch.from_numpy(page.image.copy()).permute(2, 0, 1)[None] / 127.5 - 1
    return {**out, "pixel_values": pixels}


@pytest.mark.parametrize("classes", [FEW, MANY])
def test_token_classification_gives_transformers_scores(tmp_path: Path, page: Page, classes: tuple[str, ...]) -> None:
    """Ten labels or more stand behind a layer of their own."""
    labels = bio(classes)
    theirs = saved(tmp_path, "LayoutLMv3ForTokenClassification", labels)
    model = load_finished(str(tmp_path))
    assert model.task == "ee-bio" and model.bimodal and model.drawn == "" and set(model.config.classes) == set(classes)
    fields = tuple(replace(field, key=classes[0]) for field in page.fields)
    batch = model.collate([model.encode(replace(page, fields=fields))])
    given = pieces(tmp_path, page)
    assert torch.equal(batch.ids, given["input_ids"]) and batch.images is not None
    with torch.no_grad():
        expected = theirs(**given).logits
        scores = model.module.head.scores(model.hidden(batch), batch)["tag"]
    order = [labels.index(f"{part}-{name}") for name in model.config.classes for part in "BI"]
    assert torch.allclose(scores, expected[..., [0, *order]], atol=1e-4)
    with torch.no_grad():
        blank = theirs(**{**given, "pixel_values": torch.ones_like(given["pixel_values"])}).logits
    assert not torch.allclose(scores, blank[..., [0, *order]], atol=1e-2), "the picture counts"


def test_question_answering_reads_the_question_first(tmp_path: Path, page: Page) -> None:
    theirs = saved(tmp_path, "LayoutLMv3ForQuestionAnswering")
    model = load_finished(str(tmp_path))
    assert model.task == "qa" and model.config.question_first and model.drawn == ""
    tokens = model.encode(page)
    texts = [question for question in page.questions if question.answers]
    batch = model.collate(asked(tokens))  # several lengths, padded
    assert len(batch.ids) == len(tokens.questions) == len(texts) > 1 and not bool(batch.mask.all())
    with torch.no_grad():
        scores = model.module.head.scores(model.hidden(batch), batch)
        losses = model.loss(batch)
    for number, question in enumerate(texts):
        given = pieces(tmp_path, page, question.text)
        length, ours = len(tokens), batch.mask[number]
        assert sorted(batch.ids[number][ours].tolist()) == sorted(given["input_ids"][0].tolist())
        with torch.no_grad():
            out = theirs(**given)
        shift = given["input_ids"].shape[1] - length
        for name, logits in (("start", out.start_logits), ("end", out.end_logits)):
            assert torch.allclose(scores[name][number, 1:length], logits[0, 1 + shift : shift + length], atol=1e-3)
            place = int(batch.labels[name][number].argmax())
            losses[number] += logits[0].log_softmax(0)[place + shift]
    assert torch.allclose(losses, torch.zeros_like(losses), atol=1e-3), "all tokens compete, as in training"


@pytest.mark.parametrize("kind", ["layoutlm", "bert"])
def test_bert_and_layoutlm_answer_as_in_transformers(tmp_path: Path, page: Page, kind: str) -> None:
    shape = tiny_encoder(kind, shipped_tokenizer(), seed=0).config.backbone
    values = {key: value for key, value in shape.items() if key not in ("model_type", "id2label", "label2id")}
    base = {"layoutlm": "LayoutLM", "bert": "Bert"}[kind]
    values["type_vocab_size"] = 2
    torch.manual_seed(1)
    theirs = getattr(transformers, f"{base}ForQuestionAnswering")(getattr(transformers, f"{base}Config")(**values))
    theirs.eval().save_pretrained(tmp_path)
    shipped_tokenizer().save_pretrained(tmp_path)
    model = load_finished(str(tmp_path))
    tokens = model.encode(page)
    first, rest = tokens.questions[0], len(tokens) - 1
    batch = model.collate(asked(tokens)[:1])
    ids = torch.cat([tokens.ids[:1], first.ids, tokens.ids[1:]])[None]
    segments = torch.tensor([[0] * (1 + len(first.ids)) + [1] * rest])
    boxes = torch.cat([tokens.boxes[:1], 0 * tokens.boxes[: len(first.ids)], tokens.boxes[1:]])[None]
    boxes[0, len(first.ids)] = 1000  # as transformers' documentation has [SEP]
    with torch.no_grad():
        out = theirs(input_ids=ids, token_type_ids=segments, **({"bbox": boxes} if kind == "layoutlm" else {}))
        scores = model.module.head.scores(model.hidden(batch), batch)
    assert torch.allclose(scores["start"][0, 1 : len(tokens)], out.start_logits[0, -rest:], atol=1e-4)


def test_docleaks_copy_of_it_is_the_same_model(tmp_path: Path, page: Page) -> None:
    saved(tmp_path / "theirs", "LayoutLMv3ForQuestionAnswering")
    model = load_finished(str(tmp_path / "theirs"))
    save_encoder(model, tmp_path / "ours")
    again = load_finished(str(tmp_path / "ours"))
    batch = model.collate(asked(model.encode(page)))
    other = again.collate(asked(again.encode(page)))
    with torch.no_grad():
        assert torch.equal(model.loss(batch), again.loss(other))


def test_an_eye_of_docleaks_or_other_pictures_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, "LayoutLMv3Model")
    from docleak.models.encoders.vision import VisionConfig

    with pytest.raises(ModelError, match="no other eye fits"):
        load_encoder(str(tmp_path), task="mlm", vision=VisionConfig())
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.4, 0.4, 0.4], "image_std": [0.2, 0.2, 0.2]}')
    with pytest.raises(ModelError, match=r"by mean \(0.4.*expected 0.5"):
        load_encoder(str(tmp_path), task="mlm")
