"""Vision-language models of a few hundred thousand weights, made on the spot in the files that ``transformers`` saves.

Nothing in them is learned: they show that a family loads, is attacked and trained, not what a trained one tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from docleak.errors import ModelError
from docleak.models.files import drawn_with, new_model, taken
from docleak.models.published.making import Initialisation
from docleak.models.start import spread
from docleak.models.tiny import character_tokenizer
from docleak.models.vlm import tiny_readers
from docleak.models.vlm.processor import assembled, still

WIDTH = 48
#: Both parts of the tiny networks; families add what is their own.
TEXT: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 1024,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_channels": 3,
}  # fmt: skip
SIGLIP = {**VISION, "model_type": "siglip_vision_model", "image_size": 224, "patch_size": 14, "vision_use_head": False}
#: Turns of a conversation, as Qwen's and as Idefics' families write them; IMAGE stands for the family's placeholder.
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% else %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMED = (
    "<s>{% for m in messages %}{{ m['role'].capitalize() }}:{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% else %} {{ c['text'] }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


@dataclass(frozen=True)
class Tiny:
    """One family: the class in ``transformers``, its configuration, its tokens and its processor's settings.

    ``tokens`` are special ones by the names that the processor looks for, ``ids`` keys of the configuration that hold
    the number of a token. ``images`` is the image processor's class and settings. ``chat`` is a template and what
    stands for a picture in it.
    """

    model: str
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    tokens: Mapping[str, str]
    ids: Mapping[str, str]
    images: tuple[str, Mapping[str, Any]]
    config: Mapping[str, Any] = field(default_factory=dict)
    processor: Mapping[str, Any] = field(default_factory=dict)
    chat: tuple[str, str] | None = None


def _idefics(model: str, **more: Any) -> Tiny:
    images = model.replace("ForConditionalGeneration", "ImageProcessorPil")
    return Tiny(
        model,
        text={**TEXT, "model_type": "llama"},
        vision={**VISION, "image_size": 128, "patch_size": 16},
        tokens={
            "image_token": "<image>", "fake_image_token": "<fake_token_around_image>",
            "end_of_utterance_token": "<end_of_utterance>", "global_image_token": "<global-img>",
            **{f"row_{r}_col_{c}": f"<row_{r}_col_{c}>" for r in range(1, 3) for c in range(1, 3)},
        },
        ids={"image_token_id": "<image>"},
        images=(images, {"size": {"longest_edge": 256}, "max_image_size": {"longest_edge": 128}}),
        config={"scale_factor": 2},
        processor={"image_seq_len": 16},
        chat=(NAMED, "<image>"),
        **more,
    )  # fmt: skip


def _qwen(model: str, vision: Mapping[str, Any], *, patch: int = 14) -> Tiny:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
    ids = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
           "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}  # fmt: skip
    return Tiny(
        model,
        text={**TEXT, "rope_parameters": rope},
        vision={
            "depth": 2, "hidden_size": WIDTH, "out_hidden_size": WIDTH, "intermediate_size": 96, "num_heads": 4,
            "patch_size": patch, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, **vision,
        },
        tokens={"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "start": "<|vision_start|>",
                "end": "<|vision_end|>", "eos_token": "<|im_end|>", "turn": "<|im_start|>"},
        ids=ids,
        images=("Qwen2VLImageProcessorPil", {"patch_size": patch, "min_pixels": 56 * 56, "max_pixels": 196 * 280}),
        chat=(MARKED, "<|vision_start|><|image_pad|><|vision_end|>"),
    )  # fmt: skip


#: Family (``model_type``) -> its tiny model.
FAMILIES: dict[str, Callable[[], Tiny]] = {
    "idefics3": lambda: _idefics("Idefics3ForConditionalGeneration"),
    "smolvlm": lambda: _idefics("SmolVLMForConditionalGeneration"),
    "paligemma": lambda: Tiny(
        "PaliGemmaForConditionalGeneration",
        text={**TEXT, "model_type": "gemma"},
        vision={**SIGLIP, "projection_dim": WIDTH},
        tokens={"image_token": "<image>"},
        ids={"image_token_id": "<image>"},
        images=("SiglipImageProcessorPil", {"size": {"height": 224, "width": 224}, "image_seq_length": 256}),
        config={"projection_dim": WIDTH},
    ),
    "qwen2_vl": lambda: _qwen("Qwen2VLForConditionalGeneration", {"embed_dim": WIDTH, "mlp_ratio": 2}),
    "qwen2_5_vl": lambda: _qwen(
        "Qwen2_5_VLForConditionalGeneration", {"window_size": 56, "fullatt_block_indexes": [1]}
    ),
    "qwen3_vl": lambda: _qwen(
        "Qwen3VLForConditionalGeneration", {"num_position_embeddings": 144, "deepstack_visual_indexes": [0]}, patch=16
    ),
    "internvl": lambda: Tiny(
        "InternVLForConditionalGeneration",
        text={**TEXT, "model_type": "qwen2"},
        vision={**VISION, "image_size": [192, 192], "patch_size": [16, 16]},
        tokens={"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
                "video_token": "<video>", "eos_token": "<|im_end|>", "turn_token": "<|im_start|>"},
        ids={"image_token_id": "<IMG_CONTEXT>"},
        images=("GotOcr2ImageProcessorPil", {"size": {"height": 192, "width": 192}, "max_patches": 4}),
        config={"downsample_ratio": 0.5},
        processor={"image_seq_length": 36},
        chat=(MARKED, "<IMG_CONTEXT>"),
    ),
    "llava": lambda: Tiny(
        "LlavaForConditionalGeneration",
        text={**TEXT, "model_type": "qwen2"},
        vision=SIGLIP,
        tokens={"image_token": "<image>", "eos_token": "<|im_end|>", "turn_token": "<|im_start|>"},
        ids={"image_token_id": "<image>"},
        images=("SiglipImageProcessorPil", {"size": {"height": 224, "width": 224}}),
        config={"vision_feature_select_strategy": "full", "vision_feature_layer": -1},
        processor={"patch_size": 14, "vision_feature_select_strategy": "full"},
        chat=(MARKED, "<image>"),
    ),
    "gemma3": lambda: Tiny(
        "Gemma3ForConditionalGeneration",
        text={**TEXT, "model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"],
              "sliding_window": 64},
        vision=SIGLIP,
        tokens={"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
                "turn_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        ids={"image_token_id": "<image_soft_token>", "boi_token_index": "<start_of_image>",
             "eoi_token_index": "<end_of_image>"},
        images=("Gemma3ImageProcessorPil", {"size": {"height": 224, "width": 224}}),
        config={"mm_tokens_per_image": 64},
        processor={"image_seq_length": 64},
        chat=(MARKED, "<start_of_image>"),
    ),
    "florence2": lambda: Tiny(
        "Florence2ForConditionalGeneration",
        text={"model_type": "bart", "d_model": WIDTH, "encoder_layers": 1, "decoder_layers": 2,
              "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "encoder_attention_heads": 4,
              "decoder_attention_heads": 4, "max_position_embeddings": 1024, "decoder_start_token_id": 2,
              "forced_bos_token_id": None},
        vision={"embed_dim": [24, WIDTH], "depths": [1, 1], "num_heads": [2, 4], "num_groups": [2, 4],
                "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1],
                "patch_prenorm": [False, True], "window_size": 4, "projection_dim": WIDTH, "drop_path_rate": 0.0},
        tokens={"image_token": "<image>"},
        ids={"image_token_id": "<image>"},
        images=("CLIPImageProcessorPil", {"size": {"height": 224, "width": 224}, "do_center_crop": False,
                                          "image_seq_length": 785}),
    ),
    "got_ocr2": lambda: Tiny(
        "GotOcr2ForConditionalGeneration",
        text={**TEXT, "model_type": "qwen2", "hidden_size": 64, "head_dim": 16},
        vision={"hidden_size": WIDTH, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
                "image_size": 256, "patch_size": 4, "mlp_dim": 96, "window_size": 8, "global_attn_indexes": []},
        tokens={"image_token": "<imgpad>", "start": "<img>", "end": "</img>", "eos_token": "<|im_end|>",
                "turn_token": "<|im_start|>"},
        ids={"image_token_id": "<imgpad>"},
        images=("GotOcr2ImageProcessorPil", {"size": {"height": 256, "width": 256}}),
    ),
    "granite_docling": lambda: Tiny(
        "GraniteDoclingForConditionalGeneration",
        text=TEXT,
        vision={**VISION, "image_size": 192, "patch_size": 16, "out_hidden_size": WIDTH, "scale_factor": 2,
                "deepstack_visual_indexes": [0], "use_fine_route": False},
        tokens={"image_token": "<image>", "fake": "<fake_token_around_image>", "global": "<global-img>",
                "eos_token": "<|im_end|>", "turn_token": "<|im_start|>"},
        ids={"image_token_id": "<image>"},
        images=("GraniteDoclingImageProcessorPil", {"size": {"height": 192, "width": 192}, "max_patches": 4}),
        config={"scale_factor": 2},
        processor={"image_seq_len": 36},
        chat=(MARKED, "<image>"),
    ),
    "lighton_ocr": lambda: Tiny(
        "LightOnOcrForConditionalGeneration",
        text={**TEXT, "model_type": "qwen3"},
        vision={**VISION, "model_type": "pixtral", "image_size": 280, "patch_size": 14, "head_dim": 12},
        tokens={"image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>",
                "image_end_token": "<|vision_end|>", "eos_token": "<|im_end|>", "turn_token": "<|im_start|>"},
        ids={"image_token_id": "<|image_pad|>"},
        images=("PixtralImageProcessorPil", {"size": {"longest_edge": 280}, "patch_size": 28}),
        config={"spatial_merge_size": 2},
        processor={"patch_size": 14, "spatial_merge_size": 2},
        chat=(MARKED, "<|image_pad|>"),
    ),
    "qwen3_5": lambda: replace(
        _qwen("Qwen3_5ForConditionalGeneration", {"num_position_embeddings": 144}, patch=14),
        text={**TEXT, "layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 12,
              "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1],
                                  "partial_rotary_factor": 0.5}},
    ),
    "glm_ocr": lambda: replace(
        _qwen("GlmOcrForConditionalGeneration", {}),
        tokens={"image_token": "<|image|>", "video_token": "<|video|>", "start": "<|begin_of_image|>",
                "end": "<|end_of_image|>", "eos_token": "<|im_end|>", "turn": "<|im_start|>"},
        ids={"image_token_id": "<|image|>", "video_token_id": "<|video|>",
             "image_start_token_id": "<|begin_of_image|>", "image_end_token_id": "<|end_of_image|>"},
        images=("Glm46VImageProcessorPil",
                {"patch_size": 14, "size": {"shortest_edge": 56 * 56 * 2, "longest_edge": 196 * 280 * 2}}),
        chat=(MARKED, "<|begin_of_image|><|image|><|end_of_image|>"),
    ),
    "llava_next": lambda: replace(
        FAMILIES["llava"](),
        model="LlavaNextForConditionalGeneration",
        vision={**SIGLIP, "image_size": 140},
        images=("LlavaNextImageProcessorPil", {
            "size": {"height": 140, "width": 140}, "crop_size": {"height": 140, "width": 140}, "do_center_crop": False,
            "image_grid_pinpoints": [[140, 280], [280, 140], [280, 280]]}),
        config={"vision_feature_select_strategy": "full", "vision_feature_layer": -1,
                "image_grid_pinpoints": [[140, 280], [280, 140], [280, 280]]},
    ),
    "llava_onevision": lambda: replace(
        FAMILIES["llava_next"](),
        model="LlavaOnevisionForConditionalGeneration",
        images=("LlavaOnevisionImageProcessorPil", {
            "size": {"height": 140, "width": 140}, "image_grid_pinpoints": [[140, 280], [280, 140], [280, 280]]}),
        tokens={"image_token": "<image>", "video_token": "<video>", "eos_token": "<|im_end|>",
                "turn_token": "<|im_start|>"},
        ids={"image_token_id": "<image>", "video_token_id": "<video>"},
        processor={"num_image_tokens": 100, "vision_feature_select_strategy": "full"},
    ),
}  # fmt: skip


#: Families whose configuration has no text and vision in it, or whose processor has no chat: width -> class,
#: configuration and processor (of LiLT, which sees nothing, its tokenizer).
READERS: dict[str, Callable[[int], tuple[Any, Any, Any]]] = {
    "udop": tiny_readers.udop,
    "pix2struct": tiny_readers.pix2struct,
    "lilt": tiny_readers.lilt,
}
#: All of them.
KNOWN = (*FAMILIES, *READERS)


def _wider(tiny: Tiny, width: int) -> Tiny:
    """The family with a language model ``width`` wide, and a tower of SigLIP's kind or Qwen3-VL's 288 wide, which is
    more than its patches; an encoder and decoder (Florence-2) stays as it is."""
    if "d_model" in tiny.text:
        return tiny
    text = {**tiny.text, "hidden_size": width}
    if "rope_parameters" in text:  # Qwen's heads share the width
        text["num_attention_heads"] = width // TEXT["head_dim"]
    vision = {**tiny.vision, **{key: width for key in ("out_hidden_size", "projection_dim") if key in tiny.vision}}
    if "embed_dim" in vision:  # Qwen2-VL's name for the tower's own
        vision["hidden_size"] = width
    elif vision.get("model_type") == "siglip_vision_model" or "num_position_embeddings" in vision:
        vision["hidden_size"] = 288
    config = {**tiny.config, **({"projection_dim": width} if "projection_dim" in tiny.config else {})}
    return replace(tiny, text=text, vision=vision, config=config)


def make_tiny(
    family: str, out: Path, *, seed: int, initialisation: Initialisation = "spread", narrow: bool = True, width: int = 0
) -> dict[str, Any]:
    """Write the tiny model of a family to ``out``, whole or not at all, weights drawn with ``seed``; returns its card.

    "spread" weights make the gradient depend on where the ink is (``models.start``); "default" ones are those of
    ``transformers``. ``width`` is the language model's, a multiple of 12, where spans are to have room; 0: as it is.
    ModelError for an unknown family, for an ``out`` that holds something, and unless ``narrow``: no published size is
    known here.
    """
    import transformers as t

    if family not in KNOWN:
        raise ModelError(f"no tiny model of a {family!r} is known; expected one of {', '.join(KNOWN)}.")
    if not narrow:
        raise ModelError(f"of a {family} docleak knows no published size, only a tiny model. Pass --narrow.")
    if fault := taken(out):
        raise ModelError(f"{fault}.")
    t.utils.logging.disable_progress_bar()
    if family in READERS:
        network, config, processor = READERS[family](width or WIDTH)
    else:
        network, config, processor = _made(family, width)
    with drawn_with(seed):
        module = network._from_config(config).eval()
    if initialisation == "spread":
        spread(module, generator=torch.Generator().manual_seed(seed))
    card = {
        "recipe": f"a {family} made tiny, random weights ({initialisation}) drawn with seed {seed}",
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
    }
    with new_model(out, card) as draft:
        module.save_pretrained(draft)
        processor.save_pretrained(draft)
    return card


def _made(family: str, width: int) -> tuple[Any, Any, Any]:
    """Class of the network, configuration and processor of one of FAMILIES."""
    import transformers as t

    tiny = _wider(FAMILIES[family](), width) if width else FAMILIES[family]()
    named = dict(tiny.tokens)
    tokenizer = character_tokenizer(tags=(), eos=named.pop("eos_token", "</s>"), named=named)
    images, settings = tiny.images
    kind = still(family)
    if tiny.chat is not None:
        template, placeholder = tiny.chat
        settings_of_text = {**tiny.processor, "chat_template": template.replace("IMAGE", placeholder)}
    else:
        settings_of_text = dict(tiny.processor)
    processor = assembled(kind, getattr(t, images)(**settings), tokenizer, settings_of_text)
    model = getattr(t, tiny.model)
    marks = {name: getattr(tokenizer, f"{name}_id") for name in ("pad_token", "bos_token", "eos_token")}
    text = {**tiny.text, "vocab_size": len(tokenizer), **{f"{name}_id": value for name, value in marks.items()}}
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in tiny.ids.items()}
    config = model.config_class(text_config=text, vision_config=dict(tiny.vision), **ids, **tiny.config)
    return model, config, processor
