"""Auxiliary image priors of GI-DQA (Ben Hemo et al., 2025), section 3.3.1, eq. 6-11.

All take pixels (B, 3, H, W) in [0, 1] and return a scalar, averaged over the pixels that count, but for the two that
are called sums. Eq. 7 and 8 average over pixels and eq. 9-10 are printed as sums; with a sum, the published weight
0.1 outweighs the matching loss by three orders of magnitude, so the published attack takes the means here. What that
changes was measured: docs/results/gi-dqa/readings.md. ``mask`` (B, H, W) marks the optimised pixels: the template's
part of each prior is constant and left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

Prior = Callable[[Tensor, Tensor], Tensor]
#: Where a text names a prior without a weight: the published one of most of them.
DEFAULT_WEIGHT = 0.1


def laplacian(pixels: Tensor, mask: Tensor) -> Tensor:
    """Visual text prior, eq. 7: mean |K_lap * x|."""
    kernel = pixels.new_tensor([[0.0, -1.0, 0.0], [-1.0, 4.0, -1.0], [0.0, -1.0, 0.0]])
    return _mean(_depthwise(pixels, kernel).abs(), mask)


def gaussian(pixels: Tensor, mask: Tensor, *, sigma: float = 1.0, radius: int = 2) -> Tensor:
    """Gaussian prior, eq. 8: mean |K_gau * x - x|; the paper gives no sigma, 1 pixel is ours (2: ``gaussian-2px``)."""
    axis = torch.arange(-radius, radius + 1, device=pixels.device, dtype=pixels.dtype)
    line = torch.exp(-(axis**2) / (2 * sigma**2))
    kernel = torch.outer(line, line)
    return _mean((_depthwise(pixels, kernel / kernel.sum()) - pixels).abs(), mask)


def tv_spatial_sum(pixels: Tensor, mask: Tensor) -> Tensor:
    """Spatial total variation, eq. 9 as printed (anisotropic), over pixel pairs that touch the region."""
    down = (pixels[..., 1:, :] - pixels[..., :-1, :]).abs()
    right = (pixels[..., :, 1:] - pixels[..., :, :-1]).abs()
    pairs_down = mask[..., 1:, :] | mask[..., :-1, :]
    pairs_right = mask[..., :, 1:] | mask[..., :, :-1]
    return (down * pairs_down[:, None]).sum() + (right * pairs_right[:, None]).sum()


def tv_spatial(pixels: Tensor, mask: Tensor) -> Tensor:
    """Spatial total variation, eq. 9, as a mean over the values that count."""
    return tv_spatial_sum(pixels, mask) / (3 * mask.sum())


def tv_channel_sum(pixels: Tensor, mask: Tensor) -> Tensor:
    """Channel total variation, eq. 10 as printed, but its middle term read as |G - B|."""
    red, green, blue = pixels.unbind(1)
    spread = (red - green).abs() + (green - blue).abs() + (blue - red).abs()
    return (spread * mask).sum()


def tv_channel(pixels: Tensor, mask: Tensor) -> Tensor:
    """Channel total variation, eq. 10, as a mean over the pixels that count."""
    return tv_channel_sum(pixels, mask) / mask.sum()


def _depthwise(pixels: Tensor, kernel: Tensor) -> Tensor:
    """Convolve every channel with ``kernel``, replicating the border."""
    radius = kernel.shape[-1] // 2
    padded = F.pad(pixels, (radius,) * 4, mode="replicate")
    return F.conv2d(padded, kernel.expand(3, 1, *kernel.shape), groups=3)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask[:, None]).sum() / (3 * mask.sum())


PRIORS: dict[str, Prior] = {
    "text": laplacian,
    "gaussian": gaussian,
    "gaussian-2px": partial(gaussian, sigma=2.0, radius=4),
    "tv-spatial": tv_spatial,
    "tv-channel": tv_channel,
    "tv-spatial-sum": tv_spatial_sum,
    "tv-channel-sum": tv_channel_sum,
}
