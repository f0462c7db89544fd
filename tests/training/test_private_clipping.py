"""Neighbouring data move what is released by at most the claimed sensitivity: thousands of plans, and planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from docleak.errors import PrivacyError
from docleak.models.base import trainable
from docleak.privacy.mechanism import Mechanism, Relation
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated.fedopt import ClientUpdate, FedOpt, ServerState, step
from docleak.training.private.clipping import MARGIN, LeftOutError, clipped_sum
from docleak.training.private.rounds import server_step

#: What each unit's training changes, by parameter; the silos of a federation; how many questions each unit has.
Change = dict[str, Tensor]
Silos = dict[str, dict[str, Change]]


class Tied(nn.Module):
    """A model with a tied weight, a frozen one, and an ordinary one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(3, 2).requires_grad_(False)
        self.middle = nn.Linear(3, 3)
        generator = torch.Generator().manual_seed(0)
        for p in self.parameters():
            nn.init.normal_(p, generator=generator)


SHAPES = {name: p.shape for name, p in trainable(Tied())}
STATE = ServerState.of({name: np.zeros(shape) for name, shape in SHAPES.items()})
Released = dict[str, np.ndarray]
Aggregate = Callable[[Silos, DpPlan], Released]


def summed(units: dict[str, Change], clip_norm: float) -> dict[str, np.ndarray]:
    """The function under test on a module whose "training" makes the given changes."""
    module = Tied()
    weights = {name: p.detach().clone() for name, p in trainable(module)}

    def train(change: Change) -> None:
        with torch.no_grad():
            for name, p in trainable(module):
                p.add_(change[name])

    result = clipped_sum(module, weights, [partial(train, units[name]) for name in sorted(units)], clip_norm)
    return {name: value.numpy() for name, value in result.total.items()}


def released(silos: Silos, plan: DpPlan) -> Released:
    """What docleak's round makes of the drawn units, without noise: the change of the global model."""
    updates = [
        ClientUpdate(name, 1, {key: -value / plan.denominator for key, value in summed(units, plan.clip_norm).items()})
        for name, units in silos.items()
    ]
    after = server_step(STATE, updates, plan, FedOpt(), clients_drawn=len(silos), randomness=Randomness.seeded(0))
    return dict(after.parameters)


def weighted_by_units(silos: Silos, plan: DpPlan) -> Released:
    """Planted: FedAvg's weights n_k, which change for every client when one unit leaves."""
    updates = [
        ClientUpdate(name, 1 + len(units), {k: -v / plan.denominator for k, v in summed(units, plan.clip_norm).items()})
        for name, units in silos.items()
    ]
    return dict(step(STATE, updates, FedOpt()).parameters)


def realised_denominator(silos: Silos, plan: DpPlan) -> Released:
    """Planted: each client divides by the number of its drawn units."""
    means = [{k: v / max(len(units), 1) for k, v in summed(units, plan.clip_norm).items()} for units in silos.values()]
    return {k: np.asarray(sum(mean[k] for mean in means)) / len(means) for k in SHAPES}


def tied_twice(silos: Silos, plan: DpPlan) -> Released:
    """Planted: norm and clipping over the state's keys, where the tied weight is there twice."""
    mean = {k: np.zeros(shape) for k, shape in SHAPES.items()}
    for units in silos.values():
        for change in units.values():
            flat = torch.cat([change[k].flatten() for k in (*SHAPES, "embedding.weight")]).double()
            scale = min(1.0, plan.clip_norm / max(float(flat.norm()), 1e-30))
            mean = {k: v + scale * change[k].double().numpy() / plan.denominator / len(silos) for k, v in mean.items()}
    return mean


def tied_sent_twice(silos: Silos, plan: DpPlan) -> Released:
    """Planted: clipped as named parameters, released as the state's keys."""
    once = released(silos, plan)
    return {**once, "head.weight": once["embedding.weight"]}


def clipped_one_by_one(silos: Silos, plan: DpPlan) -> Released:
    """Planted: every parameter is clipped to C by itself."""
    mean = {k: np.zeros(shape) for k, shape in SHAPES.items()}
    for units in silos.values():
        for change in units.values():
            for k, v in change.items():
                scale = min(1.0, plan.clip_norm / max(float(v.double().norm()), 1e-30))
                mean[k] = mean[k] + scale * v.double().numpy() / plan.denominator / len(silos)
    return mean


def frozen_sent(silos: Silos, plan: DpPlan) -> Released:
    """Planted: the whole state is sent, with a frozen layer that each unit's training moved as far as the others."""
    moved = sum(float(change["middle.weight"].double().norm()) for units in silos.values() for change in units.values())
    return {**released(silos, plan), "frozen.weight": np.array([moved / plan.denominator / len(silos)])}


