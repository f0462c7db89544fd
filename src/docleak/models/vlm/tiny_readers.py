"""Tiny networks and processors of UDOP, Pix2Struct and LiLT, whose configurations are unlike other families'."""

from __future__ import annotations

from typing import Any

from docleak.models.files import tokenizer_of
from docleak.models.shipped import CHECKPOINTS
from docleak.models.tiny import character_tokenizer

WIDTH, HEADS = 48, 4


def udop(width: int) -> tuple[Any, Any, Any]:
    """Class and configuration of a UDOP for pages of 224 x 224 pixels, and its processor: one token a character."""
    import transformers as t

    specials = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    letters = [chr(code) for code in (*range(33, 127), *range(161, 256), ord("€"))]
    tokenizer = t.UdopTokenizer(vocab=[*specials, ("▁", -1.0), *((letter, -2.0) for letter in letters)])
    images = t.LayoutLMv3ImageProcessorPil(apply_ocr=False, size={"height": 224, "width": 224})
    config = t.UdopConfig(
        vocab_size=len(tokenizer), d_model=width, d_kv=width // HEADS, d_ff=2 * width, num_layers=2, num_heads=HEADS,
        image_size=224, patch_size=16, decoder_start_token_id=0, dropout_rate=0.0, feed_forward_proj="gated-gelu",
    )  # fmt: skip
    return t.UdopForConditionalGeneration, config, t.UdopProcessor(images, tokenizer)


def pix2struct(width: int) -> tuple[Any, Any, Any]:
    """Class and configuration of a Pix2Struct that reads 220 patches and the question above them, and its processor."""
    import transformers as t

    tokenizer = character_tokenizer(tags=())
    images = t.Pix2StructImageProcessorPil(max_patches=220, is_vqa=True)
    marks = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": width, "d_kv": width // HEADS, "d_ff": 2 * width, "num_layers": 2,
        "num_heads": HEADS, "dropout_rate": 0.0, "decoder_start_token_id": tokenizer.pad_token_id, **marks,
    }  # fmt: skip
    vision = {
        "hidden_size": width, "patch_embed_hidden_size": 768, "d_ff": 2 * width, "d_kv": width // HEADS,
        "num_hidden_layers": 2, "num_attention_heads": HEADS, "seq_len": 256,
    }  # fmt: skip
    config = t.Pix2StructConfig(text_config=text, vision_config=vision, is_vqa=True)
    return t.Pix2StructForConditionalGeneration, config, t.Pix2StructProcessor(images, tokenizer)


def lilt(width: int) -> tuple[Any, Any, Any]:
    """Class and configuration of a LiLT of twice the width, and the tiny LayoutLMv3's tokenizer."""
    import transformers as t

    tokenizer = tokenizer_of(str(CHECKPOINTS / "layoutlmv3-start"))
    config = t.LiltConfig(
        vocab_size=len(tokenizer), hidden_size=2 * width, num_hidden_layers=2, num_attention_heads=HEADS,
        intermediate_size=4 * width, max_position_embeddings=514, channel_shrink_ratio=2, type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return t.LiltForQuestionAnswering, config, tokenizer
