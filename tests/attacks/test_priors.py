"""GI-DQA's image priors, eq. 7-10, against loops that say what the equations say."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients.priors import (
    PRIORS,
    gaussian,
    laplacian,
    tv_channel,
    tv_channel_sum,
    tv_spatial,
    tv_spatial_sum,
)


def random_case(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.rand(2, 3, 7, 9, generator=generator, dtype=torch.float64)
    return pixels, torch.rand(2, 7, 9, generator=generator) < 0.3


def at(image: Tensor, y: int, x: int) -> float:
    """A pixel of (H, W), the border repeated outside."""
    return float(image[min(max(y, 0), image.shape[0] - 1), min(max(x, 0), image.shape[1] - 1)])


def mean_over_mask(value: Callable[[Tensor, int, int], float], pixels: Tensor, mask: Tensor) -> float:
    values = [
        value(pixels[b, c], y, x)
        for b in range(pixels.shape[0])
        for y in range(pixels.shape[2])
        for x in range(pixels.shape[3])
        if mask[b, y, x]
        for c in range(3)
    ]
    return sum(values) / len(values)


def slow_laplacian(pixels: Tensor, mask: Tensor) -> float:
    def value(image: Tensor, y: int, x: int) -> float:
        neighbours = at(image, y - 1, x) + at(image, y + 1, x) + at(image, y, x - 1) + at(image, y, x + 1)
        return abs(4 * at(image, y, x) - neighbours)

    return mean_over_mask(value, pixels, mask)


def slow_gaussian(pixels: Tensor, mask: Tensor, sigma: int = 1) -> float:
    offsets = range(-2 * sigma, 2 * sigma + 1)
    weights = {(i, j): math.exp(-(i * i + j * j) / (2 * sigma**2)) for i in offsets for j in offsets}
    total = sum(weights.values())

    def value(image: Tensor, y: int, x: int) -> float:
        smooth = sum(w * at(image, y + i, x + j) for (i, j), w in weights.items()) / total
        return abs(smooth - at(image, y, x))

    return mean_over_mask(value, pixels, mask)


def slow_tv_spatial(pixels: Tensor, mask: Tensor) -> float:
    batch, channels, height, width = pixels.shape
    total = 0.0
    for b in range(batch):
        for y in range(height):
            for x in range(width):
                for other in ((y + 1, x), (y, x + 1)):
                    if other[0] < height and other[1] < width and (mask[b, y, x] or mask[b, other[0], other[1]]):
                        for c in range(channels):
                            total += abs(float(pixels[b, c, y, x] - pixels[b, c, other[0], other[1]]))
    return total / (3 * int(mask.sum()))


def slow_tv_channel(pixels: Tensor, mask: Tensor) -> float:
    total = 0.0
    for b, y, x in mask.nonzero().tolist():
        red, green, blue = (float(v) for v in pixels[b, :, y, x])
        total += abs(red - green) + abs(green - blue) + abs(blue - red)
    return total / int(mask.sum())


ORACLES = {
    laplacian: slow_laplacian,
    gaussian: slow_gaussian,
    PRIORS["gaussian-2px"]: partial(slow_gaussian, sigma=2),
    tv_spatial: slow_tv_spatial,
    tv_channel: slow_tv_channel,
    tv_spatial_sum: lambda pixels, mask: slow_tv_spatial(pixels, mask) * 3 * int(mask.sum()),
    tv_channel_sum: lambda pixels, mask: slow_tv_channel(pixels, mask) * int(mask.sum()),
}


def test_every_prior_has_an_oracle() -> None:
    assert set(PRIORS.values()) == set(ORACLES)


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_loops_agree(name: str, seed: int) -> None:
    pixels, mask = random_case(seed)
    prior = PRIORS[name]
    assert float(prior(pixels, mask)) == pytest.approx(ORACLES[prior](pixels, mask), rel=1e-9)


@pytest.mark.parametrize("name", PRIORS)
def test_constant_grey_costs_nothing_and_noise_something(name: str) -> None:
    pixels, mask = random_case(2)
    assert float(PRIORS[name](torch.full_like(pixels, 0.37), mask)) == pytest.approx(0, abs=1e-12)
    assert float(PRIORS[name](pixels, mask)) > 0.1


def test_only_the_channel_prior_minds_colour_only_the_others_edges() -> None:
    _, mask = random_case(3)
    colour = torch.tensor([0.9, 0.5, 0.1], dtype=torch.float64).view(1, 3, 1, 1).expand(2, 3, 7, 9)
    grey = torch.rand(2, 1, 7, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).expand(2, 3, 7, 9)
    for name, prior in PRIORS.items():
        flat, edgy = float(prior(colour, mask)), float(prior(grey, mask))
        assert (flat > 0.1, edgy > 0.1) == ((True, False) if name.startswith("tv-channel") else (False, True))


@pytest.mark.parametrize("name", PRIORS)
def test_priors_are_differentiable_and_look_only_near_the_region(name: str) -> None:
    pixels, _ = random_case(4)
    mask = torch.zeros(2, 7, 9, dtype=torch.bool)
    mask[0, 3, 2] = True
    free = pixels.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(PRIORS[name](free, mask), free)
    assert torch.isfinite(gradient).all()
    assert gradient[0, :, 3, 2].any()
    assert not gradient[1].any()
    reach = 4 if name == "gaussian-2px" else 2
    assert not gradient[0, :, :, 2 + reach + 1 :].any()
