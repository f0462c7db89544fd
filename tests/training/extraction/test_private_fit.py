"""Private training of encoders: each unit's gradient is clipped, noise is added, the rest stays as it was."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError, PrivacyError
from docleak.models.base import trainable
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.tasks import classes_of
from docleak.models.encoders.tiny import shipped_tokenizer, tiny_encoder
from docleak.models.encoders.tokens import TokenPage
from docleak.privacy.accounting import guarantee
from docleak.privacy.lineage import PUBLIC, Lineage, Trained
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.extraction.fit import Fitted
from docleak.training.extraction.kept import _claim
from docleak.training.extraction.private import PrivateFit, _one_step, fit_privately
from docleak.training.private.rounds import noisy_difference

CONFIG = PrivateFit(rounds=3, rate=0.5)
PAGES = tuple(make_pages(5, seed=5))


def fresh() -> EncoderModel:
    return tiny_encoder("layoutlm", shipped_tokenizer(), seed=1).for_task("ee-bio", classes_of(PAGES), seed=1)


def units(model: EncoderModel) -> dict[str, list[TokenPage]]:
    return {page.name: [model.encode(page)] for page in PAGES[:4]}


def state(model: EncoderModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.module.named_parameters()}


def train(model: EncoderModel, config: PrivateFit, plan: DpPlan, seed: int = 0) -> Fitted:
    return fit_privately(
        model, units(model), [model.encode(PAGES[4])], config, plan, validate_every=2, batch_size=2, seed=0,
        randomness=Randomness.seeded(seed),
    )  # fmt: skip


def plan_of(config: PrivateFit, noise: float = 1.0) -> DpPlan:
    """With noise that is not calibrated, which takes seconds."""
    return DpPlan(replace(config.mechanism(), noise_multiplier=noise), config.clip_norm, 2, config.delta)


def without_noise(plan: DpPlan) -> DpPlan:
    return replace(plan, mechanism=replace(plan.mechanism, noise_multiplier=0.0))


def test_the_plan_keeps_to_epsilon_with_the_least_noise() -> None:
    plan = CONFIG.plan()
    assert plan.mechanism.rounds == 3
    claim = plan.guarantee()
    assert 7.9 < claim.epsilon <= 8
    less = replace(plan.mechanism, noise_multiplier=plan.mechanism.noise_multiplier * 0.99)
    assert guarantee(less, plan.delta).epsilon > 8
    assert "at delta 0.001 per document (one document added or removed)" in claim.sentence()


def test_each_units_gradient_is_clipped_and_summed() -> None:
    """Without noise, what is released is minus the sum of clipped gradients over M."""
    model = fresh()
    plan = replace(without_noise(plan_of(CONFIG)), clip_norm=0.05)
    weights = {name: p.detach().numpy().copy() for name, p in trainable(model.module)}
    groups = list(units(model).values())
    runs = [partial(_one_step, model, pages, [], np.random.default_rng(0)) for pages in groups]
    randomness = Randomness.seeded(0)
    difference, norms = noisy_difference(model.module, weights, runs, plan, clients_drawn=1, randomness=randomness)
    expected = {name: np.zeros(value.shape) for name, value in weights.items()}
    for pages, norm in zip(groups, norms, strict=True):
        model.module.zero_grad()
        model.loss(model.collate(pages)).mean().backward()  # type: ignore[no-untyped-call]
        gradients = {n: p.grad.double().numpy() for n, p in trainable(model.module) if p.grad is not None}
        length = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        assert norm == pytest.approx(length, rel=1e-3) and length > plan.clip_norm
        for name, gradient in gradients.items():
            expected[name] += gradient * plan.clip_norm / length
    for name, value in difference.items():
        assert np.allclose(value, expected[name] / plan.denominator, atol=2e-6), name


def test_noise_is_added_even_where_nobody_was_drawn() -> None:
    """With a rate of nearly 0 no unit is drawn: all that moves is noise."""
    config = replace(CONFIG, rate=1e-9, rounds=1)
    plan = plan_of(config)
    for noisy in (True, False):
        model = fresh()
        before = state(model)
        train(model, config, plan if noisy else without_noise(plan))
        moved = {name for name, value in state(model).items() if not torch.equal(value, before[name])}
        wanted = {n for n, p in before.items() if p.ndim == 1 or n.startswith("head.")}
        assert moved == (wanted if noisy else set())


def test_a_unit_whose_pages_cannot_be_trained_on_contributes_nothing_and_ends_nothing() -> None:
    """A training that stopped would tell of the one unit."""
    config = replace(CONFIG, rate=1.0, rounds=2)
    with_it, without = fresh(), fresh()
    pages = units(with_it)
    page = pages[PAGES[0].name][0]
    damaged = replace(page, ids=torch.full_like(page.ids, 10**6))
    for model, of in ((with_it, {"damaged": [damaged]}), (without, {})):
        fit_privately(
            model, {**of, **{name: page for name, page in units(model).items() if name != PAGES[0].name}},
            [model.encode(PAGES[4])], config, without_noise(plan_of(config)), validate_every=2, batch_size=2, seed=0,
            randomness=Randomness.seeded(0),
        )  # fmt: skip
    after = state(without)
    assert all(torch.allclose(value, after[name], atol=1e-6) for name, value in state(with_it).items())


def test_matrices_are_frozen_and_thawed_again() -> None:
    model, plan = fresh(), plan_of(CONFIG)
    before = state(model)
    fitted = train(model, CONFIG, plan)
    moved = {name for name, value in state(model).items() if not torch.equal(value, before[name])}
    assert moved == {n for n, p in before.items() if p.ndim == 1 or n.startswith("head.")}
    assert all(p.requires_grad for p in model.module.parameters())
    assert [epoch.number for epoch in fitted.epochs] == [2, 3]
    everything = fresh()
    train(everything, replace(CONFIG, vectors_only=False), plan)
    assert all(not torch.equal(p, before[n]) for n, p in everything.module.named_parameters() if "pooler" not in n)


def test_it_is_repeatable_and_hangs_on_its_randomness() -> None:
    weights = []
    for seed in (0, 0, 1):
        model = fresh()
        train(model, CONFIG, plan_of(CONFIG), seed)
        weights.append(torch.cat([value.flatten() for value in state(model).values()]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_it_learns_where_there_is_hardly_any_noise() -> None:
    """Every document in every round: the loss falls."""
    model, config = fresh(), PrivateFit(rounds=25, rate=1.0, learning_rate=3e-3)
    fitted = train(model, config, plan_of(config, noise=0.01))
    assert fitted.epochs[-1].train_loss < 0.8 * fitted.epochs[0].train_loss


def test_bad_settings_and_parts_are_refused() -> None:
    with pytest.raises(PrivacyError, match="unit is 'record'; expected document or provider"):
        PrivateFit(unit="record")
    with pytest.raises(PrivacyError, match=r"epsilon is 0\.0; expected a finite number above 0"):
        PrivateFit(epsilon=0.0)
    model = fresh()
    with pytest.raises(DocumentError, match="1 units \\(1 without pages\\)"):
        fit_privately(
            model, {"a": []}, [model.encode(PAGES[4])], CONFIG, plan_of(CONFIG), validate_every=1, batch_size=1, seed=0,
            randomness=Randomness.seeded(0),
        )  # fmt: skip


def test_a_claim_says_what_is_taken_as_public_and_warns_of_a_delta_of_a_unit() -> None:
    """A head's classes are those of all pages; and a delta of 1/units is said to be too large, as in any training."""
    for delta, warned in ((1e-3, False), (0.02, True)):
        private = PrivateFit(delta=delta, units=50)
        lineage = Lineage(PUBLIC, "a start", (Trained("a", "a training", private.plan()),))
        said = _claim(lineage, private)
        assert "classes" in said and "taken as public" in said
        assert ("delta 0.02 is not below 1/50" in said) is warned
