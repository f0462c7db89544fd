"""DP-SGD on pairs: Opacus' steps against a slow one of our own, what is sent, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from docleak.documents.pairs import make_scenes
from docleak.errors import FederationError, PrivacyError
from docleak.models.base import trainable
from docleak.models.pair import PairModel, build_pair
from docleak.models.pair.model import MODALITIES
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.studies.pairs.case import build_pair_case, pair_gradient
from docleak.studies.pairs.privacy import PairPrivacy, encodings_of, noise_of, sent
from docleak.training.private import pairs as private_pairs
from docleak.training.private.pairs import accuracy_of, train_pairs

PAIRS = make_scenes(6, seed=0)


def fresh() -> PairModel:
    return build_pair("lenet5", "bert-tiny", classes=("scatter", "tower"), image_size=(16, 8), seed=0)


def parts(model: PairModel, gradient: dict[str, torch.Tensor]) -> dict[str, float]:
    """The norm of each modality."""
    return {
        m: float(torch.cat([v.flatten() for n, v in gradient.items() if model.modality(n) == m]).norm())
        for m in ("image", "text")
    }


def test_a_step_is_clipped_per_modality_and_noisy() -> None:
    """One step on all pairs against sums made by hand; Adam's first step is the sign of the gradient."""
    model, rows = fresh(), encodings_of(fresh(), PAIRS)
    plan = DpPlan(Mechanism(0.7, 1, 1.0, unit=Unit.RECORD), clip_norm=0.5, denominator=6, delta=1e-5)
    gradients = []
    for i in range(6):
        one = rows.rows([i])
        gradients.append(pair_gradient(model, one))
    bound = 0.5 / np.sqrt(2)
    total: dict[str, torch.Tensor] = {}
    for gradient in gradients:
        norms = parts(model, gradient)
        assert max(norms.values()) > bound, "something is clipped"
        for name, value in gradient.items():
            scaled = value * min(1.0, bound / norms[model.modality(name)])
            total[name] = total.get(name, torch.zeros_like(value)) + scaled
    stream = Randomness.seeded("noise")
    expected = {}
    for modality in ("image", "text"):
        for name, parameter in trainable(model.module):
            if model.modality(name) == modality:
                noise = 0.7 * 0.5 * stream.gaussian(parameter.numel()).reshape(parameter.shape)
                expected[name] = (total[name] + torch.from_numpy(noise).float()) / 6
    before = {name: p.detach().clone() for name, p in trainable(model.module)}
    train_pairs(
        model, rows, steps=1, batch_size=6, learning_rate=1e-2, plan=plan, randomness=Randomness.seeded("noise")
    )
    agree = [
        float(((p.detach() - before[n]).sign() == -expected[n].sign()).float().mean())
        for n, p in trainable(model.module)
    ]
    assert min(agree) > 0.99


def test_what_is_sent_has_bounded_sensitivity_and_the_plans_noise() -> None:
    model, rows = fresh(), encodings_of(fresh(), PAIRS)
    privacy = PairPrivacy(epsilon=5.0, steps=10, records=100)
    plan = privacy.plan(2)
    assert plan is not None and plan.guarantee().epsilon <= 5.0
    gradients = []
    for i in range(2):
        one = rows.rows([i])
        gradients.append(pair_gradient(model, one))
    quiet = replace(plan, mechanism=replace(plan.mechanism, noise_multiplier=0.0))
    generator = torch.Generator().manual_seed(0)
    mean = sent(model, gradients, quiet, generator)
    one_less = {n: v / 2 for n, v in sent(model, gradients[:1], quiet, generator).items()}
    moved = torch.cat([(mean[n] - one_less[n]).flatten() for n in mean])
    assert float(moved.norm()) <= 1.0 / 2 + 1e-5, "one pair moves the mean by C / B at most"
    noisy = sent(model, gradients, plan, generator)
    noise = torch.cat([(noisy[n] - mean[n]).flatten() for n in mean])
    assert float(noise.std()) == pytest.approx(noise_of(plan), rel=0.05)
    assert noise_of(plan) == pytest.approx(plan.mechanism.noise_multiplier * 1.0 / 2)


