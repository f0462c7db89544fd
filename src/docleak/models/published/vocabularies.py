"""Vocabularies of published kinds and sizes in their files: words of synthetic invoices, special tokens in place.

What docleak's words do not fill is filled with tokens that no text has (``[unused7]``, as BERT's own has them).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docleak.documents.synthetic import make_pages
from docleak.files import write_json
from docleak.models.published.table import Vocabulary
from docleak.models.sentencepiece import CONTROL, NORMAL, UNKNOWN, Piece, written

#: Tokens learned from words, at most; scores of a unigram model fall with their rank.
LEARNED = 1000
#: Files of SentencePiece, which numbers its own special tokens otherwise than XLM-RoBERTa.
SENTENCEPIECE = {"spiece.model": ("<pad>", "</s>", "<unk>"), "sentencepiece.bpe.model": ("<unk>", "<s>", "</s>")}


def write_vocabulary(vocabulary: Vocabulary, folder: Path, *, tokens: int) -> None:
    """Write the tokenizer's files with ``tokens`` tokens to ``folder``."""
    specials = {token: number % tokens for token, number in vocabulary.specials.items()}
    if vocabulary.kind == "t5":
        specials |= {f"<extra_id_{i}>": tokens - 1 - i for i in range(100)}
    merges: list[tuple[str, str]] = []
    if vocabulary.kind in ("word-piece", "t5", "xlm-roberta"):
        learned: Iterable[str] = _pieces(vocabulary.kind)
    else:
        learned, merges = _byte_pairs("</w>" if vocabulary.kind == "clip" else "", tokens - len(specials))
    table = _placed(specials, learned, tokens)
    for file, content in vocabulary.files.items():
        if content is not None:
            write_json(folder / file, dict(content))
        elif file == "vocab.txt":
            (folder / file).write_text("\n".join(table) + "\n", encoding="utf-8")
        elif file == "vocab.json":
            (folder / file).write_text(json.dumps(_numbered(table), ensure_ascii=False), encoding="utf-8")
        elif file == "merges.txt":
            lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
            (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
        elif file == "added_tokens.json":
            (folder / file).write_text(json.dumps({token: specials[token] for token in vocabulary.added}))
        elif file in SENTENCEPIECE:
            (folder / file).write_bytes(written(_sentencepiece(SENTENCEPIECE[file], table, specials)))
        else:
            _tokenizer(vocabulary, table, merges).backend_tokenizer.save(str(folder / file))


def _tokenizer(vocabulary: Vocabulary, table: list[str], merges: list[tuple[str, str]]) -> Any:
    """transformers' tokenizer of that kind, which writes tokenizer.json."""
    import transformers as t

    if vocabulary.kind == "word-piece":
        return t.BertTokenizerFast(vocab=_numbered(table), do_lower_case=True)
    if vocabulary.kind == "t5":
        return t.T5TokenizerFast(vocab=_scored(table))
    if vocabulary.kind == "xlm-roberta":
        pieces = [token for token in table if token not in vocabulary.added]
        tokenizer = t.XLMRobertaTokenizerFast(vocab=_scored(pieces))
        tokenizer.add_tokens(list(vocabulary.added), special_tokens=True)
        return tokenizer
    kinds = {"layoutlmv3": t.LayoutLMv3TokenizerFast, "gpt2": t.GPT2TokenizerFast, "clip": t.CLIPTokenizerFast}
    return kinds[vocabulary.kind](vocab=_numbered(table), merges=merges)


def _numbered(table: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(table)}


def _scored(table: list[str]) -> list[tuple[str, float]]:
    return [(token, -0.01 * number) for number, token in enumerate(table)]


def _placed(specials: dict[str, int], learned: Iterable[str], tokens: int) -> list[str]:
    """All tokens in order: special ones in their places, the learned ones between them, and unused ones."""
    places = {number: token for token, number in specials.items()}
    others: Iterator[str] = iter([token for token in dict.fromkeys(learned) if token not in specials])
    return [places.get(number) or next(others, f"[unused{number}]") for number in range(tokens)]


def _words() -> list[str]:
    """Words of synthetic invoices and of questions about them, the most frequent first."""
    pages = make_pages(30, seed=0)
    texts = [word.text for page in pages for word in page.words]
    texts += [part for page in pages for question in page.questions for part in question.text.split()]
    count = {text: texts.count(text) for text in dict.fromkeys(texts)}
    return sorted(count, key=lambda text: -count[text])


def _pieces(kind: str) -> list[str]:
    """Characters, alone and within words, and whole words, as the kind writes them."""
    words = _words()
    if kind == "word-piece":
        words = [part for word in words for part in _split(word.lower())]
        letters = sorted({letter for word in words for letter in word})
        return [*letters, *(f"##{letter}" for letter in letters), *dict.fromkeys(words)][:LEARNED]
    letters = sorted({letter for word in words for letter in word})
    return ["▁", *(f"▁{word}" for word in dict.fromkeys(["question:", "context:", *words])), *letters][:LEARNED]


def _split(word: str) -> Iterator[str]:
    """Runs of letters and digits, and every other character by itself, as BERT splits words."""
    run = ""
    for letter in word:
        if letter.isalnum():
            run += letter
            continue
        yield from filter(None, (run, letter))
        run = ""
    yield from filter(None, (run,))


def _byte_pairs(ending: str, room: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens in order and merges of a byte-level BPE; ``ending`` closes words. This trainer is deterministic."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    suffix: dict[str, Any] = {"end_of_word_suffix": ending} if ending else {}
    raw = Tokenizer(models.BPE(**suffix))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=not ending)
    trainer = trainers.BpeTrainer(
        vocab_size=min(LEARNED, room), show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        **suffix,
    )  # fmt: skip
    raw.train_from_iterator([word.lower() if ending else word for word in _words()], trainer)
    model = json.loads(raw.to_str())["model"]
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [(first, second) for first, second in merges]


def _sentencepiece(first: tuple[str, ...], table: list[str], specials: dict[str, int]) -> list[Piece]:
    """The pieces of the file: the special ones that it begins with, then the table's that are not special."""
    kinds = {"<unk>": UNKNOWN}
    pieces = [Piece(token, 0.0, kinds.get(token, CONTROL)) for token in first]
    others = [token for token in table if token not in specials]
    return pieces + [Piece(token, -0.01 * number, NORMAL) for number, token in enumerate(others)]
