"""Attention maps of Donut's decoder."""

from __future__ import annotations

import numpy as np
import pytest

from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.evidence.attention import attention_maps, attention_picture, spread_of
from docleak.models import load_model


def test_maps_are_distributions_over_the_grid_one_per_answer_token() -> None:
    model = load_model("donut-start")
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    question = page.questions[0]
    maps = attention_maps(model, page, question)
    assert len(maps) == len(question.answers[0]) + 2, "every character, the closing tag and the end"
    assert "".join(name for name, _ in maps[:3]) == question.answers[0][:3]
    assert all(m.shape == (32, 24) and m.sum() == pytest.approx(1, abs=1e-5) for _, m in maps)
    assert 1 < spread_of(maps) <= 768


def test_spread_counts_cells() -> None:
    one, four = np.zeros((2, 2)), np.full((2, 2), 0.25)
    one[0, 1] = 1.0
    assert spread_of([("a", one)]) == pytest.approx(1)
    assert spread_of([("a", four)]) == pytest.approx(4)


def test_the_picture_has_a_row_per_model_and_other_architectures_are_refused() -> None:
    model = load_model("donut-start")
    page = make_pages(1, seed=0, size=model.image_size)[0]
    once = attention_picture([model], page, page.questions[0])
    twice = attention_picture([model, model], page, page.questions[0])
    assert twice.shape == (2 * once.shape[0], *once.shape[1:])
    assert (once[..., 0].astype(int) - once[..., 1] > 50).any(), "some cells are red"
    with pytest.raises(ModelError, match="layoutlmv3"):
        attention_maps(load_model("layoutlmv3-start"), page, page.questions[0])
