from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from docleak.attacks.answers.asking import AnswersView, Item, Spoken, ask
from docleak.attacks.answers.disclosure import Disclosed
from docleak.attacks.answers.memorisation import draw_cases
from docleak.documents import Field, Page, Question
from docleak.documents.issuers import FIRST, make_issuers
from docleak.documents.synthetic import make_pages
from docleak.errors import RunError
from docleak.metrics.memorisation import remembered
from docleak.models import DocumentModel, load_model
from docleak.studies.answers import replies
from docleak.studies.answers.memorisation import (
    Trained,
    disclosed_values,
    disclosure_rows,
    example,
    outcomes_of,
    skew,
    trained_values,
    training_answers,
)
from docleak.studies.answers.replies import model_digest, remembering


@lru_cache(maxsize=1)
def shipped() -> DocumentModel:
    return load_model("vt5-start")


def own_copy() -> DocumentModel:
    model = copy.copy(shipped())
    model.module = copy.deepcopy(model.module)
    return model


def items() -> list[Item]:
    return [Item(page, question) for page in make_pages(4, seed=5) for question in page.questions[:3]]


@contextmanager
def in_groups_of(group: int) -> Iterator[list[int]]:
    """Replies are kept after so many items; told is how many were asked anew, time by time."""
    asked: list[int] = []

    def counting(view: AnswersView, items: Iterable[Item]) -> list[Spoken]:
        new = list(items)
        asked.append(len(new))
        return ask(view, new)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replies, "ask", counting)
        patch.setattr(replies, "GROUP", group)
        yield asked


def run(view: AnswersView, folder: Path, items: list[Item], group: int = 64) -> tuple[list[Spoken], int]:
    """The answers, and how many questions were asked anew."""
    with in_groups_of(group) as asked:
        return remembering(view, folder)(items), sum(asked)


def test_what_was_asked_once_comes_from_disk_exactly(tmp_path: Path) -> None:
    view, asked = AnswersView(shipped(), scores=True), items()
    first, count = run(view, tmp_path, asked, group=5)
    assert count == len(asked)
    for kept, fresh in zip(first, ask(view, asked), strict=True):
        assert kept.text == fresh.text and kept.loss == pytest.approx(fresh.loss)
    assert run(view, tmp_path, asked) == (first, 0)
    assert run(view, tmp_path, asked[::-1]) == (first[::-1], 0)


def test_a_question_that_comes_twice_is_asked_once(tmp_path: Path) -> None:
    (item, *_) = items()
    answers, count = run(AnswersView(shipped()), tmp_path, [item, item, item])
    assert count == 1 and len(set(answers)) == 1 and len(answers) == 3


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    view, asked = AnswersView(shipped(), scores=True), items()

    def broken() -> Iterator[Item]:
        yield from asked[:7]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), in_groups_of(3):
        remembering(view, tmp_path)(broken())
    answers, count = run(view, tmp_path, asked, group=3)
    assert count == len(asked) - 6, "two whole groups of three were saved"
    assert [said.text for said in answers] == [said.text for said in ask(view, asked)]
    assert not list(tmp_path.rglob(".docleak-*"))


def test_text_is_reused_from_a_view_with_scores_but_not_the_other_way(tmp_path: Path) -> None:
    asked = items()
    full, _ = run(AnswersView(shipped(), scores=True), tmp_path, asked)
    assert run(AnswersView(shipped()), tmp_path, asked) == ([Spoken(said.text) for said in full], 0)
    run(AnswersView(shipped()), tmp_path / "other", asked)
    assert run(AnswersView(shipped(), scores=True), tmp_path / "other", asked)[1] == len(asked)


def changed(item: Item, what: str) -> Item:
    page, question = item.page, item.question
    if what == "pixel":
        image = page.image.copy()
        image[0, 0, 0] ^= 1
        return Item(page.with_image(image), question)
    if what == "word":
        return Item(replace(page, words=(replace(page.words[0], text="other"), *page.words[1:])), question)
    if what == "box":
        x0, y0, x1, y1 = page.words[0].box
        return Item(replace(page, words=(replace(page.words[0], box=(x0, y0, x1 + 1, y1)), *page.words[1:])), question)
    if what == "question":
        return Item(page, replace(question, text=question.text + "?"))
    return Item(page, replace(question, answers=("another answer",)))


@pytest.mark.parametrize("what", ["pixel", "word", "box", "question", "answer"])
def test_whatever_changes_a_reply_is_asked_anew(tmp_path: Path, what: str) -> None:
    view, item = AnswersView(shipped(), scores=True), items()[0]
    run(view, tmp_path, [item])
    assert run(view, tmp_path, [changed(item, what)])[1] == 1
    text = AnswersView(shipped())
    assert run(text, tmp_path, [changed(item, what)])[1] == 0, "the text was just asked for, with scores"
    run(text, tmp_path / "text", [item])
    assert run(text, tmp_path / "text", [changed(item, what)])[1] == int(what != "answer")


