"""The vocabulary of self-pretraining: what is added, what stays, what a saved checkpoint keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import load_model, pixels_of
from docleak.models.base import trainable
from docleak.models.t5 import T5Reader


def reader(name: str = "vt5-start", *, seed: int | None = 0, resolution: int = 500) -> T5Reader:
    model = load_model(name)
    assert isinstance(model, T5Reader)
    if seed is not None:
        model.add_layout_tokens(generator=torch.Generator().manual_seed(seed), resolution=resolution)
    return model


def table(model: T5Reader) -> torch.Tensor:
    return model.module.t5.shared.weight.detach()


@pytest.mark.parametrize("name", ["vt5-start", "fedocvqa-start"])
def test_nothing_that_was_there_changes(name: str) -> None:
    before, after = reader(name, seed=None), reader(name)
    assert len(before.tokenizer) == 1300 and len(after.tokenizer) == len(table(after)) == 1300 + 300 + 501
    assert torch.equal(table(after)[:1300], table(before))
    assert after.module.t5.lm_head.weight is after.module.t5.shared.weight, "tied, as before"
    original, grown = (dict(trainable(m.module)) for m in (before, after))
    assert list(original) == list(grown), "the same parameters, one of them longer"
    assert [n for n in original if original[n].shape != grown[n].shape] == ["t5.shared.weight"]
    page = next(iter(make_pages(1, seed=5, split="validation", size=(224, 224))))
    one, two = (m.encode(page, page.questions[0]) for m in (before, after))
    assert all(torch.equal(one.tensors[key], two.tensors[key]) for key in one.tensors)


def test_ids_are_those_of_their_spelling_and_no_answer_shows_them() -> None:
    model = reader()
    tokens = model.layout_tokens
    spell = model.tokenizer.convert_ids_to_tokens
    spellings = {"text": "<text_99>", "layout": "<layout_99>", "layout_end": "</layout_99>"}
    spellings["text_layout"] = "<extra_id_99>"  # T5's own
    for kind, spelled in spellings.items():
        ids = getattr(tokens, kind)
        assert len(ids) == 100 and spell(ids[99]) == spelled
    assert [spell(tokens.loc[i]) for i in (0, 250, 500)] == ["<loc_0>", "<loc_250>", "<loc_500>"]
    every = [*tokens.text, *tokens.layout, *tokens.layout_end, *tokens.text_layout, *tokens.loc]
    assert len(set(every)) == 4 * 100 + 501
    assert model.tokenizer.decode(every, skip_special_tokens=True) == ""


def test_rows_are_drawn_like_the_old_ones_from_the_generator_alone() -> None:
    state = torch.random.get_rng_state()
    first, again, other = reader(seed=0), reader(seed=0), reader(seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(table(first), table(again)) and not torch.equal(table(first), table(other))
    old, new = table(first)[:1300], table(first)[1300:]
    error = old.std(0) / len(new) ** 0.5
    assert float(((new.mean(0) - old.mean(0)) / error).abs().max()) < 5
    assert float((new.std(0) / old.std(0) - 1).abs().max()) < 0.2


def test_a_table_with_more_rows_than_tokens_grows_by_what_is_lacking() -> None:
    """As t5-base's, of 32128 rows and 32100 tokens."""
    model = reader(seed=None)
    model.module.t5.resize_token_embeddings(1328)
    model.add_layout_tokens(generator=torch.Generator().manual_seed(0))
    assert len(table(model)) == model.module.t5.config.vocab_size == 1300 + 801
    model = reader(seed=None)
    model.module.t5.resize_token_embeddings(3000)
    before = table(model).clone()
    model.add_layout_tokens(generator=torch.Generator().manual_seed(0))
    changed = (table(model) != before).any(1).nonzero().flatten()
    assert len(table(model)) == 3000 and changed.tolist() == list(range(1300, 1300 + 801))


@pytest.mark.parametrize("name", ["vt5-start", "fedocvqa-start"])
def test_a_saved_checkpoint_keeps_them(name: str, tmp_path: Path) -> None:
    model = reader(name, resolution=50)
    model.save(str(tmp_path))
    again = load_model(str(tmp_path))
    assert isinstance(again, T5Reader) and again.layout_tokens == model.layout_tokens
    assert len(again.layout_tokens.loc) == 51 and torch.equal(table(again), table(model))
    page = next(iter(make_pages(1, seed=5, split="validation", size=(224, 224))))
    pixels = pixels_of(page.image)[None]
    one, two = (m.loss(pixels, [m.encode(page, page.questions[0])]) for m in (model, again))
    assert torch.equal(one, two)
    again.add_layout_tokens(generator=torch.Generator().manual_seed(7))
    assert torch.equal(table(again), table(model)), "nothing lacks, nothing is drawn"


def test_what_cannot_be() -> None:
    with pytest.raises(ModelError, match=r"'vt5-start' has no tokens for self-pretraining.*'<text_0>'.*every silo"):
        _ = reader(seed=None).layout_tokens
    with pytest.raises(ModelError, match="resolution of 500 was asked for, and the vocabulary has 51 places"):
        reader(resolution=50).add_layout_tokens(generator=torch.Generator(), resolution=500)
    with pytest.raises(ModelError, match="a resolution of 0"):
        reader(resolution=0)
