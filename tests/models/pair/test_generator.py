"""The generator of pictures: its features lead on to each other, it learns, and the shipped one knows scenes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from docleak.documents.pairs import make_scenes, resized
from docleak.errors import ModelError
from docleak.models.base import pixels_of
from docleak.models.pair.generator import (
    SHIPPED_GENERATOR,
    GeneratorConfig,
    build_generator,
    load_generator,
    save_generator,
)
from scripts.generating import GeneratingConfig, divergence, train_generator

SMALL = GeneratorConfig(height=8, width=16, latent=6, channels=(8, 8))


def test_every_set_of_features_leads_to_the_same_picture() -> None:
    made = build_generator(SMALL, seed=0)
    latent = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    whole = made.picture(latent, 0, (8, 16))
    assert whole.shape == (2, 3, 8, 16) and bool(((whole > 0) & (whole < 1)).all())
    for level in range(made.depth + 1):
        values = made.features(latent, 0, level)
        assert torch.equal(made.picture(values, level, (8, 16)), whole)
    assert made.picture(latent, 0, (16, 32)).shape == (2, 3, 16, 32)


def test_training_learns_and_repeats_itself() -> None:
    pairs = [resized(pair, (16, 8)) for pair in make_scenes(64, seed=0)]
    seen = []
    for _ in range(2):
        made, errors = build_generator(SMALL, seed=1), []
        config = GeneratingConfig(epochs=12, batch_size=16)
        train_generator(
            made, pairs, config, rng=np.random.default_rng(0), noise=torch.Generator().manual_seed(0),
            on_epoch=lambda number, error, to=errors: to.append(error),
        )  # fmt: skip
        seen.append(errors)
    assert seen[0] == seen[1]
    assert seen[0][-1] < 0.8 * seen[0][0]


def test_divergence_is_that_of_two_normals() -> None:
    mean, log_variance = torch.tensor([[0.3, -1.0]]), torch.tensor([[0.2, -0.5]])
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    other = torch.distributions.Normal(torch.zeros(1, 2), torch.ones(1, 2))
    expected = torch.distributions.kl_divergence(posterior, other).sum()
    assert float(divergence(mean, log_variance)) == pytest.approx(float(expected), rel=1e-5)


def test_the_shipped_one_makes_unseen_scenes_but_no_noise() -> None:
    made = load_generator(SHIPPED_GENERATOR)
    scenes = torch.stack([pixels_of(resized(pair, (64, 16)).image) for pair in make_scenes(4, seed=4321)])
    noise = torch.rand(scenes.shape, generator=torch.Generator().manual_seed(0))

    def left(pictures: torch.Tensor) -> float:
        latent = torch.zeros(len(pictures), made.latent, requires_grad=True)
        optimiser = torch.optim.Adam([latent], lr=0.1)
        for _ in range(150):
            optimiser.zero_grad()
            loss = (made.picture(latent, 0, (16, 64)) - pictures).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return float(loss.detach()) / float(pictures.var())

    assert left(scenes) < 0.3 < 0.7 < left(noise)


def test_saved_and_read_again(tmp_path: Path) -> None:
    made = build_generator(SMALL, seed=3)
    save_generator(made, tmp_path, {"made_by": "a test"})
    again = load_generator(str(tmp_path))
    latent = torch.randn(1, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.picture(latent, 0, (8, 16)), made.picture(latent, 0, (8, 16)))


def test_what_cannot_be_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_generator(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ModelError, match="is no generator"):
        load_generator(str(tmp_path))
    with pytest.raises(ModelError, match="multiples of 4"):
        GeneratorConfig(height=10, width=16, channels=(8, 8, 8))
