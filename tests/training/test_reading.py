"""Which character stands in which cell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from docleak.documents import Field, Page, Question, Word
from docleak.documents.synthetic import make_pages
from docleak.training.reading import (
    BACKGROUND_WEIGHT,
    CLASSES,
    ReadingHead,
    answer_cells,
    cell_labels,
    character_centres,
    field_labels,
    pointing_loss,
)


def blank_page(*words: Word) -> Page:
    return Page("page", np.full((40, 80, 3), 255, dtype=np.uint8), words)


def code(character: str) -> int:
    return ord(character) - ord("!") + 1


def test_centres_share_the_box_in_proportion_to_the_letters() -> None:
    centres = list(character_centres(Word("WiW", (10, 4, 50, 12))))
    assert [c for c, _, _ in centres] == list("WiW")
    assert all(y == 8 for _, _, y in centres)
    (first, middle, last) = (x for _, x, _ in centres)
    assert middle == pytest.approx(30), "the word is its own mirror image"
    assert first - 10 == pytest.approx(50 - last)
    assert first - 10 > (middle - first) / 2, "a W is wider than an i"


def test_labels_of_a_known_page() -> None:
    page = blank_page(Word("A", (0, 0, 10, 10)), Word("zz", (60, 30, 80, 40)), Word("é", (20, 0, 30, 10)))
    labels = cell_labels(page, (4, 8)).view(4, 8)
    expected = torch.zeros(4, 8, dtype=torch.long)
    expected[0, 0], expected[3, 6], expected[3, 7] = code("A"), code("z"), code("z")
    assert torch.equal(labels, expected)


def test_the_first_and_the_last_character_have_classes() -> None:
    labels = cell_labels(blank_page(Word("!", (0, 0, 10, 10)), Word("~", (40, 0, 50, 10))), (4, 8))
    assert sorted(set(labels.tolist())) == [0, 1, CLASSES - 1]


def test_of_two_in_a_cell_the_last_counts() -> None:
    assert cell_labels(blank_page(Word("ab", (0, 0, 80, 40))), (1, 1)).tolist() == [code("b")]


def test_an_empty_word_or_page_has_no_characters() -> None:
    assert not cell_labels(blank_page(), (4, 8)).any()
    assert not cell_labels(blank_page(Word("", (0, 0, 10, 10))), (4, 8)).any()


def test_a_fine_grid_finds_every_character_of_an_invoice_under_its_ink() -> None:
    page = make_pages(1, seed=0)[0]
    labels = cell_labels(page, (page.height, page.width)).view(page.height, page.width)
    characters = "".join(w.text for w in page.words)
    assert int((labels > 0).sum()) >= 0.95 * len(characters)
    for word in page.words:
        x0, y0, x1, y1 = (round(v) for v in word.box)
        inside = labels[y0:y1, x0:x1]
        assert {chr(int(v) + ord("!") - 1) for v in inside[inside > 0]} <= set(word.text)


def test_the_heads_loss_weighs_the_background_down() -> None:
    page = blank_page(Word("A", (0, 0, 10, 10)))
    torch.manual_seed(0)
    head = ReadingHead(6)
    cells = torch.randn(1, 32, 6, generator=torch.Generator().manual_seed(0))
    labels = cell_labels(page, (4, 8))
    with torch.no_grad():
        loss = float(head.loss(cells, [page], (4, 8)))
        scores = head.linear(cells)[0]
    losses = F.cross_entropy(scores, labels, reduction="none")
    weights = torch.where(labels > 0, 1.0, BACKGROUND_WEIGHT)
    assert loss == pytest.approx(float((losses * weights).sum() / weights.sum()))


def invoice() -> Page:
    words = (Word("Total", (0, 0, 24, 8)), Word("AB", (32, 0, 48, 8)), Word("C", (56, 0, 64, 8)))
    field = Field("total", "AB C", (1, 2))
    return Page(
        "page", np.full((16, 80, 3), 255, dtype=np.uint8), words, (field,), (Question("?", ("AB C",), "total"),)
    )


def test_the_path_of_an_answer_goes_through_its_characters_to_just_behind_it() -> None:
    page = invoice()
    path = answer_cells(page, page.questions[0], (2, 10))
    assert path == [4, 5, 6, 7, 8], "A, B, the space before C, C, and the cell behind"


def test_an_answer_that_its_words_do_not_spell_has_no_path() -> None:
    page = invoice()
    assert answer_cells(page, Question("?", ("AB D",), "total"), (2, 10)) == []
    assert answer_cells(page, Question("?", ("AB C",), "date"), (2, 10)) == []
    broken = replace(page, fields=(Field("total", "ABC", (1, 2)),))
    assert answer_cells(broken, Question("?", ("ABC",), "total"), (2, 10)) == []


def test_field_labels_say_whose_and_how_manieth() -> None:
    owner, place = field_labels(invoice(), (2, 10), ["date", "total"])
    assert owner.view(2, 10)[0].tolist() == [0, 0, 0, 0, 2, 2, 2, 2, 0, 0]
    assert place.view(2, 10)[0].tolist() == [-100] * 4 + [0, 1, 2, 3] + [-100] * 2


def test_pointing_is_free_where_it_is_right_and_dear_where_it_is_wrong() -> None:
    labels = torch.tensor([[-100, 7, 8, 9], [-100, -100, 7, 8]])
    right = torch.full((2, 2, 4, 6), 1e-6)
    paths = [[0, 1, 2], []]
    for step, cell in enumerate(paths[0]):
        right[0, :, 1 + step, cell] = 1.0
    assert float(pointing_loss(right, labels, paths)) == pytest.approx(0.0, abs=1e-4)
    assert float(pointing_loss(right, labels, [[3, 4, 5], []])) > 10
    one_head = right.clone()
    one_head[:, 1] = 1e-6
    assert float(pointing_loss(one_head, labels, paths)) == pytest.approx(np.log(2), abs=1e-3)
    assert float(pointing_loss(right, labels, [[], []])) == 0
