"""FL-PROVIDER-DP on a real model: against a plain rereading of Algorithm 1; noise that adds up; budgets; bad silos."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from docleak.documents.page import Page
from docleak.documents.synthetic import make_pages
from docleak.errors import PrivacyError
from docleak.models import load_model
from docleak.models.base import DocumentModel
from docleak.privacy.ledger import Ledger
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated.fedopt import ClientUpdate, FedOpt, ServerState
from docleak.training.federated.local import parameters_of, set_parameters, train_locally
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.private.rounds import (
    PrivateRound,
    client_round,
    noisy_difference,
    server_step,
    train_privately,
)
from docleak.training.private.units import check_silos, units_of

LOCAL = LocalPlan(batch_size=4, max_steps=1, learning_rate=2e-4, dropout=False)
PLAN = DpPlan(Mechanism(0.0, 2), clip_norm=0.05, denominator=2, delta=1e-3)
Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def model() -> DocumentModel:
    return load_model("vt5-start")


@pytest.fixture(scope="module")
def weights(model: DocumentModel) -> Weights:
    return parameters_of(model)


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    """Six pages of three providers."""
    made = make_pages(6, seed=1, split="train", size=(224, 224))
    return [replace(page, provider=f"provider-{i % 3}") for i, page in enumerate(made)]


def noisy(plan: DpPlan, noise_multiplier: float = 1.5, **options: object) -> DpPlan:
    mechanism = replace(plan.mechanism, noise_multiplier=noise_multiplier, **options)  # type: ignore[arg-type]
    return replace(plan, mechanism=mechanism)


def one_round(
    model: DocumentModel, pages: list[Page], weights: Weights, plan: DpPlan = PLAN, drawn: int = 1, seed: object = 0
) -> PrivateRound:
    return client_round(
        model, pages, plan, LOCAL, weights=weights, client="silo", clients_drawn=drawn,
        randomness=Randomness.seeded(str(seed)),
    )  # fmt: skip


def test_numbers_that_are_cut_have_their_noise_all_the_same() -> None:
    """A sum of 100 C where 20 deviations of a share fit: cut with its noise it was the limit, each time."""
    module, plan = nn.Linear(1, 1, bias=False), noisy(PLAN)

    def move() -> None:
        with torch.no_grad():
            module.weight.add_(10.0)

    share = plan.noise_std(4) / plan.denominator
    sent = np.array([
        noisy_difference(
            module, {"weight": np.zeros((1, 1), np.float32)}, [move] * 100, plan, clients_drawn=4,
            randomness=Randomness.seeded(str(number)), most=20 * share,
        )[0]["weight"].item()
        for number in range(100)
    ])  # fmt: skip
    assert np.abs(sent).max() < 20 * share and np.std(sent) == pytest.approx(share, rel=0.3)


def vector(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in sorted(arrays)])


def test_a_round_is_algorithm_1(model: DocumentModel, pages: list[Page], weights: Weights) -> None:
    """Lines 13-18 written plainly, with another function's training: same streams, no noise."""
    dp_round = one_round(model, pages, weights)
    streams = PLAN.draw_units([f"provider-{i}" for i in range(3)], Randomness.seeded("0").coins)
    total = np.zeros_like(vector(weights))
    norms = []
    for name, rng in streams.items():
        set_parameters(model, weights)
        unit = [page for page in pages if page.provider == name]
        change = -vector(dict(train_locally(model, unit, LOCAL, client="silo", rng=rng).update.delta))
        norms.append(float(np.linalg.norm(change)))
        total += change / max(1.0, norms[-1] / PLAN.clip_norm)
    set_parameters(model, weights)
    np.testing.assert_allclose(vector(dict(dp_round.update.delta)), -total / PLAN.denominator, atol=1e-9, rtol=1e-6)
    assert dp_round.norms == pytest.approx(norms, rel=1e-6)
    assert dp_round.units == ("provider-0", "provider-1", "provider-2")
    assert dp_round.clipped == 3 and min(norms) > 2 * PLAN.clip_norm, "the test would not see clipping"
    assert dp_round.update.examples == 1


@pytest.mark.parametrize(("clip_norm", "denominator"), [(1e-4, 1), (0.05, 2), (10.0, 2)])
def test_a_provider_more_moves_the_update_by_at_most_c_over_m(
    model: DocumentModel, pages: list[Page], weights: Weights, clip_norm: float, denominator: int
) -> None:
    """Neighbours on the real model: the others do what they did, to the bit."""
    plan = replace(PLAN, clip_norm=clip_norm, denominator=denominator)
    both = one_round(model, pages, weights, plan)
    for left in range(3):
        without = one_round(model, [page for page in pages if page.provider != f"provider-{left}"], weights, plan)
        moved = np.linalg.norm(vector(dict(both.update.delta)) - vector(dict(without.update.delta)))
        assert moved * denominator == pytest.approx(min(clip_norm, both.norms[left]), rel=1e-4)
        assert tuple(norm for i, norm in enumerate(both.norms) if i != left) == without.norms


