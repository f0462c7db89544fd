"""Whitened matching on a linear toy whose gradient is known in closed form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients import whitening
from docleak.attacks.gradients.whitening import Whitener, WhiteningConfig, fit_whiteners, whitened

HEIGHT, WIDTH = 5, 6
Gradients = dict[str, Tensor]


def mixing(rows: int, columns: int, condition: float, generator: torch.Generator) -> Tensor:
    """A (rows, columns) matrix whose singular values fall from 1 to 1/condition."""
    left = torch.linalg.qr(torch.randn(rows, columns, generator=generator, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(columns, columns, generator=generator, dtype=torch.float64)).Q
    return left @ torch.diag(torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), columns).double()) @ right


def toy(condition: float = 30.0) -> Callable[[Tensor], Gradients]:
    """Two "parameters" L Z Rᵀ of independent pixels Z, one a thousand times larger than the other."""
    generator = torch.Generator().manual_seed(0)
    l1, r1 = mixing(9, HEIGHT, condition, generator), mixing(8, WIDTH, condition, generator)
    l2, r2 = mixing(7, HEIGHT, condition, generator), mixing(10, WIDTH, condition, generator)

    def gradient_at(unknowns: Tensor) -> Gradients:
        z = unknowns.view(HEIGHT, WIDTH)
        return {"large": 1000 * l1 @ z @ r1.T, "small": l2 @ z @ r2.T}

    return gradient_at


def guess() -> Tensor:
    return torch.full((HEIGHT * WIDTH,), 0.5, dtype=torch.float64)


def condition_number(distance: Callable[[Tensor], Tensor]) -> float:
    values = torch.linalg.eigvalsh(torch.autograd.functional.hessian(distance, guess()))
    return float(values[-1] / values[0].clamp_min(1e-300))


def test_whitening_conditions_a_linear_problem() -> None:
    gradient_at = toy()
    true = gradient_at(torch.rand(HEIGHT * WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    whiteners = fit_whiteners(gradient_at, guess(), WhiteningConfig(damping=1e-9), torch.Generator().manual_seed(2))
    distance = whitened(true, whiteners)

    def plain(z: Tensor) -> Tensor:
        return torch.stack([(v - true[n]).square().sum() for n, v in gradient_at(z).items()]).sum()

    before, after = condition_number(plain), condition_number(lambda z: distance(gradient_at(z)))
    assert before > 1e5
    assert after < 100


def test_a_random_filling_is_about_one_away_and_the_truth_zero() -> None:
    gradient_at = toy(condition=5.0)
    whiteners = fit_whiteners(gradient_at, guess(), WhiteningConfig(), torch.Generator().manual_seed(0))
    distance = whitened(gradient_at(guess()), whiteners)
    assert float(distance(gradient_at(guess()))) == 0
    noise = torch.randn(20, HEIGHT * WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    values = [float(distance(gradient_at(guess() + 0.2 * n))) for n in noise]
    assert 0.5 < sum(values) / len(values) < 2


def test_every_parameter_counts_alike_whatever_its_scale() -> None:
    gradient_at = toy(condition=5.0)
    whiteners = fit_whiteners(gradient_at, guess(), WhiteningConfig(), torch.Generator().manual_seed(0))
    noise = torch.randn(HEIGHT * WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    here, there = gradient_at(guess()), gradient_at(guess() + 0.2 * noise)
    parts = {name: float(w(there[name] - here[name]).square().sum()) for name, w in whiteners.items()}
    assert parts["large"] == pytest.approx(parts["small"], rel=0.7)


def test_it_costs_one_first_order_gradient_and_one_per_draw() -> None:
    seen: list[Tensor] = []

    def gradient_at(unknowns: Tensor) -> Gradients:
        seen.append(unknowns)
        return toy()(unknowns)

    fit_whiteners(gradient_at, guess(), WhiteningConfig(draws=7, spread=3.0), torch.Generator().manual_seed(0))
    assert len(seen) == 8
    assert torch.equal(seen[0], guess())
    assert all(s.min() >= 0 and s.max() <= 1 for s in seen)
    assert len({tuple(s.tolist()) for s in seen}) == 8


def test_the_generator_decides() -> None:
    difference = torch.ones(9, 8, dtype=torch.float64)
    results = []
    for seed in (0, 0, 1):
        whiteners = fit_whiteners(toy(), guess(), WhiteningConfig(), torch.Generator().manual_seed(seed))
        results.append(whiteners["large"](difference))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def fitted(gradient_at: Callable[[Tensor], Gradients], **config: float) -> dict[str, Whitener]:
    return fit_whiteners(gradient_at, guess(), WhiteningConfig(**config), torch.Generator().manual_seed(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_what_varies_by_rounding_only_is_told_by_its_share_of_the_largest(size: float) -> None:
    """Powers go with squares: 3e-5 squared is above 1e-10 of the largest, 3e-6 squared is below."""
    kept = fitted(lambda z: {"large": size * z, "little": 3e-5 * size * z, "rounding": 3e-6 * size * z})
    assert sorted(kept) == ["large", "little"]


def test_rows_that_never_move_are_left_out() -> None:
    """Tables: only the rows that were looked up have a gradient."""

    def gradient_at(unknowns: Tensor) -> Gradients:
        table = torch.zeros(50, WIDTH, dtype=torch.float64)
        table[[3, 8, 20, 21, 40]] = unknowns.view(HEIGHT, WIDTH)
        return {"table": table}

    whitener = fitted(gradient_at)["table"]
    assert whitener.rows.tolist() == [3, 8, 20, 21, 40]
    difference = torch.randn(50, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    done = whitener(difference)
    assert done.shape == (5, WIDTH) and torch.isfinite(done).all()
    elsewhere = difference.clone()
    elsewhere[0] += 100
    assert torch.equal(whitener(elsewhere), done)


def test_a_vector_is_scaled_entry_by_entry() -> None:
    scales = torch.logspace(0, -3, HEIGHT * WIDTH, dtype=torch.float64)
    whitener = fitted(lambda z: {"bias": z * scales}, damping=1e-12, draws=200)["bias"]
    done = whitener(scales)
    assert done.shape == (1, HEIGHT * WIDTH)
    assert float(done.std() / done.mean()) < 0.2, "entries a thousand times smaller count alike"


def test_a_vector_with_entries_that_never_move() -> None:
    mask = torch.arange(HEIGHT * WIDTH) % 3 == 0
    whitener = fitted(lambda z: {"bias": z * mask})["bias"]
    assert whitener.columns.tolist() == mask.nonzero().flatten().tolist()
    assert torch.isfinite(whitener(torch.ones(HEIGHT * WIDTH, dtype=torch.float64))).all()


@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (1, HEIGHT * WIDTH), (HEIGHT * WIDTH, 1), (HEIGHT, 2, 3)])
def test_any_shape_becomes_a_matrix(shape: tuple[int, ...]) -> None:
    whitener = fitted(lambda z: {"w": z.view(shape)})["w"]
    done = whitener(torch.ones(shape, dtype=torch.float64))
    assert done.numel() == HEIGHT * WIDTH and torch.isfinite(done).all()


@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (WIDTH, HEIGHT), (HEIGHT * WIDTH,)])
def test_long_sides_are_scaled_instead_of_rotated(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whitening, "LONGEST_ROTATED", 5)
    scales = torch.logspace(0, -2, shape[0], dtype=torch.float64).view(-1, *[1] * (len(shape) - 1))
    whitener = fitted(lambda z: {"w": z.view(shape) * scales}, damping=1e-9, draws=300)["w"]
    kept = [m for m in (whitener.left, whitener.right) if m is not None]
    assert all(m.ndim == (1 if m.shape[0] > 5 else 2) or len(shape) == 1 for m in kept)
    assert any(m.ndim == 1 for m in kept)
    done = whitener(scales * torch.ones(shape, dtype=torch.float64)).abs().reshape(shape)
    rows = done.reshape(shape[0], -1).mean(1)
    assert float(rows.max() / rows.min()) < 3, "rows a hundred times smaller count alike"


def test_parameters_that_do_not_vary_are_left_out() -> None:
    def gradient_at(unknowns: Tensor) -> Gradients:
        noise = 1e-9 * torch.sin(1e6 * unknowns)  # rounding, as in a key's bias
        return {"varies": unknowns, "constant": torch.ones(4, dtype=torch.float64), "rounding": noise}

    assert set(fitted(gradient_at)) == {"varies"}


def test_noise_that_is_known_counts_for_less() -> None:
    """A parameter that noise drowns weighs less beside one of the same signal that it does not reach."""
    generator = torch.Generator().manual_seed(0)
    maps = {name: torch.randn(12, 30, generator=generator) for name in ("strong", "weak")}

    def gradient_at(unknowns: Tensor) -> dict[str, Tensor]:
        strong, weak = (maps[name] @ unknowns for name in maps)
        return {"strong": strong, "weak": 1e-3 * weak}

    guess = torch.full((30,), 0.5)

    def misfits(noise: float) -> dict[str, float]:
        drawn = torch.Generator().manual_seed(1)
        whiteners = fit_whiteners(gradient_at, guess, WhiteningConfig(noise=noise), drawn)
        sent = torch.Generator().manual_seed(2)
        return {name: float(w(1e-2 * torch.randn(12, generator=sent)).square().sum()) for name, w in whiteners.items()}

    blind, aware = misfits(0.0), misfits(1e-2)
    assert blind["weak"] > 1000 * blind["strong"]  # whitening blows the drowned parameter's noise up
    assert aware["weak"] < 2 * 12 / whitening.COUNTED  # known noise counts like a draw or so
    assert aware["strong"] == pytest.approx(blind["strong"], rel=0.05)


def test_noise_counts_as_the_draws_do_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector: the sum of its K squared variations, plus the largest's share, plus K times the counted variance."""
    seen: list[Tensor] = []
    scales = torch.logspace(0, -3, HEIGHT * WIDTH, dtype=torch.float64)

    def gradient_at(unknowns: Tensor) -> Gradients:
        seen.append(unknowns * scales)
        return {"bias": unknowns * scales}

    config = WhiteningConfig(draws=5, damping=1e-3, noise=0.07, scale_draws=5)
    whitener = fit_whiteners(gradient_at, guess(), config, torch.Generator().manual_seed(0))["bias"]
    squares = torch.stack([(other - seen[0]).square() for other in seen[1:]])
    moment = squares.sum(0)
    counted = whitening.COUNTED * 0.07**2
    root = 1 / (moment + 1e-3 * moment.max() + 5 * counted).sqrt()
    of_a_draw = float((squares * root.square()).sum(1).mean())
    of_noise = counted * float(root.square().sum())
    expected = root * (1 / (of_a_draw + of_noise)) ** 0.5
    torch.testing.assert_close(whitener(torch.ones_like(root))[0], expected)
