"""Every solver on quadratics whose minimum is known, counting its evaluations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients.solvers import Adam, BoundedLBFGS, Solver, TorchLBFGS

CURVATURE = torch.tensor([[3.0, 0.8, 0.0, 0.2], [0.8, 1.0, 0.3, 0.0], [0.0, 0.3, 2.0, 0.5], [0.2, 0.0, 0.5, 0.6]])
INSIDE = torch.tensor([0.2, 0.7, 0.5, 0.9])
OUTSIDE = torch.tensor([1.6, 0.4, -0.8, 0.3])  # the first is held at 1, the third at 0

SOLVERS: dict[str, Solver] = {
    "adam": Adam(learning_rate=0.1),
    "signed adam": Adam(learning_rate=0.1, signed=True, steps_at=(3 / 8, 5 / 8, 7 / 8)),
    "torch l-bfgs": TorchLBFGS(),
    "bounded l-bfgs": BoundedLBFGS(),
}
BOUNDED = [name for name in SOLVERS if name != "torch l-bfgs"]


class Quadratic:
    """(x - centre)ᵀ A (x - centre) / 2, remembering every call."""

    def __init__(self, centre: Tensor) -> None:
        self.centre = centre
        self.points: list[Tensor] = []
        self.progress: list[float] = []

    def __call__(self, unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
        assert not unknowns.requires_grad
        self.points.append(unknowns.clone())
        self.progress.append(progress)
        gradient = CURVATURE @ (unknowns - self.centre)
        return float((unknowns - self.centre) @ gradient / 2), gradient


def start() -> Tensor:
    return torch.tensor([0.5, 0.1, 0.9, 0.4])


def bounded_minimum(centre: Tensor) -> Tensor:
    """Slow and obviously right: many small projected steps."""
    x = start()
    for _ in range(20_000):
        x = (x - 0.01 * CURVATURE @ (x - centre)).clamp(0, 1)
    return x


@pytest.mark.parametrize("name", SOLVERS)
def test_finds_a_minimum_inside(name: str) -> None:
    objective = Quadratic(INSIDE)
    first = start()
    minimum = SOLVERS[name].minimise(objective, first, budget=300)
    tolerance = 0.02 if "adam" in name else 1e-4
    torch.testing.assert_close(minimum, INSIDE, atol=tolerance, rtol=0)
    assert torch.equal(first, start()), "the start was overwritten"
    assert minimum.dtype == first.dtype and not minimum.requires_grad


@pytest.mark.parametrize("name", BOUNDED)
def test_finds_a_minimum_on_the_bounds(name: str) -> None:
    wanted = bounded_minimum(OUTSIDE)
    assert wanted[0] == 1 and wanted[2] == 0 and 0 < wanted[1] < 1
    minimum = SOLVERS[name].minimise(Quadratic(OUTSIDE), start(), budget=400)
    tolerance = 0.02 if "adam" in name else 2e-4  # in float32, where rounding differs between processors
    torch.testing.assert_close(minimum, wanted, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", BOUNDED)
def test_stays_in_the_unit_box(name: str) -> None:
    objective = Quadratic(OUTSIDE * 10)
    minimum = SOLVERS[name].minimise(objective, start(), budget=50)
    points = torch.stack([*objective.points, minimum])
    assert points.min() >= 0 and points.max() <= 1


@pytest.mark.parametrize("name", ["adam", "bounded l-bfgs"])
def test_a_start_outside_the_box_is_brought_in(name: str) -> None:
    objective = Quadratic(INSIDE)
    minimum = SOLVERS[name].minimise(objective, torch.tensor([-2.0, 3.0, 0.5, 9.0]), budget=300)
    torch.testing.assert_close(minimum, INSIDE, atol=0.02, rtol=0)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("budget", [1, 2, 7, 40])
def test_never_exceeds_the_budget(name: str, budget: int) -> None:
    objective = Quadratic(OUTSIDE)
    SOLVERS[name].minimise(objective, start(), budget=budget)
    assert 1 <= len(objective.points) <= budget
    assert objective.progress[0] == 0
    assert all(0 <= p < 1 for p in objective.progress)
    assert objective.progress == sorted(objective.progress)


@pytest.mark.parametrize("name", SOLVERS)
def test_stops_when_the_objective_does(name: str) -> None:
    """An error inside the objective (a cancelled audit) comes out as it is."""

    def broken(unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SOLVERS[name].minimise(broken, start(), budget=5)


@pytest.mark.parametrize("name", SOLVERS)
def test_survives_an_objective_that_is_not_finite(name: str) -> None:
    calls = 0

    def nan(unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
        nonlocal calls
        calls += 1
        return float("nan"), torch.full_like(unknowns, float("nan"))

    SOLVERS[name].minimise(nan, start(), budget=20)
    assert calls <= 20


def adam_steps(solver: Adam, budget: int) -> Tensor:
    """The lengths of Adam's steps under a constant gradient, which are its learning rates."""
    points: list[Tensor] = []

    def slope(unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
        points.append(unknowns.clone())
        return 0.0, torch.ones_like(unknowns)

    points.append(solver.minimise(slope, torch.zeros(1, dtype=torch.float64), budget=budget))
    return -torch.cat(points).diff()


def test_adams_step_decays_exponentially() -> None:
    steps = adam_steps(Adam(learning_rate=0.01, clamp=False), 10)
    expected = torch.tensor([0.01 * 0.999 ** (5000 * t / 10) for t in range(10)], dtype=torch.float64)
    torch.testing.assert_close(steps, expected, rtol=1e-5, atol=0)


def test_adams_step_falls_tenfold_at_the_given_shares() -> None:
    steps = adam_steps(Adam(learning_rate=0.01, clamp=False, steps_at=(3 / 8, 5 / 8, 7 / 8)), 16)
    expected = torch.tensor([0.01] * 6 + [1e-3] * 4 + [1e-4] * 4 + [1e-5] * 2, dtype=torch.float64)
    torch.testing.assert_close(steps, expected, rtol=1e-5, atol=0)


def test_signed_adam_does_not_mind_the_gradients_size() -> None:
    class Steep(Quadratic):
        def __call__(self, unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
            value, gradient = super().__call__(unknowns, progress)
            return value, gradient * (1 + 1000 * progress)  # Adam alone forgives a constant factor

    flat, steep = Quadratic(INSIDE), Steep(INSIDE)
    for objective in (flat, steep):
        Adam(learning_rate=0.1, signed=True).minimise(objective, start(), budget=30)
    torch.testing.assert_close(torch.stack(flat.points), torch.stack(steep.points))


def test_small_objectives_do_not_end_bounded_lbfgs_early() -> None:
    """Matching losses of 1e-9 are below SciPy's absolute tolerances; they are scaled and keep falling."""

    class Tiny(Quadratic):
        def __call__(self, unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
            value, gradient = super().__call__(unknowns, progress)
            return value * 1e-9, gradient * 1e-9

    minimum = BoundedLBFGS().minimise(Tiny(INSIDE), start(), budget=100)
    torch.testing.assert_close(minimum, INSIDE, atol=1e-3, rtol=0)


def test_torch_lbfgs_ends_once_any_unknown_is_not_finite() -> None:
    """An infinite slope of one unknown, at first: the others stay finite, and no second step is begun."""
    calls = [0]

    def broken(unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
        calls[0] += 1
        gradient = 0.2 * (unknowns - 0.3)
        gradient[0] = torch.inf if calls[0] == 1 else gradient[0]
        return float(gradient.square().sum()), gradient

    end = TorchLBFGS().minimise(broken, start(), budget=200)
    assert not bool(torch.isfinite(end[0])) and bool(torch.isfinite(end[1:]).all())
    assert calls[0] <= 25, "one step of PyTorch's evaluates so often at most"
