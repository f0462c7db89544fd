"""RoI alignment against a slow loop, and against what it must give on maps whose mean is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from docleak.errors import ModelError
from docleak.models.encoders.vision import Eye, VisionConfig, roi_align


def slowly(features: Tensor, box: list[float], bins: tuple[int, int], samples: int) -> Tensor:
    """One box of one map (C, h, w), point by point: (C, rows, columns)."""
    channels, height, width = features.shape
    x0, y0, x1, y1 = box
    out = torch.zeros(channels, *bins)
    for row in range(bins[0]):
        for column in range(bins[1]):
            for i in range(samples):
                for j in range(samples):
                    y = (y0 + (row + (i + 0.5) / samples) / bins[0] * (y1 - y0)) * height - 0.5
                    x = (x0 + (column + (j + 0.5) / samples) / bins[1] * (x1 - x0)) * width - 0.5
                    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
                    top, left = math.floor(y), math.floor(x)
                    for r, c in ((0, 0), (0, 1), (1, 0), (1, 1)):
                        weight = abs(1 - r - (y - top)) * abs(1 - c - (x - left))
                        cell = features[:, min(top + r, height - 1), min(left + c, width - 1)]
                        out[:, row, column] += weight * cell / samples**2
    return out


def test_it_is_what_a_loop_over_points_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 3, 7, 5, generator=generator)
    corners = torch.rand(2, 6, 2, 2, generator=generator).sort(dim=2).values
    boxes = corners.reshape(2, 6, 4)  # x0, y0, x1, y1
    regions = roi_align(features, boxes, bins=(2, 3), samples=2)
    assert regions.shape == (2, 6, 3, 2, 3)
    for page in range(2):
        for token in range(6):
            expected = slowly(features[page], boxes[page, token].tolist(), (2, 3), 2)
            assert torch.allclose(regions[page, token], expected, atol=1e-5)


def test_a_slope_gives_its_value_at_the_middle_of_the_box() -> None:
    width = 40
    slope = ((torch.arange(width) + 0.5) / width).expand(1, 1, 20, width)
    middle = roi_align(slope, torch.tensor([[[0.2, 0.3, 0.6, 0.5]]]), bins=(1, 1), samples=4)
    assert float(middle) == pytest.approx(0.4, abs=1e-6)


def test_an_eye_sees_only_what_is_near_the_box() -> None:
    """Ink far away from a token changes nothing of it, but for the norm, which is over the whole page."""
    eye = Eye(VisionConfig(size=(64, 96), channels=(4, 8)), 16).eval()
    for norm in (layer for layer in eye.layers if isinstance(layer, torch.nn.GroupNorm)):
        norm.forward = lambda x: x  # type: ignore[method-assign]
    image = torch.full((1, 3, 96, 64), 255, dtype=torch.uint8)
    other = image.clone()
    other[:, :, :10] = 0
    boxes = torch.tensor([[[100, 20, 300, 60], [100, 800, 300, 850]]])
    a, b = eye(image, boxes), eye(other, boxes)
    assert not torch.allclose(a[0, 0], b[0, 0], atol=1e-4)
    assert torch.allclose(a[0, 1], b[0, 1], atol=1e-5)


def test_gradients_reach_the_first_convolution() -> None:
    eye = Eye(VisionConfig(size=(64, 96), channels=(4, 8)), 16)
    image = torch.randint(0, 256, (2, 3, 96, 64), dtype=torch.uint8)
    eye(image, torch.randint(0, 1000, (2, 5, 4)).sort(-1).values).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in eye.layers[0].parameters())


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ModelError, match="whole numbers of 1 or more"):
        VisionConfig(channels=())
