"""The linear systems of the patches, on systems made by hand: exact, noisy, with too many unknowns, contradicted."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from docleak.attacks.gradients.algebra.patches import (
    CLEAR,
    POSITIONS,
    WEIGHTS,
    Solution,
    System,
    _error,
    _groups,
    _leftover,
    _non_negative,
    _only_explanation,
    _ridge,
    solve,
)

WIDTH, PATCHES, SIDE = 10, 12, 2


def made(
    unknown: np.ndarray, sigma: float = 0.0, *, width: int = WIDTH, seed: int = 0
) -> tuple[System, np.ndarray, np.ndarray]:
    """A system, its true pixels (N, p², 3), and what is known of them: paper where they are ``unknown`` (N, p²)."""
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(len(unknown), width))
    gradients -= gradients.mean(axis=1, keepdims=True)  # as the layer norm leaves them
    true = rng.uniform(size=(*unknown.shape, 3))
    sums = np.einsum("nh,nqc->qch", gradients, true)
    sums = sums + sigma * rng.normal(size=sums.shape)
    return System(gradients, sums, SIDE, sigma), true, np.where(unknown[..., None], 1.0, true)


def unknown_patches(count: int, *, patches: int = PATCHES, places: int = SIDE * SIDE) -> np.ndarray:
    unknown = np.zeros((patches, places), dtype=np.bool_)
    unknown[:count] = True
    return unknown


@pytest.mark.parametrize("count", [1, 4, WIDTH - 3])
def test_fewer_unknown_patches_than_the_rank_are_solved_exactly(count: int) -> None:
    unknown = unknown_patches(count)
    unknown[3, 1] = unknown[11, 2] = True  # places with other patterns are systems of their own
    system, true, known = made(unknown)
    solution = solve(system, known, unknown)
    np.testing.assert_allclose(solution.pixels, true, atol=1e-5)
    assert (solution.determined == unknown).all() and solution.most == unknown.sum(axis=0).max()
    assert solution.leftover is not None and solution.leftover < 1e-6 * system.scale


def test_the_condition_is_that_of_the_worst_system() -> None:
    unknown = unknown_patches(5)
    unknown[4, 0] = False
    system, _, known = made(unknown)
    worst = max(np.linalg.cond(system.gradients[:count].T) for count in (4, 5))
    assert solve(system, known, unknown).condition == pytest.approx(worst)


def test_a_gradient_of_patches_that_nobody_trained_tells_no_pixel() -> None:
    unknown = unknown_patches(4)
    system, _, known = made(unknown)
    silent = replace(system, gradients=0 * system.gradients, sums=0 * system.sums)
    solution = solve(silent, known, unknown)
    np.testing.assert_array_equal(solution.pixels, known)
    assert not solution.determined.any() and not solution.contradicts(silent)
    told = {condition.name: condition.holds for condition in solution.conditions(silent, unknown)}
    assert not told["the unknown patches' gradients are independent"] and not told["every private pixel is determined"]


@pytest.mark.parametrize("count", [1, 5, WIDTH - 2])
def test_the_noise_that_is_left_over_is_never_understated(count: int) -> None:
    """Of h - k directions that no unknown explains, one is the layer norm's and does not count as freedom: with noise

    of sigma on every sum the estimate is sigma sqrt((h - k) / (h - 1 - k)), above sigma.
    """
    sigma, places = 0.03, 4000
    system, _, known = made(unknown_patches(count, places=places), sigma)
    rest = system.sums - np.einsum("nh,nqc->qch", system.gradients, known)
    groups = _groups(system, unknown_patches(count, places=places))
    expected = sigma * np.sqrt((WIDTH - count) / (WIDTH - 1 - count))
    assert _leftover(rest, groups) == pytest.approx(expected, rel=0.02)
    full = unknown_patches(WIDTH - 1, places=places)
    assert _leftover(rest, _groups(system, full)) is None, "as many unknowns as directions explain anything"


def test_the_ridge_is_the_normal_posterior() -> None:
    """Mean and standard deviation against Bayes' formula with whole matrices."""
    unknown = unknown_patches(4)
    system, _, known = made(unknown, 0.2)
    (group,) = _groups(system, unknown)
    rest = system.sums - np.einsum("nh,nqc->qch", system.gradients, known)
    rows, noise, spread = system.gradients[:4], 0.2, 0.3
    covariance = np.linalg.inv(rows @ rows.T / noise**2 + np.eye(4) / spread**2)
    mean = np.einsum("kj,jh,qch->kqc", covariance, rows, rest) / noise**2
    np.testing.assert_allclose(_ridge(rest[group.places], group, noise, spread), mean, rtol=1e-8)
    np.testing.assert_allclose(_error(group, noise, spread), np.sqrt(np.diag(covariance)), rtol=1e-8)
    wide = unknown_patches(WIDTH + 1)
    (group,) = _groups(system, wide)
    rows = system.gradients[: WIDTH + 1]
    covariance = np.linalg.inv(rows @ rows.T / noise**2 + np.eye(WIDTH + 1) / spread**2)
    np.testing.assert_allclose(_error(group, noise, spread), np.sqrt(np.diag(covariance)), rtol=1e-8)


