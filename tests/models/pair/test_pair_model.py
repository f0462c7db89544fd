"""The pair model: losses as transformers has them, heads fused and split, and networks from a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from docleak.errors import GradientError, ModelError
from docleak.models.base import Encoded, trainable
from docleak.models.pair import IMAGE_SHAPES, TEXT_SHAPES, PairModel, build_pair, split_gradient
from docleak.models.pair.shapes import pair_tokenizer

CLASSES, SIZE = ("a", "b", "c"), (32, 16)
LABELS = (torch.tensor([0, 2]), torch.tensor([1, 2]))


def model_of(image: str = "lenet5", text: str = "bert-tiny", **more: Any) -> PairModel:
    return build_pair(image, text, classes=CLASSES, image_size=SIZE, seed=0, **more)


def batch(model: PairModel) -> tuple[Tensor, Tensor, Tensor]:
    pixels = torch.rand(2, 3, 16, 32, generator=torch.Generator().manual_seed(1))
    return (pixels, *model.token_ids(["two yellow blocks in a box", "a tower"], longest=20))


def gradient(model: PairModel) -> dict[str, Tensor]:
    pixels, ids, mask = batch(model)
    names, values = zip(*trainable(model.module), strict=True)
    return dict(zip(names, torch.autograd.grad(model.loss(pixels, ids, mask, LABELS).mean(), values), strict=True))


def test_an_example_is_of_the_page_that_is_named() -> None:
    """As local steps on a part of the batch ask for it."""
    model = model_of(fused=True)
    pixels, _, _ = batch(model)
    side = model.side("image", torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0]]))
    told = [Encoded({"label": torch.tensor([number])}) for number in (0, 2)]
    both = side.loss(pixels, told)
    assert side.loss(pixels, told[1:], [1]).tolist() == pytest.approx(both[1:].tolist(), rel=1e-5)
    assert side.loss(pixels, told[::-1], [1, 0]).tolist() == pytest.approx(both.flip(0).tolist(), rel=1e-5)


@pytest.mark.parametrize("image", ["lenet5", "resnet-tiny"])
@pytest.mark.parametrize("text", ["bert-tiny", "tinybert4"])
def test_every_small_shape_has_a_gradient_of_both_modalities(image: str, text: str) -> None:
    parts = split_gradient(model := model_of(image, text), gradient(model))
    for part in parts.values():
        assert sum(float(value.square().sum()) for value in part.values()) > 1e-6
    assert not any("embeddings.weight" in name for name in parts["text"]), "tables stay out of training"


def test_published_shapes_are_as_published() -> None:
    config = transformers.ResNetConfig(num_channels=3, **IMAGE_SHAPES["resnet50"])
    assert sum(p.numel() for p in transformers.ResNetModel(config).parameters()) == 23_508_032
    assert TEXT_SHAPES["bert-large"] == (24, 1024, 16, 4096)


@pytest.mark.parametrize("image", ["resnet-tiny", "resnet18", "resnet50"])
def test_deep_networks_drawn_at_random_keep_an_open_mind(image: str) -> None:
    """A softmax that is sure of a class from the start has a gradient of nothing."""
    model = build_pair(image, "bert-tiny", classes=("a", "b"), image_size=(32, 32), seed=0)
    pixels = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model.module.image_logits(model.normalise(pixels))
    assert float(logits.softmax(1).max()) < 0.999
    assert not model.module.training


def test_the_text_loss_is_that_of_transformers() -> None:
    model = model_of()
    net: Any = model.module.text["net"]
    pixels, ids, mask = batch(model)
    with torch.no_grad():
        pooled = net.bert(input_ids=ids, attention_mask=mask.long()).pooler_output
        head: Any = model.module.text["head"]
        text = F.cross_entropy(pooled @ head.weight.T + head.bias, LABELS[1], reduction="none")
        image = F.cross_entropy(model.module.image_logits(2 * pixels - 1), LABELS[0], reduction="none")
        assert torch.allclose(model.loss(pixels, ids, mask, LABELS), text + image, atol=1e-5)


def test_padding_changes_nothing() -> None:
    model = model_of()
    pixels, ids, mask = batch(model)
    alone = model.loss(pixels[1:], *model.token_ids(["a tower"], longest=20), (LABELS[0][1:], LABELS[1][1:]))
    assert torch.allclose(model.loss(pixels, ids, mask, LABELS)[1:], alone, atol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_counts_of_pictures_and_texts_that_differ_are_refused(fused: bool) -> None:
    model = model_of(fused=fused)
    pixels, ids, mask = batch(model)
    with pytest.raises(ModelError, match="1 pictures, 2 texts, 2 masks, and classes of 2 pictures and 2 texts"):
        model.loss(pixels[:1], ids, mask, LABELS)
    with pytest.raises(ModelError, match="2 pictures, 2 texts, 2 masks, and classes of 2 pictures and 1 texts"):
        model.loss(pixels, ids, mask, (LABELS[0], LABELS[1][:1]))


def test_a_fused_model_is_one_head_over_both_features() -> None:
    model = model_of(fused=True)
    pixels, ids, mask = batch(model)
    image, text = (getattr(model.module, m) for m in ("image", "text"))
    weight = torch.cat([image["head"].weight, text["head"].weight], dim=1).detach().requires_grad_(True)
    bias = image["head"].bias.detach().requires_grad_(True)
    with torch.no_grad():
        features = torch.cat([image["net"](2 * pixels - 1), text["net"](ids, attention_mask=mask.long()).logits], dim=1)
    loss = F.cross_entropy(features @ weight.T + bias, LABELS[0])
    assert torch.allclose(loss, model.loss(pixels, ids, mask, LABELS).mean(), atol=1e-5)
    whole = dict(zip(("head.weight", "head.bias"), torch.autograd.grad(loss, (weight, bias)), strict=True))
    body = {name: value for name, value in gradient(model).items() if ".head." not in name}
    split, expected = split_gradient(model, body | whole), split_gradient(model, gradient(model))
    for modality in ("image", "text"):
        assert split[modality].keys() == expected[modality].keys()
        for name, value in expected[modality].items():
            assert torch.allclose(split[modality][name], value, atol=1e-5), name


def test_gradients_that_cannot_be_split() -> None:
    model = model_of()
    good = gradient(model)
    with pytest.raises(GradientError, match="neither modality"):
        split_gradient(model, good | {"fusion.weight": torch.zeros(2)})
    with pytest.raises(GradientError, match="nothing of the text"):
        split_gradient(model, {n: v for n, v in good.items() if n.startswith("image.")})
    with pytest.raises(GradientError, match="not fused"):
        split_gradient(model, good | {"head.weight": torch.zeros(3, 7)})


def test_a_fused_side_needs_the_other_modality() -> None:
    with pytest.raises(ModelError, match="fused"):
        model_of(fused=True).side("image")


def test_classifiers_of_transformers_from_a_directory(tmp_path: Path) -> None:
    tokenizer = pair_tokenizer()
    torch.manual_seed(0)
    vision = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[16, 32],
        patch_size=8,
    )
    transformers.ViTForImageClassification(vision).save_pretrained(tmp_path / "vit")
    words = transformers.DistilBertConfig(vocab_size=len(tokenizer), dim=16, n_layers=1, n_heads=2, hidden_dim=16)
    transformers.DistilBertForSequenceClassification(words).save_pretrained(tmp_path / "distil")
    tokenizer.save_pretrained(tmp_path / "distil")
    model = model_of(str(tmp_path / "vit"), str(tmp_path / "distil"))
    assert model.name == "vit+distil"
    gradients = gradient(model)
    x = torch.rand(2, 3, 16, 32, requires_grad=True)
    logits = model.module.image_logits(x)
    (slope,) = torch.autograd.grad(logits.sum(), model.module.image["head"].weight, create_graph=True)  # type: ignore[arg-type, operator, index, union-attr]
    assert torch.autograd.grad(slope.square().sum(), x)[0].abs().sum() > 0, "it can be differentiated twice"
    assert gradients["text.head.weight"].shape == (3, 16)


def test_a_table_of_words_that_is_smaller_than_the_tokenizer_is_refused(tmp_path: Path) -> None:
    tokenizer = pair_tokenizer()
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    for rows in (len(tokenizer) - 1, len(tokenizer) + 9):
        words = transformers.BertConfig(vocab_size=rows, **shape)
        transformers.BertForSequenceClassification(words).save_pretrained(tmp_path / f"{rows}")
        tokenizer.save_pretrained(tmp_path / f"{rows}")
    with pytest.raises(ModelError, match=f"has {len(tokenizer)} tokens, and its table of words {len(tokenizer) - 1}"):
        model_of(text=str(tmp_path / f"{len(tokenizer) - 1}"))
    assert len(model_of(text=str(tmp_path / f"{len(tokenizer) + 9}")).table) == len(tokenizer) + 9


@pytest.mark.parametrize(("image", "text"), [("no-such-net", "bert-tiny"), ("lenet5", "/no/such/dir")])
def test_networks_that_are_not_there(image: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="Expected"):
        model_of(image, text)


def test_one_class_is_refused() -> None:
    with pytest.raises(ModelError, match="two or more"):
        build_pair("lenet5", "bert-tiny", classes=("a",), image_size=SIZE, seed=0)
