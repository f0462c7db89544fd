"""An attack of one's own on pairs is asked as those on gradients are: what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from docleak.attacks.pairs import PAIRS, PairFinding, asking
from docleak.errors import AttackError
from tests.small import Returning


def reconstruct(attack: Any, victim: Any) -> PairFinding:
    made = victim(("a red block.", "a tower."), (0, 1))
    return asking.ask(attack, made.view, made.knowledge, budget=4, generator=torch.Generator().manual_seed(0))


def pair(**changes: Any) -> PairFinding:
    made = PairFinding(torch.zeros(2, 3, 16, 16), ("a", "b"), ((1,), (2, 3)), ((0, 1), (0, 1)), 0.5, 0.5, 1, 1, 0.1,
                       0.1, 0.0)  # fmt: skip
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pixels": torch.zeros(2, 3, 8, 8)}, r"pixels has the shape \(2, 3, 8, 8\); expected that of the client's"),
        ({"pixels": torch.full((2, 3, 16, 16), float("nan"))}, "1536 of 1536 pixels are NaN"),
        ({"pixels": torch.full((2, 3, 16, 16), 200.0)}, r"not in \[0, 1\]"),
        ({"texts": ("a",)}, "texts is an object of the type tuple, not 2 strings"),
        ({"texts": ("a", "\ud800")}, r"texts\[1\] holds what UTF-8 cannot write \(surrogates not allowed\)"),
        ({"tokens": ((1,), (2, 10**7))}, r"tokens\[1\] has 10000000; the vocabulary has \d+"),
        ({"tokens": ((1,), (-2,))}, r"tokens\[1\] has -2; the vocabulary has \d+"),
        ({"labels": ((0, 1), (0, 99))}, r"labels\[1\] has 99; the classes are 0 to \d"),
        ({"tokens": ((1,), "2")}, r"tokens\[1\] is '2', no sequence"),
        ({"labels": ((0, 1), (0,))}, r"labels\[1\] has 1 numbers; expected 2"),
        ({"text_evaluations": 5}, "text_evaluations is 5; the budget is 4"),
        ({"image_quality": None}, "image_quality is None, no number"),
        ({"rounds": (0.5,)}, "no tuple of Round"),
    ],
)
def test_pairs_that_cannot_be_are_refused(changes: dict[str, Any], said: str, victim: Any) -> None:
    with pytest.raises(AttackError, match=rf"'mine' returned a PairFinding that cannot be:\n  - .*{said}"):
        reconstruct(Returning(lambda view, knowledge: pair(**changes)), victim)


def test_an_attack_on_pairs_leaves_the_model_as_it_was(victim: Any) -> None:
    def writing(view: Any, knowledge: Any) -> PairFinding:
        with torch.no_grad():
            next(view.model.module.parameters()).add_(1)
        return pair()

    with pytest.raises(AttackError, match="'mine' leaves the client's model with other weights"):
        reconstruct(Returning(writing), victim)
    assert isinstance(reconstruct(PAIRS.load("tag"), victim), PairFinding)
