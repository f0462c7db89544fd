"""Imprint module: Fowl et al., Robbing the Fed (ICLR 2022). A layer of bins in front of the model keeps whole pictures.

Ours adds what the bins say to the picture instead of replacing it, so that the model goes on working, and takes the
thresholds from public pages instead of a normal distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from docleak.attacks.servers.bins import filled, singles
from docleak.attacks.servers.view import Loot, PublicPages, Sent
from docleak.errors import AttackError
from docleak.models.base import DocumentModel, Encoded

WEIGHT, BIAS = "imprint.weight", "imprint.bias"
#: How far a reconstruction may be out of [0, 1] and still be a picture.
SLACK = 0.02


class ImprintLayer(nn.Module):
    """Pixels (B, 3, H, W) plus ``gain`` times the mean of k bins, the same number for every pixel."""

    def __init__(self, direction: Tensor, thresholds: Tensor, *, gain: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(direction.expand(len(thresholds), -1).clone())  # (k, 3 H W)
        self.bias = nn.Parameter(-thresholds.to(direction.dtype))
        self.gain = gain

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels of the same shape."""
        bins = torch.relu(nn.functional.linear(pixels.flatten(1), self.weight, self.bias))
        return pixels + self.gain * bins.mean(1)[:, None, None, None]


class Imprinted:
    """A model behind such a layer; everything else is the model's own."""

    def __init__(self, model: DocumentModel, layer: ImprintLayer) -> None:
        self._model = model
        model.module.add_module("imprint", layer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)

    def loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> Tensor:
        """The model's loss of what the layer makes of the pixels."""
        return self._model.loss(self._model.module.imprint(pixels), inputs, pages)  # type: ignore[operator]


@dataclass(frozen=True)
class Imprint:
    """``bins`` rows that measure one random mean of the pixels; ``gain`` is how much they add to the picture."""

    name: str = "imprint"
    paper: str = "Fowl et al. (2022)"
    summary: str = "an added layer with bins in front of the model gives whole pictures, one page a bin"
    changes: str = "architecture"
    bins: int = 64
    gain: float = 1e-2

    def obstacle(self, model: DocumentModel) -> str:
        """It needs nothing of the model but that pixels go in."""
        if self.bins < 2:
            raise AttackError(f"imprint has bins={self.bins}; expected 2 or more.")
        return ""

    def manipulate(self, model: DocumentModel, public: PublicPages, *, generator: torch.Generator) -> Sent:
        """A copy with the layer in front; its two tensors are named WEIGHT and BIAS."""
        self.obstacle(model)
        width, height = model.image_size
        direction = torch.randn(3 * width * height, generator=generator)
        direction = (direction / direction.norm()).to(public.pixels)
        measured = (public.pixels.flatten(1) @ direction).double().cpu()
        mean, spread = measured.mean(), measured.std()
        share = torch.linspace(0.5, self.bins - 0.5, self.bins, dtype=torch.float64) / self.bins
        cut = mean + spread * 2**0.5 * torch.erfinv(2 * share - 1)
        cut[0] = torch.minimum(cut[0], mean - 10 * spread)
        copy = deepcopy(model)
        layer = ImprintLayer(direction, cut, gain=self.gain).to(public.pixels.device)
        return Sent(Imprinted(copy, layer))

    def read(self, sent: Sent, update: Mapping[str, Tensor]) -> Loot:
        """A picture per bin that one page, or several alike, fell into."""
        width, height = sent.model.image_size
        return Loot(pictures=pictures_in(update[WEIGHT], update[BIAS], (3, height, width)))


def pictures_in(weight: Tensor, bias: Tensor, shape: Sequence[int]) -> Tensor:
    """Pictures (n, *shape) in [0, 1] from the gradients of the bins' weight (k, d) and bias (k,).

    Raises AttackError for gradients of other shapes. A bin of two pages gives a mean of both, which its reader cannot
    tell from one.
    """
    size = int(torch.tensor(shape).prod())
    if weight.ndim != 2 or weight.shape != (len(bias), size):
        raise AttackError(f"bins of shape {tuple(weight.shape)} and {tuple(bias.shape)}; expected (k, {size}), (k,).")
    inputs = inputs_of_bins(weight, bias)
    inside = (inputs.amin(1) > -SLACK) & (inputs.amax(1) < 1 + SLACK)
    return inputs[inside].clamp(0, 1).float().reshape(-1, *shape)


def inputs_of_bins(weight: Tensor, bias: Tensor) -> Tensor:
    """What went into the bins, (n, d) in float64: of each bin that is not empty, its mean weighted by gradients."""
    sums, sizes = singles(weight.double()), singles(bias.double())
    there = filled(sums) & (sizes.abs() > 1e-9 * sizes.abs().max())
    return sums[there] / sizes[there, None]


ATTACK = Imprint()
