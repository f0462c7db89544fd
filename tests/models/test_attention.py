"""Attention maps of Donut's decoder."""

from __future__ import annotations

import numpy as np
import pytest

from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import load_model
from docleak.models.attention import GAP, _panel, _strip, attention_maps, attention_picture, spread_of


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


def test_red_covers_three_quarters_where_the_attention_is_largest() -> None:
    image = np.full((40, 60, 3), (200, 100, 40), np.uint8)
    full = _panel(image, "x", np.full((4, 6), 1 / 24))
    assert full.shape == (60, 60, 3), "a line of text above"
    assert full[20:].reshape(-1, 3).tolist() == [[215, 40, 25]] * 2400
    assert (full[:20] == full[:20, :, :1]).all() and full[:20].min() < 60, "in black"
    half = np.zeros((4, 6))
    half[:, :3] = 1 / 12
    panel = _panel(image, "x", half)[20:]
    assert panel[:, :20].reshape(-1, 3).tolist() == [[215, 40, 25]] * 800 and (panel[:, 40:] == image[:, 40:]).all()
    black = [np.zeros((50, width, 3), np.uint8) for width in (30, 40)]
    strip = _strip("x", black)
    assert strip.shape == (70, 70 + 2 * GAP, 3)
    assert not strip[20:, :30].any() and (strip[20:, 30 : 30 + GAP] == 255).all() and not strip[20:, 36:76].any()
