"""What several pages in one gradient give away: exact sets, and places, right on these pages but not on all."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from docleak.attacks.gradients.algebra.batch import WORDS, BatchText, _Peeling, cosines, recover_batch, spans
from docleak.documents import Page
from docleak.documents.page import Question
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import DocumentModel, load_model
from docleak.studies.gradient.case import Case, build_case
from docleak.studies.gradient.config import Exposure
from docleak.studies.gradient.texts import text_record


@pytest.fixture(scope="module")
def models() -> dict[str, DocumentModel]:
    return {name: load_model(name) for name in ("layoutlmv3-start", "layoutlmv3-trained")}


def batch(model: DocumentModel, count: int, *, first: int = 0) -> Case:
    made = make_pages(first + count, seed=0, size=model.image_size)[first:]
    return build_case(model, [model.fit(page) for page in made], Exposure(), seed=0)


def truth(case: Case) -> list[list[int]]:
    return [example.tensors["input_ids"].tolist() for example in case.inputs]


def wrong_places(case: Case, found: BatchText) -> list[int]:
    pages = truth(case)
    return [t for t, some in found.places.items() if set(some) != {page[t] for page in pages if t < len(page)}]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("name", ["layoutlmv3-start", "layoutlmv3-trained"])
def test_sets_are_exact_and_places_are_right(name: str, count: int, models: dict[str, DocumentModel]) -> None:
    case = batch(models[name], count)
    text = recover_batch(case.view)
    assert set(text.tokens) == {token for page in truth(case) for token in page}
    boxes = torch.cat([example.tensors["bbox"] for example in case.inputs])
    assert set(text.coordinates["x"]) == set(boxes[:, [0, 2]].flatten().tolist())
    assert set(text.coordinates["y"]) == set(boxes[:, [1, 3]].flatten().tolist())
    assert set(text.coordinates["w"]) == set((boxes[:, 2] - boxes[:, 0]).tolist())
    assert set(text.coordinates["h"]) == set((boxes[:, 3] - boxes[:, 1]).tolist())
    assert text.length == max(map(len, truth(case)))
    assert not wrong_places(case, text)
    assert len(text.places) >= {1: 50, 2: 35, 4: 5}[count], "so little is a step back"


def test_boxes_of_placed_tokens_are_right(models: dict[str, DocumentModel]) -> None:
    case = batch(models["layoutlmv3-start"], 2)
    text = recover_batch(case.view)
    assert len(text.boxes) >= 15
    true = {
        (t, int(token), *box)
        for example in case.inputs
        for t, (token, box) in enumerate(
            zip(example.tensors["input_ids"], example.tensors["bbox"].tolist(), strict=True)
        )
    }
    assert {(t, token, *box) for (t, token), box in text.boxes.items()} <= true


def test_a_question_of_both_pages_is_read(models: dict[str, DocumentModel]) -> None:
    """No token of it occurs once, and it is read all the same: its place has the box of zeros on both pages."""
    model = models["layoutlmv3-start"]

    def asked(page: Page) -> Page:
        return replace(page, questions=(Question("What is the total amount?", page.questions[0].answers, "total"),))

    made = [asked(model.fit(page)) for page in make_pages(2, seed=0, size=model.image_size)]
    case = build_case(model, made, Exposure(), seed=0)
    text = recover_batch(case.view)
    first = case.inputs[0].tensors
    length = int((first["word_ids"] >= 0).nonzero()[0])
    assert [text.places.get(t) for t in range(length)] == [(int(i),) for i in first["input_ids"][:length]]
    assert not wrong_places(case, text)


def test_exchanged_partners_leave_every_sum_as_it_is() -> None:
    """Why places are not told in general: u at two positions with v and w, and with v and w exchanged."""
    rng = np.random.default_rng(0)
    v, w, first, second = rng.standard_normal((4, 8))
    positions = np.array([first + v, second + w])  # u and v; u and w
    other = np.array([positions[0] - w, positions[1] - v])  # what u would have to be, were it u and w; u and v
    np.testing.assert_allclose(other.sum(axis=0), first + second, atol=1e-12)


def test_noise_blinds_the_test_of_places_and_is_said(models: dict[str, DocumentModel]) -> None:
    case = batch(models["layoutlmv3-start"], 2)
    generator = torch.Generator().manual_seed(0)
    sent = {n: g + 1e-5 * torch.randn(g.shape, generator=generator) for n, g in case.view.gradient.items()}
    text = recover_batch(replace(case.view, gradient=sent, noise=1e-5))
    assert {c.name: c.holds for c in text.conditions}["no noise on the gradient"] is False
    assert not [t for t in wrong_places(case, text) if t != text.length - 1]
    assert not text.boxes


def test_a_planted_row_is_not_explained(models: dict[str, DocumentModel]) -> None:
    """The word table of other pages: what it says fits no position, and none but the ends is claimed."""
    case, other = (batch(models["layoutlmv3-start"], 2, first=first) for first in (0, 4))
    mixed = {**case.view.gradient, WORDS: other.view.gradient[WORDS]}
    text = recover_batch(replace(case.view, gradient=mixed))
    assert set(text.places) <= {0, text.length - 1} and not text.boxes
    assert not text.conditions[0].holds


def test_spans_and_cosines() -> None:
    np.testing.assert_array_equal(spans((1, 4, 9), (3, 8)), [[1, 4], [1, 9]])
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(cosines(rows, np.array([[0.0, 2.0], [3.0, 0.0], [1.0, 1.0]])), [0, np.sqrt(0.5), 1])


def test_donuts_have_no_such_tables() -> None:
    model = load_model("donut-start")
    case = build_case(model, make_pages(2, seed=0, size=model.image_size), Exposure(), seed=0)
    with pytest.raises(AttackError, match="learned absolute position"):
        recover_batch(case.view)


def test_the_record_counts_what_is_right(models: dict[str, DocumentModel]) -> None:
    case = batch(models["layoutlmv3-start"], 2)
    record = text_record(case)
    assert record is not None
    counted = record["batch"]
    assert isinstance(counted, dict)
    assert counted["pages"] == 2
    for part in ("tokens", "coordinates"):
        assert counted[part]["found"] == counted[part]["right"] == counted[part]["true"] > 50
    for part in ("places", "boxes"):
        assert 0 < counted[part]["right"] == counted[part]["found"] < counted[part]["true"]
    pages = truth(case)
    shifted = replace(case, inputs=[replace(e, tensors={**e.tensors, "input_ids": e.tensors["input_ids"].roll(1)})
                                    for e in case.inputs])  # fmt: skip
    moved = text_record(shifted)
    assert moved is not None and isinstance(moved["batch"], dict)
    assert moved["batch"]["places"]["right"] < counted["places"]["right"], "a wrong place must not count"
    assert moved["batch"]["tokens"]["right"] == len({token for page in pages for token in page})


def test_the_end_of_a_shorter_page_is_behind_its_separator() -> None:
    """The one separator that is left was at position 4 of a page of 5 tokens."""
    rng = np.random.default_rng(0)
    empty, separator = rng.normal(size=(9, 12)), rng.normal(size=12)
    vector = rng.normal(size=12)
    inside = separator + empty[4]
    vector -= inside * (vector @ inside) / (inside @ inside)  # as the layer norm leaves it
    peeling = SimpleNamespace(
        sees=True, end=1, words={1: vector}, inputs={1: separator}, empty=empty, ends=[], tolerance=1e-6,
        _clear=lambda fits: int(fits.argmin()),
    )  # fmt: skip
    _Peeling._end(peeling)  # type: ignore[arg-type]
    assert peeling.ends == [5]
