"""VT5 and FeDocVQA's model: sizes as published, what goes into T5, how answers are written, what lies on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from docleak.documents import Page, Word
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import Encoded, load_model, pixels_of, trainable
from docleak.models.base import pad
from docleak.models.fedocvqa import MAE_BASE, FeDocVQA
from docleak.models.shipped import CHECKPOINTS
from docleak.models.t5 import FRAME, QUESTION, T5_BASE, ReaderConfig, T5Reader
from docleak.models.tiny import fedocvqa_start, reader_texts, reader_tokenizer, vt5_start
from docleak.models.vt5 import DIT_BASE, VT5

NAMES = ("vt5-start", "fedocvqa-start")


@lru_cache(maxsize=2)
def reader(name: str) -> T5Reader:
    model = load_model(name)
    assert isinstance(model, T5Reader)
    return model


@lru_cache(maxsize=1)
def pages() -> tuple[Page, ...]:
    return tuple(make_pages(3, seed=5, split="validation", size=(224, 224)))


def batch(model: T5Reader) -> tuple[Tensor, list[Encoded]]:
    inputs = [model.encode(page, page.questions[i]) for i, page in enumerate(pages())]
    return torch.stack([pixels_of(page.image) for page in pages()]), inputs


def count(module: nn.Module, *, only_trainable: bool = False) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not only_trainable)


# -- published sizes ---------------------------------------------------------------------------------------------------


def test_a_base_vt5_has_the_published_size() -> None:
    with torch.device("meta"):
        module = VT5.build(ReaderConfig(T5_BASE, DIT_BASE))
    assert count(module.t5) == 222_903_552
    extra = 2 * 1024 * 768 + 2 * 768 + 2 * (768 * 768 + 768)  # two tables, a norm, two linear layers
    sent = count(module, only_trainable=True)
    assert sent == 222_903_552 + extra == 225_659_136
    assert count(module) - sent == 85_806_336, "the frozen DiT"
    # The paper's 44.66 "GB": ten rounds, two clients, both ways, float32, T5's tied table counted four times.
    counted = sent + 3 * 32128 * 768
    assert 10 * 2 * 2 * 4 * counted / 2**30 == pytest.approx(44.66, abs=0.005)


def test_a_base_fedocvqa_has_the_published_size() -> None:
    with torch.device("meta"):
        module = FeDocVQA.build(ReaderConfig(T5_BASE, MAE_BASE))
    assert count(module) == 222_903_552 + (3 * 16 * 16 * 768 + 768) + (4 * 768 + 768) == 223_497_984  # "220M"
    assert module.side == 14


@pytest.mark.parametrize("name", NAMES)
def test_tiny_ones_are_tiny(name: str) -> None:
    assert 500_000 < count(reader(name).module) < 1_500_000
    folder = CHECKPOINTS / name
    assert sum(file.stat().st_size for file in folder.iterdir()) < 6_000_000


# -- what T5 reads -----------------------------------------------------------------------------------------------------


def test_vt5_reads_text_then_the_picture_and_its_dit_is_frozen() -> None:
    model = reader("vt5-start")
    pixels, inputs = batch(model)
    ids = pad([e.tensors["input_ids"] for e in inputs], 0, torch.device("cpu"))
    boxes = pad([e.tensors["bbox"] for e in inputs], 0, torch.device("cpu"))
    lengths = [len(e.tensors["input_ids"]) for e in inputs]
    network = model.module
    with torch.no_grad():
        rows = network.rows(model.normalise(pixels), [2, 0, 1], ids, boxes, lengths)
        tokens = network.t5.shared(ids) + network.spatial(boxes)
        picture = network.visual_projection(network.dit(pixel_values=model.normalise(pixels)).last_hidden_state)
    assert picture.shape[1] == 1 + 7 * 7
    for i, owner in enumerate([2, 0, 1]):
        torch.testing.assert_close(rows[i], torch.cat([tokens[i, : lengths[i]], picture[owner]]))
    assert network.train().dit.training is False and network.t5.training
    network.eval()
    assert not any(name.startswith("dit.") for name, _ in trainable(network))
    free = pixels.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model.loss(free, inputs).sum(), free)
    assert float(gradient.abs().max()) > 0, "frozen weights still pass the gradient on to the pixels"


def test_layout_induced_embedding_against_loops() -> None:
    model = reader("fedocvqa-start")
    pixels, inputs = batch(model)
    network, page = model.module, pages()[1]
    e = inputs[1]
    length, side, patch = len(e.tensors["input_ids"]), 7, 32
    with torch.no_grad():
        ids, boxes = e.tensors["input_ids"][None], e.tensors["bbox"][None]
        (row,) = network.rows(model.normalise(pixels), [1], ids, boxes, [length])
        image = model.normalise(pixels)[1]
        kernel, bias = network.patch_embed.weight, network.patch_embed.bias
        filled, expected = set(), []
        for i in range(length):
            vector = network.t5.shared.weight[ids[0, i]] + network.spatial(boxes[0, i] / 1000)
            word = int(e.tensors["word_ids"][i])
            if word >= 0:
                x0, y0, x1, y1 = page.words[word].box
                r, c = int((y0 + y1) / 2 // patch), int((x0 + x1) / 2 // patch)
                filled.add((r, c))
                piece = image[:, r * patch : (r + 1) * patch, c * patch : (c + 1) * patch]
                vector = vector + (kernel * piece).sum((1, 2, 3)) + bias
            expected.append(vector)
        for r in range(side):
            for c in range(side):
                if (r, c) not in filled:
                    piece = image[:, r * patch : (r + 1) * patch, c * patch : (c + 1) * patch]
                    box = torch.tensor([c, r, c + 1, r + 1]) / side
                    expected.append((kernel * piece).sum((1, 2, 3)) + bias + network.spatial(box))
    assert 0 < len(filled) < side * side
    torch.testing.assert_close(row, torch.stack(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_boxes_matter_and_scale_one_reproduces_the_public_code(name: str) -> None:
    model = reader(name)
    page = pages()[0]
    tensors = model.encode(page, page.questions[0]).tensors
    words = tensors["word_ids"] >= 0
    for word, box in zip(tensors["word_ids"].tolist(), tensors["bbox"].tolist(), strict=True):
        if word >= 0:
            assert all(0 <= v * 1000 / 224 - b < 1 for v, b in zip(page.words[word].box, box, strict=True))
    assert tensors["bbox"][-1].tolist() == [0, 0, 0, 0]
    assert tensors["bbox"][0].tolist() == list(model.config.prompt_box)
    kit = type(model)(model.module, model.tokenizer, replace(model.config, box_scale=1), name="kit")
    assert not kit.encode(page, page.questions[0]).tensors["bbox"][words].any(), "the public code's truncation"
    pixels, moved = pixels_of(page.image)[None], dict(tensors)
    moved["bbox"] = torch.where(words[:, None], tensors["bbox"].flip(-1), tensors["bbox"])
    with torch.no_grad():
        assert model.loss(pixels, [Encoded(moved)]) != model.loss(pixels, [Encoded(tensors)])


def test_words_that_do_not_fit_are_left_out_from_the_end() -> None:
    model = reader("vt5-start")
    page, question = pages()[0], pages()[0].questions[0]
    whole = model.encode(page, question)
    short = VT5(model.module, model.tokenizer, replace(model.config, max_tokens=40), name="short").encode(
        page, question
    )
    assert short.tensors["input_ids"].tolist() == [*whole.tensors["input_ids"][:39].tolist(), 1]
    assert short.words_seen == tuple(range(len(short.words_seen))) and len(short.words_seen) < len(page.words)
    assert whole.words_seen == tuple(range(len(page.words)))


@pytest.mark.parametrize("name", NAMES)
def test_the_transcript_is_the_input_in_words(name: str) -> None:
    model = reader(name)
    page, question = pages()[1], pages()[1].questions[2]
    transcript = model.transcript(model.encode(page, question))
    assert (transcript.question, transcript.answer) == (question.text, question.answers[0].lower())
    assert [w.text for w in transcript.words] == [w.text.lower() for w in page.words]
    for said, word in zip(transcript.words, page.words, strict=True):
        assert all(abs(a - b) < 0.3 for a, b in zip(said.box, word.box, strict=True))


@pytest.mark.parametrize(("question", "answer"), [(True, False), (False, True), (False, False)])
def test_scramble_changes_what_is_not_known(question: bool, answer: bool) -> None:
    model = reader("vt5-start")
    example = model.encode(pages()[0], pages()[0].questions[0])
    other = model.scramble(example, question=question, answer=answer, generator=torch.Generator().manual_seed(0))
    asked = example.tensors["word_ids"] == QUESTION
    changed = example.tensors["input_ids"] != other.tensors["input_ids"]
    assert not changed[~asked].any() and bool(changed[asked].float().mean() > 0.8) is question
    said = example.tensors["labels"] != other.tensors["labels"]
    assert not said[-1] and bool(said[:-1].float().mean() > 0.8) is answer
    drawn = torch.cat([other.tensors["input_ids"][asked], other.tensors["labels"][:-1]])
    assert not torch.isin(drawn, torch.tensor(model.tokenizer.all_special_ids)).any()
    assert (example.tensors["word_ids"] == FRAME).sum() == (other.tensors["word_ids"] == FRAME).sum()


# -- what it writes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_transformers_own(name: str) -> None:
    model = reader(name)
    pixels, inputs = batch(model)
    with torch.no_grad():
        losses = model.loss(pixels, inputs)
        for i, e in enumerate(inputs):
            tensors = [e.tensors[key][None] for key in ("input_ids", "bbox")]
            row = model.module.rows(model.normalise(pixels), [i], *tensors, [tensors[0].shape[1]])[0]
            out = model.module.t5(inputs_embeds=row[None], labels=e.tensors["labels"][None])
            torch.testing.assert_close(losses[i], out.loss, rtol=1e-5, atol=1e-5)


def test_answers_are_greedy_and_confidence_is_their_probability() -> None:
    model = reader("fedocvqa-start")
    pixels, inputs = batch(model)
    short = FeDocVQA(model.module, model.tokenizer, replace(model.config, max_answer_tokens=5), name="short")
    for i, answer in enumerate(short.answer(pixels, inputs)):
        ids, confidence = [0], 1.0
        encoded, mask = short._encoded(pixels[i : i + 1], inputs[i : i + 1], [0])
        for _ in range(5):
            with torch.no_grad():
                out = model.module.t5(
                    encoder_outputs=(encoded,), attention_mask=mask, decoder_input_ids=torch.tensor([ids])
                )
            probability, token = out.logits[0, -1].softmax(-1).max(-1)
            ids.append(int(token))
            confidence *= float(probability)
            if ids[-1] == 1:
                break
        assert answer.text == model.tokenizer.decode(ids, skip_special_tokens=True).strip()
        assert answer.confidence == pytest.approx(confidence, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_at_the_start_the_last_layer_looks_behind_what_was_just_written(name: str) -> None:
    """The copying circuit: given a piece of the page, the decoder looks at the piece that follows it there."""
    model = reader(name)
    page = pages()[0]
    e = model.encode(page, page.questions[0])
    ids = e.tensors["input_ids"]
    on_page = (e.tensors["word_ids"] >= 0).nonzero().flatten().tolist()
    once = [i for i in on_page[:-1] if (ids == ids[i]).sum() == 1]
    with torch.no_grad():
        encoded, mask = model._encoded(pixels_of(page.image)[None], [e], [0])
        out = model.module.t5.decoder(
            input_ids=ids[once][:, None], encoder_hidden_states=encoded.expand(len(once), -1, -1),
            encoder_attention_mask=mask.expand(len(once), -1), output_attentions=True,
        )  # fmt: skip
    looked = out.cross_attentions[-1][:, :2, 0].mean(1).argmax(-1)
    assert float((looked == torch.tensor(once) + 1).float().mean()) > 0.6


# -- how they are made -------------------------------------------------------------------------------------------------


def test_the_tokenizer_is_t5s_in_kind_and_the_same_each_time() -> None:
    one, two = (reader_tokenizer(reader_texts(pages()), vocabulary=400) for _ in range(2))
    assert one.get_vocab() == two.get_vocab()
    assert (one.pad_token_id, one.eos_token_id, one.unk_token_id) == (0, 1, 2)
    assert one.convert_tokens_to_ids("<extra_id_99>") == len(one) - 1 and len(one) == 500
    text = "été 1.000,50 € a_b"
    assert one.decode(one(text, add_special_tokens=False)["input_ids"]).strip() == text


@pytest.mark.parametrize("start", [vt5_start, fedocvqa_start])
def test_the_builders_depend_on_their_seed_only(start: Any) -> None:
    state = torch.random.get_rng_state()
    one, two, other = (start(seed=seed, pages=pages()) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    a, b, c = (dict(m.module.named_parameters()) for m in (one, two, other))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["t5.shared.weight"], c["t5.shared.weight"])
    assert not any(bool(p.any()) for name, p in a.items() if name.endswith(".bias"))
    tables = [n for n in a if "relative_attention_bias" in n or "position_embeddings" in n or n.startswith("spatial.x")]
    assert tables and all(float(a[n].detach().std()) > 0.2 for n in tables)


# -- on disk -----------------------------------------------------------------------------------------------------------


def pretrained_parts(folder: Path) -> None:
    """A T5, a DiT and a masked autoencoder as their publishers save them, but small."""
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    vocabulary += [(c, -3.0) for c in "abcdefghijklmnopqrstuvwxyz0123456789?:.,/-@"]
    tokenizer = transformers.T5TokenizerFast(vocab=vocabulary)
    torch.manual_seed(3)
    t5 = transformers.T5Config(
        vocab_size=len(tokenizer) + 5, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, decoder_start_token_id=0
    )
    transformers.T5ForConditionalGeneration(t5).save_pretrained(folder / "t5")
    tokenizer.save_pretrained(folder / "t5")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    dit = transformers.BeitConfig(**sizes, image_size=32, patch_size=8, use_absolute_position_embeddings=True)
    transformers.BeitForImageClassification(dit).save_pretrained(folder / "dit")
    mae = transformers.ViTMAEConfig(**sizes, image_size=32, patch_size=8)
    transformers.ViTMAEModel(mae).save_pretrained(folder / "mae")
    settings = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    (folder / "mae" / "preprocessor_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(("kind", "vision"), [("vt5", "dit"), ("fedocvqa", "mae")])
def test_pretrained_parts_are_joined(kind: str, vision: str, tmp_path: Path) -> None:
    pretrained_parts(tmp_path)
    joined = tmp_path / "joined"
    joined.mkdir()
    config = {"model_type": kind, "text": "../t5", "vision": f"../{vision}", "seed": 7}
    (joined / "config.json").write_text(json.dumps(config))
    model, again = load_model(str(joined)), load_model(str(joined))
    assert isinstance(model, T5Reader) and model.image_size == (32, 32)
    weights = load_file(tmp_path / "t5" / "model.safetensors")
    assert torch.equal(model.module.t5.shared.weight, weights["shared.weight"])
    if kind == "vt5":
        whole = load_file(tmp_path / "dit" / "model.safetensors")
        name = "embeddings.patch_embeddings.projection.weight"
        assert torch.equal(dict(model.module.dit.named_parameters())[name], whole[f"beit.{name}"])
    else:
        name = "embeddings.patch_embeddings.projection.weight"
        assert torch.equal(model.module.patch_embed.weight, load_file(tmp_path / "mae" / "model.safetensors")[name])
        assert model.config.image_mean == (0.485, 0.456, 0.406)
    page = model.fit(pages()[0])
    example = model.encode(page, page.questions[0])
    pixels = pixels_of(page.image)[None]
    model.save(str(tmp_path / "saved"))
    with torch.no_grad():
        first = model.loss(pixels, [example])
        assert torch.equal(first, again.loss(pixels, [example])), "the seed draws the layers between"
        assert torch.equal(first, load_model(str(tmp_path / "saved")).loss(pixels, [example]))
    assert 0 <= model.answer(pixels, [example])[0].confidence <= 1


def damaged(name: str, directory: Path, damage: str) -> None:
    reader(name).save(str(directory))
    weights = load_file(directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    if damage == "missing":
        del weights["t5.shared.weight"]
    elif damage == "unknown":
        weights["more"] = torch.zeros(1)
    elif damage == "shape":
        config["text"]["d_ff"] = 64
    elif damage == "keys":
        config["box_scal"] = 1
        del config["text"]
    elif damage == "values":
        config["box_scale"], config["prompt"] = 5000, "no question"
    elif damage == "mixed":
        config["text"] = "t5-base"
    else:
        for file in directory.glob("tokenizer*"):
            file.unlink()
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("missing", r"lacks 1 of the network's parameters, first: t5\.shared"),
        ("unknown", "1 unknown parameters, first: more"),
        ("shape", "parameters of another shape, first: t5.encoder"),
        ("keys", "text is missing; box_scal is an unknown key"),
        ("values", "prompt is 'no question'.*box_scale is 5000"),
        ("mixed", "either both are names of checkpoints or neither"),
        ("tokenizer", "could not be loaded"),
    ],
)
def test_damaged_files_are_refused_in_words(damage: str, said: str, tmp_path: Path) -> None:
    damaged("fedocvqa-start", tmp_path, damage)
    with pytest.raises(ModelError, match=said):
        load_model(str(tmp_path))


@pytest.mark.parametrize("name", NAMES)
def test_pages_of_another_size_are_scaled_not_taken(name: str) -> None:
    with pytest.raises(ModelError, match="only takes pages of 224 x 224 pixels, not 320 x 320"):
        load_model(name, image_size=(320, 320))
    assert load_model(name, image_size=(224, 224)).image_size == (224, 224)


def test_a_page_without_words_or_answers_can_be_read() -> None:
    for name in NAMES:
        model = reader(name)
        page = replace(pages()[0], words=(), fields=(), questions=())
        e = model.encode(page, replace(pages()[0].questions[0], answers=()))
        assert e.words_seen == () and e.tensors["labels"].tolist() == [1]
        with torch.no_grad():
            assert torch.isfinite(model.loss(pixels_of(page.image)[None], [e])).all()
        crowded = replace(page, words=(Word("x", (0.0, 0.0, 224.0, 224.0)),))
        assert model.encode(crowded, pages()[0].questions[0]).tensors["bbox"].max() == 1000
