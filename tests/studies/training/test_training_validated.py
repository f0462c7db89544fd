"""Columns about validation documents."""

from __future__ import annotations

import numpy as np
import pytest

from docleak.studies.training.carrying import Point
from docleak.studies.training.config import TrainingConfig
from docleak.studies.training.scores import average, fluctuations, last_losses, swings, validated
from docleak.studies.training.study import TrainingStudy


def point(number: int, source: str, losses: tuple[float, ...], *, trained: bool, phase: str = "finetuning") -> Point:
    scores = tuple(1 - loss / 10 for loss in losses) if phase == "finetuning" else ()
    return Point(phase, number, source, sum(losses) / len(losses), None, losses, scores, trained)


#: "a" trains in rounds 1 and 3, "b" in 2 and 4: the loss falls by 2 (3 for the second document) in one's own round.
TURNS = [
    *(point(n, "a", loss, trained=n % 2 == 1) for n, loss in enumerate([(5, 6), (6, 7), (4, 4), (5, 5)], 1)),
    *(point(n, "b", loss, trained=n % 2 == 0) for n, loss in enumerate([(8,), (6,), (7,), (5,)], 1)),
]


def test_a_swing_is_the_change_in_rounds_of_its_own_less_that_in_the_others() -> None:
    swung = swings(TURNS, scores=False)
    assert list(swung) == ["a", "b"]
    assert swung["a"] == pytest.approx([-2 - 1, -3 - 1]) and swung["b"] == pytest.approx([-2 - 1])
    scores = swings(TURNS, scores=True)
    assert scores["a"] == pytest.approx([0.3, 0.4]), "a score of 1 - loss / 10"


def test_rounds_come_in_any_order_and_the_first_has_none_before_it() -> None:
    assert swings(TURNS[::-1], scores=False)["b"] == pytest.approx([-3])
    alone = [p for p in TURNS if p.round <= 2]
    assert list(swings(alone, scores=False)) == [], (
        "a trained in the first round alone, b in the second: nothing to hold"
    )


def test_who_always_trains_has_no_swing() -> None:
    always = [point(n, "a", (float(n),), trained=True) for n in (1, 2, 3)]
    assert swings(always, scores=False) == {} and validated([always]) == {}


def test_a_fluctuation_is_the_spread_about_a_parabola_and_a_trend_is_none() -> None:
    rounds = np.arange(1, 9)
    noise = np.array([1.0, -3, 3, -1, -1, 3, -3, 1])
    curves = np.stack([9 - rounds + 0.1 * rounds**2, 9 - rounds + noise, np.full(8, 4.0)], axis=1)
    points = [point(int(n), "a", tuple(curve), trained=True) for n, curve in zip(rounds, curves, strict=True)]
    spread = fluctuations(points[::-1], scores=False)["a"]
    left = noise - np.polyval(np.polyfit(rounds, noise, 2), rounds)
    assert spread == pytest.approx([0, np.sqrt((left**2).sum() / 5), 0], abs=1e-9)
    assert fluctuations(points, scores=True)["a"] == pytest.approx(spread / 10, abs=1e-9), "a score of 1 - loss / 10"
    assert fluctuations(points[:3], scores=False) == {}, "three rounds lie on a parabola"
    assert validated([points])["loss_fluctuation"]["a"] == pytest.approx(spread)


def test_self_pretraining_is_told_by_its_last_round_and_by_no_other_phase() -> None:
    points = [point(n, "a", (9.0 - n,), trained=True, phase="pretraining") for n in (1, 2)]
    points += [point(2, "a", (1.0,), trained=True), point(3, "a", (0.5,), trained=True)]
    assert last_losses(points) == {"a": np.array([7.0])}


def test_a_document_counts_with_its_mean_over_the_trainings() -> None:
    other = [Point(p.phase, p.round, p.source, 0, None, tuple(2 * x for x in p.losses), p.scores, p.trained)
             for p in TURNS]  # fmt: skip
    both = validated([TURNS, other])
    assert both["loss_swing"]["a"] == pytest.approx([-4.5, -6.0])
    mean = average(both["loss_swing"])
    assert mean.value == pytest.approx((-5.25 - 4.5) / 2) and mean.groups == 3
    assert mean.low is None, "one document has no interval"


def test_its_interval_may_lie_below_nought() -> None:
    mean = average({"a": np.array([-3.0, -2.5, -2.0, -4.0]), "b": np.array([-1.0, -1.5, -0.5, -1.2])})
    assert mean.high is not None and mean.high < 0


def test_statements_name_the_documents_that_a_column_is_about() -> None:
    study = TrainingStudy(TrainingConfig("fedocvqa-start"))
    assert [study.parts_of(name) for name in ("loss", "swing")] == ["test documents", "validation documents"]
