"""Question answering and classification: what is asked, where answers stand, what is hidden, what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from docleak.documents import Field, Page, Question, Word
from docleak.errors import ModelError
from docleak.models.base import IGNORED
from docleak.models.encoders.heads import SpanHead
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import ROOM, answered, asked, suits
from docleak.models.encoders.scrubbing import scrub
from docleak.models.encoders.tasks import RARE, Task, page_classes
from docleak.models.encoders.tiny import shipped_tokenizer, tiny_encoder


def bill(template: str | None = None, provider: str = "") -> Page:
    texts = ("Invoice", "date:", "03", "May", "2024", "total:", "19.00", "due", "19.00")
    return Page(
        name="bill",
        image=np.full((100, 400, 3), 255, np.uint8),
        words=tuple(Word(text, (10.0 + 40 * i, 20.0, 45.0 + 40 * i, 30.0)) for i, text in enumerate(texts)),
        fields=(Field("date", "03 May 2024", (2, 3, 4)), Field("due", "19.00", (8,))),
        questions=(
            Question("When was it issued?", ("3.5.2024", "03 May 2024"), "date"),
            Question("What is due?", ("19.00",), "due"),
            Question("What is the total?", ("19.00",)),
            Question("Who paid?", ("Ada",)),
            Question("Is what was due on 03 May 2024 the total?", ("Invoice",)),
        ),
        template=template,
        provider=provider,
    )


@lru_cache(maxsize=4)
def model(task: Task) -> EncoderModel:
    start = tiny_encoder("layoutlm", shipped_tokenizer(), seed=1)
    return start.for_task(task, ("a", RARE) if task == "classify" else (), seed=2)


def test_answers_are_the_words_of_their_field_or_where_they_are_printed() -> None:
    assert [words for _, words in answered(bill())] == [(2, 3, 4), (8,), (6,), (0,)]


def test_a_question_is_read_behind_the_page() -> None:
    page = model("qa").encode(bill())
    tokenizer = model("qa").tokenizer
    assert len(page.questions) == 4 and not page.labels
    plain = tiny_encoder("layoutlm", tokenizer, seed=0).encode(bill())
    assert torch.equal(page.ids, plain.ids), "the page's tokens keep their places"
    one = asked(page)[0]
    assert torch.equal(one.ids[: len(page)], page.ids) and one.ids[-1] == tokenizer.sep_token_id
    assert tokenizer.decode(one.ids[len(page) : -1]).replace(" ", "") == "whenwasitissued?"
    assert (one.words[len(page) :] == -1).all() and (one.boxes[len(page) : -1] == 0).all()
    where = ((one.words >= 2) & (one.words <= 4)).nonzero().flatten().tolist()
    for name, place in (("start", where[0]), ("end", where[-1])):
        row = one.labels[name]
        assert (row == 1).nonzero().flatten().tolist() == [place]
        assert torch.equal(row == IGNORED, one.words < 0)
    assert asked(one)[0] is one and len(asked(page)) == 4


def test_long_pages_leave_room_for_long_questions() -> None:
    long = replace(bill(), words=bill().words * 200, questions=(Question("why " * 100, ("Invoice",)),))
    page = model("qa").encode(long)
    assert len(page) == model("qa").max_tokens - ROOM and page.cut
    (one,) = asked(page)
    assert len(one) == model("qa").max_tokens
    with torch.no_grad():
        assert model("qa").loss(model("qa").collate([one])).isfinite().all()


def test_a_scrubbed_value_is_not_left_in_a_question() -> None:
    page = model("qa").encode(bill())
    mask = model("qa").tokenizer.mask_token_id
    places = ((page.words >= 2) & (page.words <= 4)).nonzero().flatten().tolist()
    hidden = scrub(page, places, mask_id=mask)
    assert "2024" not in model("qa").tokenizer.decode(hidden.questions[3].ids).replace(" ", "")
    assert int((hidden.questions[3].ids == mask).sum()) == len(places)
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(hidden.questions[:3], page.questions[:3], strict=True))


def test_the_best_span_is_found_and_never_runs_backwards() -> None:
    """Against all pairs in plain loops, with scores that would like to begin behind the end."""
    page = asked(model("qa").encode(bill()))[0]
    batch = model("qa").collate([page, page])
    torch.manual_seed(0)
    head, hidden = SpanHead(64), torch.randn(2, len(page), 64)
    with torch.no_grad():
        scores, prediction = head.scores(hidden, batch), head.predict(hidden, batch)
    on_page = [t for t in range(len(page)) if page.words[t] >= 0]
    for b in range(2):
        pairs = {(i, j): float(scores["start"][b, i] + scores["end"][b, j]) for i in on_page for j in on_page if i <= j}
        best = max(pairs, key=lambda pair: pairs[pair])
        assert (int(prediction["start"][b].argmax()), int(prediction["end"][b].argmax())) == best
        assert prediction["start"][b].sum() == prediction["end"][b].sum() == 1


def test_classes_are_what_recurs() -> None:
    pages = [bill("b"), bill("b"), bill("a"), bill("a"), bill("a"), bill(provider="c"), bill("d", "c")]
    assert page_classes(pages) == ("a", "b", RARE)
    assert page_classes(pages, limit=1) == ("a", RARE)
    assert page_classes([*pages[:5]]) == ("a", "b")
    with pytest.raises(ModelError, match="needs two classes"):
        page_classes([bill("a"), bill("a")])
    with pytest.raises(ModelError, match="needs two classes"):
        page_classes([bill("a"), bill("b")])


def test_a_page_has_one_class_at_its_first_token() -> None:
    for page, kind in ((bill("a"), 0), (bill(provider="a"), 0), (bill("z"), 1)):
        tokens = model("classify").encode(page)
        assert tokens.labels["class"].tolist() == [kind] + [IGNORED] * (len(tokens) - 1)
    batch = model("classify").collate([model("classify").encode(bill("a"))])
    with torch.no_grad():
        scores = model("classify").module.head.scores(model("classify").hidden(batch))  # type: ignore[operator]
    assert scores.shape == (1, 2)


def test_the_loss_of_a_page_that_is_sure_is_not_rounded_away() -> None:
    """Where a page is classified with a probability of 1 - 2e-9, single precision knows the loss only by its logits."""
    m = model("classify").for_task("classify", ("a", RARE), seed=2)
    batch = m.collate([m.encode(bill("a"))])
    last = m.module.head.classes[2]  # type: ignore[index,union-attr]
    with torch.no_grad():
        last.weight.zero_()  # type: ignore[union-attr,operator]
        last.bias.copy_(torch.tensor([20.0, 0.0]))  # type: ignore[union-attr,operator]
        assert float(m.loss(batch)[0]) == pytest.approx(np.log1p(np.exp(-20.0)), rel=1e-5, abs=0)


def test_pages_without_what_is_asked_are_refused() -> None:
    unanswered = replace(bill(), questions=bill().questions[3:4])
    assert suits(bill(), "qa") and not suits(unanswered, "qa")
    assert suits(bill("a"), "classify") and not suits(bill(), "classify")
    with pytest.raises(ModelError, match=r"1 questions, none with its answer"):
        model("qa").encode(unanswered)
    with pytest.raises(ModelError, match="neither a template nor an issuer"):
        model("classify").encode(bill())
    strict = tiny_encoder("layoutlm", shipped_tokenizer(), seed=1).for_task("classify", ("a", "b"), seed=0)
    with pytest.raises(ModelError, match="'z', which is none"):
        strict.encode(bill("z"))
