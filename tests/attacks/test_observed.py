"""Updates as a server receives them: the self-test holds, wrong steps fail it, attacks work through local steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients import ATTACKS
from docleak.attacks.gradients.local_steps import ImitatedSteps, Optimiser, SignedStep
from docleak.attacks.gradients.observed import _alive, observe
from docleak.attacks.gradients.selftest import SelfTest, self_test
from docleak.attacks.gradients.view import GradientView
from docleak.errors import GradientError, SelfTestError
from docleak.training.federated.local import parameters_of, set_parameters, train_locally
from docleak.training.federated.local_plan import LocalPlan

Psnr = Callable[[Tensor, Tensor, Tensor], float]


def sent(small: Any, plan: LocalPlan) -> dict[str, Tensor]:
    """What a client that trains on the small problem's pages sends, by the federation's own code."""
    start = parameters_of(small.model)
    done = train_locally(small.model, small.pages, plan, client="c", rng=np.random.default_rng(0))
    set_parameters(small.model, start)
    return {name: torch.from_numpy(value) for name, value in done.update.delta.items()}


def steps_of(plan: LocalPlan, count: int = 1) -> ImitatedSteps:
    optimiser = Optimiser(plan.optimiser, plan.learning_rate, plan.weight_decay)
    return ImitatedSteps(optimiser, ((*range(count),),) * plan.max_steps, tuple(range(count)))


def seen(small: Any, plan: LocalPlan, local: ImitatedSteps | None = None) -> GradientView:
    return observe(small.model, sent(small, plan), local or steps_of(plan), small.knowledge, train_mode=False)


def checked(small: Any, view: GradientView) -> SelfTest:
    return self_test(view, small.pixels, small.inputs)


SGD = LocalPlan(epochs=9, batch_size=1, learning_rate=0.05, weight_decay=0.01, optimiser="sgd", dropout=False)
ADAMW = replace(SGD, optimiser="adamw", learning_rate=5e-4)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("plan", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_the_truth_passes(small: Any, plan: LocalPlan, steps: int) -> None:
    view = seen(small, replace(plan, max_steps=steps))
    test = checked(small, view)
    assert test.passed and test.causes == (), test
    assert view.batch_size == steps and len(view.names) > 0.8 * len(small.view.names)


def test_a_batch_over_several_pages_passes(make_small: Callable[..., Any]) -> None:
    pair = make_small("42", "17")
    plan = replace(SGD, batch_size=2, max_steps=2)
    view = observe(pair.model, sent(pair, plan), steps_of(plan, 2), pair.knowledge, train_mode=False)
    assert checked(pair, view).passed


@pytest.mark.parametrize(
    "wrong",
    [
        ImitatedSteps(Optimiser("sgd", 0.05, 0.01), ((0,),), (0,)),
        ImitatedSteps(Optimiser("sgd", 0.5, 0.01), ((0,),) * 3, (0,)),
        ImitatedSteps(Optimiser("adamw", 0.05, 0.01), ((0,),) * 3, (0,)),
    ],
    ids=["steps", "rate", "optimiser"],
)
def test_other_steps_fail(small: Any, wrong: ImitatedSteps) -> None:
    test = checked(small, seen(small, replace(SGD, max_steps=3), wrong))
    with pytest.raises(SelfTestError, match="self-test failed"):
        test.require()
    if wrong.steps > 1:
        assert "other local steps" in " ".join(test.causes)


def test_another_page_fails(small: Any, make_small: Callable[..., Any]) -> None:
    view = seen(small, replace(ADAMW, max_steps=1))
    assert not checked(make_small("17"), view).passed


def test_pixels_come_out_of_several_local_steps(small: Any, psnr: Psnr) -> None:
    """Imitating the steps finds them; taking the update for one gradient does not come near."""
    plan = replace(SGD, max_steps=3, learning_rate=0.2)
    view = seen(small, plan)
    attack = ATTACKS.load("gi-dqa")

    def quality(view: GradientView) -> float:
        finding = attack.run(view, small.knowledge, budget=45, generator=torch.Generator().manual_seed(0))
        return psnr(finding.pixels, small.pixels, small.knowledge.private)

    imitating, naive = quality(view), quality(replace(view, local=None))
    assert imitating > 20 and imitating > naive + 5, (imitating, naive)


def test_one_adamw_step_leaks_like_a_gradient(small: Any, psnr: Psnr) -> None:
    """Of most numbers only the sign is left, and yet; shuffled signs give nothing."""
    view = seen(small, replace(ADAMW, max_steps=1))
    attack = ATTACKS.load("gi-dqa")

    def quality(view: GradientView) -> tuple[float, float]:
        finding = attack.run(view, small.knowledge, budget=50, generator=torch.Generator().manual_seed(0))
        return psnr(finding.pixels, small.pixels, small.knowledge.private), finding.explained

    assert isinstance(view.imitate, SignedStep)
    told = sum(int((g.abs() < view.imitate.most[name]).sum()) for name, g in view.gradient.items())
    assert told < 0.2 * sum(g.numel() for g in view.gradient.values())
    seen_psnr, explained = quality(view)
    assert seen_psnr > 15 and explained > 0.95, (seen_psnr, explained)
    generator = torch.Generator().manual_seed(1)
    shuffled = {n: g * torch.randn(g.shape, generator=generator).sign() for n, g in view.gradient.items()}
    none_psnr, none = quality(replace(view, gradient=shuffled))
    assert none_psnr < 10 and none < 0.5, (none_psnr, none)


def test_an_update_below_rounding_is_refused(small: Any) -> None:
    nothing = {name: torch.zeros_like(value) for name, value in small.view.gradient.items()}
    with pytest.raises(GradientError, match="nothing of the update rises above the rounding"):
        observe(small.model, nothing, steps_of(replace(SGD, max_steps=1)), small.knowledge, train_mode=False)


def test_slack_is_the_mean_share_of_rounding(small: Any) -> None:
    plan = replace(SGD, max_steps=2)
    view, delta, optimiser = seen(small, plan), sent(small, plan), steps_of(plan).optimiser
    start = {name: p.detach() for name, p in small.model.module.named_parameters() if name in delta}
    update, rounding = optimiser.as_gradient(delta, start, 2), optimiser.rounding(start)
    shares = [rounding[n] ** 2 / float(update[n].double().square().mean()) for n in view.names]
    assert 0 < view.slack == pytest.approx(sum(shares) / len(shares), rel=1e-5)


def test_what_is_alive_is_told_by_the_first_step(small: Any) -> None:
    """With an output layer of zeros nothing but that layer has a gradient; after one step everything has."""
    head = small.model.module.decoder.lm_head.weight
    before, local = head.detach().clone(), steps_of(replace(SGD, max_steps=3))
    names = ("decoder.model.decoder.embed_tokens.weight", "decoder.model.decoder.embed_positions.weight")
    assert set(_alive(small.model, names, local, small.knowledge)) == set(names)
    head.data.zero_()
    try:
        assert _alive(small.model, names, local, small.knowledge) == names[:1]
    finally:
        head.data.copy_(before)
