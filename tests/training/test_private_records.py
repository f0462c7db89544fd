"""DP-SGD per record: gradients per example, a step by hand, noise, two accountants, and what it does not protect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from docleak.documents.issuers import FIRST, make_issuers
from docleak.documents.page import Page
from docleak.errors import PrivacyError
from docleak.models import load_model
from docleak.models.base import DocumentModel, pixels_of, trainable
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated.local import batch_loss, parameters_of, set_parameters
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.objectives.objective import objective_of
from docleak.training.private import records
from docleak.training.private.records import (
    RecordOptimiser,
    RecordTraining,
    example_gradient,
    record_claim,
    train_by_record,
)
from docleak.training.private.rounds import client_round

PLAN = DpPlan(Mechanism(0.0, 1, unit=Unit.RECORD), clip_norm=0.5, denominator=4, delta=1e-3)
QA = objective_of("qa")


@pytest.fixture(scope="module")
def model() -> DocumentModel:
    return load_model("vt5-start")


@pytest.fixture(scope="module")
def weights(model: DocumentModel) -> dict[str, np.ndarray]:
    return parameters_of(model)


@pytest.fixture(scope="module")
def pages(model: DocumentModel) -> list[Page]:
    """Three pages of two providers with two questions each."""
    made = [*make_issuers([FIRST, FIRST + 1], [2, 1], seed=0)]
    return [replace(model.fit(page), questions=page.questions[:2]) for page in made]


def noisy(noise: float, rounds: int = 1, rate: float = 1.0) -> DpPlan:
    return replace(PLAN, mechanism=Mechanism(noise, rounds, rate, unit=Unit.RECORD))


def train(
    model: DocumentModel, weights: dict[str, np.ndarray], pages: Sequence[Page], plan: DpPlan, seed: int = 0
) -> RecordTraining:
    set_parameters(model, weights)
    return train_by_record(model, pages, plan, RecordOptimiser(1e-3, 0.0), randomness=Randomness.seeded(seed))


def one_by_one(model: DocumentModel, pages: Sequence[Page]) -> dict[str, torch.Tensor]:
    gradients: dict[str, list[torch.Tensor]] = {}
    for example in QA.examples(pages):
        model.module.zero_grad(set_to_none=True)
        example_gradient(model, pages, example)
        for name, p in trainable(model.module):
            gradients.setdefault(name, []).append(torch.zeros_like(p) if p.grad is None else p.grad.clone())
    return {name: torch.stack(rows) for name, rows in gradients.items()}


class Whole(torch.nn.Module):
    """The loss as one module, as Opacus' hooks need it."""

    def __init__(self, model: DocumentModel) -> None:
        super().__init__()
        self.network = model.module
        self.forward = model.loss


def test_gradients_per_example_are_those_of_the_batch_and_of_opacus_hooks() -> None:
    """Opacus' hooks agree on everything but T5's tables of relative positions, which they count per query."""
    from opacus.grad_sample import GradSampleModule

    model = load_model("vt5-start")
    pages = [model.fit(page) for page in make_issuers([FIRST, FIRST + 1, FIRST + 2], [1, 1, 1], seed=0)]
    pages = [replace(page, questions=page.questions[:1]) for page in pages]
    rows = one_by_one(model, pages)
    model.module.zero_grad(set_to_none=True)
    batch_loss(model, pages, QA.examples(pages), QA, np.random.default_rng(0)).backward()
    for name, p in trainable(model.module):
        assert p.grad is not None
        torch.testing.assert_close(rows[name].mean(0), p.grad, rtol=1e-3, atol=1e-5 * float(p.grad.abs().max() + 1e-9))
    hooked = GradSampleModule(Whole(model).train(), strict=False, loss_reduction="sum")
    encoded = [model.encode(page, page.questions[0]) for page in pages]
    hooked(torch.stack([pixels_of(page.image) for page in pages]), encoded).sum().backward()
    wrong = []
    for name, p in trainable(model.module):
        sample: Any = p.grad_sample
        if sample.shape != rows[name].shape:
            wrong.append(name)
            continue
        torch.testing.assert_close(sample, rows[name], rtol=1e-3, atol=1e-4 * float(rows[name].abs().max() + 1e-9))
    assert len(wrong) == 2 and all(name.endswith("relative_attention_bias.weight") for name in wrong)


def test_a_step_is_the_clipped_sum_over_m_given_to_adamw(
    model: DocumentModel, weights: dict[str, np.ndarray], pages: list[Page]
) -> None:
    set_parameters(model, weights)
    gradients = one_by_one(model, pages)
    norms = torch.stack([rows.flatten(1).double().norm(dim=1) for rows in gradients.values()]).norm(dim=0)
    assert len(norms) == 6 and float(norms.min()) > PLAN.clip_norm, "the test would not see clipping"
    scale = (PLAN.clip_norm / norms).float()
    named = dict(trainable(model.module))
    for name, p in named.items():
        p.grad = torch.tensordot(scale, gradients[name], 1) / PLAN.denominator
    torch.optim.AdamW(named.values(), lr=1e-3, weight_decay=0.0, eps=1e-8).step()
    by_hand = parameters_of(model)
    model.module.zero_grad(set_to_none=True)
    training = train(model, weights, pages, PLAN)
    moved = {name: value - weights[name] for name, value in parameters_of(model).items()}
    for name, value in by_hand.items():
        large = np.abs(value - weights[name]) > 5e-4  # where Adam's first step is the sign of no rounding error
        np.testing.assert_allclose(moved[name][large], (value - weights[name])[large], rtol=2e-2)
    assert training.counted.mechanism.rounds == 1 and training.records == 6 and math.isinf(training.counted.epsilon)


