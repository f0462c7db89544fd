"""What a configuration says of a planned training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from docleak.errors import ModelError
from docleak.models.vlm.shape import shape_of
from docleak.models.vlm.tiny import make_tiny
from docleak.privacy.channels import Shape, State, plan


def test_a_whole_model_and_its_adapters(tmp_path: Path) -> None:
    make_tiny("llava", tmp_path / "base", seed=0)
    whole = shape_of(str(tmp_path / "base"))
    assert whole == {"rank": 0, "adapted": 3, "width": 48, "vocabulary": whole["vocabulary"], "table": True,
                     "patches": 256, "tower_width": 48, "tower_patches": 256}  # fmt: skip
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    told = {"base_model_name_or_path": str(tmp_path / "base"), "r": 4, "target_modules": ["q_proj", "model.v_proj"]}
    (adapters / "adapter_config.json").write_text(json.dumps(told))
    shape = shape_of(str(adapters))
    assert (shape["rank"], shape["adapted"], shape["table"], shape["width"]) == (4, 2, False, 48)
    assert "tower_width" not in shape
    (adapters / "adapter_config.json").write_text(json.dumps({**told, "target_modules": ".*_proj"}))
    with pytest.raises(ModelError, match="a list of names"):
        shape_of(str(adapters))
    (adapters / "adapter_config.json").write_text(json.dumps({**told, "modules_to_save": ["embed_tokens"]}))
    with pytest.raises(ModelError, match=r"embed_tokens.*docleak audit gradient"):
        shape_of(str(adapters))
    for more in ({"trainable_token_indices": {"embed_tokens": [5]}}, {"bias": "all"}, {"lora_bias": True},
                 {"peft_type": "VERA"}):  # fmt: skip
        (adapters / "adapter_config.json").write_text(json.dumps({**told, **more}))
        with pytest.raises(ModelError, match=rf"{next(iter(more))}=.*nothing else that is trained"):
            shape_of(str(adapters))
    (adapters / "adapter_config.json").write_text(json.dumps({**told, "target_modules": ["vision.position_embedding"]}))
    with pytest.raises(ModelError, match=r"the target position_embedding: .*nothing else that is trained"):
        shape_of(str(adapters))
    tables = {**told, "target_modules": ["o_proj", "embed_tokens"]}
    (adapters / "adapter_config.json").write_text(json.dumps(tables))
    assert shape_of(str(adapters))["table"], "words were closed, by algebra, and 29 of 29 are read"
    with pytest.raises(ModelError, match=r"decoders of pictures and words alone.*nothing of .*docleak audit gradient"):
        shape_of("donut-start")


@pytest.mark.parametrize(("more", "said"), [
    ({"target_modules": ["qkv_proj", "o_proj"]}, "the target qkv_proj"),
    ({"target_modules": ["query_key_value"]}, "the target query_key_value"),
    ({"target_modules": ["q_proj", "lm_head"]}, "the target lm_head"),
    ({"layers_to_transform": [1]}, r"layers_to_transform=\[1\]"),
    ({"exclude_modules": ["layers.0.self_attn.q_proj"]}, "exclude_modules="),
    ({"r": True}, "has r=True and"),
])  # fmt: skip
def test_adapters_that_are_elsewhere_than_it_counts_are_refused(
    tmp_path: Path, more: dict[str, object], said: str
) -> None:
    """A fused query, key and value had been taken for none, and words called closed by algebra."""
    make_tiny("llava", tmp_path / "base", seed=0)
    told = {"base_model_name_or_path": str(tmp_path / "base"), "r": 4, "target_modules": ["q_proj", "o_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(told))
    assert shape_of(str(tmp_path))["adapted"] == 1
    (tmp_path / "adapter_config.json").write_text(json.dumps({**told, **more}))
    with pytest.raises(ModelError, match=said):
        shape_of(str(tmp_path))


def test_adapters_that_were_trained_before_are_told_from_new_ones(tmp_path: Path) -> None:
    """The first step was said to move B alone, and words to be closed, of any adapters."""
    make_tiny("llava", tmp_path / "base", seed=0)
    told = {"base_model_name_or_path": str(tmp_path / "base"), "r": 4, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(told))
    new = shape_of(str(tmp_path))
    assert not new["begun"] and plan(Shape(**new, rounds=1))[0].state is State.CLOSED
    (tmp_path / "adapter_config.json").write_text(json.dumps({**told, "init_lora_weights": "pissa"}))
    assert shape_of(str(tmp_path))["begun"]
    factors = {"q_proj.lora_A.weight": torch.ones(4, 48), "q_proj.lora_B.weight": torch.zeros(48, 4)}
    save_file(factors, tmp_path / "adapter_model.safetensors")
    assert not shape_of(str(tmp_path))["begun"]
    save_file({**factors, "q_proj.lora_B.weight": torch.ones(48, 4)}, tmp_path / "adapter_model.safetensors")
    trained = shape_of(str(tmp_path))
    assert trained["begun"] and plan(Shape(**trained, rounds=1))[0].state is State.UNTOLD


def test_what_a_configuration_leaves_out_is_the_default_of_its_kind(tmp_path: Path) -> None:
    """As the hub has them: LLaVA 1.5 and Qwen2-VL, which a plan holds for, were refused as other architectures, and of
    PaliGemma's tower nothing was read."""
    clip = {"model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "num_attention_heads": 16,
            "patch_size": 14}  # fmt: skip
    siglip = {"model_type": "siglip_vision_model", "hidden_size": 1152, "patch_size": 14}
    vicuna, gemma = {"model_type": "llama", "vocab_size": 32064}, {"model_type": "gemma", "vocab_size": 257216}
    files: dict[str, dict[str, object]] = {
        "llava": {"text_config": vicuna, "vision_config": clip, "tie_word_embeddings": False},
        "qwen2_vl": {"hidden_size": 1536, "vocab_size": 151936, "tie_word_embeddings": True},
        "paligemma": {"text_config": {**gemma, "hidden_size": 2048}, "vision_config": siglip},
    }
    read = {}
    for kind, told in files.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **told}))
        read[kind] = shape_of(str(tmp_path))
    assert {kind: shape["width"] for kind, shape in read.items()} == {
        "llava": 4096, "qwen2_vl": 1536, "paligemma": 2048
    }  # fmt: skip
    assert read["llava"]["table"] and not read["qwen2_vl"]["table"] and read["llava"]["patches"] == 576
    assert (read["paligemma"]["tower_width"], read["paligemma"]["tower_patches"]) == (1152, 256)


@pytest.mark.parametrize(("targets", "adapted"), [
    (["vision_tower.encoder.layers.0.self_attn.q_proj"], 0),
    (["model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"], 0),
    (["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj"], 1),
    (["self_attn.q_proj", "v_proj"], 2),
])  # fmt: skip
def test_a_projection_of_a_tower_or_a_later_layer_is_none_of_the_first(
    tmp_path: Path, targets: list[str], adapted: int
) -> None:
    """Words were called open by rows that no adapter on the first layer sends."""
    make_tiny("llava", tmp_path / "base", seed=0)
    told = {"base_model_name_or_path": str(tmp_path / "base"), "r": 4, "target_modules": targets}
    (tmp_path / "adapter_config.json").write_text(json.dumps(told))
    shape = shape_of(str(tmp_path))
    assert shape["adapted"] == adapted
    assert adapted or plan(Shape(**{**shape, "words": 5, "patches": 5}))[0].state is State.CLOSED
