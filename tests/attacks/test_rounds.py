"""Several rounds of one client: the same page, other weights each time."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients import ATTACKS, GradientView
from docleak.attacks.gradients.canvas import Canvas
from docleak.attacks.gradients.engine import GradientAttack, Pursuit
from docleak.attacks.gradients.linearised import Joined
from docleak.attacks.gradients.selftest import self_test
from docleak.errors import AttackError, GradientError
from docleak.training.update import client_gradient


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_rounds(small: Any, number: int) -> GradientView:
    """``small``'s view with later rounds: each model is the one before it after a large step of SGD."""
    models = [small.model]
    for seed in range(1, number):
        model = deepcopy(models[-1])
        drawn = generator(seed)
        with torch.no_grad():
            for parameter in model.module.parameters():
                parameter += 0.1 * parameter.std().nan_to_num() * torch.randn(parameter.shape, generator=drawn)
        models.append(model)
    names = list(small.view.names)
    later = [GradientView(m, client_gradient(m, small.pixels, small.inputs, names=names)) for m in models[1:]]
    return replace(small.view, later=tuple(later))


def pursuit_of(attack: GradientAttack, view: GradientView, small: Any, start: Tensor) -> Pursuit:
    canvas = Canvas.of(small.knowledge.template, small.knowledge.private, region="private", grey=True)
    pursuit = Pursuit(attack, view, small.knowledge, canvas, lambda number, loss, pixels: None)
    pursuit._prepare(start, generator())
    return pursuit


@pytest.fixture
def three(small: Any) -> GradientView:
    return with_rounds(small, 3)


@pytest.fixture
def guess(small: Any) -> Tensor:
    canvas = Canvas.of(small.knowledge.template, small.knowledge.private, region="private", grey=True)
    return canvas.start("light", generator(3))


