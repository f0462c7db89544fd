"""Local steps: as torch takes them, differentiable throughout; one AdamW step is inverted as far as float32 goes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients import local_steps
from docleak.attacks.gradients.local_steps import CERTAIN, KEPT, ImitatedSteps, Optimiser, SignedStep, Taken
from docleak.errors import AttackError
from docleak.models import DocumentModel, trainable

BATCHES = ((0, 1), (1,), (0,))


def trained(small: Any, optimiser: Optimiser, batches: tuple[tuple[int, ...], ...]) -> dict[str, Tensor]:
    """theta_0 - theta_K by torch's own optimiser, in float64."""
    model: DocumentModel = deepcopy(small.model)
    model.module.double()
    named = dict(trainable(model.module))
    before = {name: p.detach().clone() for name, p in named.items()}
    kind = torch.optim.SGD if optimiser.kind == "sgd" else torch.optim.AdamW
    steps = kind(named.values(), lr=optimiser.learning_rate, weight_decay=optimiser.weight_decay)
    for batch in batches:
        loss = model.loss(small.pixels[list(batch)].double(), [small.inputs[i] for i in batch]).mean()
        steps.zero_grad()
        loss.backward()
        if optimiser.max_norm:
            torch.nn.utils.clip_grad_norm_(list(named.values()), optimiser.max_norm)
        steps.step()
    return {name: before[name] - p.detach() for name, p in named.items()}


@pytest.fixture(scope="module")
def pair(make_small: Callable[..., Any]) -> Any:
    return make_small("42", "17")


@pytest.mark.parametrize(
    "optimiser",
    [
        Optimiser("sgd", 0.05),
        Optimiser("sgd", 0.05, weight_decay=0.1, max_norm=0.3),
        Optimiser("adamw", 1e-3, weight_decay=0.1),
        Optimiser("adamw", 1e-3, max_norm=0.3),
    ],
    ids=["sgd", "sgd-decay-clip", "adamw-decay", "adamw-clip"],
)
def test_the_steps_are_torchs(pair: Any, optimiser: Optimiser) -> None:
    """Against float64, where an entry's gradient is clear of float32's rounding, which AdamW blows up."""
    local = ImitatedSteps(optimiser, BATCHES, (0, 1))
    names = pair.view.names
    ours = local.simulate(pair.model, pair.pixels, pair.inputs, names, create_graph=False)
    start = {name: p.detach() for name, p in pair.model.module.named_parameters()}
    true = optimiser.as_gradient(trained(pair, optimiser, BATCHES), start, local.steps)
    clear = {name: value.abs() > 1e-4 * value.abs().max() for name, value in pair.view.gradient.items()}
    for name in names:
        if float(pair.view.gradient[name].norm()) < 1e-5:
            continue
        difference, whole = ((a[clear[name]]).double() for a in (ours[name] - true[name], true[name]))
        assert float(difference.norm() / whole.norm().clamp_min(1e-12)) < 5e-3, name


def test_the_models_own_weights_stay(pair: Any) -> None:
    before = {name: p.detach().clone() for name, p in pair.model.module.named_parameters()}
    local = ImitatedSteps(Optimiser("adamw", 0.1), BATCHES, (0, 1))
    local.simulate(pair.model, pair.pixels, pair.inputs, pair.view.names, create_graph=False)
    assert all(torch.equal(before[name], p) for name, p in pair.model.module.named_parameters())


@pytest.mark.parametrize(("room", "further"), [(local_steps.ROOM, 3), (0, 6)])
def test_what_is_taken_once_is_not_computed_again(
    pair: Any, monkeypatch: pytest.MonkeyPatch, room: int, further: int
) -> None:
    """Bit for bit the same as without: after a first step that another optimiser took, after the whole way, and from
    where fewer steps ended. Without room for AdamW's moments nothing goes on from there, and the last KEPT remain."""
    losses, loss = [0], pair.model.loss

    def counted(*given: Any) -> Tensor:
        losses[0] += 1
        return loss(*given)

    def simulated(optimiser: Optimiser, batches: Any, taken: Taken | None) -> dict[str, Tensor]:
        given = (pair.model, pair.pixels, pair.inputs, pair.view.names)
        return ImitatedSteps(optimiser, batches, (0, 1)).simulate(*given, create_graph=False, taken=taken)

    monkeypatch.setattr(pair.model, "loss", counted)
    monkeypatch.setattr(local_steps, "ROOM", room)
    taken, sgd, adamw = Taken(), Optimiser("sgd", 0.05), Optimiser("adamw", 1e-3, weight_decay=0.1, max_norm=0.3)
    longer = BATCHES * 2
    for optimiser, batches, computed in (
        (sgd, BATCHES, 3), (adamw, BATCHES, 2), (adamw, BATCHES, 0), (sgd, BATCHES, 0), (sgd, longer, 3),
        (adamw, longer, further), (replace(sgd, learning_rate=0.1), BATCHES, 2),
    ):  # fmt: skip
        alone, losses[0] = simulated(optimiser, batches, None), 0
        ours = simulated(optimiser, batches, taken)
        assert losses[0] == computed
        assert all(torch.equal(ours[name], value) for name, value in alone.items())
    assert len(taken.kept) == (6 if room else KEPT)


