"""The pixels an attack may change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients.canvas import Canvas, Region, Start


def template_and_private() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, 3, 5, 6, generator=generator), torch.rand(2, 5, 6, generator=generator) < 0.3


@pytest.mark.parametrize("grey", [True, False])
@pytest.mark.parametrize("region", ["private", "all"])
def test_unknowns_fill_the_region_and_nothing_else(grey: bool, region: Region) -> None:
    template, private = template_and_private()
    before = template.clone()
    canvas = Canvas.of(template, private, region=region, grey=grey)
    inside = torch.ones_like(private) if region == "all" else private
    assert canvas.size == int(inside.sum()) * (1 if grey else 3)
    unknowns = torch.arange(canvas.size) + 10.0
    pixels = canvas.pixels(unknowns)
    outside = ~inside[:, None].expand_as(template)
    assert torch.equal(pixels[outside], template[outside])
    assert torch.equal(template, before)
    if grey:
        assert torch.equal(pixels[:, 0], pixels[:, 1]) or region == "private"
        for channel in range(3):
            assert torch.equal(pixels[:, channel][inside], unknowns)
    else:
        assert torch.equal(pixels[~outside].sort().values, unknowns), "every unknown has a place of its own"


@pytest.mark.parametrize("grey", [True, False])
def test_the_gradient_comes_from_the_region_only(grey: bool) -> None:
    template, private = template_and_private()
    template.requires_grad_(True)
    canvas = Canvas.of(template, private, region="private", grey=grey)
    unknowns = torch.rand(canvas.size, requires_grad=True)
    weights = torch.rand(template.shape, generator=torch.Generator().manual_seed(1))
    gradient, public = torch.autograd.grad((canvas.pixels(unknowns) * weights).sum(), [unknowns, template])
    full = private[:, None].expand_as(template)
    assert not public[full].any()
    assert torch.equal(public[~full], weights[~full])
    assert float(gradient.sum()) == pytest.approx(float(weights[full].sum()), rel=1e-5)
    if grey:
        torch.testing.assert_close(gradient, weights.sum(1)[private])


def test_starts() -> None:
    canvas = Canvas.of(torch.zeros(1, 3, 100, 100), torch.ones(1, 100, 100), region="private", grey=True)
    kinds: tuple[Start, ...] = ("uniform", "normal", "light")
    uniform, normal, light = (canvas.start(kind, torch.Generator().manual_seed(0)) for kind in kinds)
    assert uniform.shape == normal.shape == (10_000,)
    assert uniform.min() >= 0 and uniform.max() <= 1
    assert (float(uniform.mean()), float(uniform.std())) == pytest.approx((0.5, 12**-0.5), abs=0.02)
    assert (float(normal.mean()), float(normal.std())) == pytest.approx((0, 1), abs=0.03)
    assert light.min() >= 0.6 and light.max() <= 1
    assert (float(light.mean()), float(light.std())) == pytest.approx((0.8, 0.4 * 12**-0.5), abs=0.02)
    assert torch.equal(uniform, canvas.start("uniform", torch.Generator().manual_seed(0)))
    assert not torch.equal(uniform, canvas.start("uniform", torch.Generator().manual_seed(1)))


def test_a_coloured_pixel_starts_grey_at_the_mean_of_its_channels() -> None:
    template, private = template_and_private()
    canvas = Canvas.of(template, private, region="private", grey=True)
    red, green, blue = (template[:, channel][private] for channel in range(3))
    assert float((red - green).abs().max()) > 0.1
    torch.testing.assert_close(canvas.unknowns(template), (red + green + blue) / 3)