@dataclass(frozen=True)
class Verdict:
    """Over all trials: the greatest move over the claimed one, and the greatest error of a move's length."""

    ratio: float
    error: float


def examine(aggregate: Aggregate, trials: int, *, seed: int = 0) -> Verdict:
    """Random plans and data; one unit leaves. Claimed: C / M / |K|; right: min(its own length, C) / M / |K|."""
    rng = np.random.default_rng(seed)
    ratio = error = 0.0
    for _ in range(trials):
        plan = DpPlan(Mechanism(1.0, 1), float(10 ** rng.uniform(-3, 2)), int(rng.integers(1, 9)), 1e-5)
        silos = {f"silo-{k}": random_units(rng, plan) for k in range(int(rng.integers(1, 4)))}
        silo = str(rng.choice([name for name, units in silos.items() if units] or ["silo-0"]))
        silos[silo] = silos[silo] or {"only": random_change(rng, plan)}
        unit = str(rng.choice(list(silos[silo])))
        neighbour = {**silos, silo: {name: c for name, c in silos[silo].items() if name != unit}}
        one, other = aggregate(silos, plan), aggregate(neighbour, plan)
        moved = float(np.sqrt(sum(((one[k] - other[k]) ** 2).sum() for k in one)))
        scale = plan.denominator * len(silos)
        length = float(np.sqrt(sum(float(c.double().square().sum()) for c in silos[silo][unit].values())))
        ratio = max(ratio, moved * scale / plan.clip_norm)
        error = max(error, abs(moved * scale - min(length, plan.clip_norm)) / plan.clip_norm)
    return Verdict(ratio, error)


def random_units(rng: np.random.Generator, plan: DpPlan) -> dict[str, Change]:
    return {f"unit-{i}": random_change(rng, plan) for i in range(int(rng.integers(0, 6)))}


def random_change(rng: np.random.Generator, plan: DpPlan) -> Change:
    """From far below C to far above it; sometimes in one parameter only, sometimes along one direction for all."""
    length = plan.clip_norm * 10 ** rng.uniform(-2, 2)
    kind = rng.integers(3)
    parts = {k: rng.normal(size=s) if kind else np.ones(s) for k, s in SHAPES.items()}
    if kind == 1:
        kept = rng.choice(list(SHAPES))
        parts = {k: v * (k == kept) for k, v in parts.items()}
    norm = np.sqrt(sum((v**2).sum() for v in parts.values()))
    return {k: torch.from_numpy(v * length / norm).float() for k, v in parts.items()}


def test_one_unit_moves_the_result_by_its_clipped_length_and_no_more() -> None:
    verdict = examine(released, 2000)
    assert verdict.ratio <= 1 + 1e-8, "the noise would not hide it"
    assert verdict.ratio > 0.999, "no trial came near the bound"
    assert verdict.error < 1e-3  # the changes are rounded as they are added to float32 weights


@pytest.mark.parametrize(
    "planted",
    [weighted_by_units, realised_denominator, tied_sent_twice, clipped_one_by_one, frozen_sent],
    ids=lambda f: f.__name__,
)
def test_a_planted_bug_exceeds_the_claim(planted: Aggregate) -> None:
    assert examine(planted, 400).ratio > 1.1


def test_a_tied_weight_counted_twice_in_the_norm_is_clipped_too_much() -> None:
    """It stays private and loses up to half the signal; the length of the move shows it."""
    verdict = examine(tied_twice, 400)
    assert verdict.ratio <= 1 + 1e-6
    assert verdict.error > 0.1


def test_weights_by_questions_are_refused_before_they_do_harm() -> None:
    plan = DpPlan(Mechanism(1.0, 1), 1.0, 4, 1e-5)
    updates = [ClientUpdate(f"silo-{i}", 100 * (i + 1), dict(STATE.parameters)) for i in range(2)]
    with pytest.raises(PrivacyError, match="2 updates stand for 300 clients, but 2 were drawn"):
        server_step(STATE, updates, plan, FedOpt(), clients_drawn=2, randomness=Randomness.seeded(0))
    with pytest.raises(PrivacyError, match="divide_by_clients"):
        server_step(
            STATE, [replace(u, examples=1) for u in updates], plan, FedOpt(divide_by_clients=True),
            clients_drawn=2, randomness=Randomness.seeded(0),
        )  # fmt: skip


