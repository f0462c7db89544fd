"""A prior over pictures for GIFD: a small generator of our own, whose inner features can be taken as unknowns.

``features`` 0 is the latent vector; 1, 2, ... are what each stage hands to the next. From any of them the rest of the
generator makes a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docleak.errors import ModelError
from docleak.files import write_json
from docleak.models.files import config_from, fill, save_module, weights_in
from docleak.models.loading import config_at, locate, short_name
from docleak.models.shipped import SHIPPED_GENERATOR, model_card

MODEL_TYPE = "docleak-generator"


@dataclass(frozen=True)
class GeneratorConfig:
    """Pictures of ``height`` x ``width`` pixels from ``latent`` numbers; ``channels`` of the stages, first to last.

    Every stage but the first doubles both sides.
    """

    height: int = 16
    width: int = 64
    latent: int = 64
    channels: tuple[int, ...] = (32, 32, 24)

    def __post_init__(self) -> None:
        fold = self.fold
        if not self.channels or self.height % fold or self.width % fold or self.latent < 1:
            raise ModelError(
                f"a generator of {len(self.channels)} stages makes pictures whose sides are multiples of {fold}; "
                f"found {self.width} x {self.height} and {self.latent} latent numbers."
            )

    @property
    def fold(self) -> int:
        """How many times smaller the first stage's sides are than the picture's."""
        return int(2 ** max(0, len(self.channels) - 1))


class GeneratorNetwork(nn.Module):
    """A linear layer, then convolutions and doublings; the last one ends in a sigmoid."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        self.config = config
        first = config.channels[0]
        self.grid = (config.height // config.fold, config.width // config.fold)
        self.begin = nn.Linear(config.latent, first * self.grid[0] * self.grid[1])
        widths = zip(config.channels, (*config.channels[1:], config.channels[-1]), strict=True)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, a, 3, padding=1), nn.GELU(), nn.Conv2d(a, b, 3, padding=1), nn.GELU())
            for a, b in widths
        )
        self.end = nn.Conv2d(config.channels[-1], 3, 3, padding=1)

    @property
    def depth(self) -> int:
        """How many sets of features there are beside the latent vector."""
        return len(self.stages)

    def features(self, values: Tensor, start: int, stop: int) -> Tensor:
        """Features number ``stop`` from features number ``start``, both in 0..depth and ``start <= stop``."""
        x = values
        for number in range(start, stop):
            if number == 0:
                x = F.gelu(self.begin(x)).view(len(x), self.config.channels[0], *self.grid)
            else:
                x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = self.stages[number](x)
        return x

    def picture(self, values: Tensor, start: int = 0) -> Tensor:
        """(B, 3, height, width) in (0, 1) from features number ``start``."""
        return torch.sigmoid(self.end(self.features(values, start, self.depth)))


@dataclass(frozen=True, eq=False)
class Generator:
    """A GeneratorNetwork with the name it is reported by."""

    name: str
    network: GeneratorNetwork

    @property
    def latent(self) -> int:
        return self.network.config.latent

    @property
    def depth(self) -> int:
        return self.network.depth

    def features(self, values: Tensor, start: int, stop: int) -> Tensor:
        """See GeneratorNetwork.features."""
        return self.network.features(values, start, stop)

    def picture(self, values: Tensor, start: int, size: tuple[int, int]) -> Tensor:
        """(B, 3, H, W) in (0, 1) from features number ``start``, resized to ``size`` (H, W)."""
        made = self.network.picture(values, start)
        if tuple(made.shape[2:]) == tuple(size):
            return made
        return F.interpolate(made, size=size, mode="bilinear", antialias=True)


def build_generator(config: GeneratorConfig, *, seed: int) -> Generator:
    """One drawn with ``seed``, untrained."""
    torch.manual_seed(seed)
    return Generator(SHIPPED_GENERATOR, GeneratorNetwork(config))


def save_generator(generator: Generator, directory: Path, card: dict[str, object]) -> None:
    """Write docleak.json (how it was made), model.safetensors and last config.json, each whole or not at all."""
    write_json(directory / "docleak.json", card)
    save_module(directory, MODEL_TYPE, generator.network.config, generator.network)


def generator_told(source: str) -> str:
    """Its name, and what it was trained on as the card beside it says."""
    card = model_card(locate(source, what="generator", shipped=(SHIPPED_GENERATOR,))[0])
    trained = card.get("trained_on")
    return f"{short_name(source)}, " + (
        f"trained on {trained}" if trained else "its card does not say on what it was trained"
    )


def load_generator(source: str, *, device: str | torch.device = "cpu") -> Generator:
    """ "generator-tiny", or a directory that ``save_generator`` wrote. ModelError if there is none."""
    where, revision = locate(source, what="generator", shipped=(SHIPPED_GENERATOR,))
    values = config_at(where, revision, source)
    if values.get("model_type") != MODEL_TYPE:
        raise ModelError(
            f"{source!r} is no generator. Expected {SHIPPED_GENERATOR!r}, or a directory that "
            "scripts/pair_files.py generator wrote."
        )
    network = GeneratorNetwork(config_from(GeneratorConfig, values, source))
    fill(network, weights_in(where, revision), source=source)
    return Generator(short_name(source), network.eval().to(device).requires_grad_(False))
