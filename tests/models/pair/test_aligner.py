"""Aligners: the shipped one tells texts apart, CLIP's towers are transformers' own, and misfits are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from docleak.documents.pairs import Pair, make_scenes, resized
from docleak.errors import ModelError
from docleak.models.pair.aligner import (
    ClipAligner,
    TinyAligner,
    aligner_told,
    build_aligner,
    load_aligner,
    one_hot,
    save_aligner,
)
from docleak.models.pair.shapes import pair_tokenizer
from scripts.aligning import AligningConfig, contrastive, encode, similarity_of, train_aligner
from scripts.pair_files import first_of

SIZE = (64, 16)


def scenes(count: int, seed: int) -> list[Pair]:
    return [resized(pair, SIZE) for pair in make_scenes(count, seed=seed)]


def beats(near: torch.Tensor) -> float:
    """How often a picture is nearer to its own text than to another's."""
    return float((near.diagonal()[:, None] > near).float().sum() / (len(near) * (len(near) - 1)))


def test_the_shipped_aligner_tells_unseen_scenes_texts_apart() -> None:
    tokenizer = pair_tokenizer()
    aligner = load_aligner("aligner-tiny", tokenizer)
    assert isinstance(aligner, TinyAligner)
    assert beats(similarity_of(aligner, scenes(150, 12345), tokenizer)) > 0.75
    untrained = build_aligner(len(tokenizer), seed=0)
    assert 0.35 < beats(similarity_of(untrained, scenes(150, 12345), tokenizer)) < 0.65


def test_the_aligner_of_described_scenes_finds_the_text_among_twenty() -> None:
    tokenizer, shares = pair_tokenizer(), {}
    unseen = [resized(pair, SIZE) for pair in make_scenes(200, seed=12345, described=True)]
    for name in ("aligner-described", "aligner-tiny"):
        aligner = load_aligner(name, tokenizer)
        assert isinstance(aligner, TinyAligner)
        shares[name] = first_of(similarity_of(aligner, unseen, tokenizer), unseen, 20)
    assert shares["aligner-described"] >= 0.8 and shares["aligner-tiny"] < 0.2, shares
    assert aligner_told("aligner-described").endswith("finds a text of the kind that it learned among 20 in 99.7 %)")
    assert aligner_told("aligner-tiny") == "aligner-tiny" and aligner_told("openai/clip") == "openai/clip", "not said"


def test_training_learns_and_repeats_itself() -> None:
    tokenizer, pairs, last = pair_tokenizer(), scenes(64, 0), []
    for _ in range(2):
        aligner, losses = build_aligner(len(tokenizer), seed=1), []
        config = AligningConfig(epochs=3, batch_size=32, learning_rate=5e-3)
        rng = np.random.default_rng(0)
        train_aligner(aligner, pairs, tokenizer, config, rng=rng, on_epoch=lambda n, loss, to=losses: to.append(loss))
        last.append(losses)
    assert last[0] == last[1]
    assert last[0][-1] < last[0][0] - 0.1


def test_contrastive_is_cross_entropy_of_different_texts_and_shares_the_same_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    image, text = (F.normalize(torch.randn(3, 4, generator=generator), dim=1) for _ in range(2))
    scale = torch.tensor(5.0)
    logits, targets = 5 * image @ text.T, torch.arange(3)
    expected = (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2
    assert torch.allclose(contrastive(image, text, torch.tensor([0, 1, 2]), scale), expected)
    same = torch.stack([text[0], text[0], text[2]])
    loss = contrastive(image, same, torch.tensor([7, 7, 9]), scale)
    swapped = contrastive(image[[1, 0, 2]], same, torch.tensor([7, 7, 9]), scale)
    assert torch.allclose(loss, swapped), "two pictures of one text are alike"


def test_saved_and_loaded(tmp_path: Path) -> None:
    tokenizer = pair_tokenizer()
    aligner = build_aligner(len(tokenizer), seed=3)
    save_aligner(aligner, tmp_path / "a", {"made_by": "a test"})
    again = load_aligner(str(tmp_path / "a"), tokenizer)
    pixels = torch.rand(2, 3, 16, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.image(pixels), aligner.image(pixels))


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    save_aligner(build_aligner(10, seed=0), tmp_path / "a", {})
    with pytest.raises(ModelError, match="made for 10 tokens"):
        load_aligner(str(tmp_path / "a"), pair_tokenizer())


def tiny_clip(folder: Path) -> tuple[Any, Any]:
    words = ["<s>", "</s>", "[UNK]", "yellow", "black", "block", "tower", "a"]
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="[UNK]", pad_token="</s>"
    )
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**shape, "vocab_size": len(words), "max_position_embeddings": 12, "bos_token_id": 0, "eos_token_id": 1}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**shape, "image_size": 16, "patch_size": 8}, projection_dim=8
    )
    module = transformers.CLIPModel(config).eval()
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return module, tokenizer


