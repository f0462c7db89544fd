"""The eye of a bimodal encoder: features of the page, and their means under each token's box.

He et al. (2017), "Mask R-CNN", section 3: RoI alignment samples the feature map at exact places, without rounding. The
features are those of three small convolutions, or of a pretrained ResNet (``resnet``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docleak.errors import ModelError
from docleak.models.encoders.resnet import ResNetFeatures
from docleak.models.encoders.tokens import BOX_SCALE


@dataclass(frozen=True)
class VisionConfig:
    """``size`` (width, height) in pixels; each of ``channels`` is a convolution that halves the map.

    A box is covered by ``bins`` (rows, columns), each the mean of ``samples`` x ``samples`` points. With a ``resnet``
    (directory or hub name) the map is that of its third stage, a sixteenth of the picture (He et al. (2017): C4), and
    ``channels`` count for nothing.
    """

    size: tuple[int, int] = (160, 224)
    channels: tuple[int, ...] = (8, 16, 32)
    bins: tuple[int, int] = (1, 3)
    samples: int = 2
    resnet: str = ""

    def __post_init__(self) -> None:
        numbers = (*self.size, *self.channels, *self.bins, self.samples)
        if len(self.size) != 2 or len(self.bins) != 2 or not self.channels or min(numbers) < 1:
            raise ModelError(f"vision settings {self} cannot be used; expected whole numbers of 1 or more.")


class Eye(nn.Module):
    """Pictures and boxes to one vector per token, in the width of the token embeddings. ``resnet`` describes the
    network of ``config.resnet``, see ``resnet.read_resnet``."""

    def __init__(self, config: VisionConfig, width: int, resnet: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.config = config
        self.layers = ResNetFeatures(resnet) if resnet else _convolutions(config)
        channels = self.layers.channels if isinstance(self.layers, ResNetFeatures) else config.channels[-1]
        self.project = nn.Linear(channels * config.bins[0] * config.bins[1], width)

    def forward(self, images: Tensor, boxes: Tensor) -> Tensor:
        """Images (B, 3, H, W) uint8 or in 0..255, boxes (B, T, 4) in 0..1000, to (B, T, width)."""
        features = self.layers(images.float() / 127.5 - 1)
        pooled = roi_align(features, boxes.float() / BOX_SCALE, bins=self.config.bins, samples=self.config.samples)
        out: Tensor = self.project(pooled.flatten(2))
        return out


def _convolutions(config: VisionConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip((3, *config.channels), config.channels, strict=False):
        # Group rather than batch normalisation: no statistics of the training pages outside of the weights.
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(1, after), nn.GELU()]
    return nn.Sequential(*layers)


def roi_align(features: Tensor, boxes: Tensor, *, bins: tuple[int, int], samples: int) -> Tensor:
    """Means of bilinear samples under each box: features (B, C, h, w), boxes (B, T, 4) in 0..1, to (B, T, C, bins).

    Each box is cut into ``bins`` (rows, columns), each sampled at ``samples`` x ``samples`` evenly spaced points. A
    cell's value stands at its centre; points beyond the outermost centres take the border's value.
    """
    rows, columns = bins[0] * samples, bins[1] * samples
    x0, y0, x1, y1 = boxes.unbind(-1)  # (B, T) each
    across = (torch.arange(columns, device=boxes.device) + 0.5) / columns
    down = (torch.arange(rows, device=boxes.device) + 0.5) / rows
    xs = x0[..., None] + (x1 - x0)[..., None] * across  # (B, T, columns)
    ys = y0[..., None] + (y1 - y0)[..., None] * down  # (B, T, rows)
    batch, tokens = boxes.shape[:2]
    shape = (batch, tokens, rows, columns)
    grid = torch.stack([xs[:, :, None, :].expand(shape), ys[:, :, :, None].expand(shape)], dim=-1)
    grid = grid.reshape(batch, tokens * rows, columns, 2) * 2 - 1  # grid_sample's corners are -1 and 1
    sampled = F.grid_sample(features, grid, mode="bilinear", padding_mode="border", align_corners=False)
    split = sampled.reshape(batch, -1, tokens, bins[0], samples, bins[1], samples)
    return split.mean(dim=(4, 6)).movedim(1, 2)  # (B, T, C, bins[0], bins[1])
