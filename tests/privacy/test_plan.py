"""The plan draws by independent coins, splits the noise so that it adds up, survives JSON, and keeps the books."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, chi2_contingency

from docleak.errors import PrivacyError
from docleak.privacy.distributions import published
from docleak.privacy.gaussian import epsilon_of
from docleak.privacy.ledger import Ledger
from docleak.privacy.lineage import NO_GUARANTEE, PUBLIC, Lineage, Trained, claim_of
from docleak.privacy.mechanism import Mechanism, Participation, Relation, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.second import Accountant

MECHANISM = Mechanism(1.5, 10, unit_rate=0.3)
PLAN = DpPlan(MECHANISM, clip_norm=0.5, denominator=20, delta=1e-5)
NAMES = [f"provider-{i}" for i in range(40)]


def draws(plan: DpPlan, names: list[str], times: int, seed: int = 0) -> np.ndarray:
    """(times, names) bool: who was drawn."""
    coins = np.random.default_rng(seed)
    return np.array(
        [[name in drawn for name in names] for drawn in (plan.draw_units(names, coins) for _ in range(times))]
    )


def test_units_are_drawn_by_independent_coins() -> None:
    """Poisson: each unit's count and the size of a draw are binomial, and two units say nothing of each other."""
    drawn = draws(PLAN, NAMES, 1500)
    low, high = binom.interval(1 - 1e-5, drawn.size, 0.3)
    assert low <= drawn.sum() <= high
    sizes = drawn.sum(1)
    assert sizes.var() == pytest.approx(40 * 0.3 * 0.7, rel=0.2), "a fixed size would not vary"
    pair = np.array([[(drawn[:, 0] == a).astype(int) @ (drawn[:, 1] == b) for a in (0, 1)] for b in (0, 1)])
    assert chi2_contingency(pair).pvalue > 1e-4


def test_a_unit_changes_nothing_for_the_others() -> None:
    with_all, without = (
        PLAN.draw_units(names, np.random.default_rng(3)) for names in (NAMES, [n for n in NAMES if n != "provider-7"])
    )
    assert set(with_all) - {"provider-7"} == set(without)
    assert all(with_all[name].random() == stream.random() for name, stream in without.items())
    assert len({stream.random() for stream in with_all.values()}) == len(with_all)


def test_clients_are_drawn_by_coins_and_may_be_none() -> None:
    plan = replace(PLAN, mechanism=replace(MECHANISM, client_rate=0.2))
    coins = np.random.default_rng(1)
    drawn = [plan.draw_clients("cab", coins) for _ in range(2000)]
    assert all(list(names) == sorted(names) for names in drawn)
    low, high = binom.interval(1 - 1e-5, 2000, 0.8**3)
    assert low <= sum(not names for names in drawn) <= high
    assert PLAN.draw_clients("cab", coins) == ("a", "b", "c")


@pytest.mark.parametrize("shares", [1, 2, 7])
def test_the_shares_of_noise_add_up(shares: int) -> None:
    assert math.sqrt(shares) * PLAN.noise_std(shares) == pytest.approx(1.5 * 0.5)
    assert PLAN.noise_std(0) == PLAN.noise_std(1) == 1.5 * PLAN.clip_norm


def test_replacing_one_has_the_same_noise_and_the_accountant_counts_the_distance_of_two() -> None:
    every = replace(PLAN, mechanism=Mechanism(3.0, 4))
    replaced = replace(every, mechanism=replace(every.mechanism, relation=Relation.REPLACE_ONE))
    assert replaced.noise_std(1) == every.noise_std(1), "sigma C under either relation"
    exact = epsilon_of(math.sqrt(4) * 2 / 3.0, PLAN.delta)  # two units of length C: 2 C over sigma C, four times
    assert replaced.guarantee().epsilon == pytest.approx(exact, rel=2e-3)
    halved = replace(every, mechanism=Mechanism(1.5, 4)).guarantee().epsilon
    assert replaced.guarantee().epsilon == pytest.approx(halved, rel=2e-3) and exact > every.guarantee().epsilon


