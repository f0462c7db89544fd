"""Every published checkpoint goes into docleak as it is: all its numbers arrive, and what it lacks is told."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from docleak.errors import ModelError
from docleak.metrics.ocr import load_engine
from docleak.models import load_model, pixels_of
from docleak.models.assemble import assemble
from docleak.models.donut import Donut
from docleak.models.encoders.loading import load_encoder
from docleak.models.encoders.tasks import Task
from docleak.models.files import tokenizer_of, weights_in
from docleak.models.layoutlmv3 import LayoutLMv3
from docleak.models.pair.aligner import load_aligner, one_hot
from docleak.models.pair.language import load_causal
from docleak.models.pair.shapes import build_pair, pair_tokenizer
from docleak.models.published import PUBLISHED, make
from docleak.models.t5 import T5Reader
from tests.models.published.mirrors import drawn_parameters, invoice, mirror

#: What BEiT's tensors are called in the file and in the network.
ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}


@pytest.fixture(scope="module")
def mirrors(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("mirrors")
    made = {name: mirror(name, folder) for name in PUBLISHED}
    return made.__getitem__


def gradient_of(model: Any) -> dict[str, torch.Tensor]:
    """The gradient of one question's loss; every parameter that training changes takes part."""
    page = model.fit(invoice())
    inputs = [model.encode(page, page.questions[0])]
    named = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
    loss = model.loss(pixels_of(page.image)[None], inputs).sum()
    slopes = torch.autograd.grad(loss, list(named.values()), create_graph=True, allow_unused=True)
    gradient = {name: slope for name, slope in zip(named, slopes, strict=True) if slope is not None}
    assert all(torch.isfinite(slope).all() for slope in gradient.values())
    assert 0 <= model.answer(pixels_of(page.image)[None], inputs)[0].confidence <= 1
    return gradient


@pytest.mark.parametrize("name", ["donut-base", "donut-base-finetuned-docvqa"])
def test_donut(name: str, mirrors: Callable[[str], Path]) -> None:
    model = load_model(str(mirrors(name)))
    assert isinstance(model, Donut) and model.image_size == (1920, 2560)
    drawn = drawn_parameters(model.module, mirrors(name))
    if name == "donut-base":  # five rows are behind the published ones, which are there
        saved = weights_in(str(mirrors(name)), None)["decoder.model.decoder.embed_tokens.weight"]
        table = model.module.decoder.get_input_embeddings().weight
        assert drawn == ["decoder.model.decoder.embed_tokens.weight"]
        assert torch.equal(table[: len(saved)], saved) and len(table) == len(saved) + 5
        assert "brings no <s_docvqa> <s_question> </s_question> <s_answer> </s_answer>" in model.drawn
        assert "seed 0" in model.drawn
        other, same = (load_model(str(mirrors(name)), seed=seed) for seed in (1, 0))
        assert not torch.equal(other.module.get_parameter(drawn[0]), table)
        assert torch.equal(same.module.get_parameter(drawn[0]), table)
    else:
        assert drawn == [] and model.drawn == ""
    assert model.module.decoder.lm_head.weight is model.module.decoder.get_input_embeddings().weight
    assert model.module.config.pad_token_id == 1


def test_a_donut_without_a_start_begins_with_its_task(mirrors: Callable[[str], Path], tmp_path: Path) -> None:
    """As Donut is trained: no <s> before the prompt, the task's tag once. Saved and loaded, it stays so."""
    model = load_model(str(mirrors("donut-base-finetuned-docvqa")), image_size=(160, 160))
    page = model.fit(invoice())
    example = model.encode(page, page.questions[0])
    assert example.tokens[:2] == ("<s_docvqa>", "<s_question>") and example.tokens.count("<s_docvqa>") == 1
    assert len(gradient_of(model)) > 80
    model.save(str(tmp_path / "saved"))
    again = load_model(str(tmp_path / "saved"), image_size=(160, 160))
    assert again.encode(page, page.questions[0]).tokens == example.tokens and again.drawn == ""
    with torch.no_grad():
        losses = [m.loss(pixels_of(page.image)[None], [example]) for m in (model, again)]
    assert torch.equal(*losses)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_a_donut_that_says_what_it_begins_with(file: str, mirrors: Callable[[str], Path], tmp_path: Path) -> None:
    """The decoder's part of config.json or generation_config.json counts where the top level says nothing."""
    folder = Path(shutil.copytree(mirrors("donut-base-finetuned-docvqa"), tmp_path / "donut"))
    values = json.loads((folder / file).read_text())
    (values["decoder"] if file == "config.json" else values)["decoder_start_token_id"] = 0
    (folder / file).write_text(json.dumps(values))
    model = load_model(str(folder), image_size=(160, 160))
    page = model.fit(invoice())
    assert model.encode(page, page.questions[0]).tokens[:3] == ("<s>", "<s_docvqa>", "<s_question>")