def test_what_noise_drowns_is_not_determined() -> None:
    unknown = unknown_patches(4)
    for sigma, all_of_them in ((1e-4, True), (1.0, False)):
        system, _, known = made(unknown, sigma)
        solution = solve(system, known, unknown)
        assert bool(solution.determined[unknown].all()) is all_of_them
        assert not solution.determined[~unknown].any()
        if all_of_them:
            continue
        assert not solution.determined.any()


def test_more_unknowns_than_the_rank_are_solved_where_few_are_inked_and_else_not_called_determined() -> None:
    unknown = unknown_patches(PATCHES, patches=PATCHES)
    rng = np.random.default_rng(1)
    system, true, _ = made(unknown)
    for inked, known_for_sure in ((2, True), (PATCHES, False)):
        pixels = np.ones_like(true)
        for place in range(SIDE * SIDE):
            for patch in rng.permutation(PATCHES)[:inked]:
                pixels[patch, place] = rng.uniform(0.0, 0.8)
        here = replace(system, sums=np.einsum("nh,nqc->qch", system.gradients, pixels))
        solution = solve(here, np.ones_like(pixels), unknown)
        assert bool(solution.determined.all()) is known_for_sure
        if known_for_sure:
            np.testing.assert_allclose(solution.pixels, pixels, atol=1e-4)
        else:
            assert not solution.determined.any()
        assert solution.most == PATCHES and solution.condition == 1.0


