"""Levenberg-Marquardt beside SciPy's solvers, and the products of gradient matching beside an explicit Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from docleak.attacks.gradients import ATTACKS
from docleak.attacks.gradients.canvas import Canvas
from docleak.attacks.gradients.levenberg import LevenbergMarquardt, Subspace
from docleak.attacks.gradients.linearised import Joined, Linearised
from docleak.attacks.gradients.local_steps import ImitatedSteps, Optimiser
from docleak.attacks.gradients.matching import dummy_of
from docleak.attacks.gradients.whitening import WhiteningConfig, fit_whiteners, residuals, whitened
from docleak.errors import AttackError


@dataclass
class Problem:
    """r(x) of any function of tensors, with its explicit Jacobian, counting what is asked."""

    function: Callable[[Tensor], Tensor]
    points: list[Tensor] = field(default_factory=list)
    products: int = 0

    def __call__(self, x: Tensor) -> Dense:
        self.points.append(x.clone())
        return Dense(self, x)

    @property
    def used(self) -> int:
        return len(self.points) + self.products


class Dense:
    def __init__(self, problem: Problem, x: Tensor) -> None:
        self.problem, self.residual = problem, problem.function(x)
        self.jacobian = torch.autograd.functional.jacobian(problem.function, x)

    def slope(self) -> Tensor:
        return self.jacobian.T @ self.residual

    def push(self, direction: Tensor) -> Tensor:
        self.problem.products += 1
        return self.jacobian @ direction

    def pull(self, residual: Tensor) -> Tensor:
        self.problem.products += 1
        return self.jacobian.T @ residual


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def linear(seed: int, centre: float) -> tuple[Tensor, Tensor]:
    """A (20, 7), and b whose unbounded solution lies about ``centre``."""
    a = drawn(20, 7, seed=seed) @ torch.diag(torch.logspace(0, -1, 7, dtype=torch.float64))
    return a, a @ (centre + drawn(7, seed=seed + 100)) + 0.1 * drawn(20, seed=seed + 200)


@pytest.mark.parametrize("seed", range(4))
def test_a_bounded_linear_problem_is_solved_as_scipy_solves_it(seed: int) -> None:
    a, b = linear(seed, 0.5)
    solution = LevenbergMarquardt().minimise_squares(
        Problem(lambda x: a @ x - b), torch.full((7,), 0.5).double(), budget=600
    )
    wanted = scipy.optimize.lsq_linear(a.numpy(), b.numpy(), bounds=(0, 1), tol=1e-14)
    at_bounds = int(np.sum(wanted.active_mask != 0))
    assert 0 < at_bounds < 7, "the problem tells bounds from none"
    np.testing.assert_allclose(solution.numpy(), wanted.x, atol=1e-6)


def curved(seed: int) -> Callable[[Tensor], Tensor]:
    """A linear map bent by sines, whose best unknowns lie partly outside [0, 1]."""
    mixing, bent = drawn(12, 6, seed=seed), drawn(12, 6, seed=seed + 1)
    target = mixing @ (0.5 + 0.8 * drawn(6, seed=seed + 2))

    def function(x: Tensor) -> Tensor:
        return mixing @ x + 0.3 * torch.sin(bent @ x) - target

    return function


@pytest.mark.parametrize("seed", range(4))
def test_a_curved_problem_is_solved_as_scipy_solves_it(seed: int) -> None:
    function = curved(seed)
    start = torch.full((6,), 0.5, dtype=torch.float64)
    solution = LevenbergMarquardt().minimise_squares(Problem(function), start, budget=2000)
    exact = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-12}
    wanted = scipy.optimize.least_squares(
        lambda x: function(torch.from_numpy(x)).numpy(), start.numpy(), bounds=(0, 1), **exact
    )
    assert float(function(solution).square().sum()) == pytest.approx(2 * wanted.cost, rel=1e-8)
    np.testing.assert_allclose(solution.numpy(), wanted.x, atol=1e-5)


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 9, 16, 17, 40, 101])
@pytest.mark.parametrize("inner", [1, 3, 8])
def test_evaluations_and_products_stay_within_the_budget(budget: int, inner: int) -> None:
    problem = Problem(curved(5))
    start = torch.full((6,), 0.5, dtype=torch.float64)
    LevenbergMarquardt(inner=inner).minimise_squares(problem, start, budget=budget)
    assert 1 <= problem.used <= budget
    assert all(float(x.min()) >= 0 and float(x.max()) <= 1 for x in problem.points)
    if 4 <= budget <= 17:
        assert problem.used >= budget - 1, "little is left over"


def test_every_step_that_is_taken_goes_down() -> None:
    problem = Problem(curved(7))
    minimum = LevenbergMarquardt(inner=2).minimise_squares(problem, torch.zeros(6, dtype=torch.float64), budget=60)
    values = [float(problem.function(x).square().sum()) for x in problem.points]
    assert float(problem.function(minimum).square().sum()) == min(values) < values[0]


def test_a_rough_problem_is_damped_until_it_goes_down() -> None:
    """Far from linear: the first, hardly damped steps go up, and no product is spent on the further tries."""

    def rough(x: Tensor) -> Tensor:
        return torch.cat([torch.sin(40 * x) + 0.05 * x, x - 0.3])

    problem = Problem(rough)
    start = torch.full((3,), 0.52, dtype=torch.float64)
    end = LevenbergMarquardt(damping=1e-9).minimise_squares(problem, start, budget=30)
    assert float(rough(end).square().sum()) < float(rough(start).square().sum())
    assert problem.used <= 30


@pytest.mark.parametrize(("value", "damping"), [(0.5, 0.25), (0.84, 1.0), (0.96, 8.0)])
def test_the_damping_follows_what_was_gained(value: float, damping: float) -> None:
    """r = 1 - 2x + ax² + bx³ with damping 1: the step to 1/4 foresees 3/4 of the square; of that all, 39 % or 10 %

    come true at ``value``. There the slope is -3/2, and the next step is r / (3/2 (1 + damping)).
    """
    a, b = torch.linalg.solve(
        torch.tensor([[1 / 16, 1 / 64], [1 / 2, 3 / 16]], dtype=torch.float64),
        torch.tensor([value - 0.5, 0.5], dtype=torch.float64),
    )
    problem = Problem(lambda x: 1 - 2 * x + a * x**2 + b * x**3)
    start = torch.zeros(1, dtype=torch.float64)
    LevenbergMarquardt(inner=1, damping=1.0).minimise_squares(problem, start, budget=5)
    assert [float(x) for x in problem.points] == pytest.approx([0, 0.25, 0.25 + value / (1.5 * (1 + damping))])


def test_nothing_to_do_and_nothing_finite_end_early() -> None:
    start = torch.full((3,), 0.5, dtype=torch.float64)
    solved = Problem(lambda x: (x - 0.5) * torch.ones(3, dtype=torch.float64))
    assert torch.equal(LevenbergMarquardt().minimise_squares(solved, start, budget=50), start)
    assert solved.used == 1
    broken = Problem(lambda x: x * float("nan"))
    assert torch.equal(LevenbergMarquardt().minimise_squares(broken, start, budget=50), start)
    assert broken.used == 1


def test_products_that_are_not_finite_end_the_search() -> None:
    class Overflowing(Dense):
        def push(self, direction: Tensor) -> Tensor:
            return super().push(direction) * float("inf")

    start = torch.full((3,), 0.5, dtype=torch.float64)
    function = curved(5)
    end = LevenbergMarquardt().minimise_squares(
        lambda x: Overflowing(Problem(lambda y: function(torch.cat([y, y]))), x), start, budget=20
    )
    assert torch.equal(end, start)


def test_a_subspace_of_all_directions_is_exact_for_every_damping() -> None:
    a, b = linear(3, 0.5)
    here = Problem(lambda x: a @ x - b)(torch.full((7,), 0.5, dtype=torch.float64))
    free = torch.tensor([True, True, False, True, True, False, True])
    subspace = Subspace.grown(here, free, 5)
    assert subspace is not None and subspace.products == here.problem.products == 9
    torch.testing.assert_close(subspace.directions.T @ subspace.directions, torch.eye(5, dtype=torch.float64))
    held = a[:, free]
    top = float(torch.linalg.svdvals(held)[0])
    for damping in (0.0, 1e-3, 10.0):
        step, foreseen = subspace.step(damping)
        normal = held.T @ held + damping * top**2 * torch.eye(5, dtype=torch.float64)
        torch.testing.assert_close(step[free], torch.linalg.solve(normal, -held.T @ here.residual))
        assert torch.equal(step[~free], torch.zeros(2, dtype=torch.float64))
        gained = float(here.residual.square().sum() - (here.residual + a @ step).square().sum())
        assert foreseen == pytest.approx(gained)


# -- the products of gradient matching --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Doubled:
    """The small problem in double precision, its whitened residuals, and the guess that they are taken at."""

    view: Any
    inputs: Sequence[Any]
    pixels: Callable[[Tensor], Tensor]
    of: Callable[[Any], Tensor]
    distance: Callable[[Any], Tensor]
    guess: Tensor

    def gradient(self, x: Tensor) -> dict[str, Tensor]:
        return dict(dummy_of(self.view, self.pixels(x), self.inputs, create_graph=True))

    def at(self, count: Callable[[], None] = lambda: None) -> Linearised:
        return Linearised(self.view, self.inputs, self.pixels, self.guess, count, self.of)


@pytest.fixture
def doubled(small: Any) -> Any:
    small.model.module.double()
    try:
        template = small.knowledge.template.double()
        view = replace(small.view, gradient={n: g.double() for n, g in small.view.gradient.items()})
        canvas = Canvas.of(template, small.knowledge.private, region="private", grey=True)
        guess = canvas.start("light", torch.Generator().manual_seed(0)).double()

        def first_order(x: Tensor) -> dict[str, Tensor]:
            dummy = dummy_of(view, canvas.pixels(x), small.inputs, create_graph=False)
            return {name: value.detach() for name, value in dummy.items()}

        whiteners = fit_whiteners(first_order, guess, WhiteningConfig(draws=4), torch.Generator().manual_seed(1))
        of, distance = residuals(whiteners), whitened(view.gradient, whiteners)
        yield Doubled(view, small.inputs, canvas.pixels, of, distance, guess)
    finally:
        small.model.module.float()


def test_squared_residuals_are_the_whitened_distance(doubled: Doubled) -> None:
    here = doubled.at()
    distance = float(doubled.distance(doubled.gradient(doubled.guess)).detach())
    assert float(here.residual.square().sum()) == pytest.approx(distance, rel=1e-12)


def test_the_slope_is_half_the_distances_gradient(doubled: Doubled) -> None:
    x = doubled.guess.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(doubled.distance(doubled.gradient(x)), x)
    torch.testing.assert_close(2 * doubled.at().slope(), gradient, rtol=1e-8, atol=1e-12)


def clipped(dummy: Any, observed: Any) -> dict[str, Tensor]:
    """A curved imitation, as gradient clipping is."""
    norm = torch.stack([g.square().sum() for g in dummy.values()]).sum().sqrt()
    return {name: g / (1 + norm) for name, g in dummy.items()}


@pytest.mark.parametrize("imitate", [None, clipped], ids=["as it is", "clipped"])
def test_pushes_are_finite_differences(doubled: Doubled, imitate: Any) -> None:
    problem = replace(doubled, view=replace(doubled.view, imitate=imitate))
    direction = drawn(len(problem.guess), seed=2)

    def residual(x: Tensor) -> Tensor:
        sent = problem.view.as_sent(problem.gradient(x))
        return problem.of({name: sent[name] - g for name, g in problem.view.gradient.items()}).detach()

    h = 1e-5
    slope = (residual(problem.guess + h * direction) - residual(problem.guess - h * direction)) / (2 * h)
    pushed = problem.at().push(direction)
    assert float((pushed - slope).norm() / slope.norm()) < 1e-6


@pytest.mark.parametrize("imitate", [None, clipped], ids=["as it is", "clipped"])
def test_pulls_are_the_transpose_of_pushes(doubled: Doubled, imitate: Any) -> None:
    here = replace(doubled, view=replace(doubled.view, imitate=imitate)).at()
    direction, residual = drawn(len(doubled.guess), seed=3), drawn(len(here.residual), seed=4)
    one, other = float(here.push(direction) @ residual), float(here.pull(residual) @ direction)
    assert one == pytest.approx(other, rel=1e-9)


def test_products_count_and_the_slope_does_not(doubled: Doubled) -> None:
    calls: list[int] = []
    here = doubled.at(lambda: calls.append(1))
    here.slope(), here.slope()
    assert not calls
    here.pull(here.push(doubled.guess))
    assert len(calls) == 2


def test_joined_parts_are_stacked(doubled: Doubled) -> None:
    one = doubled.at()
    both = Joined([one, one])
    direction, residual = drawn(len(doubled.guess), seed=3), drawn(2 * len(one.residual), seed=4)
    torch.testing.assert_close(both.slope(), 2 * one.slope())
    assert float(both.push(direction) @ residual) == pytest.approx(float(both.pull(residual) @ direction), rel=1e-9)


def test_local_steps_are_refused(doubled: Doubled) -> None:
    local = ImitatedSteps(Optimiser(), ((0,), (0,)), (0,))
    with pytest.raises(AttackError, match="solver=lm needs a plain gradient"):
        replace(doubled, view=replace(doubled.view, local=local)).at()


# -- the attack -------------------------------------------------------------------------------------------------------


def test_the_attack_counts_everything_and_gets_nearer(small: Any) -> None:
    attack = ATTACKS.load("gi-dqa:solver=lm,start=light")
    assert attack.solver == LevenbergMarquardt()  # type: ignore[attr-defined]
    seen: list[int] = []
    finding = attack.run(
        small.view, small.knowledge, budget=80, generator=torch.Generator().manual_seed(0),
        on_evaluation=lambda number, loss, pixels: seen.append(number),
    )  # fmt: skip
    assert seen == [number for number, _ in finding.history]
    assert seen[0] == 18, "17 draws of the whitening first"
    assert seen[1] == 18 + 2 * 8, "eight directions are eight pushes and seven pulls; then the step is tried"
    assert 78 <= finding.evaluations <= 80
    assert finding.matching == min(loss for _, loss in finding.history) < 0.2 * finding.history[0][1]


def test_what_is_no_sum_of_squares_is_refused() -> None:
    with pytest.raises(AttackError, match="minimises squares"):
        ATTACKS.load("gi-dqa:solver=lm,priors=text@0.1")
    with pytest.raises(AttackError, match="minimises squares"):
        ATTACKS.load("april:solver=lm")
    with pytest.raises(AttackError, match="lbfgs, lm, adam"):
        ATTACKS.load("gi-dqa:solver=newton")
