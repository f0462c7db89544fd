"""The self-test accepts the client's own step and names what is wrong with another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients import GradientView
from docleak.attacks.gradients.selftest import TOLERANCE, SelfTest, _other_pixels, self_test
from docleak.errors import SelfTestError
from docleak.models import DocumentModel, trainable
from docleak.models.donut import Donut
from docleak.training.update import client_gradient


def check(small: Any, gradient: dict[str, Tensor], *, train_mode: bool = False) -> SelfTest:
    return self_test(GradientView(small.model, gradient, len(small.inputs), train_mode), small.pixels, small.inputs)


def refused(test: SelfTest) -> str:
    assert not test.passed
    with pytest.raises(SelfTestError, match="self-test failed") as caught:
        test.require()
    assert f"{test.distance:.2e}" in str(caught.value)
    assert "--allow-failed-self-test" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("values", [("42",), ("42", "17")])
def test_the_truth_passes(values: tuple[str, ...], make_small: Callable[..., Any]) -> None:
    small = make_small(*values)
    test = self_test(small.view, small.pixels, small.inputs)
    assert test.passed and test.distance < 1e-9 and test.causes == ()
    test.require()


@pytest.mark.parametrize("stage", ["vision", "output"])
def test_the_truth_passes_on_some_of_the_parameters(stage: str, small: Any) -> None:
    names = [name for name, _ in trainable(small.model.module) if small.model.stage(name) == stage]
    assert check(small, {name: small.view.gradient[name] for name in names}).passed


def test_the_models_mode_does_not_matter_and_is_kept(small: Any) -> None:
    small.model.module.train()
    try:
        assert check(small, small.view.gradient).passed
        assert small.model.module.training
    finally:
        small.model.module.eval()


def test_another_page_fails(small: Any, make_small: Callable[..., Any]) -> None:
    test = check(small, make_small("17").view.gradient)
    assert test.distance > 1000 * TOLERANCE
    said = refused(test)
    assert said.index("train or evaluation mode") < said.index("other examples: "), "of the model only its dropout may"


def test_dropout(small: Any) -> None:
    torch.manual_seed(0)
    gradient = client_gradient(small.model, small.pixels, small.inputs, train_mode=True)
    said = check(small, gradient, train_mode=True)
    (cause,) = said.causes
    assert "dropout on (up to p = 0.1)" in cause and cause in refused(said)
    silent, _ = check(small, gradient).causes
    assert "train or evaluation mode" in silent and "--train-mode" in silent


@pytest.mark.parametrize("factor", [4.0, 0.125])
def test_loss_scale(factor: float, small: Any) -> None:
    test = check(small, {name: factor * value for name, value in small.view.gradient.items()})
    (cause,) = test.causes
    assert f"loss scale: the observed gradient is {factor:.4g} times ours" in cause
    assert cause in refused(test)


def test_the_sum_over_the_batch_instead_of_its_mean(make_small: Callable[..., Any]) -> None:
    pair = make_small("42", "17")
    (cause,) = check(pair, {name: 2 * value for name, value in pair.view.gradient.items()}).causes
    assert "is 2 times ours (sum instead of mean" in cause


HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NONE = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
ODD = ((0.4, 0.5, 0.6), (0.3, 0.2, 0.1))


@pytest.mark.parametrize("own", [HALF, ODD], ids=["half", "odd"])
@pytest.mark.parametrize(
    ("client", "scale", "said"),
    [
        (NONE, 1.0, "left in [0, 1]"),
        (NONE, 255.0, "left in 0..255"),
        (IMAGENET, 1.0, "ImageNet's mean"),
        (HALF, 1.0, "mean and standard deviation 0.5"),
    ],
)
def test_normalisation(client: Any, scale: float, said: str, own: Any, small: Any) -> None:
    """Whatever the adversary's own mean and deviation are."""

    def model(normalisation: Any) -> DocumentModel:
        mean, std = normalisation
        return Donut(small.model.module, small.model.tokenizer, image_size=small.model.image_size, mean=mean, std=std)

    test = check(replace(small, model=model(own)), client_gradient(model(client), small.pixels * scale, small.inputs))
    if client == own:
        assert test.passed
        return
    (cause,) = test.causes
    assert "pixel normalisation" in cause and said in cause
    assert cause in refused(test)


def test_label_mask(small: Any) -> None:
    inputs = []
    for example in small.inputs:
        ids, labels = example.tensors["decoder_input_ids"], example.tensors["labels"]
        assert (labels == -100).any()
        unmasked = torch.cat([ids[1:], labels[-1:]])
        inputs.append(replace(example, tensors={**example.tensors, "labels": unmasked}))
    test = check(small, client_gradient(small.model, small.pixels, inputs))
    (cause,) = test.causes
    assert "label mask: the client also trains on the question's tokens" in cause
    assert cause in refused(test)


def test_tied_weights(small: Any) -> None:
    gradient = dict(small.view.gradient)
    (name,) = [n for n in gradient if "embed_tokens" in n]
    gradient[name] = 2 * gradient[name]
    test = check(small, gradient)
    (cause,) = test.causes
    assert f"tied weights: only {name} differs" in cause
    assert cause in refused(test)


def test_where_nothing_else_explains_it_the_examples_are_others(
    small: Any, make_small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without dropout and the gradient of another page."""
    for module in small.model.module.modules():
        if isinstance(module, torch.nn.Dropout):
            monkeypatch.setattr(module, "p", 0.0)
        if isinstance(getattr(module, "dropout", None), float):
            monkeypatch.setattr(module, "dropout", 0.0)
    test = check(small, make_small("17").view.gradient)
    (cause,) = test.causes
    assert cause.startswith("other examples: it is of another page, question or answer") and cause in refused(test)
    assert "no known cause fits" in refused(SelfTest(test.distance))


def test_the_network_sees_the_other_normalisations_to_the_last_digit(small: Any) -> None:
    seen = {name: small.model.normalise(pixels) for name, pixels in _other_pixels(small.view, small.pixels)}
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    imagenet = torch.stack([(small.pixels[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    for wanted in (small.pixels, 255 * small.pixels, 2 * small.pixels - 1, imagenet):
        (key, *_) = [name for name, pixels in seen.items() if torch.allclose(pixels, wanted, atol=1e-3)]
        torch.testing.assert_close(seen.pop(key), wanted, rtol=1e-5, atol=1e-5)
    assert not seen
