"""Text, boxes, span and patches out of real LayoutLMv3 gradients; and gradients that do not give them away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients import GradientView
from docleak.attacks.gradients.algebra import boxes as recover_boxes_module
from docleak.attacks.gradients.algebra.boxes import Boxes, Tables, recover_boxes
from docleak.attacks.gradients.algebra.layoutlmv3 import POSITIONS, WORDS, group_words, recover_pixels, recover_text
from docleak.attacks.gradients.algebra.span import HEAD, Span, _best_two, _features, recover_span
from docleak.attacks.gradients.algebra.subset_sums import Cover, Floats, Precision, noise_of, rounding_of, rows_in_use
from docleak.documents import load_pages
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import DocumentModel, Encoded, load_model
from docleak.studies.gradient.case import Case, build_case
from docleak.studies.gradient.config import Exposure

Psnr = Callable[[Tensor, Tensor, Tensor], float]


@pytest.fixture(scope="module")
def models() -> dict[str, DocumentModel]:
    return {name: load_model(name) for name in ("layoutlmv3-start", "layoutlmv3-trained")}


def client(model: DocumentModel, page: int = 0, **exposure: Any) -> Case:
    made = make_pages(page + 1, seed=0, size=model.image_size)[page]
    return build_case(model, [made], Exposure(**exposure), seed=0)


@pytest.fixture(scope="module")
def case(models: dict[str, DocumentModel]) -> Case:
    return client(models["layoutlmv3-start"])


def changed(view: GradientView, change: Callable[[str, Tensor], Tensor]) -> GradientView:
    return replace(view, gradient={name: change(name, value) for name, value in view.gradient.items()})


def noisy(view: GradientView, sigma: float) -> GradientView:
    generator = torch.Generator().manual_seed(1)
    return changed(view, lambda _, value: value + sigma * torch.randn(value.shape, generator=generator))


def assert_same_text(found: Encoded, true: Encoded) -> None:
    assert found.tensors.keys() == true.tensors.keys()
    for name, value in true.tensors.items():
        assert found.tensors[name].dtype == value.dtype, name
        torch.testing.assert_close(found.tensors[name], value, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("name", ["layoutlmv3-start", "layoutlmv3-trained"])
@pytest.mark.parametrize("page", [0, 1])
def test_text_and_words_are_those_of_the_client(name: str, page: int, models: dict[str, DocumentModel]) -> None:
    case = client(models[name], page)
    recovered = recover_text(case.view, case.knowledge.template, case.knowledge.private)
    assert_same_text(recovered.inputs[0], case.inputs[0])
    assert recovered.inputs[0].tokens == case.inputs[0].tokens
    assert recovered.inputs[0].words_seen == case.inputs[0].words_seen
    assert recovered.exact
    assert all(condition.holds for condition in recovered.conditions)
    assert recovered.seconds < 5


def test_nothing_but_the_gradient_is_needed(case: Case, psnr: Psnr) -> None:
    recovered = recover_text(case.view)
    assert recovered.exact
    assert_same_text(recovered.inputs[0], case.inputs[0])
    assert recovered.pixels is not None and recovered.determined is not None and recovered.determined.all()
    assert psnr(recovered.pixels, case.pixels, recovered.determined) > 90


def test_a_receipt_of_256_tokens_three_quarters_of_them_repeated(
    models: dict[str, DocumentModel], shared_data: Path, psnr: Psnr
) -> None:
    model = models["layoutlmv3-trained"]
    page = next(page for page in load_pages(f"sroie:{shared_data / 'sroie'}", seed=0) if page.private_fields)
    case = build_case(model, [model.fit(page)], Exposure(), seed=0)
    ids = case.inputs[0].tensors["input_ids"]
    assert len(ids) == 256 and int((torch.bincount(ids)[ids] > 1).sum()) > 180
    recovered = recover_text(case.view, case.knowledge.template, case.knowledge.private)
    assert recovered.exact
    assert_same_text(recovered.inputs[0], case.inputs[0])
    pixels, determined, _ = recover_pixels(case.view, case.knowledge.template, case.knowledge.private)
    assert psnr(pixels, case.pixels, case.knowledge.private) > 90
    assert torch.equal(determined, case.knowledge.private)


def test_dropout_hides_only_the_span(models: dict[str, DocumentModel], psnr: Psnr) -> None:
    case = client(models["layoutlmv3-start"], train_mode=True)
    recovered = recover_text(case.view, case.knowledge.template, case.knowledge.private)
    reading, true = recovered.inputs[0].tensors, case.inputs[0].tensors
    for name in ("input_ids", "bbox", "word_ids"):
        assert torch.equal(reading[name], true[name])
    assert not recovered.exact
    assert [c.name for c in recovered.conditions if not c.holds] == ["one answer span fits the last layer's row"]
    pixels, _, _ = recover_pixels(case.view, case.knowledge.template, case.knowledge.private)
    assert psnr(pixels, case.pixels, case.knowledge.private) > 90


def test_little_noise_hides_nothing_and_much_noise_is_noticed(case: Case, psnr: Psnr) -> None:
    known = case.knowledge
    little = noisy(case.view, 1e-6)
    recovered = recover_text(little, known.template, known.private)
    assert_same_text(recovered.inputs[0], case.inputs[0])
    assert not next(c for c in recovered.conditions if "noise" in c.name).holds
    pixels, determined, _ = recover_pixels(little, known.template, known.private)
    assert 30 < psnr(pixels, case.pixels, known.private) < 60
    assert determined[known.private].float().mean() > 0.5

    much = noisy(case.view, 1e-3)
    recovered = recover_text(much, known.template, known.private)
    assert not recovered.exact
    assert torch.isfinite(case.view.model.loss(known.template, recovered.inputs)).all()
    pixels, determined, conditions = recover_pixels(much, known.template, known.private)
    assert not determined.any()
    assert psnr(pixels, case.pixels, known.private) < 15
    assert not all(condition.holds for condition in conditions)


def test_noise_on_one_table_alone_is_noise(case: Case) -> None:
    generator = torch.Generator().manual_seed(0)

    def on_heights(name: str, value: Tensor) -> Tensor:
        return value + 1e-4 * torch.randn(value.shape, generator=generator) if "h_position" in name else value

    recovered = recover_text(changed(case.view, on_heights))
    assert "deviation 1.0e-04" in next(c for c in recovered.conditions if "noise" in c.name).found
    assert torch.equal(recovered.inputs[0].tensors["input_ids"], case.inputs[0].tensors["input_ids"])


def test_a_span_begins_and_ends_with_words_or_is_none(case: Case) -> None:
    """Planted last layers: every word to every later one comes back; token 0 to a word fits, and is no span."""
    words = [[5], [6, 7], [8]]
    features, scores = _features(case.view, case.pixels, case.inputs[0])
    mean = scores.log_softmax(-1).exp().double() @ features

    def span_of(start: int, end: int) -> Span:
        head = torch.stack([mean[0] - features[start], mean[1] - features[end]]).float()
        view = replace(case.view, gradient={**case.view.gradient, HEAD: head})
        return recover_span(view, case.pixels, case.inputs[0], words)

    for start, end in ((0, 0), (5, 5), (5, 7), (6, 7), (6, 8), (8, 8)):
        span = span_of(start, end)
        assert (span.start, span.end) == (start, end) and span.sure
    for start, end in ((0, 5), (0, 7), (8, 5), (6, 5)):
        span = span_of(start, end)
        assert (span.start == 0) == (span.end == 0) and span.start <= span.end and not span.sure


def test_sines_of_the_best_and_the_next() -> None:
    misfit = 1 - torch.tensor([0.03, 0.01, 0.02, 0.04], dtype=torch.float64).cos()
    assert _best_two(misfit, 1) == pytest.approx((0.01, 0.02), rel=1e-3)
    assert _best_two(misfit, 2) == pytest.approx((0.02, 0.01), rel=1e-3)
    assert _best_two(misfit[:1], 0) == pytest.approx((0.03, 2.0), rel=1e-3), "with no other, as far as can be"


def test_noise_beyond_every_token_still_gives_an_input(case: Case) -> None:
    recovered = recover_text(noisy(case.view, 100.0), case.knowledge.template, case.knowledge.private)
    assert not recovered.exact
    assert torch.isfinite(case.view.model.loss(case.knowledge.template, recovered.inputs)).all()


def test_a_scaled_gradient_says_the_same(case: Case, psnr: Psnr) -> None:
    clipped = changed(case.view, lambda _, value: 1e-3 * value)
    recovered = recover_text(clipped, case.knowledge.template, case.knowledge.private)
    assert recovered.exact
    assert_same_text(recovered.inputs[0], case.inputs[0])
    pixels, _, _ = recover_pixels(clipped, case.knowledge.template, case.knowledge.private)
    assert psnr(pixels, case.pixels, case.knowledge.private) > 90


def test_a_table_that_does_not_fit_is_noticed(case: Case) -> None:
    """Sums that no boxes explain: the y table of the same page read from bottom to top, a row moved by one."""
    wrong = changed(case.view, lambda name, value: value.roll(1, 0) if "y_position" in name else value)
    recovered = recover_text(wrong, case.knowledge.template, case.knowledge.private)
    assert not recovered.exact
    assert torch.equal(recovered.inputs[0].tensors["input_ids"], case.inputs[0].tensors["input_ids"])
    foreign = client(case.view.model, 2).view.gradient
    mixed = changed(case.view, lambda name, value: foreign[name] if name == WORDS else value)
    assert not recover_text(mixed, case.knowledge.template, case.knowledge.private).exact


def test_what_cannot_be_had_is_said(case: Case, small: Any, models: dict[str, DocumentModel]) -> None:
    known = case.knowledge
    lacking = {name: value for name, value in case.view.gradient.items() if name != POSITIONS}
    with pytest.raises(AttackError, match=POSITIONS):
        recover_text(replace(case.view, gradient=lacking))
    without = {name: value for name, value in case.view.gradient.items() if "patch_embed" not in name}
    with pytest.raises(AttackError, match=r"patch_embed\.proj\.weight"):
        recover_pixels(replace(case.view, gradient=without), known.template, known.private)
    recovered = recover_text(replace(case.view, gradient=without), known.template, known.private)
    assert recovered.exact and recovered.pixels is None
    with pytest.raises(AttackError, match="average over 2 pages"):
        recover_text(replace(case.view, batch_size=2))
    with pytest.raises(AttackError, match="learned absolute position"):
        recover_text(small.view)
    with pytest.raises(AttackError, match="learned absolute position"):
        recover_pixels(small.view, small.knowledge.template, small.knowledge.private)


@pytest.mark.parametrize("name", ["layoutlmv3-start", "layoutlmv3-trained"])
def test_private_pixels_are_solved_for_and_others_kept(name: str, models: dict[str, DocumentModel], psnr: Psnr) -> None:
    case = client(models[name], 1)
    known = case.knowledge
    pixels, determined, conditions = recover_pixels(case.view, known.template, known.private)
    assert pixels.shape == case.pixels.shape and pixels.dtype == case.pixels.dtype
    assert psnr(pixels, case.pixels, known.private) > 90
    assert psnr(known.template, case.pixels, known.private) < 15
    public = ~known.private[:, None].expand_as(pixels)
    assert torch.equal(pixels[public], known.template[public])
    assert torch.equal(determined, known.private)
    assert all(condition.holds for condition in conditions)


def test_a_white_page_needs_no_template(case: Case, psnr: Psnr) -> None:
    """196 unknown patches, rank 127: ink is sparse."""
    everything = torch.ones_like(case.knowledge.private)
    pixels, determined, conditions = recover_pixels(case.view, torch.ones_like(case.pixels), everything)
    assert psnr(pixels, case.pixels, everything) > 90
    assert determined.all()
    assert not conditions[0].holds and conditions[0].found == "196 of 127"


def test_a_template_that_misleads_is_found_out(case: Case, psnr: Psnr) -> None:
    """The Safe Template defence: every public pixel off by up to 8 of 255."""
    known = case.knowledge
    signs = torch.randint(0, 2, known.template.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    misleading = (known.template + 8 / 255 * signs).clamp(0, 1)
    pixels, _, conditions = recover_pixels(case.view, misleading, known.private)
    assert psnr(pixels, case.pixels, known.private) > 90
    assert [c.holds for c in conditions if c.name == "the template agrees with the gradient"] == [False]


def test_words_begin_at_the_space_mark_behind_the_question() -> None:
    names = ["<s>", "\u0120What", "?", "</s>", "</s>", "\u0120To", "tal", "\u01205", ".", "00", "</s>"]
    assert group_words(names, "</s>") == ([[5, 6], [7, 8, 9]], [0, 1, 2, 3, 4, 10])
    assert group_words(["\u0120a", "b", "\u0120c"], "</s>") == ([[0, 1], [2]], [])


def drawn(count: int, width: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, width))


def covered(vectors: Floats, sums: Floats, precision: Precision) -> Cover:
    cover = Cover(vectors, np.linalg.norm(vectors, axis=1), np.ones(len(vectors), dtype=np.intp), sums, precision)
    while cover.explain():
        pass
    return cover


@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_more_vectors_than_numbers_are_told_apart(noise: float) -> None:
    """200 vectors of 64 numbers in 60 sums of float32."""
    vectors = drawn(200, 64).astype(np.float32)
    owner = np.random.default_rng(1).permutation(np.concatenate([np.arange(60), np.arange(140) % 30]))
    sums = np.zeros((60, 64), dtype=np.float32)
    np.add.at(sums, owner, vectors)
    sums += noise * drawn(60, 64, seed=2).astype(np.float32)
    cover = covered(vectors.astype(np.float64), sums.astype(np.float64), Precision(noise=noise))
    assert cover.solved
    np.testing.assert_array_equal(cover.owner, owner)


def test_sums_that_nothing_explains_stay_open() -> None:
    vectors = drawn(40, 16)
    owner = np.arange(40) % 15
    sums = np.zeros((15, 16))
    np.add.at(sums, owner, vectors)
    sums[3] += 1e-3  # far above float32, far below a vector
    cover = covered(vectors, sums, Precision())
    assert not cover.solved
    assert 3 in cover.open
    cover.guess()
    assert not cover.solved


def test_noise_and_rounding_are_read_off_the_tables() -> None:
    table = np.zeros((1000, 20))
    table[:100] = drawn(100, 20)
    assert noise_of(table) == 0.0
    np.testing.assert_array_equal(rows_in_use(table, 0.0), np.arange(100))
    noise = 1e-3 * drawn(1000, 20, seed=1)
    assert noise_of(table + noise) == pytest.approx(1e-3, rel=0.2)
    np.testing.assert_array_equal(rows_in_use(table + noise, noise_of(table + noise)), np.arange(100))
    vectors = drawn(50, 20)
    assert rounding_of(vectors, vectors) == Precision().rounding
    assert rounding_of(vectors, vectors * (1 + 1e-3 * drawn(50, 20, seed=2))) == pytest.approx(1e-3, rel=1)


def tables_of(boxes: Floats, gradients: Floats, width: int) -> Tables:
    """What the coordinate tables' gradients are, looked up by one token per box."""
    tables = Tables(*(np.zeros((1024, width)) for _ in range(4)))
    x0, y0, x1, y1 = boxes.T.astype(int)
    looked_up = ((tables.x, x0), (tables.y, y0), (tables.x, x1), (tables.y, y1), (tables.height, y1 - y0))
    for (table, rows), part in zip((*looked_up, (tables.width, x1 - x0)), tables.slices(), strict=True):
        np.add.at(table, rows, gradients[:, part])
    return tables


