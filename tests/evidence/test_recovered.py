"""A case whose adversary is given no text and reads it out of the gradient."""

from __future__ import annotations

import pytest
import torch

from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.evidence.audit import text_record
from docleak.evidence.case import Exposure, build_case
from docleak.models import load_model


@pytest.mark.parametrize("name", ["donut-start", "donut-trained", "layoutlmv3-start", "layoutlmv3-trained"])
def test_the_gradient_gives_the_whole_text_away(name: str) -> None:
    model = load_model(name)
    for seed, page in enumerate(make_pages(2, seed=3, size=model.image_size)):
        case = build_case(model, [model.fit(page)], Exposure(recover_text=True), seed=seed)
        assert not case.knowledge.question_known and not case.knowledge.answer_known
        assert case.recovered is not None and case.knowledge.inputs == case.recovered.inputs
        record = text_record(case)
        assert record is not None and record["exact"] and record["believed_exact"], record
        for key, value in case.inputs[0].tensors.items():
            assert torch.equal(case.knowledge.inputs[0].tensors[key], value), key
        assert "read out of the gradient" in " ".join(case.knowledge.sentences())


@pytest.mark.parametrize("name", ["donut-start", "layoutlmv3-start"])
def test_noise_takes_it_away_and_the_adversary_notices(name: str) -> None:
    model = load_model(name)
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    exposure = Exposure(recover_text=True, defense="noise:sigma=1")
    try:
        record = text_record(build_case(model, [page], exposure, seed=0))
    except AttackError:  # not even the number of tokens can be told
        record = {"exact": False, "believed_exact": False}
    assert record is not None and not record["exact"] and not record["believed_exact"]


@pytest.mark.parametrize("name", ["donut-start", "layoutlmv3-start"])
def test_without_the_text_tables_there_is_no_closed_form(name: str) -> None:
    model = load_model(name)
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    with pytest.raises(AttackError, match="embed"):
        build_case(model, [page], Exposure(recover_text=True, stages=("output",)), seed=0)


def test_nothing_is_recorded_where_it_was_not_looked_for() -> None:
    model = load_model("layoutlmv3-start")
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    assert text_record(build_case(model, [page], Exposure(), seed=0)) is None