def test_layoutlmv3_base_gets_a_head(mirrors: Callable[[str], Path], tmp_path: Path) -> None:
    folder = mirrors("layoutlmv3-base")
    model, same, other = (load_model(str(folder), seed=seed) for seed in (0, 0, 1))
    assert isinstance(model, LayoutLMv3)
    head = [name for name, _ in model.module.named_parameters() if name.startswith("qa_outputs.")]
    assert sorted(drawn_parameters(model.module, folder)) == sorted(head) and len(head) == 4
    assert model.drawn.startswith("layoutlmv3-base brings no qa_outputs: 4,290 numbers were drawn with seed 0")
    for name in head:
        ours, theirs, another = (m.module.get_parameter(name) for m in (model, same, other))
        assert torch.equal(ours, theirs) and (name.endswith("bias") or not torch.equal(ours, another))
    assert set(head) <= set(gradient_of(model))
    model.save(str(tmp_path / "saved"))
    assert load_model(str(tmp_path / "saved")).drawn == "", "its head is its own now"


@pytest.mark.parametrize("name", ["donut-base-finetuned-docvqa", "layoutlmv3-base", "vt5-base-spdocvqa"])
@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_shards(name: str, weights: Any, tmp_path: Path) -> None:
    """As another program splits the file up, whatever its form."""
    make(name, tmp_path / "shards", seed=0, scale="narrow", weights=weights, shards=3)
    make(name, tmp_path / "whole", seed=0, scale="narrow")
    assert not (tmp_path / "shards" / weights).exists()
    parts, whole = (load_model(str(tmp_path / folder)).module for folder in ("shards", "whole"))
    assert all(torch.equal(value, parts.get_parameter(key)) for key, value in whole.named_parameters())


@pytest.mark.parametrize("name", ["layoutlm-base-uncased", "bros-base-uncased", "bert-base-uncased", "resnet-50",
                                  "bert-large-uncased", "clip-vit-base-patch32", "gpt2", "trocr-base-printed",
                                  "t5-base", "vit-mae-base"])  # fmt: skip
@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_shards_of_what_models_are_made_of(
    name: str, weights: Any, mirrors: Callable[[str], Path], tmp_path: Path
) -> None:
    def joined(text: Path, vision: Path) -> Any:
        assemble("fedocvqa", tmp_path / f"{text.name}+{vision.name}", text=str(text), vision=str(vision), seed=0,
                 allow_pickle=True)  # fmt: skip
        return load_model(str(tmp_path / f"{text.name}+{vision.name}")).module

    def paired(image: str, text: str) -> Any:
        return build_pair(image, text, classes=("yes", "no"), image_size=(64, 64), seed=0).module

    readers: dict[str, Callable[[Path], Any]] = {
        "resnet-50": lambda folder: paired(str(folder), "bert-tiny"),
        "bert-large-uncased": lambda folder: paired("lenet5", str(folder)),
        "clip-vit-base-patch32": lambda folder: load_aligner(str(folder), pair_tokenizer()).module,  # type: ignore[attr-defined]
        "gpt2": lambda folder: load_causal(str(folder), pair_tokenizer()).module,
        "trocr-base-printed": lambda folder: load_engine(f"trocr:{folder}")._model,  # type: ignore[attr-defined]
        "t5-base": lambda folder: joined(folder, mirrors("vit-mae-base")),
        "vit-mae-base": lambda folder: joined(mirrors("t5-base"), folder),
    }
    read = readers.get(name, lambda folder: load_encoder(str(folder), task="mlm").module)
    make(name, tmp_path / "shards", seed=0, scale="narrow", weights=weights, shards=3)
    make(name, tmp_path / "whole", seed=0, scale="narrow")
    parts, whole = (read(tmp_path / folder) for folder in ("shards", "whole"))
    assert not (tmp_path / "shards" / weights).exists()
    named = {key: value for key, value in whole.named_parameters() if not key.startswith("encoder.pooler.")}  # TrOCR's
    assert named and all(torch.equal(value, parts.get_parameter(key)) for key, value in named.items())


