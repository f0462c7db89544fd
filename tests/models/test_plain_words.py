"""Printed text that spells special tokens is read as text, by every kind of tokenizer a T5 reader can have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from docleak.documents.synthetic import make_pages
from docleak.models import load_model
from docleak.models.plain_words import PlainWords
from docleak.models.t5 import FRAME, T5Reader

PRINTED = ["</s>", "<pad>", "<unk>", "<extra_id_0>", "a</s>b", "</s></s>", "<extra_id_99>:"]


def byte_pairs() -> Any:
    return load_model("vt5-start").tokenizer  # type: ignore[attr-defined]


def unigram() -> Any:
    """T5's own kind; like t5-base's, without "{", and with its special tokens among the pieces."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("tot", -2.5), ("▁</", -3.5)]
    pieces += [(c, -3.0) for c in "abcdefghijklmnopqrstuvwxyz0123456789?:.,/-@_<>"]
    return transformers.T5TokenizerFast(vocab=pieces)


def with_places() -> Any:
    """After self-pretraining's tokens were added."""
    model = load_model("vt5-start")
    assert isinstance(model, T5Reader)
    model.add_layout_tokens(generator=torch.Generator().manual_seed(0))
    return model.tokenizer


KINDS: dict[str, Callable[[], Any]] = {
    "byte-pairs": byte_pairs,
    "unigram": unigram,
    "bytes": transformers.ByT5Tokenizer,
    "with-places": with_places,
}


def special(tokenizer: Any) -> set[int]:
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return {*tokenizer.all_special_ids, *added}


@pytest.mark.parametrize("kind", KINDS)
def test_what_spells_a_special_token_is_text(kind: str) -> None:
    tokenizer = KINDS[kind]()
    printed = [*PRINTED, "<loc_3>"] if kind == "with-places" else PRINTED
    encodings = tokenizer(printed, add_special_tokens=False)["input_ids"]
    assert all(special(tokenizer) & set(ids) for ids in encodings), "the fault that is mended"
    for word, ids in zip(printed, PlainWords(tokenizer).ids(printed), strict=True):
        assert not special(tokenizer) & set(ids), word
        assert tokenizer.decode(ids).strip() == word


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_words_keep_their_ids(kind: str) -> None:
    """Those with characters that the vocabulary lacks, too."""
    tokenizer = KINDS[kind]()
    words = sorted({word.text for page in make_pages(3, seed=1, size=(224, 224)) for word in page.words})
    words += ["", "été", "{total}", "日本", "a{b", "<", "/s>", "x<y", "ﬁn", "</ s>", "extra_id_0"]
    encodings = tokenizer(words, add_special_tokens=False)["input_ids"]
    assert PlainWords(tokenizer).ids(words) == encodings
    if kind == "unigram":
        assert any(tokenizer.unk_token_id in ids for ids in encodings), "some of them go through the copy"


def test_a_special_token_made_by_normalisation_is_text() -> None:
    """Full-width characters fold to "</s>" in T5's normalisation."""
    from tokenizers import normalizers

    tokenizer = unigram()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    word = "\uff1c/s\uff1e"
    assert tokenizer([word], add_special_tokens=False, split_special_tokens=True)["input_ids"][0][-1] == 1
    (ids,) = PlainWords(tokenizer).ids([word])
    assert 1 not in ids and tokenizer.decode(ids).strip() == "</s>"


@pytest.mark.parametrize("name", ["vt5-start", "fedocvqa-start"])
def test_a_page_that_prints_the_end_token_is_read_to_its_end(name: str) -> None:
    model = load_model(name)
    assert isinstance(model, T5Reader)
    page = model.fit(make_pages(1, seed=5, split="validation", size=(224, 224))[0])
    first, *others, last = page.words[:6]
    words = (replace(first, text="</S>"), *others, replace(last, text="<pad>"))
    page = replace(page, words=words, fields=())
    question = replace(page.questions[0], text="Is </s> the <extra_id_1>?", answers=("</s>",))
    example = model.encode(page, question)
    ids, owners = example.tensors["input_ids"], example.tensors["word_ids"]
    specials = torch.tensor(sorted(special(model.tokenizer)))
    assert torch.isin(ids, specials).nonzero().flatten().tolist() == [len(ids) - 1], "the end token, at the end"
    assert owners[-1] == FRAME and int((example.tensors["labels"] == 1).sum()) == 1
    told = model.transcript(example)
    assert (told.question, told.answer) == (question.text, "</s>")
    assert [word.text for word in told.words] == [word.text.lower() for word in page.words]
