"""Local checkpoints of published shapes with random weights, for attacks on pairs without a network.

    python scripts/pair_checkpoints.py FOLDER
    docleak attack mmgia --image FOLDER/resnet18 --text FOLDER/bert-base --aligner FOLDER/clip --language FOLDER/gpt2 \
        --image-size 224x224 --count 1 --budget 75 --rounds 2

Sizes as in the config.json files of microsoft/resnet-18, google-bert/bert-base-uncased, openai/clip-vit-base-patch32
and openai-community/gpt2. The tokenizers are small ones learnt from scenes, three different ones, whose ids are part of
the full vocabularies.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers as t

from docleak.documents.pairs import make_scenes
from docleak.models.pair.shapes import IMAGE_SHAPES, pair_tokenizer

START, END = "<|startoftext|>", "<|endoftext|>"


def byte_pairs(*marks: str) -> Any:
    """A tokenizer of 600 byte pairs, the first mark beginning a text and the last one ending it."""
    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, special_tokens=list(marks), initial_alphabet=alphabet)
    raw.train_from_iterator([pair.text for pair in make_scenes(2000, seed=3)], trainer)
    return t.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=marks[0], eos_token=marks[-1], unk_token=marks[-1], pad_token=marks[-1]
    )


def resnet18() -> tuple[Any, ...]:
    """1,000 classes."""
    return (t.ResNetForImageClassification(t.ResNetConfig(**IMAGE_SHAPES["resnet18"], num_labels=1000)),)


def bert_base() -> tuple[Any, ...]:
    """Width 768, 12 layers, 30,522 tokens."""
    return t.BertForSequenceClassification(t.BertConfig(num_labels=2)), pair_tokenizer()


def clip() -> tuple[Any, ...]:
    """ViT-B/32 beside 12 layers of width 512 over 49,408 tokens."""
    tokenizer = byte_pairs(START, END)
    text = t.CLIPTextConfig(
        vocab_size=49408, hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    vision = t.CLIPVisionConfig(image_size=224, patch_size=32)
    whole = t.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=512)
    return t.CLIPModel(whole), tokenizer, t.CLIPImageProcessor()


def gpt2() -> tuple[Any, ...]:
    """Width 768, 12 layers, 50,257 tokens."""
    tokenizer = byte_pairs(END)
    config = t.GPT2Config(bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    return t.GPT2LMHeadModel(config), tokenizer


PARTS = {"resnet18": resnet18, "bert-base": bert_base, "clip": clip, "gpt2": gpt2}

if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for name, make in PARTS.items():
        torch.manual_seed(0)
        folder, parts = Path(sys.argv[1]) / name, make()
        for part in parts:
            part.save_pretrained(folder)
        print(f"{folder}: {sum(p.numel() for p in parts[0].parameters()) / 1e6:.1f} M parameters")
