"""Layers that are computed anew give the derivatives of layers that are kept, and keep less."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from docleak.documents.synthetic import make_pages
from docleak.models import DocumentModel, load_model, pixels_of, trainable
from docleak.models.recompute import recomputation, recomputed


@pytest.fixture(scope="module")
def donut() -> DocumentModel:
    return load_model("donut-start")


class Kept:
    """A tensor that autograd keeps; ``alive`` is the bytes of all that are kept at present."""

    alive = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        Kept.alive += tensor.numel() * tensor.element_size()

    def __del__(self) -> None:
        Kept.alive -= self.tensor.numel() * self.tensor.element_size()


def first(model: DocumentModel, pixels: Tensor, *, graph: bool) -> dict[str, Tensor]:
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    named = dict(trainable(model.module))
    loss = model.loss(pixels, [model.encode(page, page.questions[0])]).mean()
    slopes = torch.autograd.grad(loss, list(named.values()), create_graph=graph)
    return dict(zip(named, slopes, strict=True))


def both(model: DocumentModel) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients, and the slope over pixels of their distance to a constant."""
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    pixels = (0.9 * pixels_of(page.image))[None].requires_grad_()
    gradient = first(model, pixels, graph=True)
    distance = torch.stack([(value - 1e-3).square().sum() for value in gradient.values()]).sum()
    (slope,) = torch.autograd.grad(distance, pixels)
    return {name: value.detach() for name, value in gradient.items()}, slope


@pytest.mark.parametrize("frozen", [False, True])
def test_first_and_second_derivatives_are_those_of_layers_that_are_kept(donut: DocumentModel, frozen: bool) -> None:
    stage = [p for name, p in trainable(donut.module) if name.startswith("encoder.encoder.layers.1.")]
    for parameter in stage if frozen else ():
        parameter.requires_grad_(False)
    try:
        gradient, slope = both(donut)
        with recomputation():
            anew, slope_anew = both(donut)
    finally:
        for parameter in stage:
            parameter.requires_grad_(True)
    scale = max(float(value.norm()) for value in gradient.values())
    assert gradient.keys() == anew.keys()
    for name, value in gradient.items():
        assert float((anew[name] - value).norm()) < 1e-6 * scale, name
    assert float(slope.norm()) > 0
    assert float((slope_anew - slope).norm() / slope.norm()) < 1e-5


def test_first_derivatives_alone_reach_the_parameters(donut: DocumentModel) -> None:
    page = donut.fit(make_pages(1, seed=0, size=donut.image_size)[0])
    pixels = pixels_of(page.image)[None]
    kept = first(donut, pixels, graph=False)
    with recomputation():
        anew = first(donut, pixels, graph=False)
    for name, value in kept.items():
        torch.testing.assert_close(anew[name], value, rtol=1e-4, atol=1e-7)


def test_less_is_kept_of_both_passes(donut: DocumentModel) -> None:
    page = donut.fit(make_pages(1, seed=0, size=donut.image_size)[0])
    sizes = []
    for anew in (False, True):
        pixels = pixels_of(page.image)[None].requires_grad_()
        before = Kept.alive
        with recomputation(anew), torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            loss = donut.loss(pixels, [donut.encode(page, page.questions[0])]).mean()
            slopes = torch.autograd.grad(loss, [p for _, p in trainable(donut.module)], create_graph=True)
        sizes.append(Kept.alive - before)
        del slopes, loss
    assert 0 < sizes[1] < 0.5 * sizes[0]


def test_a_third_derivative_is_refused() -> None:
    weight = torch.ones(1, requires_grad=True)
    hidden = torch.full((1,), 0.5, requires_grad=True)
    out = recomputed(lambda h: (h * weight).sin(), hidden, [weight])
    (once,) = torch.autograd.grad(out, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="third derivative"):
        torch.autograd.grad(once, hidden, create_graph=True)