def test_a_layoutlmv3_whose_labels_have_no_names_is_refused(mirrors: Callable[[str], Path], tmp_path: Path) -> None:
    backbone = transformers.LayoutLMv3Config.from_pretrained(mirrors("layoutlmv3-base"))
    transformers.LayoutLMv3ForTokenClassification(backbone).save_pretrained(tmp_path / "tags")
    with pytest.raises(ModelError, match=r"labels of model 'tags' are not named; .* Name them in config.json"):
        load_model(str(tmp_path / "tags"))


def test_vt5_as_its_authors_publish_it(mirrors: Callable[[str], Path], tmp_path: Path) -> None:
    folder = mirrors("vt5-base-spdocvqa")
    model = load_model(str(folder))
    assert isinstance(model, T5Reader) and model.architecture == "vt5" and model.image_size == (64, 64)
    assert drawn_parameters(model.module, folder) == [] and model.drawn == ""
    saved, network = weights_in(str(folder), None), model.module
    assert torch.equal(saved["spatial_embedding.y_position_embeddings.weight"], network.spatial.y.weight)
    for theirs, ours in ATTENTION.items():
        name = f"visual_embedding.image_model.encoder.layer.1.attention.attention.{theirs}.weight"
        assert torch.equal(saved[name], network.dit.get_parameter(f"layers.1.attention.{ours}.weight"))
    dit = transformers.BeitModel.from_pretrained(
        None, config=network.dit.config, add_pooling_layer=False,
        state_dict={key.removeprefix("visual_embedding.image_model."): value for key, value in saved.items()},
    )  # fmt: skip
    pixels = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(dit(pixels).last_hidden_state, network.dit(pixels).last_hidden_state)
    assert {"t5.shared.weight", "spatial.x.weight", "visual_projection.weight"} <= set(gradient_of(model))
    model.save(str(tmp_path / "saved"))
    assert drawn_parameters(load_model(str(tmp_path / "saved")).module, folder) == []


def test_vt5_as_its_authors_trainings_leave_it(mirrors: Callable[[str], Path], tmp_path: Path) -> None:
    """round_N.ckpt in four parts, as their ``save_model`` writes it, holds the same numbers as the one file."""
    folder, out = mirrors("vt5-base-spdocvqa"), tmp_path / "round_9.ckpt"
    parts = {
        "lm_model": "language_backbone.",
        "sp_emb": "spatial_embedding.",
        "vm_model": "visual_embedding.image_model.",
        "emb_mlp": "visual_embedding.visual_emb_matcher.",
    }
    saved = weights_in(str(folder), None)
    held = {
        name: {key.removeprefix(prefix): value.clone() for key, value in saved.items() if key.startswith(prefix)}
        for name, prefix in parts.items()
    }
    assert sum(map(len, held.values())) == len(saved) and all(held.values())
    held["vm_model"] |= {"pooler.layernorm.weight": torch.ones(8)}  # the authors' BeitModel has one, and no use for it
    for name in ("lm_model", "vm_model"):
        (out / name).mkdir(parents=True)
        torch.save(held[name], out / name / "pytorch_model.bin")
        shutil.copy(folder / "config.json", out / name)
    for file in ("spiece.model", "special_tokens_map.json", "tokenizer_config.json"):
        shutil.copy(folder / file, out / "lm_model")
    (out / "vm_model" / "preprocessor_config.json").write_text(
        json.dumps({"size": {"height": 64, "width": 64}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5]})
    )
    torch.save(held["sp_emb"], out / "sp_emb")
    torch.save(held["emb_mlp"], out / "vm_model" / "emb_mlp")
    (out / "experiment_config.yml").write_text("model_name: VT5\n")
    shutil.copy(folder / "config.json", out)
    one, whole = load_model(str(out)), load_model(str(folder))
    assert isinstance(one, T5Reader) and one.config.image_mean == (0.1, 0.2, 0.3) and one.drawn == ""
    assert all(torch.equal(value, one.module.get_parameter(key)) for key, value in whole.module.named_parameters())
    page = one.fit(invoice())
    ids = [model.encode(page, page.questions[0]).tensors["input_ids"] for model in (one, whole)]
    assert torch.equal(*ids)
    (out / "sp_emb").unlink()
    with pytest.raises(ModelError, match=r"round_9.ckpt has lm_model but no sp_emb; copy the whole checkpoint"):
        load_model(str(out))


def test_a_plain_t5_is_no_vt5(mirrors: Callable[[str], Path]) -> None:
    with pytest.raises(ModelError, match=r"is a T5 without the boxes and the picture.* models assemble vt5"):
        load_model(str(mirrors("t5-base")))


