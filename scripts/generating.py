"""Training of the tiny generator as the decoder of a variational autoencoder (Kingma and Welling, 2014)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from docleak.documents.pairs import Pair
from docleak.models.base import pixels_of
from docleak.models.pair.generator import Generator, GeneratorConfig


@dataclass(frozen=True)
class GeneratingConfig:
    """AdamW over ``epochs`` epochs of ``batch_size`` pictures, its step falling to zero as a cosine.

    ``sigma`` is the standard deviation of a pixel in [0, 1] around the decoder's picture: what it balances against the
    latent's divergence from a standard normal.
    """

    epochs: int = 10
    batch_size: int = 32
    learning_rate: float = 3e-3
    sigma: float = 0.1


class Encoder(nn.Module):
    """Pictures (B, 3, H, W) to means and log variances (B, latent) of the latent. Not kept."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.GELU(),
            nn.Conv2d(32, 48, 3, stride=2, padding=1), nn.GELU(), nn.Flatten(),
        )  # fmt: skip
        places = math.ceil(math.ceil(config.height / 2) / 2) * math.ceil(math.ceil(config.width / 2) / 2)
        self.end = nn.Linear(48 * places, 2 * config.latent)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.end(self.eye(2 * pixels - 1)).chunk(2, dim=1)
        return mean, log_variance


def train_generator(
    generator: Generator,
    pairs: Sequence[Pair],
    config: GeneratingConfig,
    *,
    rng: np.random.Generator,
    noise: torch.Generator,
    on_epoch: Callable[[int, float], None] = lambda number, loss: None,
) -> Encoder:
    """Train in place on pictures of the generator's size; returns the encoder, whose weights torch's seed drew.

    ``on_epoch`` is told the mean squared error per number.
    """
    pixels = torch.stack([pixels_of(pair.image) for pair in pairs])
    network, encoder = generator.network.train(), Encoder(generator.network.config)
    optimiser = torch.optim.AdamW([*network.parameters(), *encoder.parameters()], lr=config.learning_rate)
    steps = config.epochs * math.ceil(len(pairs) / config.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for epoch in range(config.epochs):
        errors = []
        order = torch.from_numpy(rng.permutation(len(pixels)))
        for first in range(0, len(order), config.batch_size):
            truth = pixels[order[first : first + config.batch_size]]
            mean, log_variance = encoder(truth)
            drawn = mean + (log_variance / 2).exp() * torch.randn(mean.shape, generator=noise)
            error = (network.picture(drawn) - truth).square()
            loss = error.sum() / (2 * config.sigma**2) + divergence(mean, log_variance)
            optimiser.zero_grad()
            (loss / len(truth)).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            errors.append(float(error.detach().mean()))
        on_epoch(epoch + 1, float(np.mean(errors)))
    network.eval()
    return encoder.eval()


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Kullback-Leibler divergence of N(mean, exp(log_variance)) from N(0, 1), summed."""
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum()