def test_frozen_weights_stay_and_the_module_is_put_back() -> None:
    module = Tied()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    weights = {name: p.detach().clone() for name, p in trainable(module)}

    def train() -> None:
        with torch.no_grad():
            for _, p in trainable(module):
                p.add_(1.0)

    result = clipped_sum(module, weights, [train, train], 1.0)
    assert set(result.total) == {"embedding.weight", "middle.weight", "middle.bias"}
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert result.norms == pytest.approx([24**0.5] * 2, rel=1e-6)
    assert sum(float(v.square().sum()) for v in result.total.values()) == pytest.approx(4.0, rel=1e-6)


def test_replacing_a_unit_moves_the_result_by_twice_the_clip_norm_and_no_more() -> None:
    rng = np.random.default_rng(1)
    mechanism = Mechanism(1.0, 1, relation=Relation.REPLACE_ONE)
    most = 0.0
    for _ in range(300):
        plan = DpPlan(mechanism, float(10 ** rng.uniform(-3, 2)), int(rng.integers(1, 9)), 1e-5)
        units = {**random_units(rng, plan), "unit": random_change(rng, plan)}
        opposite = {k: -v * rng.uniform(0.1, 10) for k, v in units["unit"].items()}
        other = {**units, "unit": opposite if rng.random() < 0.5 else random_change(rng, plan)}
        one, two = released({"silo": units}, plan), released({"silo": other}, plan)
        moved = float(np.sqrt(sum(((one[k] - two[k]) ** 2).sum() for k in one))) * plan.denominator
        most = max(most, moved / (2 * plan.clip_norm))
    assert 0.99 < most <= 1 + 1e-8


@pytest.mark.parametrize("name", ["frozen.weight", "seen"])
def test_what_is_not_clipped_may_not_change(name: str) -> None:
    """Otherwise a unit that leaves would change what all later ones start from, by any amount."""
    module = Tied()
    module.register_buffer("seen", torch.zeros(1))
    weights = {key: p.detach().clone() for key, p in trainable(module)}

    def train(write: bool) -> None:
        with torch.no_grad():
            module.middle.bias.add_(dict(module.state_dict(keep_vars=True))[name].sum())
            if write:
                module.get_parameter(name).add_(1.0) if "." in name else module.get_buffer(name).add_(1.0)

    assert clipped_sum(module, weights, [partial(train, False)], 1.0).norms[0] >= 0
    with pytest.raises(PrivacyError, match=f"changed '{name}'"):
        clipped_sum(module, weights, [partial(train, True), partial(train, False)], 1.0)


def test_statistics_of_batch_normalisation_are_refused_in_training_mode() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    weights = {key: p.detach().clone() for key, p in trainable(module)}

    def train() -> None:
        module(torch.arange(6.0).reshape(2, 3)).sum().backward()

    clipped_sum(module.eval(), weights, [train], 1.0)
    with pytest.raises(PrivacyError, match="evaluation mode"):
        clipped_sum(module.train(), weights, [train], 1.0)


def test_a_run_that_fails_or_is_not_finite_contributes_nothing() -> None:
    module = Tied()
    weights = {name: p.detach().clone() for name, p in trainable(module)}

    def explode() -> None:
        with torch.no_grad():
            module.middle.bias.fill_(float("nan"))

    def fail() -> None:
        with torch.no_grad():
            module.middle.bias.fill_(3.0)
        raise LeftOutError

    def train() -> None:
        with torch.no_grad():
            module.middle.bias.add_(0.1)

    alone = clipped_sum(module, weights, [train], 1.0)
    clipped = clipped_sum(module, weights, [explode, fail, train, explode], 1.0)
    assert clipped.norms == (float("inf"), 0.0, *alone.norms, float("inf"))
    assert all(torch.equal(value, alone.total[name]) for name, value in clipped.total.items())


@pytest.mark.parametrize("above", [5e-10, 0.0, -5e-10, 1e-12, -0.5])
def test_no_difference_reaches_the_norm_by_rounding(above: float) -> None:
    """One weight moves by exactly 1: at a C just below, at or just above it the sum stays below C by the margin."""
    module = nn.Linear(1, 1, bias=False)
    start = {"weight": torch.zeros(1, 1)}

    def train() -> None:
        with torch.no_grad():
            module.weight.fill_(1.0)

    clip_norm = 1.0 / (1.0 + above)
    clipped = clipped_sum(module, start, [train, train], clip_norm)
    assert clipped.norms == (1.0, 1.0)
    expected = min(1.0, clip_norm * (1 - MARGIN))
    assert float(clipped.total["weight"]) == pytest.approx(2 * expected, rel=1e-13)
    assert float(clipped.total["weight"]) / 2 <= clip_norm