def recovered(boxes: Floats, *, width: int) -> Boxes:
    """What is told of words with these boxes (N, 4), a token each, from ``width`` numbers a coordinate."""
    gradients = drawn(len(boxes), 6 * width)
    words = [[i] for i in range(len(boxes))]
    return recover_boxes(gradients, words, [], tables_of(boxes, gradients, width), Precision())


def assert_proved(boxes: Floats, *, width: int) -> None:
    told = recovered(boxes, width=width)
    np.testing.assert_array_equal(told.boxes, boxes)
    assert told.proved


def test_two_lines_of_equal_height_are_told_apart_by_all_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 24 words is on one of two lines: 8 numbers per row are too few for a row alone to say which."""
    upper = np.random.default_rng(3).random(24) < 0.5
    boxes = np.array([[30 * i, 100 if up else 300, 30 * i + 9 + i, 110 if up else 310] for i, up in enumerate(upper)])
    assert_proved(boxes, width=8)
    monkeypatch.setattr(recover_boxes_module, "MOST_CHOICES", 0)
    assert not recovered(boxes, width=8).proved, "the case is too easy to show anything"


def test_right_edge_and_width_tell_the_left_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns of 20 words, no two of one width: the left edges' sums are too large, the others are single."""
    monkeypatch.setattr(recover_boxes_module.Axis, "_guess", lambda axis: None)
    left = np.random.default_rng(4).permutation(np.repeat([100, 500], 20))
    boxes = np.array([[x, 20 * i, x + 10 + 3 * i, 20 * i + 10 + i % 3] for i, x in enumerate(left)])
    assert_proved(boxes, width=8)
    monkeypatch.setattr(recover_boxes_module.Axis, "_tie", lambda axis, word: False)
    assert not recovered(boxes, width=8).proved, "the case is too easy to show anything"


