"""What is asked about RED: against answers asked one by one, and cases that are the same for every model."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from docleak.attacks.answers.asking import AnswersView, ask
from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import BlueRed, open_issuers, read_blue_red, write_blue_red
from docleak.documents.silos import read_silo
from docleak.errors import AttackError
from docleak.metrics.text import accuracy, anls
from docleak.models.base import pixels_of
from docleak.models.loading import load_model
from docleak.studies.answers.red import (
    Red,
    memory_cases,
    memory_of,
    outcomes,
    replies_to,
    training_values,
)


@pytest.fixture(scope="module")
def division(tmp_path_factory: pytest.TempPathFactory) -> BlueRed:
    out = tmp_path_factory.mktemp("data") / "out"
    write_blue_red(open_issuers(8, 3.0, BlueRedPlan(1), seed=1), out)
    return read_blue_red(out)


def test_replies_are_those_of_the_model_asked_one_by_one(division: BlueRed) -> None:
    model, red = load_model("vt5-start"), Red.of(division)
    replies = replies_to(red.pages, partial(ask, AnswersView(model, scores=True)))
    expected = []
    for page in red.pages:
        fitted = model.fit(page)
        for question in page.questions:
            encoded = [model.encode(fitted, question)]
            pixels = pixels_of(fitted.image)[None]
            with torch.no_grad():
                said, loss = model.answer(pixels, encoded)[0], float(model.loss(pixels, encoded))
            expected.append(
                (page.provider, accuracy(said.text, question.answers), anls(said.text, question.answers), loss)
            )
    scored = outcomes(replies, red.members)
    assert [(r.provider, o.accuracy, o.anls) for r, o in zip(replies, scored, strict=True)] == [e[:3] for e in expected]
    assert [r.loss for r in replies] == pytest.approx([e[3] for e in expected], rel=1e-4)
    assert {o.provider: o.member for o in scored} == {name: name in division.members for name in red.members}


def test_members_are_those_of_the_silos(division: BlueRed) -> None:
    red = Red.of(division)
    trained = {name for folder in division.silos.values() for name in read_silo(folder).providers}
    assert {name for name, inside in red.members.items() if inside} == trained
    one_class = BlueRed(division.path, division.silos, {"red-positive": division.parts["red-positive"]}, (), (), 0.5)
    with pytest.raises(AttackError, match="has no red-negative"):
        Red.of(one_class)


def test_the_memorisation_cases_do_not_depend_on_the_model(division: BlueRed) -> None:
    red, known = Red.of(division), training_values(division)
    assert {value.provider for value in known} == set(division.members), "the owner's knowledge is of the training only"
    one, same, other = (memory_cases(red, "provider_name", known, seed=seed) for seed in (0, 0, 1))
    assert one == same and one.cases and [c.question.text for c in one.cases] != [c.question.text for c in other.cases]
    assert all(case.question.answers[0] == case.provider for case in one.cases)
    asker = partial(ask, AnswersView(load_model("vt5-start"), scores=True))
    memory = memory_of(red, one.cases, asker)
    assert set(memory) == set(red.members) and np.all(np.isfinite(list(memory.values())))