def test_blocks_and_picture_are_each_others_inverse() -> None:
    picture = torch.rand(1, 3, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    system = System(np.zeros((6, WIDTH)), np.zeros((4, 3, WIDTH)), SIDE, 0.0)
    blocks = system.blocks(picture)
    assert blocks.shape == (6, 4, 3)
    for patch, (row, column) in enumerate((r, c) for r in range(2) for c in range(3)):
        for place, (y, x) in enumerate((y, x) for y in range(2) for x in range(2)):
            assert blocks[patch, place].tolist() == picture[0, :, 2 * row + y, 2 * column + x].tolist()
    assert torch.equal(system.picture(blocks, picture), picture)


def test_a_template_is_contradicted_beyond_ten_times_the_noise() -> None:
    system = System(np.zeros((8, WIDTH)), np.ones((4, 3, WIDTH)), SIDE, 0.01)
    allowed = 10 * 0.01 * 3  # sqrt(1 + 8 patches)
    solution = Solution(np.zeros(0), np.zeros(0, np.bool_), 0.0, 1, 1.0)
    assert not replace(solution, leftover=0.99 * allowed).contradicts(system)
    assert replace(solution, leftover=1.01 * allowed).contradicts(system)
    assert not replace(solution, leftover=None).contradicts(system)
    exact = replace(system, noise=0.0)
    assert not replace(solution, leftover=1e-9).contradicts(exact), "rounding is no contradiction"
    assert replace(solution, leftover=1e-2).contradicts(exact)


@pytest.mark.parametrize("known", [0, 1, 15, 16])
def test_conditions_hold_only_where_they_are_fulfilled(known: int) -> None:
    """16 private pixels, of which so many are determined: only all of them are "every"."""
    unknown = unknown_patches(4)
    system, _, _ = made(unknown)
    determined = np.zeros_like(unknown)
    determined.reshape(-1)[:known] = True
    solution = Solution(np.zeros(0), determined, 1e-7 * system.scale, 4, 100.0)
    rank, condition, agrees, every = solution.conditions(system, unknown)
    assert rank.holds and condition.holds and agrees.holds and f"{known / 16:.1%}" in str(every)
    assert every.holds is (known == 16)
    others = replace(solution, most=WIDTH, condition=1e9, contradicted=True).conditions(system, unknown)
    assert not any(condition.holds for condition in others[:3])
    assert replace(solution, most=WIDTH - 1).conditions(system, unknown)[0].holds
    few, solution = replace(system, gradients=system.gradients[:5]), replace(solution, determined=determined[:5])
    assert replace(solution, most=5).conditions(few, unknown[:5])[0].holds
    assert not replace(solution, most=6).conditions(few, unknown[:5])[0].holds
    assert solution.conditions(few, unknown[:5] & False)[3].holds, "none is private"


def test_clear_is_five_grey_levels() -> None:
    """One unknown patch with gradient e: the pixel's standard deviation is noise / |e| at most."""
    unknown = unknown_patches(1)
    system, _, known = made(unknown)
    size = float(np.linalg.norm(system.gradients[0]))
    for factor, clear in ((0.5, True), (2.0, False)):
        rng = np.random.default_rng(2)
        noisy = replace(system, sums=system.sums + factor * CLEAR * size * rng.normal(size=system.sums.shape))
        assert bool(solve(noisy, known, unknown).determined[0].all()) is clear


def test_a_system_is_read_off_the_gradients_of_positions_and_weights() -> None:
    """In pixel units: what the model sees of a pixel x is (x - mean) / deviation of its channel."""
    rng = np.random.default_rng(3)
    mean, deviation = np.array([0.5, 0.4, 0.6]), np.array([0.25, 0.5, 0.2])
    gradients, pixels = rng.normal(size=(PATCHES, WIDTH)), rng.uniform(size=(PATCHES, 4, 3))
    weights = np.einsum("nh,nqc->hcq", gradients, (pixels - mean) / deviation).reshape(WIDTH, 3, SIDE, SIDE)
    positions = np.concatenate([rng.normal(size=(1, WIDTH)), gradients])[None]

    def normalise(pixels: torch.Tensor) -> torch.Tensor:
        return (pixels - torch.from_numpy(mean)[:, None, None]) / torch.from_numpy(deviation)[:, None, None]

    view: Any = SimpleNamespace(
        gradient={POSITIONS: torch.from_numpy(positions), WEIGHTS: torch.from_numpy(weights)},
        model=SimpleNamespace(normalise=normalise),
    )
    system = System.of(view)
    assert system.side == SIDE
    np.testing.assert_allclose(system.gradients, gradients)
    np.testing.assert_allclose(system.sums, np.einsum("nh,nqc->qch", gradients, pixels), atol=1e-10)
    sums = [sum(row) for row in gradients]
    noise = (sum(s * s for s in sums) / PATCHES / WIDTH) ** 0.5  # of each of the numbers that add up to s
    assert system.noise == pytest.approx(noise * 0.5), "the channel where the model sees least of a pixel"


def test_what_inked_patches_leave_is_a_root_mean_square() -> None:
    """More unknowns than directions, and a sum that no ink can explain: paper is 1, and nothing is brighter."""
    unknown = unknown_patches(PATCHES)
    system, _, _ = made(unknown)
    gradients = np.abs(system.gradients)
    brighter = replace(system, gradients=gradients, sums=np.tile(1.5 * gradients.sum(axis=0), (SIDE * SIDE, 3, 1)))
    solution = solve(brighter, np.ones((PATCHES, SIDE * SIDE, 3)), unknown)
    np.testing.assert_allclose(solution.pixels, 1.0)
    assert solution.leftover == pytest.approx(np.sqrt(np.mean((0.5 * gradients.sum(axis=0)) ** 2)))


def test_no_ink_explains_a_sum_of_nothing_and_little_explains_little() -> None:
    np.testing.assert_array_equal(_non_negative(np.eye(3)[:, :2], np.zeros(3)), np.zeros(2))
    np.testing.assert_allclose(_non_negative(np.eye(3)[:, :2], np.array([0.3, -0.1, 0.4])), [0.3, 0.0])
    np.testing.assert_allclose(_non_negative(np.eye(2), np.array([0.3, 0.4])), [0.3, 0.4])


@pytest.mark.parametrize(("factor", "certain"), [(0.9, True), (1.1, False)])
def test_ink_is_certain_where_its_weakest_combination_is_clear_of_noise(factor: float, certain: bool) -> None:
    """Gradients at right angles, 0.3 and 0.1 long: of one place both are inked, of another the longer, of one none."""
    gradients = np.array([[0.3, 0.0, 0.0], [0.0, 0.1, 0.0]])
    ink = np.zeros((2, 3, 1))
    ink[:, 0], ink[0, 1] = 0.5, 0.5
    mask = _only_explanation(gradients, ink, factor * CLEAR * 0.1, rank=3)
    assert mask.tolist() == [[certain, True, True], [certain, certain, certain]]
    assert not _only_explanation(gradients, ink, 1e-9, rank=2)[:, 0].any(), "two of a rank of 2 may be a coincidence"
