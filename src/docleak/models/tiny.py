"""The tiny models docleak ships, built like the big ones, small enough for a laptop's CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from docleak.documents.page import Page
from docleak.errors import ModelError
from docleak.models.donut import Donut
from docleak.models.fedocvqa import FeDocVQA
from docleak.models.files import drawn_with, new_model, values_of
from docleak.models.layoutlmv3 import LayoutLMv3
from docleak.models.loading import load_model
from docleak.models.published.made import Wider
from docleak.models.start import spread, spread_reader
from docleak.models.t5 import PROMPT, ReaderConfig, T5Network, T5Reader
from docleak.models.vt5 import VT5

DONUT_SIZE = (192, 256)
LAYOUTLMV3_SIZE = 224
LAYOUTLMV3_VOCABULARY = 1200
READER_SIZE = 224
READER_VOCABULARY = 1200
#: Readers that can be made wider, and the width of a head of those.
READERS, READER_HEAD = ("vt5-start", "fedocvqa-start"), 32
#: Their greatest width and number of layers, those of a T5-large.
WIDEST, DEEPEST = 1024, 24
SENTINELS = 100
DOCVQA_TAGS = ("<s_docvqa>", "<s_question>", "</s_question>", "<s_answer>", "</s_answer>")


def character_tokenizer(
    *, tags: Sequence[str] = DOCVQA_TAGS, eos: str = "</s>", named: Mapping[str, str] | None = None
) -> Any:
    """A byte-level tokenizer without merges: one token per character, and special ones.

    ``tags`` are Donut's unless told otherwise, ``named`` special tokens that are also attributes of the tokenizer.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<s>", "<pad>", eos, "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>", eos_token=eos, unk_token="<unk>",
        **({"extra_special_tokens": dict(named)} if named else {}),
    )  # fmt: skip
    if tags:
        fast.add_special_tokens({"additional_special_tokens": list(tags)})
    return fast


def donut_start(*, seed: int, size: tuple[int, int] = DONUT_SIZE) -> Donut:
    """A Donut of about 0.6 M parameters: Swin 48 x [2, 2] with patch 4, MBart decoder 96 x 2."""
    return donut_of(seed=seed, size=size, width=48, depths=(2, 2), layers=2)


def donut_of(*, seed: int, size: tuple[int, int], width: int, depths: tuple[int, int], layers: int) -> Donut:
    """A Donut of a Swin of ``width``, a multiple of 6, and a decoder of twice that.

    24 x [2, 1] and one layer of the decoder have 0.1 M parameters.
    """
    import transformers as t

    tokenizer = character_tokenizer()
    torch.manual_seed(seed)  # the constructors draw from the global generator; spread() redraws all matrices
    encoder = t.DonutSwinConfig(
        image_size=[size[1], size[0]], patch_size=4, embed_dim=width, depths=list(depths), num_heads=[3, 6],
        window_size=8, drop_path_rate=0.0,
    )  # fmt: skip
    decoder = t.MBartConfig(
        vocab_size=len(tokenizer), d_model=2 * width, decoder_layers=layers, encoder_layers=2,
        decoder_attention_heads=4, decoder_ffn_dim=16 * width // 3, max_position_embeddings=144, is_decoder=True,
        add_cross_attention=True, scale_embedding=True, add_final_layer_norm=True, is_encoder_decoder=False,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=0,
    )  # fmt: skip
    module: Any = t.VisionEncoderDecoderModel(
        encoder=t.DonutSwinModel(encoder), decoder=t.MBartForCausalLM._from_config(decoder, attn_implementation="eager")
    )
    module.config.decoder_start_token_id = 0
    module.config.pad_token_id = 1
    module.config.vocab_size = len(tokenizer)
    spread(module, generator=torch.Generator().manual_seed(seed))
    return Donut(module.eval(), tokenizer, image_size=size, name="donut-start")


def byte_pair_tokenizer(texts: Iterable[str], *, vocabulary: int = LAYOUTLMV3_VOCABULARY) -> Any:
    """LayoutLMv3's byte-level BPE, trained on ``texts`` (this trainer is deterministic)."""
    import transformers as t
    from tokenizers import ByteLevelBPETokenizer

    trainer = ByteLevelBPETokenizer(add_prefix_space=True)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(texts, vocab_size=vocabulary, special_tokens=specials, show_progress=False)
    with tempfile.TemporaryDirectory() as directory:
        trainer.save_model(directory)
        vocab, merges = (str(Path(directory) / name) for name in ("vocab.json", "merges.txt"))
        return t.LayoutLMv3TokenizerFast(vocab=vocab, merges=merges)


def layoutlmv3_start(*, seed: int, texts: Iterable[str]) -> LayoutLMv3:
    """A LayoutLMv3 of about 1.1 M parameters: width 128, 4 layers, 224 x 224 pixels, patch 16."""
    import transformers as t

    tokenizer = byte_pair_tokenizer(texts)
    torch.manual_seed(seed)
    config = t.LayoutLMv3Config(
        vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512,
        max_position_embeddings=258, coordinate_size=21, shape_size=22, input_size=LAYOUTLMV3_SIZE, patch_size=16,
        max_2d_position_embeddings=1024, num_labels=2, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        attn_implementation="eager",
    )  # fmt: skip
    module: Any = t.LayoutLMv3ForQuestionAnswering(config)
    spread(module, generator=torch.Generator().manual_seed(seed))
    return LayoutLMv3(module.eval(), tokenizer, name="layoutlmv3-start")


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


def widened(asked: Wider, out: Path) -> None:
    """Write a reader like ``asked.base``, a shipped one, with its tokenizer, but of the width and layers asked for.

    Heads are 32 wide, and feed-forward layers twice the width. ModelError for another model, and for sizes out of
    range.
    """
    if asked.base not in READERS:
        raise ModelError(f"a wider {asked.base!r} cannot be made; expected one of {', '.join(READERS)}.")
    wide = range(4 * READER_HEAD, WIDEST + 1, READER_HEAD)
    if asked.width not in wide or not all(1 <= layers <= DEEPEST for layers in (asked.layers, asked.decoder)):
        raise ModelError(
            f"{asked.title}: expected a width of {wide[0]} to {WIDEST} that {READER_HEAD} divides, and 1 to {DEEPEST} "
            "layers of each."
        )
    base = load_model(asked.base)
    assert isinstance(base, T5Reader)
    sizes = {"d_model": asked.width, "d_kv": READER_HEAD, "num_heads": asked.width // READER_HEAD,
             "d_ff": 2 * asked.width, "num_layers": asked.layers, "num_decoder_layers": asked.decoder}  # fmt: skip
    text = values_of(base.module.t5.config) | sizes
    config = replace(base.config, text=text, vision=base.vision_values())
    model = type(base)(_drawn(type(base).build, config, asked.seed), base.tokenizer, config, name=asked.short)
    count = sum(parameter.numel() for parameter in model.module.parameters())
    with new_model(out, {"recipe": asked.title, "seed": asked.seed, "parameters": count}) as draft:
        model.save(str(draft))


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
    with drawn_with(seed):
        module = build(config)
    spread_reader(module, generator=torch.Generator().manual_seed(seed))
    return module.eval()
