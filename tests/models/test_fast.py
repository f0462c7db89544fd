"""Quickened models compute what the stock ones do: losses, gradients and pixel gradients of matching."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from docleak.documents.synthetic import make_pages
from docleak.models import DocumentModel, load_model, pixels_of, trainable
from docleak.models.fast import FASTER, Gelu, LayoutEncoder, quicken

STOCK = {ours: stock for stock, ours in FASTER.items()}
NAMES = ("donut-start", "layoutlmv3-start")
TOLERANCE = 1e-5


def stock_of(model: DocumentModel) -> DocumentModel:
    """A copy of a loaded model with the layers of transformers."""
    model = copy.deepcopy(model)
    for layer in model.module.modules():
        layer.__class__ = STOCK.get(type(layer), type(layer))
    return model


def relative_difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().norm() / b.detach().norm())


def matching(model: DocumentModel, *, pages: int = 2) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Losses, parameter gradients, and the pixel gradient of a distance of those to random ones."""
    fitted = [model.fit(page) for page in make_pages(pages, seed=0, size=model.image_size)]
    inputs = [model.encode(page, page.questions[i]) for i, page in enumerate(fitted)]
    pixels = torch.stack([pixels_of(page.image) for page in fitted]).requires_grad_()
    losses = model.loss(pixels, inputs)
    named = dict(trainable(model.module))
    slopes = torch.autograd.grad(losses.mean(), list(named.values()), create_graph=True, allow_unused=True)
    gradient = {name: value for name, value in zip(named, slopes, strict=True) if value is not None}
    generator = torch.Generator().manual_seed(0)
    terms = [
        (g - g.detach().std() * torch.randn(g.shape, generator=generator)).square().sum() for g in gradient.values()
    ]
    (of_pixels,) = torch.autograd.grad(torch.stack(terms).sum(), pixels)
    return losses, gradient, of_pixels


@pytest.mark.parametrize("name", NAMES)
def test_matching_is_that_of_the_stock_layers(name: str) -> None:
    model = load_model(name)
    assert {type(layer) for layer in model.module.modules()} & set(STOCK)
    assert not {type(layer) for layer in model.module.modules()} & set(FASTER)
    (losses, gradient, pixels), (theirs, stock, stock_pixels) = matching(model), matching(stock_of(model))
    torch.testing.assert_close(losses, theirs, rtol=TOLERANCE, atol=0)
    assert gradient.keys() == stock.keys()
    scale = max(float(value.detach().norm()) for value in stock.values())
    assert all(float((gradient[n] - stock[n]).detach().norm()) < TOLERANCE * scale for n in stock)
    assert relative_difference(pixels, stock_pixels) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_names_parameters_and_copies_stay(name: str) -> None:
    model = load_model(name)
    stock = stock_of(model)
    assert list(model.module.state_dict()) == list(stock.module.state_dict())
    assert [n for n, _ in model.module.named_parameters()] == [n for n, _ in stock.module.named_parameters()]
    again = pickle.loads(pickle.dumps(model.module))
    assert [type(layer) for layer in again.modules()] == [type(layer) for layer in model.module.modules()]


@pytest.mark.parametrize("name", NAMES)
def test_training_with_dropout_draws_what_the_stock_layers_draw(name: str) -> None:
    def first_gradient(model: DocumentModel) -> Tensor:
        page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
        inputs = [model.encode(page, page.questions[0])]
        model.module.train()
        torch.manual_seed(0)
        loss = model.loss(pixels_of(page.image)[None], inputs).mean()
        wanted = [p for _, p in trainable(model.module)]
        slopes = torch.autograd.grad(loss, wanted, allow_unused=True)
        return torch.cat([value.flatten() for value in slopes if value is not None])

    model = copy.deepcopy(load_model(name))
    for layer in model.module.modules():
        if type(layer) in STOCK and isinstance(getattr(layer, "dropout", None), nn.Dropout):
            layer.dropout.p = 0.2
    assert relative_difference(first_gradient(model), first_gradient(stock_of(model))) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_attention_maps_can_still_be_asked_for(name: str) -> None:
    model = load_model(name)

    def maps(one: DocumentModel) -> Any:
        module: Any = one.module
        pixels = torch.rand(2, 3, *one.image_size[::-1], generator=torch.Generator().manual_seed(0))
        if one.architecture == "donut":
            return module.encoder(pixel_values=one.normalise(pixels), output_attentions=True).attentions
        boxes = torch.tensor([[[10, 20, 300, 40]] * 4] * 2)
        return module(
            input_ids=torch.ones(2, 4).long(), bbox=boxes, pixel_values=pixels, output_attentions=True
        ).attentions

    ours, theirs = maps(model), maps(stock_of(model))
    assert len(ours) == len(theirs) > 0
    for mine, stock in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, stock, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "replaced"), [("gelu", True), ("gelu_python", False), ("gelu_new", False)])
def test_only_the_exact_gelu_is_replaced(name: str, replaced: bool) -> None:
    layers = nn.Sequential(nn.Linear(2, 2), ACT2FN[name])
    assert (type(quicken(layers)[1]) is Gelu) == replaced


@pytest.mark.parametrize("batch", [1, 3])
def test_biases_of_relative_positions_are_those_that_transformers_computes(batch: int) -> None:
    """Bit for bit, and laid out alike in memory: what is computed of them is the same, too."""
    model = load_model("layoutlmv3-start")
    (ours,), (theirs,) = (
        [layer for layer in one.module.modules() if isinstance(layer, STOCK[LayoutEncoder])]
        for one in (model, stock_of(model))
    )
    assert type(ours) is LayoutEncoder and type(theirs) is STOCK[LayoutEncoder]
    generator = torch.Generator().manual_seed(0)
    boxes = torch.randint(0, 1001, (batch, 90, 4), generator=generator)
    places = torch.randint(0, 700, (batch, 90), generator=generator)
    for name, given in (("_cal_1d_pos_emb", places), ("_cal_2d_pos_emb", boxes)):
        mine, stock = (getattr(encoder, name)(given) for encoder in (ours, theirs))
        assert torch.equal(mine, stock) and mine.is_contiguous() and stock.is_contiguous(), name
        assert mine.requires_grad == stock.requires_grad
