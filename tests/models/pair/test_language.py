"""Language models: frequencies by hand, probabilities that add up to one, and transformers' own loss."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from docleak.errors import ModelError
from docleak.models.pair.language import fit_trigrams, load_causal
from docleak.models.pair.shapes import pair_tokenizer

TEXTS = ("there is a yellow block.", "there is a black tower.", "there are two blocks.")


def rows(*texts: str) -> list[list[int]]:
    tokenizer = pair_tokenizer()
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def test_probabilities_add_up_to_one_after_any_context() -> None:
    tokenizer = pair_tokenizer()
    model = fit_trigrams(TEXTS, tokenizer, name="t")
    for before in ([], rows("there is")[0], rows("yellow green")[0], rows("blocks wall a")[0]):
        assert sum(model.probability(t, before) for t in range(len(tokenizer))) == pytest.approx(1)


def test_a_probability_by_hand() -> None:
    model = fit_trigrams(TEXTS, tokenizer := pair_tokenizer(), name="t")
    there, is_, a = rows("there is a")[0]
    total = sum(len(row) for row in rows(*TEXTS))
    # after "there is": trigram 2/2, bigram "is a" 2/2, unigram "a" 2/total, floor 1/V
    expected = 0.5 * 1 + 0.3 * 1 + 0.15 * 2 / total + 0.05 / len(tokenizer)
    assert model.probability(a, [there, is_]) == pytest.approx(expected)


def test_order_is_told_apart() -> None:
    model = fit_trigrams(TEXTS, pair_tokenizer(), name="t")
    right, wrong = model.surprise(rows("there is a yellow tower.", "tower yellow a . is there"))
    assert right < wrong


def test_no_public_text_is_refused() -> None:
    with pytest.raises(ModelError, match="no public text"):
        fit_trigrams([], pair_tokenizer(), name="t")


def test_a_causal_model_with_another_tokenizer_is_asked_in_text(tmp_path: Path) -> None:
    tokenizer = pair_tokenizer()
    tokenizer.bos_token = "[CLS]"
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=2, eos_token_id=3
    )
    module = transformers.GPT2LMHeadModel(config).eval()
    module.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_causal(str(tmp_path), pair_tokenizer())
    texts = ("there is a yellow tower", "two blocks")
    surprises = model.surprise(rows(*texts))
    for value, text in zip(surprises, texts, strict=True):
        ids = torch.tensor([[2, *tokenizer(text, add_special_tokens=False)["input_ids"]]])
        assert value == pytest.approx(float(module(input_ids=ids, labels=ids).loss.detach()), abs=1e-5)
    assert model.surprise([[]]) == [0.0]
    assert model.name == tmp_path.name
    assert not math.isnan(surprises[0])


def test_a_causal_model_of_other_tokens_says_that_it_is_asked_in_text(tmp_path: Path) -> None:
    raw = Tokenizer(models.WordLevel({"<s>": 0, "[UNK]": 1, "yellow": 2, "tower": 3}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", unk_token="[UNK]")
    torch.manual_seed(0)
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=4, n_embd=8, n_layer=1, n_head=1)).eval()
    module.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_causal(str(tmp_path), pair_tokenizer())
    assert model.name == f"{tmp_path.name}, asked in plain text: its tokens are others"
    ids = torch.tensor([[0, 2, 3]])
    expected = float(module(input_ids=ids, labels=ids).loss.detach())
    assert model.surprise(rows("yellow tower")) == [pytest.approx(expected, abs=1e-5)]


def test_no_such_causal_model() -> None:
    with pytest.raises(ModelError, match="causal language model '/no/such/model' could not be loaded"):
        load_causal("/no/such/model", pair_tokenizer())