@pytest.mark.parametrize("drawn", [1, 4])
def test_the_noise_share_of_a_client_without_a_drawn_unit(
    model: DocumentModel, pages: list[Page], weights: Weights, drawn: int
) -> None:
    plan = noisy(PLAN, unit_rate=1e-12)
    dp_round = one_round(model, pages, weights, plan, drawn)
    assert dp_round.units == ()
    expected = 1.5 * 0.05 / np.sqrt(drawn) / 2
    values = vector(dict(dp_round.update.delta)) / expected
    assert abs(values.std() - 1) < 4 / np.sqrt(2 * values.size)
    assert stats.kstest(values[:100_000], "norm").pvalue > 1e-3


def test_noise_does_not_depend_on_the_coins_and_never_repeats(
    model: DocumentModel, pages: list[Page], weights: Weights
) -> None:
    plain = one_round(model, pages, weights)
    added = vector(dict(one_round(model, pages, weights, noisy(PLAN)).update.delta)) - vector(dict(plain.update.delta))
    assert added.std() == pytest.approx(1.5 * 0.05 / 2, rel=0.01)
    again = vector(dict(one_round(model, pages, weights, noisy(PLAN), seed=1).update.delta))
    assert abs(np.corrcoef(added, again)[0, 1]) < 5e-3


@pytest.mark.parametrize(("drawn", "arrived"), [(0, 0), (1, 1), (3, 3), (3, 1), (2, 0)])
def test_the_whole_noise_is_there_whoever_was_drawn_or_dropped_out(drawn: int, arrived: int) -> None:
    """The mean over |K| clients has noise sigma times its sensitivity C / (M |K|), also where updates are missing."""
    plan = noisy(PLAN, 2.0)
    state = ServerState.of({"weight": np.zeros((300, 300))})
    clients = Randomness.seeded("clients")
    share = plan.noise_std(drawn) / plan.denominator
    updates = [
        ClientUpdate(str(k), 1, {"weight": share * clients.gaussian(90_000).reshape(300, 300)}) for k in range(arrived)
    ]
    after = server_step(state, updates, plan, FedOpt(), clients_drawn=drawn, randomness=Randomness.seeded("server"))
    claimed = plan.clip_norm / plan.denominator / max(drawn, 1)
    assert after.parameters["weight"].std() == pytest.approx(2.0 * claimed, rel=0.02)


def test_a_secure_mean_of_several_clients_counts_as_so_many() -> None:
    state = ServerState.of({"weight": np.zeros(4)})
    mean = ClientUpdate("secure sum", 2, {"weight": np.full(4, 3.0)})
    after = server_step(state, [mean], PLAN, FedOpt(), clients_drawn=3, randomness=Randomness.seeded("s"))
    np.testing.assert_allclose(after.parameters["weight"], -3.0 * 2 / 3)


def test_one_silo_is_centralised_training(model: DocumentModel, pages: list[Page], weights: Weights) -> None:
    """Two rounds equal two rounds by hand, and repeat; another seed differs."""
    set_parameters(model, weights)
    seen: list[tuple[int, float]] = []

    def look(ledger: Ledger, state: ServerState) -> None:
        seen.append((ledger.begun, float(vector(dict(state.parameters)).sum())))

    plan = noisy(PLAN, 0.5)
    ledger = train_privately(
        model, {"all": pages}, plan, LOCAL, FedOpt(), randomness=lambda name: Randomness.seeded(name), on_round=look
    )
    result = parameters_of(model)
    assert ledger.left == 0 and [begun for begun, _ in seen] == [1, 2] and seen[0][1] != seen[1][1]
    by_hand = vector(weights)
    randomness = Randomness.seeded("all")
    for _ in range(2):
        arrays, start = {}, 0
        for name in sorted(weights):
            size = weights[name].size
            arrays[name] = by_hand[start : start + size].reshape(weights[name].shape).astype(np.float32)
            start += size
        update = client_round(
            model, pages, plan, LOCAL, weights=arrays, client="all", clients_drawn=1, randomness=randomness
        ).update
        by_hand = by_hand - vector(dict(update.delta))
    np.testing.assert_allclose(vector(result), by_hand, atol=1e-6)
    set_parameters(model, weights)