def test_the_objective_is_the_mean_of_the_rounds_distances(small: Any, three: GradientView, guess: Tensor) -> None:
    attack = ATTACKS.load("inverting-gradients:priors=none,rounds=all")
    assert isinstance(attack, GradientAttack)
    joint = pursuit_of(attack, three, small, guess)
    value, gradient = joint.objective(guess, 0.0)
    assert joint.evaluations == 3
    alone = []
    for view in three.rounds:
        alone.append(pursuit_of(attack, replace(view, later=()), small, guess).objective(guess, 0.0))
    assert value == pytest.approx(sum(v for v, _ in alone) / 3, rel=1e-5)
    assert len({round(v, 6) for v, _ in alone}) == 3, "the rounds do not differ"
    torch.testing.assert_close(gradient, torch.stack([g for _, g in alone]).mean(0), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("solver", ["lbfgs", "lm"])
def test_the_truth_matches_every_round(solver: str, small: Any, three: GradientView, guess: Tensor) -> None:
    attack = ATTACKS.load(f"gi-dqa:solver={solver},rounds=all")
    assert isinstance(attack, GradientAttack)
    pursuit = pursuit_of(attack, three, small, guess)
    truth = small.pixels.mean(1)[small.knowledge.private]
    if solver == "lm":
        at = [float(pursuit.linearise(x).residual.square().sum()) for x in (truth, guess)]
    else:
        at = [pursuit.objective(x, 0.0)[0] for x in (truth, guess)]
    assert at[0] < 1e-4 < 0.1 < at[1]


def test_squares_of_all_rounds_are_the_objective(small: Any, three: GradientView, guess: Tensor) -> None:
    attack = ATTACKS.load("gi-dqa:solver=lm,rounds=all")
    assert isinstance(attack, GradientAttack)
    pursuit = pursuit_of(attack, three, small, guess)
    value, gradient = pursuit.objective(guess, 0.0)
    here = pursuit.linearise(guess)
    assert float(here.residual.square().sum()) == pytest.approx(value, rel=1e-4)
    torch.testing.assert_close(2 * here.slope(), gradient, rtol=1e-2, atol=1e-5)
    before = pursuit.evaluations
    here.pull(here.push(guess))
    assert pursuit.evaluations == before + 6, "each product is taken in three rounds"


@pytest.mark.parametrize("spec", ["gi-dqa:rounds=all", "gi-dqa:solver=lm,rounds=all", "april:rounds=all"])
@pytest.mark.parametrize("budget", [55, 75])
def test_every_round_counts(spec: str, budget: int, small: Any, three: GradientView) -> None:
    for view in three.rounds:
        view.model.module.train()
    try:
        finding = ATTACKS.load(spec).run(three, small.knowledge, budget=budget, generator=generator())
        assert all(view.model.module.training for view in three.rounds)
    finally:
        small.model.module.eval()
    assert budget - 3 * 3 < finding.evaluations <= budget
    numbers = [number for number, _ in finding.history]
    assert all(later - earlier >= 3 for earlier, later in pairwise(numbers))
    assert numbers[0] == (3 if spec.startswith("april") else 3 * 17 + 3), "each round is whitened by its own draws"


@pytest.mark.parametrize("spec", ["gi-dqa", "gi-dqa-joint"])
def test_else_the_round_with_the_largest_gradient_is_matched(spec: str, small: Any, three: GradientView) -> None:
    first, second, third = (replace(view, later=()) for view in three.rounds)
    second = replace(second, gradient={name: 10 * g for name, g in second.gradient.items()})
    assert replace(first, later=(second, third)).largest == second
    attack = ATTACKS.load(spec)
    alone, among = (
        attack.run(view, small.knowledge, budget=40, generator=generator())
        for view in (second, replace(second, later=(first, third)))
    )
    assert torch.equal(alone.pixels, among.pixels) and alone.history == among.history
    assert alone.explained == among.explained


def test_a_budget_without_a_step_is_refused(small: Any, three: GradientView) -> None:
    with pytest.raises(AttackError, match=r"51 draws .* one in each of 3 rounds"):
        ATTACKS.load("gi-dqa:rounds=all").run(three, small.knowledge, budget=53, generator=generator())


def test_rounds_tell_more_than_one(make_small: Any) -> None:
    """Two tensors of a gradient have fewer numbers than there are private pixels; three rounds of them have more."""
    names = [n for n, p in make_small("42").model.module.named_parameters() if p.ndim == 1 and "encoder" in n][:2]
    few = make_small("42", names=names)
    canvas = Canvas.of(few.knowledge.template, few.knowledge.private, region="private", grey=True)
    guess = canvas.start("light", generator(3))
    attack = ATTACKS.load("gi-dqa:solver=lm,rounds=all")
    assert isinstance(attack, GradientAttack)
    here = pursuit_of(attack, with_rounds(few, 3), few, guess).linearise(guess)
    assert isinstance(here, Joined)
    rows = [torch.stack([part.pull(one) for one in torch.eye(len(part.residual))]) for part in here.parts]
    weights = torch.randn(len(here.residual), generator=generator())
    torch.testing.assert_close(here.pull(weights), torch.cat(rows).T @ weights, rtol=1e-3, atol=1e-5)
    ranks = []
    for number in (1, 2, 3):
        values = torch.linalg.svdvals(torch.cat(rows[:number]).double())
        ranks.append(int((values > 1e-3 * values[0]).sum()))
    assert ranks[0] < ranks[1] < ranks[2]


def test_the_self_test_looks_at_every_round(small: Any, three: GradientView) -> None:
    assert self_test(three, small.pixels, small.inputs).passed
    first, second, third = three.rounds
    doubled = replace(third, gradient={name: 2 * g for name, g in third.gradient.items()})
    test = self_test(replace(first, later=(second, doubled)), small.pixels, small.inputs)
    assert not test.passed and "loss scale" in test.causes[0]


def test_rounds_that_do_not_belong_together_are_refused(small: Any, three: GradientView) -> None:
    with pytest.raises(GradientError, match="1 of 1 later rounds have another batch size"):
        replace(small.view, later=(replace(small.view, batch_size=2),))
    with pytest.raises(GradientError, match="later rounds of their own"):
        replace(small.view, later=(three,))