@pytest.mark.parametrize(("kind", "vision"), [("vt5", "dit-base"), ("vt5", "dit-base-finetuned-rvlcdip"),
                                              ("fedocvqa", "vit-mae-base")])  # fmt: skip
def test_readers_are_joined_of_published_parts(
    kind: str, vision: str, mirrors: Callable[[str], Path], tmp_path: Path
) -> None:
    """Pickled pictures' parts (no safetensors are published), and the heads that they were trained with, left aside."""
    card = assemble(kind, tmp_path / "out", text=str(mirrors("t5-base")), vision=str(mirrors(vision)), seed=0,
                    allow_pickle=True)  # fmt: skip
    model = load_model(str(tmp_path / "out"))
    saved = {**weights_in(str(mirrors("t5-base")), None), **weights_in(str(mirrors(vision)), None)}
    torch.save(saved, tmp_path / "pytorch_model.bin")
    assert sorted(drawn_parameters(model.module, tmp_path)) == sorted(card["drawn"])
    assert all(not name.startswith(("t5.", "dit.", "patch_embed.")) for name in card["drawn"])
    assert gradient_of(model)


@pytest.mark.parametrize("name", ["bert-base-uncased", "tinybert-general-4l-312d", "layoutlm-base-uncased",
                                  "bros-base-uncased"])  # fmt: skip
@pytest.mark.parametrize("task", ["mlm", "ee-bio"])
def test_encoders(name: str, task: Task, mirrors: Callable[[str], Path]) -> None:
    page = invoice()
    classes = sorted({field.key for field in page.fields})
    model = load_encoder(str(mirrors(name)), task=task, classes=classes)
    drawn = drawn_parameters(model.module, mirrors(name))
    assert all(parameter.startswith("head.") for parameter in drawn)
    has_head = task == "mlm" and name != "bros-base-uncased"
    assert (drawn == []) == has_head == (model.drawn == "")
    if not has_head:
        assert model.drawn.startswith(f"{name} brings no head for {task}: ") and "seed 0" in model.drawn
    batch = model.collate([model.encode(page)])
    if task == "mlm":
        batch.labels["token"] = batch.ids.clone()  # type: ignore[index]
    loss = model.loss(batch).sum()
    slopes = torch.autograd.grad(loss, list(model.module.parameters()), allow_unused=True)
    assert sum(slope is not None for slope in slopes) > 30


@pytest.mark.parametrize("image", ["resnet-18", "resnet-50"])
@pytest.mark.parametrize("text", ["bert-base-uncased", "bert-large-uncased", "tinybert-general-4l-312d"])
def test_pairs(image: str, text: str, mirrors: Callable[[str], Path]) -> None:
    model = build_pair(str(mirrors(image)), str(mirrors(text)), classes=("yes", "no"), image_size=(64, 64), seed=0)
    for side, name in (("image", image), ("text", text)):
        assert drawn_parameters(getattr(model.module, side)["net"], mirrors(name)) == []
    ids, mask = model.token_ids(["the total"], longest=8)
    label = torch.zeros(1, dtype=torch.long)
    loss = model.loss(torch.rand(1, 3, 64, 64), ids, mask, (label, label)).sum()
    named = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
    slopes = torch.autograd.grad(loss, list(named.values()), create_graph=True, allow_unused=True)
    # BERT's words stay out of training, and its head reads [CLS] through the pooler.
    assert {name for name, slope in zip(named, slopes, strict=True) if slope is None} <= {"text.net.bert.pooler"}


def test_clip_reads_a_text_at_its_own_end_mark(mirrors: Callable[[str], Path]) -> None:
    """The ids in its config.json (0 and 2) are not its tokenizer's, whose marks are the last two tokens."""
    folder = mirrors("clip-vit-base-patch32")
    words = pair_tokenizer()
    aligner = load_aligner(str(folder), words)
    table = aligner.module.text_model.embeddings.token_embedding.weight  # type: ignore[attr-defined]
    assert torch.equal(aligner.start, table[-2]) and torch.equal(aligner.end, table[-1])  # type: ignore[attr-defined]
    assert drawn_parameters(aligner.module, folder) == []  # type: ignore[attr-defined]
    ids = torch.tensor([words("total amount", add_special_tokens=False)["input_ids"]])
    text = aligner.text(one_hot(ids, len(words)), torch.ones_like(ids, dtype=torch.bool))
    assert torch.allclose(text.norm(dim=1), torch.ones(1))
    assert aligner.image(torch.rand(2, 3, 32, 32)).shape == (2, 32)


