"""The oracle aligner: where it tells the truth the true pair coincides, and its errors are as many as asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from docleak.errors import AttackError
from docleak.models.pair.aligner import one_hot
from docleak.studies.pairs.client import OracleAligner, Setting, set_up
from docleak.studies.pairs.config import PairConfig

CONFIG = PairConfig(count=12, public=3, image_size=(32, 16), oracle_error=0.0)


@pytest.fixture(scope="module")
def setting() -> Setting:
    return set_up(CONFIG)


def places(setting: Setting, error: float) -> list[OracleAligner]:
    told = replace(setting, config=replace(CONFIG, oracle_error=error))
    aligners = [told.case(number).knowledge.aligner for number in range(CONFIG.count)]
    assert all(isinstance(aligner, OracleAligner) for aligner in aligners)
    return aligners  # type: ignore[return-value]


def test_a_true_pair_coincides_and_another_picture_does_not(setting: Setting) -> None:
    case = setting.case(3)
    aligner = case.knowledge.aligner
    assert aligner is not None and aligner.name == setting.aligner.name and aligner.scale == setting.aligner.scale
    weights = one_hot(case.ids, len(setting.model.tokenizer))
    image, text = aligner.image(case.pixels), aligner.text(weights, case.mask)
    assert image.shape == (1, 2 * setting.aligner.image(case.pixels).shape[1])
    assert torch.allclose(image, text, atol=1e-6) and float(image.norm()) == pytest.approx(1, abs=1e-5)
    other = aligner.image(torch.zeros_like(case.pixels))
    assert float((other * text).sum()) < 0.999
    assert any("no adversary has it" in line for line in case.knowledge.sentences())


def test_errors_are_as_many_as_asked_for_and_nested(setting: Setting) -> None:
    truth = places(setting, 0.0)
    wrong = {
        error: [not torch.equal(one.image_place, true.image_place) for one, true in zip(of, truth, strict=True)]
        for error in (0.0, 0.5, 1.0)
        for of in (places(setting, error),)
    }
    assert not any(wrong[0.0]) and all(wrong[1.0]) and 2 <= sum(wrong[0.5]) <= 10
    assert all(not half or whole for half, whole in zip(wrong[0.5], wrong[1.0], strict=True))
    both = [(one.image_place, one.text_place) for one in places(setting, 1.0)]
    told = [next(i for i, true in enumerate(truth) if torch.equal(image, true.image_place)) for image, _ in both]
    assert all(torch.equal(text, truth[i].text_place) for i, (_, text) in zip(told, both, strict=True)), "one pair's"
    assert all(i != number for number, i in enumerate(told)) and len(np.unique(told)) > 3


def test_without_an_oracle_nothing_is_told() -> None:
    case = set_up(replace(CONFIG, oracle_error=None, count=2)).case(0)
    assert not isinstance(case.knowledge.aligner, OracleAligner) and not case.knowledge.told


@pytest.mark.parametrize("words", [{"oracle_error": 1.2}, {"oracle_error": 0.5, "batch_size": 2}])
def test_what_it_cannot_be_is_refused(words: dict[str, float]) -> None:
    with pytest.raises(AttackError, match="the oracle's error is"):
        replace(CONFIG, **words)  # type: ignore[arg-type]
