"""Distances between gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients.matching import (
    Distance,
    cosine,
    dummy_gradient,
    informative,
    relative,
    squared,
    squared_and_cosine,
    squared_and_cosine_of_all,
    squared_and_position,
)

DISTANCES: dict[str, Callable[[Any], Distance]] = {
    "squared": squared,
    "cosine": cosine,
    "squared_and_cosine": squared_and_cosine,
    "squared_and_cosine_of_all": squared_and_cosine_of_all,
    "squared_and_position": squared_and_position,
    "relative": relative,
}


def gradient(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a.weight": (4, 3), "a.bias": (4,), "encoder.pos_embed": (1, 5, 2)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def view(observed: dict[str, Tensor]) -> Any:
    """All that a distance looks at."""
    return SimpleNamespace(gradient=observed)


@pytest.mark.parametrize("name", DISTANCES)
def test_zero_at_the_truth_and_positive_elsewhere(name: str) -> None:
    true = gradient(0)
    distance = DISTANCES[name](view(true))
    assert float(distance(true)) == pytest.approx(0, abs=1e-12)
    values = [float(distance({k: (1 - t) * v + t * gradient(1)[k] for k, v in true.items()})) for t in (0.1, 0.5, 1.0)]
    assert 0 < values[0] < values[1] < values[2]


@pytest.mark.parametrize("name", DISTANCES)
def test_differentiable_in_the_dummy(name: str) -> None:
    dummy = {key: value.requires_grad_(True) for key, value in gradient(1).items()}
    values = torch.autograd.grad(DISTANCES[name](view(gradient(0)))(dummy), list(dummy.values()))
    assert all(torch.isfinite(v).all() and v.any() for v in values)


def test_the_cosine_does_not_mind_scale_and_the_others_do() -> None:
    true, other = gradient(0), gradient(1)
    for name, make in DISTANCES.items():
        distance = make(view(true))
        one, ten = float(distance(other)), float(distance({k: 10 * v for k, v in other.items()}))
        assert (one == pytest.approx(ten, rel=1e-9)) == (name == "cosine")
    assert float(cosine(view(true))({k: -v for k, v in true.items()})) == pytest.approx(2)


def cosine_of(a: Tensor, b: Tensor) -> float:
    dot = square = other = 0.0
    for x, y in zip(a.flatten().tolist(), b.flatten().tolist(), strict=True):
        dot, square, other = dot + x * y, square + x * x, other + y * y
    return dot / math.sqrt(square * other)


def squared_of(a: Tensor, b: Tensor) -> float:
    return sum((x - y) ** 2 for x, y in zip(a.flatten().tolist(), b.flatten().tolist(), strict=True))


def test_slow_oracles_agree() -> None:
    true, other = gradient(0), gradient(1)
    whole = (torch.cat([g[name].flatten() for name in true]) for g in (true, other))
    per_layer = [squared_of(true[n], other[n]) / true[n].numel() + 1 - cosine_of(true[n], other[n]) for n in true]
    sums = [squared_of(true[n], other[n]) for n in true]
    position = 1 - cosine_of(true["encoder.pos_embed"], other["encoder.pos_embed"])
    shares = [squared_of(true[n], other[n]) / squared_of(true[n], torch.zeros_like(true[n])) for n in true]
    expected = {
        "squared": sum(sums),
        "cosine": 1 - cosine_of(*whole),
        "squared_and_cosine": sum(per_layer),
        "squared_and_cosine_of_all": sum(per_layer),
        "squared_and_position": sum(sums) + position,
        "relative": sum(shares) / len(shares),
    }
    assert expected.keys() == DISTANCES.keys()
    for name, value in expected.items():
        assert float(DISTANCES[name](view(true))(other)) == pytest.approx(value, rel=1e-9), name


def test_negligible_parameters_are_left_out_where_directions_count() -> None:
    """Rounding noise in a key's bias has a direction, but tells nothing."""
    true, other = gradient(0), gradient(0)
    true["key.bias"], other["key.bias"] = torch.full((4,), 1e-12), torch.full((4,), -1e-12)
    assert set(informative(true)) == set(true) - {"key.bias"}
    for make in (squared_and_cosine, relative):
        assert float(make(view(true))({k: v.double() for k, v in other.items()})) == pytest.approx(0, abs=1e-9)
    assert float(squared_and_cosine_of_all(view(true))(other)) == pytest.approx(2), "the bias points the other way"


def test_the_dummy_is_the_clients_gradient_at_the_truth(make_small: Callable[..., Any]) -> None:
    small = make_small("42", "17")
    names = [*small.view.names][::-1]
    dummy = dummy_gradient(small.model, small.pixels, small.inputs, names, create_graph=False)
    assert list(dummy) == names
    for name in names:
        torch.testing.assert_close(dummy[name], small.view.gradient[name], rtol=1e-4, atol=1e-7)


def test_parameters_that_the_loss_does_not_reach_get_zeros(small: Any) -> None:
    extra = torch.nn.Parameter(torch.ones(3))
    small.model.module.register_parameter("unused", extra)
    try:
        names = ["unused", small.view.names[0]]
        dummy = dummy_gradient(small.model, small.pixels, small.inputs, names, create_graph=False)
        assert torch.equal(dummy["unused"], torch.zeros(3))
        assert dummy[names[1]].any()
    finally:
        del small.model.module.unused


def test_the_cosines_derivative_is_the_one_autograd_finds() -> None:
    true, other = gradient(3), {name: value.requires_grad_() for name, value in gradient(4).items()}
    one, two = (torch.cat([value.flatten() for value in side.values()]) for side in (true, other))
    plain = 1 - torch.nn.functional.cosine_similarity(one, two, dim=0)
    distance = cosine(view(true))(other)
    assert float(distance.detach()) == pytest.approx(float(plain.detach()), rel=1e-12)
    ours, theirs = (torch.autograd.grad(3 * value, [*other.values()]) for value in (distance, plain))
    for mine, other_one in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other_one, rtol=1e-10, atol=1e-14)


def test_a_gradient_of_zeros_is_at_the_cosines_distance_one() -> None:
    """An adversary's first guess may give none; then the distance must stay a number, and its derivative, too."""
    true = gradient(0)
    zeros = {name: torch.zeros_like(value).requires_grad_(True) for name, value in true.items()}
    distance = cosine(view(true))(zeros)
    assert float(distance.detach()) == 1.0
    derivatives = torch.autograd.grad(distance, list(zeros.values()))
    assert all(bool(torch.isfinite(value).all()) for value in derivatives)
