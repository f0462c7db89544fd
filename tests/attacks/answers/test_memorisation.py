from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from docleak.attacks.answers.asking import AnswersView, Item, Spoken, ask
from docleak.attacks.answers.disclosure import Disclosed, disclosed, draw_absent, items_of
from docleak.attacks.answers.memorisation import (
    Case,
    Unprompted,
    ask_unprompted,
    delta_nls_memory,
    draw_cases,
    hidden_items,
    memory_features,
    nls_memory,
)
from docleak.documents import Field, Page, Question, Word, load_pages
from docleak.documents.issuers import FIRST, make_issuers
from docleak.documents.locate import letters
from docleak.documents.phrasings import PHRASINGS
from docleak.documents.redaction import AS_IN_THE_PAPER, traces
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.metrics.text import accuracy
from docleak.models import DocumentModel, load_model, pixels_of

ASKED = {"provider_name": ("Who issued this invoice?",)}
#: Three providers to train on, three others.
MEMBERS, OTHERS = range(FIRST, FIRST + 3), range(FIRST + 3, FIRST + 6)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def page_of(text: str, *, provider: str = "acme", document: str = "d", **more: object) -> Page:
    words = tuple(Word(word, (4 + 34 * i, 4, 34 + 34 * i, 14)) for i, word in enumerate(text.split()))
    image = np.full((20, 34 * len(words) + 8, 3), 255, np.uint8)
    page = Page(f"{document}-{text[:8]}", image, words, document=document, provider=provider)
    return replace(page, **more)  # type: ignore[arg-type]


def name_is(value: str) -> tuple[Question, ...]:
    return (Question("Whose is it?", (value,), "provider_name"),)


def test_one_case_per_document_with_an_answer_on_it() -> None:
    pages = [
        page_of("From Acme Tools", document="asked", questions=name_is("Acme Tools")),
        page_of("Acme Tools again", document="asked", questions=name_is("Acme Tools")),
        page_of("From Acme Tools", document="annotated", fields=(Field("provider_name", "Acme Tools", (1, 2)),)),
        page_of("From Acme Tools", document="owner knows"),
        page_of("From Bell Inc", document="nobody knows", provider="bell"),
        page_of("From Unseen Ltd", document="not on it", questions=name_is("Acme Tools")),
    ]
    drawn = draw_cases(pages, "provider_name", rng=rng(), training={"acme": ["ACME tools"]})
    assert [(c.document, c.source) for c in drawn.cases] == [
        ("asked", "question"), ("annotated", "field"), ("owner knows", "training"),
    ]  # fmt: skip
    assert drawn.unanswered == ("nobody knows",) and drawn.not_found == ("not on it",)
    assert [c.question.answers for c in drawn.cases] == [("Acme Tools",), ("Acme Tools",), ("ACME tools",)]
    assert all(c.question.text in PHRASINGS["provider_name"] and c.question.key == "provider_name" for c in drawn.cases)
    assert draw_cases(pages, "provider_name", rng=rng()).unanswered == ("owner knows", "nobody knows")


def test_draws_depend_on_the_generator_alone_and_reach_every_page_and_phrasing() -> None:
    pages = [page_of("From Acme Tools", questions=name_is("Acme Tools")) for _ in range(3)]
    drawn = [draw_cases(pages, "provider_name", rng=rng(seed)).cases[0] for seed in range(60)]
    assert drawn == [draw_cases(pages, "provider_name", rng=rng(seed)).cases[0] for seed in range(60)]
    assert {case.number for case in drawn} == {0, 1, 2}
    assert len({case.question.text for case in drawn}) > 10


def test_a_key_without_phrasings_is_asked_in_the_pages_own_words() -> None:
    page = page_of("Seller 17 Acme", questions=(Question("What is the seller?", ("17",), "seller"),))
    assert draw_cases([page], "seller", rng=rng()).cases[0].question.text == "What is the seller?"
    with pytest.raises(AttackError, match="no way to ask"):
        draw_cases([replace(page, questions=(), fields=(Field("seller", "17", (1,)),))], "seller", rng=rng())
    with pytest.raises(AttackError, match="no provider"):
        draw_cases([replace(page, provider="")], "seller", rng=rng())


