"""Which pixels an attack may change, and how they are parametrised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Region = Literal["private", "all"]
Start = Literal["uniform", "normal", "light", "by-size"]
#: The darkest pixel of a light start: private regions are mostly paper.
DARKEST = 0.6


@dataclass(frozen=True)
class Canvas:
    """Maps a flat vector of unknowns to pixels (B, 3, H, W), the template everywhere else.

    With ``grey`` one unknown serves the three channels of a pixel (R = G = B, the limit of eq. 10's
    prior for an infinite weight); without it each channel is an unknown of its own.
    """

    template: Tensor
    mask: Tensor  # (B, H, W) bool
    grey: bool

    @classmethod
    def of(cls, template: Tensor, private: Tensor, *, region: Region, grey: bool) -> Canvas:
        mask = torch.ones_like(private, dtype=torch.bool) if region == "all" else private.bool()
        return cls(template, mask, grey)

    @property
    def size(self) -> int:
        return int(self.mask.sum()) * (1 if self.grey else 3)

    def start(self, kind: Start, generator: torch.Generator) -> Tensor:
        """Random unknowns: uniform in [0, 1], standard normal as in the DLG papers, or light, uniform in [DARKEST, 1].
        An attack makes one of these of ``by-size``."""
        draw = torch.randn if kind == "normal" else torch.rand
        drawn = draw(self.size, generator=generator).to(self.template.device)
        return DARKEST + (1 - DARKEST) * drawn if kind == "light" else drawn

    def unknowns(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) -> (n,): the inverse of ``pixels``; grey is the mean of the channels."""
        if self.grey:
            return pixels.mean(dim=1)[self.mask]
        return pixels[self.mask[:, None].expand_as(pixels)]

    def pixels(self, unknowns: Tensor) -> Tensor:
        """(n,) -> (B, 3, H, W), differentiable."""
        full = self.mask[:, None].expand(-1, 3, -1, -1)  # (B, 3, H, W)
        if self.grey:
            plane = torch.zeros_like(self.template[:, 0]).masked_scatter(self.mask, unknowns)
            return torch.where(full, plane[:, None].expand_as(full), self.template)
        return self.template.masked_scatter(full, unknowns)
