"""Attacks of one's own on weights and answers are asked as those on gradients are: what cannot be is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from docleak.attacks.answers.attack import ProvidersView, ask_who
from docleak.attacks.answers.features import FeatureTable
from docleak.attacks.answers.membership import Guess
from docleak.attacks.registries import ANSWERS
from docleak.attacks.weights import Attempt, Finding, PublicKnowledge, WeightsView
from docleak.attacks.weights.asking import ask
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models.encoders.scrubbing import extract, scrub
from docleak.models.encoders.tiny import shipped_tokenizer, tiny_encoder
from tests.small import Returning


class Unable(Returning):
    def run(self, view: Any) -> Any:  # type: ignore[override]
        return None


# -- weights -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def field() -> tuple[WeightsView, PublicKnowledge]:
    page = make_pages(1, seed=3)[0]
    target, public = (tiny_encoder("layoutlm", shipped_tokenizer(), seed=seed) for seed in (0, 1))
    tokens = target.encode(page)
    secret = extract(page, tokens)[0]
    scrubbed = scrub(tokens, secret.positions, mask_id=target.tokenizer.mask_token_id)
    return WeightsView(target, scrubbed, secret.positions), PublicKnowledge(public)


def attempt(view: WeightsView, **changes: Any) -> Attempt:
    n = len(view.positions)
    return replace(Attempt((7,) * n, (0.5,) * n, (0.5,) * n), **changes)


def read(attack: Any) -> Finding:
    return ask(attack, *field(), budget=2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": (7,)}, r"attempt 0: tokens has 1 numbers; expected \d"),
        ({"tokens": "7"}, "tokens is '7', no sequence"),
        ({"tokens": lambda n: (7.5,) * n}, "tokens has 7.5, no whole number"),
        ({"tokens": lambda n: (10**6,) * n}, "tokens has 1000000; the vocabulary has"),
        ({"target": lambda n: (float("nan"),) * n}, "target has nan, no finite number"),
        ({"target": lambda n: torch.ones(n)}, "target is a tensor of float32"),
        ({"public": lambda n: (-3.2,) * n}, r"public has -3.2, no likelihood in \[0, 1\]"),
    ],
)
def test_attempts_that_cannot_be_are_refused(changes: dict[str, Any], said: str) -> None:
    ((name, value),) = changes.items()

    def make(view: WeightsView, knowledge: PublicKnowledge) -> Finding:
        made = value(len(view.positions)) if callable(value) else value
        return Finding((attempt(view, **{name: made}),), 1)

    with pytest.raises(AttackError, match=rf"attack 'mine' returned a Finding that cannot be:\n  - .*{said}"):
        read(Returning(make))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda view: None, "returned None; expected a docleak.attacks.weights.Finding"),
        (lambda view: Finding((), 1), "attempts are 0; the budget is 2"),
        (lambda view: Finding((attempt(view),) * 3, 1), "attempts are 3; the budget is 2"),
        (lambda view: Finding(({"tokens": ()},), 1), "it is an object of the type dict, no Attempt"),  # type: ignore[arg-type]
        (lambda view: Finding((attempt(view),), -1), "calls is -1"),
    ],
)
def test_what_is_no_finding_on_weights_is_refused(make: Callable[..., Any], said: str) -> None:
    with pytest.raises(AttackError, match=said):
        read(Returning(lambda view, knowledge: make(view)))


def test_an_attack_on_weights_leaves_the_models_as_they_were() -> None:
    def training(view: WeightsView, knowledge: PublicKnowledge) -> Finding:
        view.target.module.train()
        return Finding((attempt(view),), 1)

    def tuning(view: WeightsView, knowledge: PublicKnowledge) -> Finding:
        with torch.no_grad():
            next(knowledge.model.module.parameters()).add_(1)
        return Finding((attempt(view),), 1)

    def writing(view: WeightsView, knowledge: PublicKnowledge) -> Finding:
        view.page.ids.zero_()
        return Finding((attempt(view),), 1)

    try:
        with pytest.raises(AttackError, match=r"'mine' leaves the target with other weights, .* in another mode"):
            read(Returning(training))
        with pytest.raises(AttackError, match="'mine' leaves the public model with other weights"):
            read(Returning(tuning))
    finally:
        field.cache_clear()
    read(Returning(writing))
    assert field()[0].page.ids.any()


# -- answers -----------------------------------------------------------------------------------------------------------

NAMES = tuple(f"p{n}" for n in range(6))
TABLE = FeatureTable(NAMES, ("accuracy", "nls"), np.linspace(0, 1, 12).reshape(6, 2), np.full(6, 4))


def guess(**changes: Any) -> Guess:
    return replace(Guess("mine", NAMES, np.linspace(-1, 1, 6), np.arange(6) > 2), **changes)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (guess(providers=NAMES[:2]), "providers are 2, 2 of them of the 6 that were asked about"),
        (guess(providers=(*NAMES[:5], "p0")), "providers are 6, 5 of them of the 6"),
        (guess(scores=np.array([np.nan, *range(5)])), "1 of 6 scores are NaN or infinite"),
        (guess(scores=[0.1] * 6), "scores is an object of the type list; expected an array of floats"),
        (
            guess(members=np.linspace(0, 1, 6)),
            r"members is an array of float64 and the shape \(6,\); expected an array",
        ),
        (guess(members=np.ones(2, dtype=bool)), r"members is an array of bool and the shape \(2,\)"),
        (None, "returned None; expected a docleak.attacks.answers.membership.Guess"),
    ],
)
def test_guesses_that_cannot_be_are_refused(made: Any, said: str) -> None:
    """One that names only those that it is sure of would be right about all of them."""
    with pytest.raises(AttackError, match=said):
        ask_who(Returning(lambda view, knowledge: made), ProvidersView(TABLE, NAMES), {}, seed=0)  # type: ignore[arg-type]


def test_an_attack_on_answers_changes_nothing_that_others_see() -> None:
    def writing(view: ProvidersView, knowledge: dict[str, bool]) -> Guess:
        view.table.values[:] = 0
        knowledge.clear()
        return guess()

    known = {"p9": True}
    ask_who(Returning(writing), ProvidersView(TABLE, NAMES), known, seed=0)  # type: ignore[arg-type]
    assert TABLE.values.any() and known
    assert ask_who(ANSWERS.load("AZK"), ProvidersView(TABLE, NAMES), {}, seed=0).members.any()


def test_a_run_that_takes_something_else_is_told_what_is_given() -> None:
    own: Any = Unable(lambda view, knowledge: None)
    for asked, expected in (
        (lambda: read(own), "budget, generator"),
        (lambda: ask_who(own, ProvidersView(TABLE, NAMES), {}, seed=0), "seed"),
    ):
        with pytest.raises(
            AttackError, match=rf"'mine': its run cannot be called .*run\(view, knowledge, \*, {expected}\)"
        ):
            asked()