def test_clip_by_path_reads_texts_and_pictures_as_transformers_does(tmp_path: Path) -> None:
    module, tokenizer = tiny_clip(tmp_path)
    aligner = load_aligner(str(tmp_path), tokenizer)
    assert isinstance(aligner, ClipAligner)
    ids = torch.tensor([[3, 5, 7, 6]])
    with torch.no_grad():
        whole = torch.cat([torch.tensor([[0]]), ids, torch.tensor([[1]])], dim=1)
        theirs = module.get_text_features(whole).pooler_output
        ours = aligner.text(one_hot(ids, len(tokenizer)), torch.ones(1, 4, dtype=torch.bool))
        assert torch.allclose(ours, F.normalize(theirs, dim=1), atol=1e-5)
        pixels = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        seen = module.get_image_features(2 * pixels - 1).pooler_output
        assert torch.allclose(aligner.image(pixels), F.normalize(seen, dim=1), atol=1e-4)


def test_a_clip_with_towers_of_different_widths_or_weights_missing_is_refused(tmp_path: Path) -> None:
    tiny_clip(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    for changed, says in (
        (
            {**whole, "text_projection.weight": torch.zeros(12, 16)},
            r"text_projection.weight is of \(12, 16\), expected",
        ),
        ({name: value for name, value in whole.items() if name != "text_projection.weight"}, "weight is missing"),
    ):
        save_file(changed, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError, match="towers end in 8 numbers each") as refused:
            load_aligner(str(tmp_path), pair_tokenizer())
        assert re.search(says, str(refused.value))


def test_clip_takes_another_tokenizers_texts_and_stays_differentiable(tmp_path: Path) -> None:
    module, clip_tokenizer = tiny_clip(tmp_path)
    tokenizer = pair_tokenizer()
    aligner = load_aligner(str(tmp_path), tokenizer)
    assert aligner.name == f"{tmp_path.name}, its tokens mapped by their characters"
    assert load_aligner(str(tmp_path), clip_tokenizer).name == tmp_path.name
    ids = torch.tensor([tokenizer("yellow tower", add_special_tokens=False)["input_ids"]])
    weights = one_hot(ids, len(tokenizer)).requires_grad_(True)
    ours = aligner.text(weights, torch.ones_like(ids, dtype=torch.bool))
    mapped = torch.tensor([[0, *clip_tokenizer("yellow tower")["input_ids"], 1]])
    assert torch.allclose(ours, F.normalize(module.get_text_features(mapped).pooler_output, dim=1), atol=1e-5)
    (slope,) = torch.autograd.grad(ours.sum(), weights)
    assert float(slope.abs().sum()) > 0


def test_no_such_aligner() -> None:
    with pytest.raises(ModelError, match=r"no aligner '/no/such/clip'.*Shipped: aligner-tiny"):
        load_aligner("/no/such/clip", pair_tokenizer())


def test_encode_numbers_equal_texts_alike() -> None:
    pairs = scenes(2, 0)
    ids, mask, texts = encode([pairs[0], pairs[1], pairs[0]], pair_tokenizer(), 40)
    assert ids.shape == mask.shape
    assert texts.tolist() == [0, 1, 0]
