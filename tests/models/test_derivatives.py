"""The hand-written derivatives, against finite differences and against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from docleak.models.derivatives import attention, gelu


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()


def test_gelu_has_the_right_derivatives() -> None:
    x = draw(3, 5)
    torch.testing.assert_close(gelu(x), F.gelu(x), rtol=0, atol=0)
    assert gradcheck(gelu, x) and gradgradcheck(gelu, x)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("outputs", [(0, 1), (0,), (1,)])
def test_attention_has_the_right_derivatives(biased: bool, masked: bool, outputs: tuple[int, ...]) -> None:
    query, key, value = draw(2, 2, 3, 2), draw(2, 2, 4, 2, seed=1), draw(2, 2, 4, 2, seed=2)
    inputs = (query, key, value, *([draw(2, 3, 4, seed=3)] if biased else []))
    mask = draw(2, 1, 3, 4, seed=4).detach() if masked else None

    def ours(*tensors: Tensor) -> tuple[Tensor, ...]:
        pair = attention(*tensors[:3], tensors[3] if biased else None, mask)
        return tuple(pair[i] for i in outputs)

    scores = query @ key.mT + (inputs[3] if biased else 0) + (0 if mask is None else mask)
    stock = (scores.softmax(-1) @ value, scores.softmax(-1))
    for mine, i in zip(ours(*inputs), outputs, strict=True):
        torch.testing.assert_close(mine, stock[i])
    assert gradcheck(ours, inputs) and gradgradcheck(ours, inputs)


def test_gelu_far_out_is_flat() -> None:
    x = torch.tensor([-40.0, -12.0, 0.0, 12.0, 40.0], requires_grad=True)
    (slope,) = torch.autograd.grad(gelu(x).sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    torch.testing.assert_close(slope.detach(), torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0]))
    torch.testing.assert_close(curvature, torch.tensor([0.0, 0.0, (2 / torch.pi) ** 0.5, 0.0, 0.0]))


def test_there_is_no_third_derivative() -> None:
    x = draw(4)
    (slope,) = torch.autograd.grad(gelu(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="third derivative"):
        torch.autograd.grad(slope.sum(), x, create_graph=True)


def test_a_mask_that_would_need_a_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match="mask"):
        attention(draw(1, 1, 2, 2), draw(1, 1, 2, 2), draw(1, 1, 2, 2), mask=draw(1, 1, 2, 2))