@pytest.mark.parametrize("optimiser", [Optimiser("sgd", 0.05), Optimiser("adamw", 1e-3)], ids=["sgd", "adamw"])
def test_the_way_is_differentiated_through_every_step(small: Any, optimiser: Optimiser) -> None:
    """Against a difference quotient in float64, along a random direction of the pixels."""
    model = deepcopy(small.model)
    model.module.double()
    local = ImitatedSteps(replace(optimiser, epsilon=1e-3), ((0,), (0,), (0,)), (0,))
    name = "decoder.model.decoder.layers.0.fc1.weight"
    generator = torch.Generator().manual_seed(0)
    pixels = small.pixels.double()
    direction = torch.randn(pixels.shape, generator=generator, dtype=torch.float64)
    weight: Tensor = torch.randn(small.view.gradient[name].shape, generator=generator, dtype=torch.float64)

    def value(at: Tensor, graph: bool) -> Tensor:
        update = local.simulate(model, at, small.inputs, small.view.names, create_graph=graph)
        return (weight * update[name]).sum()

    free = pixels.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(value(free, True), free)
    step = 1e-5
    quotient = (value(pixels + step * direction, False) - value(pixels - step * direction, False)) / (2 * step)
    assert float((gradient * direction).sum()) == pytest.approx(float(quotient), rel=1e-4)


def test_one_sgd_step_is_the_gradient_and_decay_is_taken_off(small: Any) -> None:
    optimiser = Optimiser("sgd", 0.25, weight_decay=0.1)
    start = {name: p.detach() for name, p in small.model.module.named_parameters()}
    update = optimiser.as_gradient(trained(small, optimiser, ((0,),)), start, 1)
    for name, value in small.view.gradient.items():
        torch.testing.assert_close(update[name], value, atol=2e-6, rtol=2e-3)


def test_what_did_not_move_was_not_decayed() -> None:
    start = {"a": torch.ones(3), "b": torch.ones(3)}
    update = Optimiser("adamw", 0.1, weight_decay=0.5).as_gradient(
        {"a": torch.zeros(3), "b": torch.full((3,), 0.05)}, start, 1
    )
    assert not update["a"].any()
    torch.testing.assert_close(update["b"], torch.zeros(3), atol=1e-7, rtol=0)


@pytest.mark.parametrize("steps", [1, 4])
def test_the_rounding_of_weights_is_foretold(steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(10_000, generator=generator) * 0.3
    gradient = torch.randn(10_000, generator=generator) * 1e-4
    optimiser, moved = Optimiser("sgd", 0.01), theta.clone()
    for _ in range(steps):
        moved -= optimiser.learning_rate * gradient
    estimate = optimiser.as_gradient({"w": theta - moved}, {"w": theta}, steps)["w"]
    error = float((estimate - gradient).square().mean().sqrt())
    assert 0.5 < error / optimiser.rounding({"w": theta})["w"] < 2


@pytest.mark.parametrize("size", [0.0, 0.05, 1.0])
def test_one_adamw_step_tells_what_float32_leaves_of_it(size: float) -> None:
    """Signs always; magnitudes up to the foretold limit, which for weights near zero covers far more."""
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(20_000, generator=generator) * size
    gradient = torch.randn(20_000, generator=generator).sign() * 10 ** (
        -10 + 9 * torch.rand(20_000, generator=generator)
    )
    optimiser = Optimiser("adamw", 5e-4, weight_decay=0.01)
    weight = torch.nn.Parameter(theta.clone())
    weight.grad = gradient.clone()
    torch.optim.AdamW([weight], lr=5e-4, weight_decay=0.01).step()
    step = optimiser.as_gradient({"w": theta - weight.detach()}, {"w": theta}, 1)
    estimate, sure = SignedStep.invert(step, {"w": theta}, optimiser)
    told = step["w"].abs() > 2 * 6e-8 * theta.abs() / 5e-4
    assert bool((estimate["w"].sign() == gradient.sign())[told].all())
    inside = (gradient.abs() < 0.5 * sure.most["w"]) & (gradient.abs() > 1e-9)
    wrong = ((estimate["w"] - gradient) / gradient)[inside].abs()
    assert inside.sum() > 1000 and float(wrong.quantile(0.95)) < 2 * CERTAIN
    outside = gradient.abs() > 2 * sure.most["w"]
    assert bool((estimate["w"].abs() >= 0.5 * sure.most["w"])[outside].all()), "at least so much"
    imitated = sure({"w": gradient}, estimate)["w"]
    assert float((imitated - estimate["w"]).norm() / estimate["w"].norm()) < 2 * CERTAIN
    share = float(inside.float().mean())
    assert share > 0.6 if size == 0.0 else share < 0.55


def test_other_optimisers_are_refused() -> None:
    with pytest.raises(AttackError, match="expected sgd or adamw"):
        Optimiser("lion")
    with pytest.raises(AttackError, match="a rate above 0"):
        Optimiser("sgd", 0.0)


def test_a_gradient_within_the_norm_is_not_clipped(small: Any) -> None:
    """Clipping scales down and never up: with a norm far above the gradient's the step is the plain one."""
    names = small.view.names
    plain, loose = (
        ImitatedSteps(Optimiser("sgd", 0.05, max_norm=norm), ((0,),), (0,)).simulate(
            small.model, small.pixels, small.inputs, names, create_graph=False
        )
        for norm in (0.0, 1e6)
    )
    assert sum(float(value.square().sum()) for value in plain.values()) ** 0.5 < 1e5
    for name in names:
        torch.testing.assert_close(loose[name], plain[name])