def test_many_words_in_few_columns_are_told_apart_by_all_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page scanned on its side: lines stand upright, and each coordinate across is that of dozens of words."""
    generator = np.random.default_rng(5)
    first, size = 12 * generator.integers(1, 8, 60), 12 * generator.integers(1, 3, 60)
    boxes = np.array([[x, 6 * i, x + w, 6 * i + 5] for i, (x, w) in enumerate(zip(first, size, strict=True))])
    assert_proved(boxes, width=21)
    monkeypatch.setattr(recover_boxes_module, "MOST_CHOICES", 600)
    assert not recovered(boxes, width=21).proved, "the case is too easy to show anything"


def test_a_word_at_the_edge_is_proved_beside_tokens_without_a_box() -> None:
    """The row of coordinate 0 is rounded as its largest sum is: that of tokens without a box, far above the word's."""
    gradients = np.concatenate([drawn(2, 6 * 8), 1e4 * drawn(20, 6 * 8, seed=1)]).astype(np.float32).astype(np.float64)
    boxes = np.zeros((22, 4), dtype=int)
    boxes[:2] = [[0, 0, 7, 9], [20, 4, 31, 15]]
    tables = tables_of(boxes, gradients, 8)
    rounded = Tables(*(table.astype(np.float32).astype(np.float64) for table in vars(tables).values()))
    recovered = recover_boxes(gradients, [[0], [1]], range(2, 22), rounded, Precision())
    np.testing.assert_array_equal(recovered.boxes, boxes[:2])
    assert recovered.proved