def test_what_is_sent_does_not_show_the_answer() -> None:
    pages = make_issuers([*MEMBERS], [2, 2, 2], seed=0)
    for key in ("provider_name", "provider_email"):
        drawn = draw_cases(pages, key, rng=rng())
        assert len(drawn.cases) == 6
        for case, item in zip(drawn.cases, hidden_items(pages, drawn.cases), strict=True):
            wanted = letters(case.question.answers[0])
            before, after = (letters("".join(w.text for w in p.words)) for p in (pages[case.number], item.page))
            assert wanted in before and wanted not in after
            assert (item.page.image != pages[case.number].image).any()
    gap = [len(item.page.words) for item in hidden_items(pages, drawn.cases, removal=AS_IN_THE_PAPER)]
    assert all(a >= b for a, b in zip(gap, [len(i.page.words) for i in hidden_items(pages, drawn.cases)], strict=True))


@pytest.fixture(scope="module")
def parrot() -> DocumentModel:
    """A tiny VT5 trained for some seconds to name the issuer of nine pages, until it knows the issuers by heart."""
    model = load_model("vt5-start")
    generator = torch.Generator().manual_seed(0)
    examples = []
    for page in make_issuers([*MEMBERS], [3, 3, 3], seed=0):
        fitted = model.fit(page)
        question = Question(ASKED["provider_name"][0], (page.provider,), "provider_name")
        examples.append((pixels_of(fitted.image), model.encode(fitted, question)))
    weights = [p for p in model.module.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=2e-3)
    model.module.train()
    for _ in range(45):
        chosen = torch.randperm(len(examples), generator=generator)[:6].tolist()
        loss = model.loss(torch.stack([examples[i][0] for i in chosen]), [examples[i][1] for i in chosen]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.module.eval()
    return model


def unseen_pages() -> list[Page]:
    """Two pages of every provider, all different from the training pages."""
    return list(make_issuers([*MEMBERS, *OTHERS], [2] * 6, seed=1))


def test_a_planted_memory_is_found_and_only_of_members(parrot: DocumentModel) -> None:
    pages = unseen_pages()
    members = {page.provider for page in pages[:6]}
    drawn = draw_cases(pages, "provider_name", rng=rng(), phrasings=ASKED)
    said = ask(AnswersView(parrot), hidden_items(pages, drawn.cases))
    assert len(said) == 12
    memory = nls_memory(drawn.cases, said)
    assert {name for name, value in memory.items() if value > 0.9} == members
    assert {name for name, value in memory.items() if value > 0} == members, "CLS1 needs others to be exactly 0"
    loose = nls_memory(drawn.cases, said, threshold=0.0)
    assert min(loose.values()) > 0, "without the threshold any two names are alike a little"


def test_a_model_that_was_never_trained_remembers_nothing() -> None:
    pages = unseen_pages()
    drawn = draw_cases(pages, "provider_name", rng=rng(), phrasings=ASKED)
    said = ask(AnswersView(load_model("vt5-start")), hidden_items(pages, drawn.cases))
    assert set(nls_memory(drawn.cases, said).values()) == {0.0}


def test_a_model_that_only_reads_has_nothing_to_read() -> None:
    """LayoutLMv3 points at words: right before the removal, never after it."""
    model = load_model("layoutlmv3-trained")
    pages = make_pages(12, seed=2, split="validation")
    drawn = draw_cases(pages, "invoice_number", rng=rng())
    assert len(drawn.cases) >= 4

    def right(items: list[Item]) -> float:
        said = ask(AnswersView(model), items)
        return float(np.mean([accuracy(s.text, i.question.answers) for s, i in zip(said, items, strict=True)]))

    assert right([Item(pages[case.number], case.question) for case in drawn.cases]) > 0.6
    assert right(list(hidden_items(pages, drawn.cases))) == 0


def test_without_a_question_the_parrot_repeats_itself(parrot: DocumentModel) -> None:
    pages = unseen_pages()
    outputs = ask_unprompted(pages, partial(ask, AnswersView(parrot)))
    members = {page.provider for page in pages[:6]}
    assert [(o.provider, o.document) for o in outputs] == [(p.provider, p.document) for p in pages]
    same = delta_nls_memory(outputs)
    assert min(same[name] for name in members) > 0.9
    assert all(output.hidden == (output.provider in members) for output in outputs)


def test_a_reader_says_something_else_once_its_words_are_hidden() -> None:
    model = load_model("layoutlmv3-trained")
    outputs = ask_unprompted(list(make_pages(4, seed=2)), partial(ask, AnswersView(model)))
    said = [output for output in outputs if output.first]
    assert said and all(output.hidden for output in said)
    assert all(letters(output.first) not in letters(output.second) for output in said)


def test_features_are_means_per_provider() -> None:
    def case(provider: str, answer: str) -> Case:
        return Case(0, provider, "d", Question("?", (answer,), "k"))

    cases = [case("b", "acme"), case("a", "bell"), case("b", "acme")]
    spoken = [Spoken("acme"), Spoken("ball"), Spoken("zzzz")]
    assert nls_memory(cases, spoken) == {"a": 0.75, "b": 0.5}
    outputs = [
        Unprompted("a", "d", "acme", "acmo", True),
        Unprompted("a", "e", "", "acme", False),
        Unprompted("c", "f", "bell", "bell", False),
    ]
    assert delta_nls_memory(outputs) == {"a": 0.375, "c": 1.0}
    assert memory_features(cases, spoken, outputs) == {"a": (0.75, 0.375), "c": (0.0, 1.0)}


def test_the_probe_asks_only_documents_that_do_not_show_it() -> None:
    tax = (Question("Tax?", ("12-345678",), "provider_tax_number"),)
    pages = [
        page_of("Acme bill", document="asked", questions=tax),
        page_of("Acme VAT 12-345678", document="printed"),
        page_of("Acme bill", document="two pages"),
        page_of("Acme VAT 12-345678", document="two pages"),
        *(page_of("Acme bill", document=f"free {i}") for i in range(9)),
        page_of("Bell 12-345678", document="other provider", provider="bell"),
    ]
    cases = draw_absent(pages, ["provider_tax_number", "registration_id"], rng=rng())
    count = Counter((case.provider, case.question.key) for case in cases)
    assert count == {
        ("acme", "provider_tax_number"): 5, ("acme", "registration_id"): 5,
        ("bell", "provider_tax_number"): 1, ("bell", "registration_id"): 1,
    }  # fmt: skip
    free = {case.document for case in cases if case.question.key == "provider_tax_number" and case.provider == "acme"}
    assert len(free) == 5 and all(name.startswith("free") for name in free)
    assert all(not case.question.answers for case in cases)
    assert [item.page for item in items_of(pages, cases)] == [pages[case.number] for case in cases]
    assert cases == draw_absent(pages, ["provider_tax_number", "registration_id"], rng=rng())
    for wrong in ({"keys": ["no_such_key"]}, {"keys": ["registration_id"], "per_provider": 0}):
        with pytest.raises(AttackError, match="documents per provider"):
            draw_absent(pages, rng=rng(), **wrong)  # type: ignore[arg-type]


def test_answers_are_counted_with_their_skew() -> None:
    cases = [Case(0, "p", "d", Question("?", (), key)) for key in "aaaaab"]
    by_key = disclosed(cases, [Spoken(t) for t in ("X 1", "x 1 ", "y", "", "z", " ")])
    assert by_key["a"] == Disclosed("a", 5, 1, (("x 1", 2), ("y", 1), ("z", 1)))
    assert by_key["a"].share == 0.5
    assert by_key["a"].entropy == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))
    assert by_key["a"].top(1) == (("x 1", 2),)
    assert by_key["b"].share is None and by_key["b"].entropy is None
    assert Disclosed("c", 3, 0, (("x", 3),)).entropy == 0