def test_another_model_or_setting_has_replies_of_its_own(tmp_path: Path) -> None:
    item = items()[0]
    run(AnswersView(shipped(), scores=True), tmp_path, [item])
    assert run(AnswersView(shipped(), scores=True, dropout_seed=0), tmp_path, [item])[1] == 1
    seen = {model_digest(shipped())}
    frozen = next(name for name, p in shipped().module.named_parameters() if not p.requires_grad)
    for name in ("t5.shared.weight", frozen):
        model = own_copy()
        with torch.no_grad():
            model.module.get_parameter(name).view(-1)[0] += 1e-3
        assert run(AnswersView(model, scores=True), tmp_path, [item])[1] == 1, name
        seen.add(model_digest(model))
    for setting in ({"max_answer_tokens": 3}, {"box_scale": 1}, {"lowercase": False}):
        model = own_copy()
        model.config = replace(model.config, **setting)  # type: ignore[attr-defined]
        seen.add(model_digest(model))
    assert len(seen) == 6
    same = own_copy()
    same.name = "elsewhere"
    assert model_digest(same) == model_digest(shipped())


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    view = AnswersView(shipped())
    run(view, tmp_path, items()[:1])
    (file,) = tmp_path.rglob("*.jsonl")
    file.write_text('{"asked": 1}\n')
    with pytest.raises(RunError, match=file.name):
        remembering(view, tmp_path)


def test_replies_become_outcomes_and_a_table() -> None:
    pages = make_issuers([FIRST, FIRST + 1], [2, 2], seed=0)
    drawn = draw_cases(pages, "provider_name", rng=np.random.default_rng(0))
    member = pages.entries[0].provider
    spoken = [
        Spoken(case.question.answers[0].upper() if case.provider == member else "?", 0.95) for case in drawn.cases
    ]
    outcomes = outcomes_of(drawn.cases, spoken, {member})
    means = remembered(outcomes, rng=np.random.default_rng(0))
    assert (means.positive[0].value, means.negative[0].value) == (1.0, 0.0)
    assert (means.positive[1].value, means.difference[1].value) == (1.0, 1.0)


def test_what_is_disclosed_is_traced_to_the_training() -> None:
    image = np.full((20, 40, 3), 255, np.uint8)
    pages = [
        Page("a", image, fields=(Field("tax", "91-0837469", ()),), provider="airborne"),
        Page("b", image, questions=(Question("Phone?", ("5 | 5",), "phone"),), provider="bell"),
        Page("c", image, fields=(Field("tax", "910 837469", ()),), provider="airborne"),
    ]
    trained = trained_values(pages)
    assert trained[0] == Trained("airborne", "tax", "91-0837469") and len(trained) == 3
    assert training_answers(trained, "tax") == {"airborne": ("91-0837469", "910 837469")}
    target = Disclosed("tax", 10, 1, (("91-0837469", 6), ("5 | 5", 2), ("x", 1)))
    rows = disclosure_rows(target, Disclosed("tax", 10, 10, ()), trained, count=2)
    assert disclosed_values(target, Disclosed("tax", 10, 10, ()), trained) == ("91-0837469",), (
        "a phone was not asked for"
    )
    assert disclosed_values(target, Disclosed("tax", 10, 9, (("910837469", 1),)), trained) == ()
    assert [(row["answer"], row["target"], row["public"], row["trained_as"]) for row in rows] == [
        ("91-0837469", 6, 0, "tax of airborne; tax of airborne"),
        ("5 | 5", 2, 0, "phone of bell"),
    ]
    assert "66.7% of the time" in skew("target", target)
    assert skew("public model", Disclosed("tax", 10, 10, ())) == "public model said nothing to 10 questions"


def test_pictures_show_the_page_before_and_after() -> None:
    pages = make_issuers([FIRST], [3], seed=0)
    drawn = draw_cases(pages, "provider_name", rng=np.random.default_rng(0))
    page = pages[drawn.cases[0].number]
    picture = example(page, drawn.cases[0], Spoken("guess\nof two lines", 0.5))
    factor = (picture.shape[1] - 8) // 2 // page.width
    left = picture[: page.height * factor : factor, : page.width * factor : factor]
    right = picture[: page.height * factor : factor, page.width * factor + 8 :: factor]
    assert (left == page.image).all()
    other = (right != page.image).any(axis=2)
    assert other.any() and other.mean() < 0.3
    assert (picture[page.height * factor + 8 :] < 128).any(), "no text under the pages"
