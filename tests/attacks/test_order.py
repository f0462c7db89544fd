"""Sequences from the span behind the first attention: plain decoders, a T5's answers, a model that sees a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.order import recover_answers
from docleak.attacks.gradients.algebra.recover import recover
from docleak.attacks.gradients.algebra.sequences import TRIED, arrange, grow
from docleak.attacks.gradients.algebra.subspace import Rows, Subspace
from docleak.errors import AttackError
from docleak.models import load_model
from docleak.studies.gradient.case import Case, build_case, pages_for
from docleak.studies.gradient.config import Exposure
from docleak.studies.gradient.texts import text_record
from tests.wide import make_wide

WORDS, WIDTH, TOKENS = 200, 64, 10


def decoder(count: int) -> tuple[Any, Tensor]:
    """A random GPT-2 and ``count`` sequences behind its gradient."""
    import transformers as t

    torch.manual_seed(count)
    config = t.GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=3, n_head=4, n_positions=TOKENS,
                          bos_token_id=None, eos_token_id=None)  # fmt: skip
    net: Any = t.GPT2LMHeadModel(config).eval()
    ids = torch.randint(WORDS, (count, TOKENS))
    net(input_ids=ids, labels=ids).loss.backward()
    return net, ids


def second(net: Any, ids: Tensor) -> Tensor:
    """What the second layer reads at the last place."""
    with torch.no_grad():
        hidden = net.transformer(ids, output_hidden_states=True).hidden_states[1]
        return net.transformer.h[1].ln_1(hidden)[:, -1]


@pytest.mark.parametrize("count", [1, 3])
def test_sequences_of_a_decoder_are_told_from_their_words(count: int) -> None:
    net, ids = decoder(count)
    space = Subspace.of([Rows(net.transformer.h[1].attn.c_attn.weight.grad.T)])
    words = ids[:, :-1].unique()  # as a set: places are told by the span alone
    sequences = grow(
        space, lambda _: words, lambda rows: second(net, rows), begun=words.new_zeros(1, 0), longest=TOKENS
    )
    assert set(sequences.rows) == {tuple(row) for row in ids[:, :-1].tolist()} and sequences.clear
    noisy = net.transformer.h[1].attn.c_attn.weight.grad.T
    noisy = noisy + noisy.abs().max() * torch.randn(noisy.shape, generator=torch.Generator().manual_seed(0))
    lost = grow(Subspace.of([Rows(noisy)]), lambda _: words, lambda rows: second(net, rows),
                begun=words.new_zeros(1, 0), longest=TOKENS)  # fmt: skip
    assert not set(lost.rows) & set(sequences.rows)


def test_an_encoder_is_tried_whole_and_not_for_ever() -> None:
    space = Subspace(torch.eye(4, dtype=torch.float64)[:2], 3, torch.full((2,), 1e9, dtype=torch.float64))
    table = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0]])
    sequences = arrange(space, [torch.tensor([0, 2]), torch.tensor([1, 2])], lambda rows: table[rows])
    assert sequences.rows == ((0, 1),) and sequences.clear
    with pytest.raises(AttackError, match=f"at most {TRIED} are"):
        arrange(space, [torch.arange(3)] * 12, lambda rows: table[rows])


def case_of(name: str, count: int) -> Case:
    model = load_model(name)
    return build_case(model, pages_for(model, "synthetic", count=count, seed=5), Exposure(), seed=5)


@pytest.mark.parametrize("count", [1, 4])
def test_answers_of_a_t5_are_told_token_by_token(count: int) -> None:
    case = case_of("vt5-trained", count)
    answers = recover_answers(case.view)
    assert set(answers.tokens) == {tuple(e.tensors["labels"].tolist()[:-1]) for e in case.inputs} and answers.exact
    record: Any = text_record(case)
    assert "words of a vt5 were not tried" in record["untried"]  # nothing read is then no all-clear
    if count == 1:
        assert record["exact"] and record["answer"] == "a-911107" and sum(record["fields_read"]) == 1
    else:
        assert record["batch"]["answers"] == {"found": count, "right": count, "true": count}
    without = {name: value for name, value in case.view.gradient.items() if "SelfAttention" not in name}
    with pytest.raises(AttackError, match="frozen or not sent"):
        recover_answers(replace(case.view, gradient=without))


@pytest.mark.parametrize("family", ["gemma3", "paligemma"])
def test_a_page_its_question_and_its_answer_are_read_whole(family: str, tmp_path: Path) -> None:
    """With the picture in closed form; not where a decoder reads its prompt both ways."""
    wide = {"hidden_size": 192, "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", *["full_attention"] * 2]}  # fmt: skip
    make_wide(
        family, tmp_path / family, vision={"hidden_size": 96, "image_size": 56, "patch_size": 7},
        text=wide if family == "gemma3" else {},
        images={"size": {"height": 56, "width": 56}, **({"image_seq_length": 64} if family == "paligemma" else {})},
    )  # fmt: skip
    case = case_of(str(tmp_path / family), 1)
    record: Any = text_record(case)
    if family == "paligemma":
        assert "does not read its prompt from left to right" in record["batch"]["unordered"]
        return
    recovered = recover(case.view, case.knowledge)
    true = case.inputs[0].tensors
    assert recovered.exact and all(
        torch.equal(recovered.inputs[0].tensors[name], value) for name, value in true.items()
    )
    assert recovered.pixels is not None and float((recovered.pixels - case.pixels).abs().max()) < 1 / 255
    assert record["exact"] and record["answer"] == case.pages[0].questions[0].answers[0]