def test_of_a_large_model_few_gradients_are_in_memory_and_the_result_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twelve pairs together, one by one, and five at a time: the same steps, and the same noise."""
    rows = encodings_of(fresh(), make_scenes(12, seed=3))
    numbers = sum(p.numel() for _, p in trainable(fresh().module))
    privacy = PairPrivacy(epsilon=5.0, steps=2, records=12)
    plan, put = privacy.plan(6), private_pairs._put_samples
    assert plan is not None
    sizes: list[int] = []
    monkeypatch.setattr(private_pairs, "_put_samples", lambda m, b, groups: sizes.append(len(b)) or put(m, b, groups))
    made = []
    for at_once, most in ((private_pairs.AT_ONCE, 12), (1, 1), (5 * numbers, 5)):
        monkeypatch.setattr(private_pairs, "AT_ONCE", at_once)
        model = fresh()
        pairs = (rows.rows([i]) for i in range(12))
        gradients = (pair_gradient(model, one) for one in pairs)
        mean = sent(model, gradients, plan, torch.Generator().manual_seed(0))
        train_pairs(
            model, rows, steps=2, batch_size=6, learning_rate=1e-2, plan=plan, randomness=Randomness.seeded("noise")
        )
        assert 0 < max(sizes) <= most and (most == 12) == (max(sizes) > 5)
        sizes.clear()
        made.append({**mean, **{f"trained {n}": p.detach() for n, p in trainable(model.module)}})
    for other in made[1:]:
        assert all(torch.allclose(value, made[0][name], atol=1e-4) for name, value in other.items())


def test_a_private_client_sends_what_an_adversary_that_imitates_clipping_can_match() -> None:
    model = fresh()
    loud = PairPrivacy(epsilon=1e6, steps=1, records=1, clip_norm=0.01)
    case = build_pair_case(model, PAIRS[:1], privacy=loud, noise=torch.Generator().manual_seed(0))
    side = case.view.side("image")
    assert side.imitate is not None and case.view.noise > 0
    one = encodings_of(model, PAIRS[:1])
    plain = pair_gradient(model, one)
    clipped = side.as_sent({n: plain[n] for n in side.names})
    rest = torch.cat([(side.gradient[n] - clipped[n]).flatten() for n in side.names])
    assert float(rest.std()) == pytest.approx(case.view.noise, rel=0.1)


def test_less_privacy_costs_less_noise_and_none_learns() -> None:
    noises = [noise_of(plan) for e in (1.0, 5.0, 10.0) if (plan := PairPrivacy(epsilon=e).plan(1))]
    assert noises == sorted(noises, reverse=True) and len(set(noises)) == 3
    model, many = fresh(), make_scenes(60, seed=5)
    rows = encodings_of(model, many)
    train_pairs(
        model, rows, steps=25, batch_size=20, learning_rate=3e-3, plan=None, randomness=Randomness.seeded("a test")
    )
    assert accuracy_of(model, rows)[1] > 0.9


def test_accuracy_is_the_share_of_pairs_one_by_one() -> None:
    model = fresh()
    rows = encodings_of(model, make_scenes(60, seed=5))
    right = [0, 0]
    for number in range(60):
        one = rows.rows([number])
        image = model.module.image_logits(model.normalise(one.pixels))
        text = model.module.text_logits(torch.nn.functional.embedding(one.ids, model.table), one.mask)
        for side, (logits, label) in enumerate(zip((image, text), one.labels, strict=True)):
            right[side] += int(logits.argmax()) == int(label)
    assert accuracy_of(model, rows) == pytest.approx((right[0] / 60, right[1] / 60)), "pair by pair"


def test_a_pair_whose_gradient_is_not_finite_contributes_nothing() -> None:
    """It made the sum, and with it every weight, NaN, and the accuracy of that was told as what privacy costs."""
    privacy, rows = PairPrivacy(epsilon=5.0, steps=2, records=12), encodings_of(fresh(), make_scenes(12, seed=3))
    broken = replace(rows, pixels=rows.pixels.clone())
    broken.pixels[4] = torch.nan
    batch, model = broken.rows([3, 4, 5]), fresh()
    groups = [[p for name, p in trainable(model.module) if model.modality(name) == one] for one in MODALITIES]
    private_pairs._put_samples(model, batch, groups)
    for group in groups:
        assert all(not p.grad_sample[1].any() and torch.isfinite(p.grad_sample).all() for p in group)  # type: ignore[attr-defined]
        assert any(p.grad_sample[0].any() and p.grad_sample[2].any() for p in group)  # type: ignore[attr-defined]
    how: dict[str, Any] = {"steps": 2, "batch_size": 6, "learning_rate": 1e-2}
    train_pairs(model, broken, plan=privacy.plan(6), randomness=Randomness.seeded("noise"), **how)
    assert all(torch.isfinite(p).all() for _, p in trainable(model.module))
    with pytest.raises(FederationError, match=r"the gradient of step 1 is not finite\. Lower the learning rate"):
        train_pairs(fresh(), broken.rows([4]), plan=None, randomness=Randomness.seeded("x"), **{**how, "batch_size": 1})


def test_a_plan_of_other_steps_is_refused() -> None:
    rows = encodings_of(fresh(), PAIRS)
    plan = DpPlan(Mechanism(1.0, 5, 0.5, unit=Unit.RECORD), clip_norm=1.0, denominator=3, delta=1e-5)
    with pytest.raises(PrivacyError, match="the training has"):
        train_pairs(
            fresh(), rows, steps=6, batch_size=3, learning_rate=1e-3, plan=plan, randomness=Randomness.seeded("x")
        )