def test_a_spent_budget_trains_no_further(model: DocumentModel, pages: list[Page], weights: Weights) -> None:
    set_parameters(model, weights)
    spent = Ledger(PLAN).begin_round().begin_round()
    train_privately(
        model, {"all": pages}, PLAN, LOCAL, FedOpt(), randomness=lambda name: Randomness.seeded(name), ledger=spent
    )
    np.testing.assert_array_equal(vector(parameters_of(model)), vector(weights))
    with pytest.raises(PrivacyError, match="another privacy plan"):
        train_privately(
            model, {"all": pages}, noisy(PLAN), LOCAL, FedOpt(),
            randomness=lambda name: Randomness.seeded(name), ledger=spent,
        )  # fmt: skip


def test_a_round_without_clients_still_moves_the_model_by_noise(
    model: DocumentModel, pages: list[Page], weights: Weights
) -> None:
    set_parameters(model, weights)
    plan = noisy(PLAN, 1.0, client_rate=1e-9, rounds=1)
    train_privately(model, {"all": pages}, plan, LOCAL, FedOpt(), randomness=lambda name: Randomness.seeded(name))
    moved = vector(parameters_of(model)) - vector(weights)
    assert moved.std() == pytest.approx(0.05 / 2, rel=0.01)
    set_parameters(model, weights)


# -- units and silos ---------------------------------------------------------------------------------------------------


def test_a_silo_that_is_one_unit_is_never_called_too_small(
    model: DocumentModel, pages: list[Page], weights: Weights
) -> None:
    """M counts units over all silos: of units of a silo, three are too few for M = 4; a silo itself is one always."""
    plan = replace(PLAN, denominator=4)
    assert one_round(model, pages, weights, plan).notes == (
        "3 providers, fewer than M = 4: its part in the model is a small one",
    )
    assert one_round(model, pages, weights, replace(plan, mechanism=Mechanism(0.0, 2, unit=Unit.CLIENT))).notes == ()


def test_units(pages: list[Page]) -> None:
    assert [len(unit) for unit in units_of(pages, Unit.PROVIDER, client="silo").values()] == [2, 2, 2]
    assert len(units_of(pages, Unit.DOCUMENT, client="silo")) == len({page.document for page in pages})
    assert list(units_of(pages, Unit.CLIENT, client="silo")) == ["silo"]
    with pytest.raises(PrivacyError, match="client 'silo': 1 of 6 pages name no provider"):
        units_of([replace(pages[0], provider=""), *pages[1:]], Unit.PROVIDER, client="silo")


def test_silos_that_share_a_unit_are_refused_in_whatever_spelling(pages: list[Page]) -> None:
    check_silos({"a": pages}, Unit.PROVIDER)
    with pytest.raises(PrivacyError, match=r"spellings .* are one\):\n  - provider 'provider-0' is in a, b"):
        check_silos({"a": pages[:3], "b": [pages[0], pages[3], replace(pages[1], provider="other")]}, Unit.PROVIDER)
    spelled = [replace(pages[3], provider="PROVIDER-0\u200b "), replace(pages[1], provider="other")]
    with pytest.raises(PrivacyError, match="provider 'provider-0' is in a, b"):
        check_silos({"a": pages[:3], "b": spelled}, Unit.PROVIDER)


def test_spellings_of_a_provider_are_one_unit(model: DocumentModel, pages: list[Page], weights: Weights) -> None:
    spelled = [replace(page, provider=page.provider.title() + "  " * i) for i, page in enumerate(pages)]
    one, other = one_round(model, pages, weights), one_round(model, spelled, weights)
    assert one.units == other.units and one.norms == other.norms
    np.testing.assert_array_equal(vector(dict(one.update.delta)), vector(dict(other.update.delta)))


def test_a_unit_that_cannot_be_trained_on_contributes_nothing_and_only_the_silo_learns_why(
    model: DocumentModel, pages: list[Page], weights: Weights
) -> None:
    mute = [replace(page, questions=()) if page.provider == "provider-2" else page for page in pages]
    without = one_round(model, [page for page in pages if page.provider != "provider-2"], weights)
    muted = one_round(model, mute, weights)
    np.testing.assert_array_equal(vector(dict(muted.update.delta)), vector(dict(without.update.delta)))
    assert muted.norms[2] == 0 and "provider 'provider-2' contributes nothing: client 'silo'" in muted.notes[0]
    few = one_round(model, pages, weights, replace(PLAN, denominator=4))
    assert few.notes == ("3 providers, fewer than M = 4: its part in the model is a small one",)
    assert one_round(model, [], weights).units == ()
    with pytest.raises(PrivacyError, match="0 clients were drawn"):
        one_round(model, pages, weights, drawn=0)
