"""What is said of published checkpoints is consistent: sizes follow from configurations, names are those of sources."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from docleak.errors import ModelError
from docleak.models.published import PUBLISHED, published
from docleak.models.published.making import build, named_tensors, size_of

#: Names and shapes at the true size. BEiT's, TrOCR's, Donut's and BROS' are in transformers' conversion scripts, VT5's
#: in the authors' modules (MP-DocVQA-Framework), TinyBERT's fit_denses in programs that drop them by name.
TENSORS: dict[str, dict[str, tuple[int, ...]]] = {
    "bert-base-uncased": {"bert.embeddings.LayerNorm.gamma": (768,), "cls.seq_relationship.weight": (2, 768),
                          "bert.encoder.layer.11.output.dense.weight": (768, 3072), "cls.predictions.bias": (30522,)},
    "bert-large-uncased": {"bert.encoder.layer.23.attention.self.query.weight": (1024, 1024)},
    "bros-base-uncased": {"embeddings.bbox_projection.weight": (64, 192), "pooler.dense.bias": (768,),
                          "embeddings.bbox_sinusoid_emb.x_pos_emb.inv_freq": (12,)},
    "clip-vit-base-patch32": {"text_model.embeddings.token_embedding.weight": (49408, 512), "logit_scale": (),
                              "vision_model.embeddings.patch_embedding.weight": (768, 3, 32, 32)},
    "dit-base": {"beit.encoder.layer.0.attention.attention.query.bias": (768,), "lm_head.weight": (8192, 768),
                 "beit.encoder.layer.11.lambda_2": (768,), "beit.embeddings.mask_token": (1, 1, 768)},
    "dit-base-finetuned-rvlcdip": {"beit.pooler.layernorm.weight": (768,), "classifier.weight": (16, 768)},
    "donut-base": {"encoder.encoder.layers.2.blocks.13.attention.self.query.weight": (512, 512),
                   "encoder.embeddings.patch_embeddings.projection.weight": (128, 3, 4, 4),
                   "decoder.model.decoder.embed_positions.weight": (1538, 1024)},
    "donut-base-finetuned-docvqa": {"decoder.model.decoder.embed_tokens.weight": (57532, 1024)},
    "gpt2": {"wte.weight": (50257, 768), "h.11.attn.c_attn.weight": (768, 2304), "h.11.attn.bias": (1, 1, 1024, 1024)},
    "layoutlm-base-uncased": {"layoutlm.embeddings.x_position_embeddings.weight": (1024, 768)},
    "layoutlmv3-base": {"layoutlmv3.pos_embed": (1, 197, 768), "layoutlmv3.encoder.rel_pos_x_bias.weight": (12, 64)},
    "resnet-18": {"classifier.1.weight": (1000, 512), "resnet.embedder.embedder.convolution.weight": (64, 3, 7, 7)},
    "resnet-50": {"classifier.1.weight": (1000, 2048)},
    "t5-base": {"shared.weight": (32128, 768), "encoder.block.11.layer.1.DenseReluDense.wo.weight": (768, 3072)},
    "tinybert-general-4l-312d": {"fit_denses.4.weight": (768, 312), "bert.pooler.dense.weight": (312, 312)},
    "trocr-base-handwritten": {"decoder.model.decoder.embed_positions.weight": (514, 1024)},
    "trocr-base-printed": {"encoder.encoder.layer.11.attention.attention.value.weight": (768, 768),
                           "decoder.model.decoder.layers.0.encoder_attn.k_proj.weight": (1024, 768)},
    "vit-mae-base": {"vit.encoder.layer.0.attention.attention.key.weight": (768, 768),
                     "decoder.decoder_layers.7.attention.attention.key.weight": (512, 512)},
    "vt5-base-spdocvqa": {"language_backbone.shared.weight": (32128, 768),
                          "spatial_embedding.x_position_embeddings.weight": (1024, 768),
                          "spatial_embedding.LayerNorm.bias": (768,),
                          "spatial_embedding.spatial_emb_matcher.layers.0.weight": (768, 768),
                          "visual_embedding.visual_emb_matcher.layers.0.weight": (768, 768),
                          "visual_embedding.image_model.encoder.layer.0.attention.attention.key.weight": (768, 768),
                          "visual_embedding.image_model.pooler.layernorm.weight": (768,)},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_and_names_at_the_true_size(name: str) -> None:
    checkpoint = published(name)
    with torch.device("meta"):
        module = build(checkpoint)
        tensors = named_tensors(checkpoint, module, checkpoint.config_at())
    assert checkpoint.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert checkpoint.bytes == size_of(tensors.values())
    assert {key: tuple(tensors[key].shape) for key in TENSORS[name]} == TENSORS[name]


def keys_of(value: Any) -> Any:
    return {key: keys_of(inner) for key, inner in value.items()} if isinstance(value, dict) else None


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_narrow_copy_has_the_same_keys(name: str) -> None:
    checkpoint = published(name)
    true, narrow = checkpoint.config_at(), checkpoint.config_at("narrow")
    for labels in ("id2label", "label2id"):
        assert (labels in true) == (labels in narrow)
        true.pop(labels, None), narrow.pop(labels, None)
    assert keys_of(true) == keys_of(narrow) and true != narrow
    assert json.loads(json.dumps(true)) == true
    assert checkpoint.seen and checkpoint.inferred and "/" in checkpoint.repository


def test_what_the_papers_published_leave_unsaid() -> None:
    donut = published("donut-base").config_at()
    assert not {"decoder_start_token_id", "pad_token_id", "vocab_size"} & set(donut)
    assert donut["decoder"]["decoder_start_token_id"] is None and donut["decoder"]["pad_token_id"] == 1
    assert "architectures" not in published("layoutlmv3-base").config_at()
    text = published("clip-vit-base-patch32").config_at()["text_config"]
    assert (text["bos_token_id"], text["eos_token_id"], text["pad_token_id"]) == (0, 2, 1)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"no published checkpoint 'dit_base'.* Did you mean 'dit-base'\?"):
        published("dit_base")
