"""The two tiny vision-language models that docleak trains and ships: what a trained Donut sees, told by a Llama.

As large ones are made: the tower is of a model that has learned to see, the language model is drawn, and a projector
lies between them. A LLaVA sees the page whole, an Aya Vision in twelve tiles and an overview.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from docleak.models.donut import Donut
from docleak.models.start import spread
from docleak.models.tiny import character_tokenizer
from docleak.models.vlm.model import VisionLanguage
from docleak.models.vlm.processor import Processor, assembled, still
from docleak.models.vlm.tiny import NAMED

TILE, STRIDE = 64, 8
#: Rows and columns of tiles, or one of each for a page seen whole.
GRIDS = {"llava": (1, 1), "aya_vision": (4, 3)}
#: Slow rotations leave most of a head for what is said, whatever lies between.
TEXT: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24, "max_position_embeddings": 1024,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}, "tie_word_embeddings": True,
}  # fmt: skip
SPLIT = {"mean": [0.5] * 3, "std": [0.5] * 3}


def reader_start(family: str, donut: Donut, *, seed: int) -> VisionLanguage:
    """A model of ``family`` (a key of GRIDS) on the tower of ``donut``, all else drawn with ``seed``."""
    import transformers as t

    width, height = donut.image_size
    tiled = family == "aya_vision"
    normal = {"image_mean": SPLIT["mean"], "image_std": SPLIT["std"]}
    if tiled:
        named = {"image_token": "<image>", "start_of_image": "<|START_OF_IMG|>", "end_of_image": "<|END_OF_IMG|>",
                 "patch": "<|IMG_PATCH|>", "tile_global": "TILE_GLOBAL",
                 **{f"tile_{n}": f"TILE_{n}" for n in range(12, 0, -1)}}  # fmt: skip
        images = t.GotOcr2ImageProcessorPil(
            size={"height": TILE, "width": TILE}, crop_to_patches=True, min_patches=12, max_patches=12, **normal
        )
        settings = {"patch_size": STRIDE, "img_size": TILE}
        model, place = t.AyaVisionForConditionalGeneration, "<|IMG_PATCH|>"
        config = {"downsample_factor": 1, "vision_feature_layer": -1, "alignment_intermediate_size": 192}
    else:
        named = {"image_token": "<image>"}
        images = t.SiglipImageProcessorPil(size={"height": height, "width": width}, **normal)
        settings = {"patch_size": STRIDE, "vision_feature_select_strategy": "full"}
        model, place = t.LlavaForConditionalGeneration, "<image>"
        config = {"image_seq_length": height * width // STRIDE**2, "vision_feature_layer": -1}
    config["vision_feature_select_strategy"] = "full"
    tokenizer = character_tokenizer(tags=(), eos="<end_of_utterance>", named=named)
    settings["chat_template"] = NAMED.replace("IMAGE", "<image>")
    processor = assembled(still(family), images, tokenizer, settings)
    marks = {f"{n}_id": getattr(tokenizer, f"{n}_id") for n in ("pad_token", "bos_token", "eos_token")}
    vision = copy.deepcopy(donut.module.config.encoder)
    if tiled:
        vision.image_size = TILE
    made = model.config_class(
        text_config={**TEXT, "vocab_size": len(tokenizer), **marks}, vision_config=vision.to_dict(),
        image_token_id=tokenizer.convert_tokens_to_ids(place), **config,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = model._from_config(made, attn_implementation="eager").eval()
    spread(module, generator=torch.Generator().manual_seed(seed))
    module.model.vision_tower.load_state_dict(donut.module.encoder.state_dict())
    return VisionLanguage(module, Processor(processor, family), image_size=donut.image_size, name=f"{family}-start")
