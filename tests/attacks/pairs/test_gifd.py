"""GIFD: its ball, its features, and that a generator that knows such pictures helps where the gradient is noisy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from docleak.attacks.gradients.view import Knowledge
from docleak.attacks.pairs.gifd import GIFD, FeatureCanvas, _Search, in_ball
from docleak.attacks.pairs.view import inputs_of
from docleak.errors import AttackError
from docleak.models.pair.generator import GeneratorConfig, build_generator, load_generator, save_generator


def test_projection_onto_the_ball_is_the_nearest_point() -> None:
    generator = torch.Generator().manual_seed(0)
    values = 3 * torch.randn(6, 5, generator=generator)
    radius = 2.0
    points = in_ball(values, radius)
    assert (points.abs().sum(1) <= radius + 1e-5).all()
    for row, point in zip(values, points, strict=True):
        if float(row.abs().sum()) <= radius:
            assert torch.equal(row, point)
            continue
        tries = torch.randn(4000, 5, generator=generator)
        tries = tries * (radius / tries.abs().sum(1, keepdim=True)) * torch.rand(4000, 1, generator=generator)
        near = point + 0.05 * torch.randn(4000, 5, generator=generator)
        tries = torch.cat([tries, near[near.abs().sum(1) <= radius]])
        assert float((row - point).norm()) <= float((tries - row).norm(dim=1).min()) + 1e-5
    inside = 0.1 * values
    assert torch.equal(in_ball(inside, 100.0), inside)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small generator of pictures of 16 x 16, drawn at random."""
    out = tmp_path_factory.mktemp("generator")
    config = GeneratorConfig(height=16, width=16, latent=4, channels=(8, 8))
    made = build_generator(config, seed=0)
    with torch.no_grad():
        made.network.begin.weight.mul_(4)
        made.network.end.weight.mul_(12)
    save_generator(made, out, {})
    return out


def knowledge_of(client: Any) -> Knowledge:
    grey = torch.full((1, 3, 16, 16), 0.5)
    return Knowledge(grey, torch.ones(1, 16, 16, dtype=torch.bool), inputs_of(client.labels.tolist()))


@pytest.mark.parametrize("budget", [1, 2, 9, 40])
def test_it_keeps_to_its_budget_and_repeats_itself(victim: Callable[..., Any], folder: Path, budget: int) -> None:
    client = victim(("a block",), (1,))
    attack = replace(GIFD, generator=str(folder))

    def run() -> Any:
        return attack.run(
            client.view.side("image"), knowledge_of(client), budget=budget, generator=torch.Generator().manual_seed(0)
        )

    first, again = run(), run()
    assert first.evaluations == budget
    assert torch.equal(first.pixels, again.pixels)
    assert first.matching == pytest.approx(min(loss for _, loss in first.history))
    assert [number for number, _ in first.history] == list(range(1, budget + 1))


def test_a_picture_that_the_generator_can_make_comes_out(victim: Callable[..., Any], folder: Path) -> None:
    """And one that it cannot make does not, without inner features; with them, it comes nearer."""
    made = load_generator(str(folder))
    picture = made.picture(torch.randn(1, 4, generator=torch.Generator().manual_seed(5)), 0, (16, 16))
    client = victim(("a block",), (1,), pixels=picture)
    attack = replace(GIFD, generator=str(folder))
    side, known = client.view.side("image"), knowledge_of(client)

    def error(which: Any, target: Any = client) -> float:
        view = target.view.side("image")
        finding = which.run(view, knowledge_of(target), budget=120, generator=torch.Generator().manual_seed(0))
        return float((finding.pixels - target.pixels).square().mean() / target.pixels.var())

    assert side.batch_size == len(known.template) == 1
    assert error(replace(attack, first=1.0)) < 0.05
    noise = victim(("a block",), (1,))
    assert error(replace(attack, first=1.0), noise) > 0.5


def test_features_stay_in_their_ball(folder: Path) -> None:
    made = load_generator(str(folder))
    base = made.features(torch.zeros(2, 4), 0, 1)
    canvas = FeatureCanvas(made, 1, base, (16, 16), 0.1)
    moved = canvas.features(torch.randn(base.numel(), generator=torch.Generator().manual_seed(0))) - base
    assert float(moved.flatten(1).abs().mean(1).max()) <= 0.1 + 1e-5
    free = FeatureCanvas(made, 1, base, (16, 16), None)
    assert torch.equal(free.features(torch.ones(base.numel())), base + 1)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(AttackError, match="first"):
        replace(GIFD, first=0.0)


def test_the_budget_is_shared_by_levels_and_the_start_is_normal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latent vector has ``first`` of all evaluations, each later level an equal part of what is left."""
    prior = load_generator(str(folder))
    spent: list[int] = []
    starts: list[torch.Tensor] = []

    def descend(self: Any, canvas: FeatureCanvas, budget: int, generator: torch.Generator) -> torch.Tensor:
        spent.append(budget)
        starts.append(canvas.base)
        self.used += budget
        self.best = canvas.base
        return canvas.base

    monkeypatch.setattr(_Search, "_descend", descend)
    template = torch.zeros(2, 3, 16, 16)
    known = Knowledge(template, torch.ones(2, 16, 16, dtype=torch.bool), [])
    attack = replace(GIFD, first=0.3, starts=1)
    search = _Search(attack, None, known, prior, lambda number, loss, pixels: None, None)  # type: ignore[arg-type]
    search.run(1000, torch.Generator().manual_seed(7), None)
    left, expected = 700, [300]
    for level in range(1, prior.depth + 1):
        expected.append(round(left / (prior.depth + 1 - level)))
        left -= expected[-1]
    assert spent == expected and sum(spent) == 1000 and len(spent) > 1
    drawn = torch.randn(1, 2, prior.latent, generator=torch.Generator().manual_seed(7))
    assert torch.equal(starts[0], drawn[0])
