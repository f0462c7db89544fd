"""The tiny encoders: built like the big ones, small enough to train and attack on a laptop's CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from docleak.errors import ModelError
from docleak.models.encoders.model import EncoderConfig, EncoderModel, build
from docleak.models.encoders.vision import VisionConfig

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: Width is a multiple of 64 because of BROS' sine waves.
WIDTH, LAYERS, HEADS, LENGTH = 64, 2, 4, 512


VOCABULARY = Path(__file__).with_name("vocabulary.txt")


def shipped_tokenizer(vocabulary: Path = VOCABULARY) -> Any:
    """Word pieces that ship: the tiny encoders' 2,000 (scripts/encoder_vocabulary.py), or those of another file."""
    pieces = vocabulary.read_text(encoding="utf-8").split("\n")[:-1]
    return bert_tokenizer({piece: number for number, piece in enumerate(pieces)})


def word_piece_tokenizer(texts: Iterable[str], *, vocabulary: int, at_least: int = 2) -> Any:
    """BERT's lower-casing word pieces, learned from ``texts``; pieces that come ``at_least`` so often.

    This trainer breaks ties by chance, so that a vocabulary must be kept, not made again.
    """
    from tokenizers import BertWordPieceTokenizer

    trainer = BertWordPieceTokenizer(lowercase=True)
    trainer.train_from_iterator(
        texts, vocab_size=vocabulary, min_frequency=at_least, special_tokens=list(SPECIALS), show_progress=False
    )
    return bert_tokenizer(trainer.get_vocab())


def bert_tokenizer(vocabulary: Mapping[str, int]) -> Any:
    """A BERT tokenizer of these pieces. ModelError if they lack BERT's special ones, or leave numbers out."""
    import transformers

    if set(SPECIALS) - set(vocabulary) or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ModelError(
            f"a vocabulary of {len(vocabulary)} pieces lacks special ones ({', '.join(SPECIALS)}) or numbers."
        )
    return transformers.BertTokenizerFast(vocab=dict(vocabulary), do_lower_case=True)


#: A LayoutLMv3 that guesses words, beside the one of that name that answers questions; pixels of its pictures' sides.
WORDS_OF_V3, SIDE = "layoutlmv3-words", 112
#: Architectures of which docleak makes tiny ones.
TINY = ("layoutlm", "bros", "bert", WORDS_OF_V3)


def tiny_encoder(
    architecture: str, tokenizer: Any, *, seed: int, vision: VisionConfig | None = None, width: int = WIDTH
) -> EncoderModel:
    """One of TINY, of 2 layers, with a masked-language head; about half a million parameters.

    The LayoutLMv3 reads the words with their boxes beside the picture's 7 x 7 patches; its head is BERT's, tied to the
    table of words, since ``transformers`` has none. It has no dropout, which costs a CPU most of a step.
    """
    values: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": width, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": 4 * width, "max_position_embeddings": LENGTH, "type_vocab_size": 1,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    if architecture == "layoutlm":
        values["max_2d_position_embeddings"] = 1024
    if architecture == "bros":
        values |= {"dim_bbox": 8, "bbox_scale": 100.0, "classifier_dropout_prob": 0.1}
    if architecture == WORDS_OF_V3:
        values |= {
            "max_position_embeddings": LENGTH // 2 + 1, "coordinate_size": 10, "shape_size": 12, "input_size": SIDE,
            "bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id,
            "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        }  # fmt: skip
        return build(EncoderConfig("layoutlmv3", values), tokenizer, seed=seed, name=f"{architecture}-tiny")
    return build(EncoderConfig(architecture, values, vision=vision), tokenizer, seed=seed, name=f"{architecture}-tiny")