def test_gpt2(mirrors: Callable[[str], Path]) -> None:
    words = pair_tokenizer()
    model = load_causal(str(mirrors("gpt2")), words)
    assert drawn_parameters(model.module, mirrors("gpt2")) == []
    assert model.module.lm_head.weight is model.module.transformer.wte.weight
    assert np.isfinite(model.surprise([words("the total", add_special_tokens=False)["input_ids"]])).all()


@pytest.mark.parametrize("name", ["trocr-base-printed", "trocr-base-handwritten"])
def test_trocr(
    name: str, mirrors: Callable[[str], Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    engine: Any = load_engine(f"trocr:{mirrors(name)}")
    assert not caplog.records, "the pooler that no published TrOCR has is nobody's worry"
    assert drawn_parameters(engine._model, mirrors(name)) in (
        [], ["encoder.pooler.dense.weight", "encoder.pooler.dense.bias"],
    )  # fmt: skip
    crop = np.full((24, 120, 3), 255, dtype=np.uint8)
    crop[6:18, 10:110:9] = 0
    assert 0 <= engine.read([crop])[0].confidence <= 1


def test_a_trocr_without_all_weights_is_refused(mirrors: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(mirrors("trocr-base-printed"), tmp_path / "trocr"))
    tensors = weights_in(str(folder), None)
    del tensors["decoder.model.decoder.layers.1.fc1.weight"]
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"lack 1 parameters, first: decoder\.model\.decoder\.layers\.1\.fc1\.weight"):
        load_engine(f"trocr:{folder}")


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("layoutlm-base-uncased", "layoutlm.encoder.layer.1.output.dense.weight"),
        ("dit-base", "beit.encoder.layer.1.attention.attention.query.weight"),
        ("t5-base", "decoder.block.1.layer.0.SelfAttention.k.weight"),
        ("donut-base", "decoder.model.decoder.layers.1.fc1.weight"),
        ("gpt2", "h.1.attn.c_attn.weight"),
        ("vt5-base-spdocvqa", "visual_embedding.image_model.encoder.layer.1.output.dense.weight"),
        ("clip-vit-base-patch32", "vision_model.encoder.layers.1.mlp.fc1.weight"),
        ("resnet-18", "resnet.encoder.stages.1.layers.0.layer.1.convolution.weight"),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "more"])
def test_other_weights_than_config_json_says_are_refused(
    name: str, lost: str, damage: str, mirrors: Callable[[str], Path], tmp_path: Path
) -> None:
    """A tensor that is not there, and layers of a deeper network, which a library would leave aside in silence."""
    folder = Path(shutil.copytree(mirrors(name), tmp_path / name))
    (folder / "model.safetensors").unlink(missing_ok=True)
    tensors = weights_in(str(mirrors(name)), None)
    tensors[lost.replace(".1.", ".7.", 1)] = tensors[lost].clone()
    if damage == "missing":
        del tensors[lost.replace(".1.", ".7.", 1)], tensors[lost]
    torch.save(tensors, folder / "pytorch_model.bin")
    parts = {"text": mirrors("t5-base"), "vision": mirrors("dit-base")}
    parts["text" if name == "t5-base" else "vision"] = folder
    loaders: dict[str, Callable[[str], Any]] = {
        "layoutlm-base-uncased": lambda source: load_encoder(source, task="mlm"),
        "donut-base": load_model,
        "gpt2": lambda source: load_causal(source, pair_tokenizer()),
        "vt5-base-spdocvqa": load_model,
        "clip-vit-base-patch32": lambda source: load_aligner(source, pair_tokenizer()),
        "resnet-18": lambda source: build_pair(source, "bert-tiny", classes="ab", image_size=(64, 64), seed=0),
    }
    joined = {key: str(value) for key, value in parts.items()}
    load = loaders.get(name, lambda _: assemble("vt5", tmp_path / "out", seed=0, allow_pickle=True, **joined))
    said = "is missing" if name.startswith("clip") else "lacks 1 of the network's parameters"
    if damage == "more":  # a VT5's depth is read off its tensors, so that one more is a layer without the others
        said = "lacks 17 of the network's" if name.startswith("vt5") else "parameters more than the network"
    with pytest.raises(ModelError, match=said):
        load(str(folder))


@pytest.mark.parametrize("name", ["layoutlm-base-uncased", "t5-base"])
def test_a_text_that_is_to_be_cut_warns_of_nothing(
    mirrors: Callable[[str], Path], name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    tokenizer = tokenizer_of(str(mirrors(name)))
    assert len(tokenizer("word " * 2000)["input_ids"]) > 1000
    assert not caplog.records