def test_one_record_moves_the_sum_by_at_most_c(
    model: DocumentModel, weights: dict[str, np.ndarray], pages: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours, through Opacus' own clipping; the optimiser's step is looked at before it is taken."""
    seen: list[np.ndarray] = []

    def look(optimiser: torch.optim.AdamW, *_: object) -> None:
        seen.append(torch.cat([p.grad.flatten() for g in optimiser.param_groups for p in g["params"]]).double().numpy())

    monkeypatch.setattr(torch.optim.AdamW, "step", look)
    fewer = [pages[0], pages[1], replace(pages[2], questions=pages[2].questions[:1])]
    for clip in (1e-3, 0.5, 1e3):
        plan = replace(PLAN, clip_norm=clip)
        seen.clear()
        for data in (pages, fewer):
            train(model, weights, data, plan)
        moved = float(np.linalg.norm(seen[0] - seen[1])) * plan.denominator
        assert moved <= clip * (1 + 1e-4)
        assert moved > 0.99 * clip or clip == 1e3


def test_noise_is_there_even_if_nothing_is_drawn(
    model: DocumentModel, weights: dict[str, np.ndarray], pages: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []

    def look(optimiser: torch.optim.AdamW, *_: object) -> None:
        seen.append(torch.cat([p.grad.flatten() for g in optimiser.param_groups for p in g["params"]]).numpy())

    monkeypatch.setattr(torch.optim.AdamW, "step", look)
    train(model, weights, pages, noisy(1.5, rounds=2, rate=1e-9))
    assert [len(s) == len(seen[0]) for s in seen] == [True, True]
    for noise in seen:
        assert noise.std() == pytest.approx(1.5 * 0.5 / 4, rel=0.01)
    assert abs(np.corrcoef(seen[0], seen[1])[0, 1]) < 5e-3
    seen.clear()
    train(model, weights, pages, noisy(1.5))
    train(model, weights, pages, PLAN)
    assert (seen[0] - seen[1]).std() == pytest.approx(1.5 * 0.5 / 4, rel=0.01)


def test_both_accountants_agree_and_the_group_is_named(
    model: DocumentModel, weights: dict[str, np.ndarray], pages: list[Page]
) -> None:
    training = train(model, weights, pages, noisy(1.0, rounds=3, rate=0.5))
    again = parameters_of(model)
    assert training.counted.mechanism == training.claim.mechanism and training.counted.epsilon == pytest.approx(
        training.claim.epsilon, rel=0.02
    )
    assert training.most_records == 4
    said = record_claim(training, alone=True)
    assert said.startswith("This training adds epsilon") and "It holds for the model;" in said
    composed = record_claim(training, alone=False)
    assert "It holds for the model" not in composed and "not what holds for the model" in composed
    for part in ("per record (one question with its answer", "Opacus", "not a provider", "has 4 of them", "PLD"):
        assert part in said, part
    train(model, weights, pages, noisy(1.0, rounds=3, rate=0.5))
    assert all(np.array_equal(again[name], value) for name, value in parameters_of(model).items()), "same seed"
    train(model, weights, pages, noisy(1.0, rounds=3, rate=0.5), seed=1)
    assert not all(np.array_equal(again[name], value) for name, value in parameters_of(model).items())
    set_parameters(model, weights)


def test_each_example_has_a_dropout_of_its_own(
    model: DocumentModel, weights: dict[str, np.ndarray], pages: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds are whole numbers of 53 bits, no two the same: neither within a step nor from one to the next."""
    seen: list[int] = []
    step = records._step

    def watched(*args: Any, seeds: Sequence[int]) -> list[float]:
        seen.extend(seeds)
        return step(*args, seeds=seeds)

    monkeypatch.setattr(records, "_step", watched)
    train(model, weights, pages, noisy(1.0, rounds=2))
    assert len(set(seen)) == 12 and all(0 <= seed < 2**53 for seed in seen)
    assert max(seen) > 2**51, "so many all below a quarter are one chance in 10^7"
    set_parameters(model, weights)


def test_what_does_not_fit_is_refused(model: DocumentModel, weights: dict[str, np.ndarray], pages: list[Page]) -> None:
    with pytest.raises(PrivacyError, match="unit is provider"):
        train(model, weights, pages, replace(PLAN, mechanism=Mechanism(1.0, 1)))
    assert train(model, weights, pages, replace(PLAN, denominator=7)).records == 6, "too few for M is no reason"
    with pytest.raises(PrivacyError, match="units of DP-SGD only"):
        client_round(
            model, pages, PLAN, LocalPlan(), weights=weights, client="silo", clients_drawn=1,
            randomness=Randomness.seeded(0),
        )  # fmt: skip