def test_the_published_counting_goes_by_that_name_only() -> None:
    """Tito et al. (2024), section 6.2.3: sigma 0.7715 for epsilon 8; with coins that are known, 14.5."""
    mechanism = Mechanism(0.771484375, 10, client_rate=0.2, participation=Participation.HIDDEN)
    plan = DpPlan(mechanism, clip_norm=5.0, denominator=400, delta=1e-5, published_counting=True)
    said = plan.guarantee()
    assert said.accountant is Accountant.PRV and said.epsilon == pytest.approx(8, abs=0.02)
    assert "by the published counting, which is no bound" in said.sentence()
    assert plan.bound().epsilon == pytest.approx(14.5, abs=0.1) and "no bound" not in plan.bound().sentence()
    spent = Ledger(plan).begin_round().spent()
    assert spent is not None and spent.accountant is Accountant.PRV and "no bound" in spent.sentence()
    assert DpPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    with pytest.raises(PrivacyError, match="ask for the published counting by name"):
        replace(plan, published_counting=False)
    for other in (replace(mechanism, client_rate=1.0), replace(mechanism, participation=Participation.KNOWN),
                  replace(mechanism, client_rate=1.0, unit=Unit.CLIENT)):  # fmt: skip
        with pytest.raises(PrivacyError, match="is that of clients drawn whole"):
            replace(plan, mechanism=other)


def test_a_plan_survives_json() -> None:
    plan = replace(PLAN, mechanism=replace(MECHANISM, unit=Unit.DOCUMENT, client_rate=0.5))
    assert DpPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    saved = plan.to_dict()
    for change, said in (
        ({"clip": 1}, "clip is an unknown key.*Expected exactly .* mechanism, clip_norm"),
        ({"mechanism": {**saved["mechanism"], "sampler": "fixed-size"}}, "mechanism.sampler is 'fixed-size'"),
        ({"mechanism": {**saved["mechanism"], "unit": "page"}}, "mechanism.unit is 'page', expected 'provider'"),
        ({"mechanism": 3}, "mechanism is 3"),
        ({"mechanism": {"noise_multiplier": 1.0, "rounds": 3}}, "lacks settings, which are not guessed"),
    ):
        with pytest.raises(PrivacyError, match=said):
            DpPlan.from_dict({**saved, **change})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip_norm": 0.0}, "clip norm is 0.0"),
        ({"clip_norm": math.inf, "denominator": 0}, "clip norm is inf.*denominator is 0"),
        ({"delta": 1.0}, "delta is 1.0"),
        (
            {"mechanism": replace(MECHANISM, client_rate=0.2, participation=Participation.HIDDEN)},
            "which is no bound",
        ),
    ],
)
def test_plans_that_make_no_sense(options: dict[str, object], said: str) -> None:
    with pytest.raises(PrivacyError, match=said):
        replace(PLAN, **options)  # type: ignore[arg-type]


def test_a_client_that_is_the_unit_cannot_count_its_coins_as_hidden_either() -> None:
    """The server sees who takes part: hidden coins are no bound, and whatever counts them so says it."""
    mechanism = Mechanism(1.5, 10, unit=Unit.CLIENT, client_rate=0.2, participation=Participation.HIDDEN)
    with pytest.raises(PrivacyError, match="is no bound: the server sees which clients took part"):
        DpPlan(mechanism, clip_norm=1.0, denominator=1, delta=1e-5)
    assert published(mechanism) and "by the published counting, which is no bound" in mechanism.sentence()
    asked = DpPlan(mechanism, clip_norm=1.0, denominator=1, delta=1e-5, published_counting=True)
    assert claim_of(Lineage(PUBLIC, "p", (Trained("a", "t", asked),))).kind == NO_GUARANTEE


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_rounds_are_counted_until_the_budget_is_spent() -> None:
    ledger = Ledger(PLAN)
    assert ledger.spent() is None
    spent = []
    while ledger.left:
        ledger = ledger.begin_round()
        guarantee = ledger.spent()
        assert guarantee is not None
        spent.append(guarantee.epsilon)
    assert len(spent) == 10 and spent == sorted(spent) and spent[-1] == PLAN.guarantee().epsilon
    with pytest.raises(PrivacyError, match="budget is spent: all 10 rounds"):
        ledger.begin_round()


def test_a_ledger_is_resumed_under_its_own_plan_only() -> None:
    ledger = Ledger(PLAN).begin_round().begin_round()
    saved = json.loads(json.dumps(ledger.to_dict()))
    assert Ledger.resume(saved, PLAN) == ledger
    other = replace(PLAN, clip_norm=1.0, mechanism=replace(MECHANISM, noise_multiplier=1.0))
    with pytest.raises(PrivacyError, match=r"noise_multiplier was 1.5 and is 1.0; clip_norm was 0.5 and is 1.0"):
        Ledger.resume(saved, other)
    for damaged in ({"plan": saved["plan"]}, {**saved, "begun": -1}, {**saved, "begun": "2"}):
        with pytest.raises(PrivacyError, match="ledger is damaged"):
            Ledger.resume(damaged, PLAN)
