from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import nn

from docleak.attacks.answers.asking import AnswersView, Item, Spoken, ask, nls, reply_of
from docleak.documents import Page, Question
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.metrics.text import accuracy, anls
from docleak.models import DocumentModel, load_model, pixels_of

MODELS = ("vt5-start", "fedocvqa-start", "donut-start", "layoutlmv3-trained")


@lru_cache(maxsize=4)
def shipped(name: str) -> DocumentModel:
    model = load_model(name)
    if name == "donut-start":
        model.max_answer_tokens = 6  # type: ignore[attr-defined]
    return model


def items(count: int = 3) -> list[Item]:
    """Every question of ``count`` pages, longest page first, so that neighbours differ in length."""
    return [Item(page, question) for page in make_pages(count, seed=5) for question in page.questions[:4]]


def one_by_one(model: DocumentModel, item: Item) -> Spoken:
    """What the adapter says without any batch."""
    page = model.fit(item.page)
    pixels, inputs = pixels_of(page.image)[None], [model.encode(page, item.question)]
    (answer,) = model.answer(pixels, inputs)
    with torch.no_grad():
        return Spoken(answer.text, answer.confidence, float(model.loss(pixels, inputs)))


@pytest.mark.parametrize("name", MODELS)
def test_batches_say_what_each_question_brings_alone(name: str) -> None:
    model, asked = shipped(name), items()
    answers = ask(AnswersView(model, scores=True), iter(asked), batch_size=5)
    assert len(answers) == len(asked)
    assert len({said.text for said in answers}) > 1 or name != "layoutlmv3-trained"
    for item, said in zip(asked, answers, strict=True):
        alone = one_by_one(model, item)
        assert said.text == alone.text
        assert said.confidence == pytest.approx(alone.confidence, rel=1e-3, abs=1e-9)
        assert said.loss == pytest.approx(alone.loss, rel=1e-4)
    assert ask(AnswersView(model), asked) == [Spoken(said.text) for said in answers]


def test_a_page_goes_through_the_picture_encoder_once() -> None:
    model = shipped("vt5-start")
    seen: list[int] = []
    hook = model.module.dit.register_forward_hook(  # type: ignore[union-attr, operator]
        lambda module, given, output: seen.append(len(output.last_hidden_state))
    )
    try:
        ask(AnswersView(model), items(3), batch_size=100)
    finally:
        hook.remove()
    assert seen == [3]


@pytest.mark.parametrize("name", MODELS)
def test_nothing_can_be_asked_of_a_page(name: str) -> None:
    """The empty question of the second memorisation test, and a page whose words are all gone."""
    page = make_pages(1, seed=5)[0]
    bare = replace(page, words=(), fields=())
    answers = ask(AnswersView(shipped(name), scores=True), [Item(page, Question("", ())), Item(bare, Question("", ()))])
    assert [said.loss for said in answers] == [None, None]
    assert all(said.confidence is not None and 0 <= said.confidence <= 1 for said in answers)


def dropping() -> DocumentModel:
    """The shipped VT5 with dropout, of which the tiny one has none."""
    model = copy.copy(shipped("vt5-start"))
    model.module = copy.deepcopy(model.module)
    for layer in model.module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.3
    return model


def test_losses_with_dropout_depend_on_the_seed_and_the_question_alone() -> None:
    model, asked = dropping(), items(2)
    plain = ask(AnswersView(model, scores=True), asked)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    noisy = ask(AnswersView(model, scores=True, dropout_seed=1), asked)
    assert torch.equal(torch.random.get_rng_state(), before) and not model.module.training
    assert [said.text for said in noisy] == [said.text for said in plain], "answers are given without dropout"
    assert all(abs(a.loss - b.loss) > 1e-4 for a, b in zip(plain, noisy, strict=True))  # type: ignore[operator]
    again = ask(AnswersView(model, scores=True, dropout_seed=1), asked[::-1], batch_size=1)[::-1]
    assert [said.loss for said in again] == [said.loss for said in noisy]
    other = ask(AnswersView(model, scores=True, dropout_seed=2), asked)
    assert all(a.loss != b.loss for a, b in zip(noisy, other, strict=True))


def test_a_model_in_training_answers_as_in_evaluation_and_goes_on_training() -> None:
    model, asked = dropping(), items(1)
    expected = ask(AnswersView(model, scores=True), asked)
    model.module.train()
    assert ask(AnswersView(model, scores=True), asked) == expected
    assert model.module.training


@pytest.mark.parametrize("text", ["Acme Tools", " acme tools", "Acme Fools", "", "something else", "12"])
def test_replies_are_scored_as_the_metrics_do(text: str) -> None:
    """The attack may not import the metrics, which hold the truth; it knows its own answers and agrees with them."""
    question = Question("Who?", ("ACME Tools", "Acme"), "provider_name")
    item = Item(Page("p", make_pages(1, seed=0)[0].image, provider="acme", document="d"), question)
    reply = reply_of(item, Spoken(text, 0.5, 1.25))
    assert (reply.provider, reply.document, reply.key) == ("acme", "d", "provider_name")
    assert reply.accuracy == accuracy(text, question.answers)
    assert reply.nls == pytest.approx(anls(text, question.answers, threshold=0.0))
    assert nls(text, question.answers, threshold=0.5) == pytest.approx(anls(text, question.answers))
    assert (reply.loss, reply.confidence) == (1.25, 0.5)


def test_replies_name_pages_and_questions_where_nothing_better_is_known() -> None:
    item = Item(Page("p", make_pages(1, seed=0)[0].image), Question("Who?", ("x",)))
    reply = reply_of(item, Spoken("x"))
    assert (reply.document, reply.key, reply.loss, reply.confidence) == ("p", "Who?", None, None)


def test_what_cannot_be_asked_or_scored_is_refused() -> None:
    view = AnswersView(shipped("vt5-start"))
    with pytest.raises(AttackError, match="batch_size"):
        ask(view, items(1), batch_size=0)
    with pytest.raises(AttackError, match="nothing to be compared"):
        reply_of(Item(make_pages(1, seed=0)[0], Question("Who?", ())), Spoken("x"))
    assert "loss" in AnswersView(view.model, scores=True).text and "loss" not in view.text
    assert ask(view, []) == []
