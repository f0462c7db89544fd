"""What a client sends."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from docleak.documents.synthetic import make_pages
from docleak.models import DocumentModel, Encoded, load_model, pixels_of, trainable
from docleak.training.update import client_gradient


@lru_cache(maxsize=2)
def batch(name: str) -> tuple[DocumentModel, Tensor, list[Encoded]]:
    model = load_model(name)
    pages = list(make_pages(2, seed=0, size=model.image_size))
    inputs = [model.encode(page, page.questions[0]) for page in pages]
    return model, torch.stack([pixels_of(page.image) for page in pages]), inputs


@pytest.fixture(params=["donut-start", "layoutlmv3-start"])
def client(request: pytest.FixtureRequest) -> Iterator[tuple[DocumentModel, Tensor, list[Encoded]]]:
    yield batch(request.param)
    batch(request.param)[0].module.eval()


def test_it_is_the_gradient_of_the_mean_loss(client: Any) -> None:
    """backward() through each example's own loss, averaged."""
    model, pixels, inputs = client
    gradient = client_gradient(model, pixels, inputs)
    model.module.zero_grad(set_to_none=True)
    for i, example in enumerate(inputs):
        (model.loss(pixels[i : i + 1], [example]).sum() / len(inputs)).backward()
    for name, parameter in trainable(model.module):
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(gradient[name], expected, rtol=1e-3, atol=1e-6)
    model.module.zero_grad(set_to_none=True)


def test_it_names_every_trainable_parameter_once(client: Any) -> None:
    model, pixels, inputs = client
    gradient = client_gradient(model, pixels, inputs)
    assert list(gradient) == [name for name, _ in trainable(model.module)]
    assert all(not value.requires_grad and torch.isfinite(value).all() for value in gradient.values())
    assert sum(v.any().item() for v in gradient.values()) > 0.9 * len(gradient)


def test_a_tied_weight_carries_both_places() -> None:
    """Untied, the embedding's and the output layer's gradients add up to the tied one."""
    model, pixels, inputs = batch("donut-start")
    untied = copy.copy(model)
    untied.module = copy.deepcopy(model.module)
    decoder = untied.module.decoder
    decoder.lm_head.weight = torch.nn.Parameter(decoder.lm_head.weight.detach().clone())
    tied, apart = client_gradient(model, pixels, inputs), client_gradient(untied, pixels, inputs)
    name = "decoder.model.decoder.embed_tokens.weight"
    assert set(apart) - set(tied) == {"decoder.lm_head.weight"}
    both = apart[name] + apart["decoder.lm_head.weight"]
    torch.testing.assert_close(tied[name], both, rtol=1e-4, atol=1e-6)
    assert float(apart[name].norm()) > 0.01 * float(both.norm()) < 100 * float(apart["decoder.lm_head.weight"].norm())


def test_some_names_only(client: Any) -> None:
    model, pixels, inputs = client
    names = [name for name, _ in trainable(model.module) if model.stage(name) == "output"]
    whole = client_gradient(model, pixels, inputs)
    part = client_gradient(model, pixels, inputs, names=iter(names))
    assert list(part) == names
    for name in names:
        torch.testing.assert_close(part[name], whole[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("train_mode", [True, False])
def test_the_models_mode_is_put_back(before: bool, train_mode: bool) -> None:
    model, pixels, inputs = batch("layoutlmv3-start")
    modes: list[bool] = []
    hook = model.module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    model.module.train(before)
    try:
        client_gradient(model, pixels, inputs, train_mode=train_mode)
        assert model.module.training is before
        assert modes == [train_mode]
        with pytest.raises(RuntimeError):
            client_gradient(model, pixels[:, :2], inputs, train_mode=train_mode)
        assert model.module.training is before
    finally:
        hook.remove()
        model.module.eval()


def test_dropout_is_torchs_own(client: Any) -> None:
    model, pixels, inputs = client
    gradients = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        gradients.append(client_gradient(model, pixels, inputs, train_mode=True))
    without = client_gradient(model, pixels, inputs)
    name = next(n for n in without if "layers.0" in n or "layer.0" in n)
    assert torch.equal(gradients[0][name], gradients[1][name])
    assert not torch.allclose(gradients[0][name], gradients[2][name])
    assert not torch.allclose(gradients[0][name], without[name])


def test_frozen_parameters_are_not_sent() -> None:
    model, pixels, inputs = batch("layoutlmv3-start")
    frozen = [p for name, p in model.module.named_parameters() if "layer.1." in name]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        gradient = client_gradient(model, pixels, inputs)
        assert len(gradient) == len(list(model.module.named_parameters())) - len(frozen)
        assert not any("layer.1." in name for name in gradient)
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def test_it_can_be_recorded_as_the_documents_say(client: Any, tmp_path: Path) -> None:
    """Autograd's own tensors may share memory (class token and position table), which safetensors refuses."""
    gradient = client_gradient(*client)
    save_file(gradient, tmp_path / "update.safetensors")
    again = load_file(tmp_path / "update.safetensors")
    assert again.keys() == gradient.keys()
    assert all(torch.equal(again[name], value) for name, value in gradient.items())
