"""Local checkpoints with the published base configurations and random weights: ``--scale paper`` without a network.

    python scripts/base_checkpoints.py FOLDER
    docleak reproduce gi-dqa/table1 --scale paper --model donut=FOLDER/donut-base \
        --model layoutlmv3=FOLDER/layoutlmv3-base --documents pfl-docvqa:DIR --pages 1 --budget 4 \
        --image-size donut=320x640

Sizes as in the config.json files of naver-clova-ix/donut-base and microsoft/layoutlmv3-base; the tokenizers are small
ones of docleak's own, whose ids are part of the full vocabularies.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers as t

from docleak.documents.synthetic import make_pages
from docleak.models.donut import Donut
from docleak.models.layoutlmv3 import LayoutLMv3
from docleak.models.start import spread
from docleak.models.tiny import byte_pair_tokenizer, character_tokenizer


def donut_base(seed: int) -> Donut:
    """Swin 128 x [2, 2, 14, 2] with windows of 10, MBart decoder 1024 x 4, 57,525 tokens; pages of 1920 x 2560."""
    torch.manual_seed(seed)
    tokenizer = character_tokenizer()
    encoder = t.DonutSwinConfig(
        image_size=[2560, 1920], patch_size=4, embed_dim=128, depths=[2, 2, 14, 2], num_heads=[4, 8, 16, 32],
        window_size=10, drop_path_rate=0.1,
    )  # fmt: skip
    decoder = t.MBartConfig(
        vocab_size=57525, d_model=1024, decoder_layers=4, encoder_layers=12, decoder_attention_heads=16,
        decoder_ffn_dim=4096, max_position_embeddings=1536, is_decoder=True, add_cross_attention=True,
        scale_embedding=True, add_final_layer_norm=True, is_encoder_decoder=False, pad_token_id=1, bos_token_id=0,
        eos_token_id=2,
    )  # fmt: skip
    module: Any = t.VisionEncoderDecoderModel(
        encoder=t.DonutSwinModel(encoder), decoder=t.MBartForCausalLM._from_config(decoder, attn_implementation="eager")
    )
    module.config.decoder_start_token_id = 0
    module.config.pad_token_id = 1
    module.config.vocab_size = decoder.vocab_size
    spread(module, generator=torch.Generator().manual_seed(seed))
    return Donut(module.eval(), tokenizer, image_size=(1920, 2560), name="donut-base")


def layoutlmv3_base(seed: int) -> LayoutLMv3:
    """Width 768, 12 layers, 50,265 tokens, 224 x 224 pixels."""
    torch.manual_seed(seed)
    texts = [word.text for page in make_pages(50, seed=seed, split="train") for word in page.words]
    config = t.LayoutLMv3Config(
        vocab_size=50265, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        max_position_embeddings=514, coordinate_size=128, shape_size=128, input_size=224, patch_size=16,
        max_2d_position_embeddings=1024, num_labels=2, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        attn_implementation="eager",
    )  # fmt: skip
    module: Any = t.LayoutLMv3ForQuestionAnswering(config)
    spread(module, generator=torch.Generator().manual_seed(seed))
    return LayoutLMv3(module.eval(), byte_pair_tokenizer(texts), name="layoutlmv3-base")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for model in (donut_base(0), layoutlmv3_base(0)):
        folder = Path(sys.argv[1]) / model.name
        model.save(str(folder))
        print(f"{folder}: {sum(p.numel() for p in model.module.parameters()) / 1e6:.1f} M parameters")
