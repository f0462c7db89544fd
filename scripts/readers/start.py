"""Tiny vision-language models that see with a trained Donut's encoder, and whose language model is drawn.

As large ones are made: a tower that has learned to see, a projector, and a decoder of tokens. A LLaVA sees the page
whole, an Aya Vision in twelve tiles and an overview.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import transformers as t

from docleak.models.donut import Donut
from docleak.models.start import spread
from docleak.models.tiny import character_tokenizer
from docleak.models.vlm.model import VisionLanguage
from docleak.models.vlm.processor import Processor, assembled, still
from docleak.models.vlm.tiny import NAMED

#: Side of a tile, and of a cell of the encoder's output, in pixels; the width of both parts.
TILE, STRIDE, WIDTH = 64, 8, 96
#: Slow rotations leave most of a head for what is said, whatever lies between.
TEXT: dict[str, Any] = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24, "max_position_embeddings": 1024,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}, "tie_word_embeddings": True,
}  # fmt: skip
NORMAL = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@dataclass(frozen=True)
class Family:
    """Rows and columns of ``tiles`` (one of each: the page whole), the token that stands for a cell of the picture,
    how many tokens follow the picture before the question, and the class in transformers."""

    tiles: tuple[int, int]
    place: str
    after: int
    model: str


FAMILIES = {
    "llava": Family((1, 1), "<image>", 0, "LlavaForConditionalGeneration"),
    "aya_vision": Family((4, 3), "<|IMG_PATCH|>", 1, "AyaVisionForConditionalGeneration"),
}


def reader_start(name: str, donut: Donut, *, seed: int) -> VisionLanguage:
    """A model of one of FAMILIES on the encoder of ``donut``; all else is drawn with ``seed``."""
    family, (width, height) = FAMILIES[name], donut.image_size
    rows, columns = family.tiles
    vision = deepcopy(donut.module.config.encoder)
    named = {"image_token": "<image>"}
    config: dict[str, Any] = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    settings: dict[str, Any] = {"patch_size": STRIDE, "chat_template": NAMED.replace("IMAGE", "<image>")}
    if rows * columns > 1:
        vision.image_size = TILE
        named |= {"start_of_image": "<|START_OF_IMG|>", "end_of_image": "<|END_OF_IMG|>", "patch": family.place}
        named |= {"tile_global": "TILE_GLOBAL", **{f"tile_{n}": f"TILE_{n}" for n in range(rows * columns, 0, -1)}}
        images = t.GotOcr2ImageProcessorPil(
            size={"height": TILE, "width": TILE}, crop_to_patches=True, min_patches=rows * columns,
            max_patches=rows * columns, **NORMAL,
        )  # fmt: skip
        config |= {"downsample_factor": 1, "alignment_intermediate_size": 2 * WIDTH}
        settings["img_size"] = TILE
    else:
        images = t.SiglipImageProcessorPil(size={"height": height, "width": width}, **NORMAL)
        config["image_seq_length"] = height * width // STRIDE**2
        settings["vision_feature_select_strategy"] = "full"
    tokenizer = character_tokenizer(tags=(), eos="<end_of_utterance>", named=named)
    marks = {f"{mark}_id": getattr(tokenizer, f"{mark}_id") for mark in ("pad_token", "bos_token", "eos_token")}
    model = getattr(t, family.model)
    made = model.config_class(
        text_config={**TEXT, "vocab_size": len(tokenizer), **marks}, vision_config=vision.to_dict(),
        image_token_id=tokenizer.convert_tokens_to_ids(family.place), **config,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = model._from_config(made, attn_implementation="eager").eval()
    spread(module, generator=torch.Generator().manual_seed(seed))
    module.model.vision_tower.load_state_dict(donut.module.encoder.state_dict())
    processor = Processor(assembled(still(name), images, tokenizer, settings), name)
    return VisionLanguage(module, processor, image_size=donut.image_size, name=f"{name}-start")


@torch.no_grad()
def take_over(model: VisionLanguage, other: VisionLanguage) -> None:
    """Give ``model`` all weights of ``other`` but the projector; rows of the table of tokens by the tokens' names."""
    told, weights = other.module.state_dict(), model.module.state_dict()
    table = other.tokenizer.get_vocab()
    for name, value in weights.items():
        if name == "lm_head.weight" or name.endswith("embed_tokens.weight"):
            for token, row in model.tokenizer.get_vocab().items():
                if token in table:
                    value[row] = told[name][table[token]]
        elif "projector" not in name:
            value.copy_(told[name])