def test_real_pages_can_be_tested(shared_data: Path) -> None:
    pages = load_pages(f"vrdu:{shared_data / 'vrdu_pfl'}", seed=0)[:8]
    drawn = draw_cases(pages, "advertiser", rng=rng())
    assert drawn.cases and not drawn.not_found
    said = ask(AnswersView(load_model("vt5-start"), scores=True), hidden_items(pages, drawn.cases))
    assert all(one.loss is not None and one.loss > 0 for one in said)
    assert set(nls_memory(drawn.cases, said)) == {case.provider for case in drawn.cases}


def test_every_spelling_of_an_answer_is_taken_off_the_page() -> None:
    """What is left of a second spelling would be read, and counted as remembered."""
    page = page_of("Seller Quandary Traders or Bluebird Imports there")
    asked = Question("Whose is it?", ("Quandary Traders", "Bluebird Imports"), "provider_name")
    (item,) = hidden_items([page], [Case(0, "acme", "d", asked)])
    left = [word.text for word in item.page.words]
    assert not {"Quandary", "Traders", "Bluebird", "Imports"} & set(left) and {"Seller", "there"} <= set(left)
    assert traces(page, asked.answers) and not traces(item.page, asked.answers)


def test_equally_frequent_answers_stand_in_alphabetical_order() -> None:
    said = ["Zeta", "beta ", "", "ALPHA", "alpha", "beta", "zeta", "gamma"]
    cases = [Case(0, "p", f"d{i}", Question("Who?", (), "provider_name")) for i in range(len(said))]
    disclosure = disclosed(cases, [Spoken(text) for text in said])["provider_name"]
    assert disclosure.answers == (("alpha", 2), ("beta", 2), ("zeta", 2), ("gamma", 1))
    assert (disclosure.asked, disclosure.silent) == (8, 1)
