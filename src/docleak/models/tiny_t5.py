"""The tiny T5 readers docleak ships: VT5 and FeDocVQA's model, for federated training on a laptop CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from docleak.documents.page import Page
from docleak.models.fedocvqa import FeDocVQA
from docleak.models.start import spread_reader
from docleak.models.t5 import T5Network
from docleak.models.t5_files import PROMPT, ReaderConfig
from docleak.models.vt5 import VT5

READER_SIZE = 224
READER_VOCABULARY = 1200
SENTINELS = 100


def vt5_start(*, seed: int, pages: Iterable[Page]) -> VT5:
    """A VT5 of about 1.1 M parameters: T5 96 x (3 + 2) and a frozen DiT 64 x 2 with patch 32.

    The vocabulary is learned from ``pages`` (their words, lower-cased, and questions); ``seed`` draws the weights.
    """
    tokenizer = reader_tokenizer(reader_texts(pages))
    vision = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "image_size": READER_SIZE, "patch_size": 32, "use_absolute_position_embeddings": True,
        "layer_scale_init_value": 1.0,
    }  # fmt: skip
    config = ReaderConfig(_text(tokenizer), vision, max_answer_tokens=40)
    return VT5(_drawn(VT5.build, config, seed), tokenizer, config, name="vt5-start")


def fedocvqa_start(*, seed: int, pages: Iterable[Page]) -> FeDocVQA:
    """A FeDocVQA model of about 0.9 M parameters: T5 96 x (3 + 2), patch 32; see ``vt5_start``."""
    tokenizer = reader_tokenizer(reader_texts(pages))
    vision = {"image_size": READER_SIZE, "patch_size": 32}
    config = ReaderConfig(_text(tokenizer), vision, prompt_box=(0, 0, 0, 0), max_tokens=1024, max_answer_tokens=40)
    return FeDocVQA(_drawn(FeDocVQA.build, config, seed), tokenizer, config, name="fedocvqa-start")


def reader_texts(pages: Iterable[Page]) -> Iterator[str]:
    """What the readers' vocabulary is learned from, as they are given it: prompt, lower-cased words, questions."""
    for page in pages:
        yield PROMPT.format(question="")
        yield " ".join(word.text.lower() for word in page.words)
        yield from (question.text for question in page.questions)


def reader_tokenizer(texts: Iterable[str], *, vocabulary: int = READER_VOCABULARY) -> Any:
    """Byte-level BPE learned from ``texts`` (this trainer is deterministic), with T5's special and sentinel tokens.

    Words rather than characters: an invoice takes a third of the tokens, and a piece of a value is rarer on its page
    than a letter, so that what follows it can be told from what was just written. Values come apart into the same
    pieces on the page and in the answer, since every word is tokenised on its own.
    """
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trainer = ByteLevelBPETokenizer(add_prefix_space=True)
    trainer.train_from_iterator(
        texts, vocab_size=vocabulary, special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trainer._tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    sentinels = [f"<extra_id_{i}>" for i in range(SENTINELS)]
    tokenizer.add_special_tokens({"additional_special_tokens": sentinels})
    return tokenizer


def _text(tokenizer: Any) -> dict[str, Any]:
    """T5Config: gated-gelu, since gradient matching needs a smooth network; no dropout, which short runs cannot pay."""
    return {
        "vocab_size": len(tokenizer), "d_model": 96, "d_kv": 24, "d_ff": 192, "num_layers": 3,
        "num_decoder_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0,
        "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
    }  # fmt: skip


def _drawn(build: Callable[[ReaderConfig], T5Network], config: ReaderConfig, seed: int) -> T5Network:
    with torch.random.fork_rng(devices=[]):  # the constructors draw from the global generator
        torch.manual_seed(seed)
        module = build(config)
    spread_reader(module, generator=torch.Generator().manual_seed(seed))
    return module.eval()
