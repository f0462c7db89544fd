"""Calibration keeps its promise and gives nothing away; the curve; what is said of a delta that is too large."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from docleak.errors import PrivacyError
from docleak.privacy.accounting import Guarantee, guarantee
from docleak.privacy.budget import beside, curve, delta_warning, noise_for, rounds_for
from docleak.privacy.mechanism import Mechanism, Participation, Relation
from docleak.privacy.second import Accountant

DELTA = 1e-5


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 30.0])
@pytest.mark.parametrize(
    "mechanism", [Mechanism(1, 5), Mechanism(1, 40, 0.1), Mechanism(1, 10, client_rate=0.3)], ids=str
)
def test_the_noise_is_enough_and_the_next_lower_is_not(mechanism: Mechanism, epsilon: float) -> None:
    claim = noise_for(mechanism, epsilon, DELTA)
    noise = claim.mechanism.noise_multiplier
    assert claim == guarantee(replace(mechanism, noise_multiplier=noise), DELTA)
    assert claim.epsilon <= epsilon
    step = 1e-4 if noise < 100 else 1e-3  # fewer decimals from 100 on
    assert guarantee(replace(mechanism, noise_multiplier=noise - 2 * step), DELTA).epsilon > epsilon


@pytest.mark.parametrize("accountant", [Accountant.PLD, Accountant.RDP])
@pytest.mark.parametrize(("mechanism", "epsilon"), [(Mechanism(1.1, 1, 0.02), 1.5), (Mechanism(2.0, 1), 3.0)])
def test_the_rounds_are_kept_and_one_more_is_too_many(
    mechanism: Mechanism, epsilon: float, accountant: Accountant
) -> None:
    claim = rounds_for(mechanism, epsilon, DELTA, accountant)
    assert claim.epsilon <= epsilon
    more = replace(mechanism, rounds=claim.mechanism.rounds + 1)
    assert guarantee(more, DELTA, accountant).epsilon > epsilon


def test_the_plain_gaussian_mechanism_needs_the_known_noise() -> None:
    """Balle and Wang's analytic calibration, as dp-accounting has it."""
    from dp_accounting import get_sigma_gaussian

    exact = get_sigma_gaussian(1.0, DELTA)
    assert exact <= noise_for(Mechanism(1, 1), 1.0, DELTA).mechanism.noise_multiplier <= exact + 3e-4


def test_the_curve_begins_with_one_round_and_ends_with_all() -> None:
    mechanism = Mechanism(1.0, 50, 0.1)
    points = curve(mechanism, DELTA, points=6)
    assert [p.mechanism.rounds for p in points] == [1, 2, 5, 10, 23, 50]
    assert points[-1] == guarantee(mechanism, DELTA)
    epsilons = [p.epsilon for p in points]
    assert epsilons == sorted(epsilons)


def test_beside_a_number_stand_the_other_accountants_and_the_other_relation() -> None:
    claim = guarantee(Mechanism(1.0, 4, 0.5), DELTA)
    others = beside(claim)
    assert [(g.accountant, g.mechanism.relation) for g in others if isinstance(g, Guarantee)] == [
        (Accountant.PRV, Relation.ADD_OR_REMOVE_ONE),
        (Accountant.RDP, Relation.ADD_OR_REMOVE_ONE),
        (Accountant.PLD, Relation.REPLACE_ONE),
    ]
    known = beside(guarantee(Mechanism(1.0, 4, client_rate=0.5), DELTA))
    assert [isinstance(g, PrivacyError) for g in known] == [True, True, False, False]
    assert isinstance(known[-1], Guarantee) and known[-1].mechanism.participation is Participation.HIDDEN


def test_a_delta_not_below_one_in_the_number_of_units() -> None:
    assert delta_warning(1e-5, 4149, "provider") == ""
    assert delta_warning(1e-5, 0, "provider") == "", "silos that hold nothing take part all the same"
    said = delta_warning(1e-3, 1000, "provider")
    assert "delta 0.001 is not below 1/1000" in said and "one provider in 1000" in said


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_nobody_can_keep(epsilon: float) -> None:
    for ask in (noise_for, rounds_for):
        with pytest.raises(PrivacyError, match="epsilon is"):
            ask(Mechanism(1, 1), epsilon, DELTA)


def test_what_cannot_be_calibrated() -> None:
    with pytest.raises(PrivacyError, match="noise multiplier is 0, which spends any epsilon at once"):
        rounds_for(Mechanism(0, 1), 8, DELTA)
    with pytest.raises(PrivacyError, match="one round costs epsilon"):
        rounds_for(Mechanism(0.5, 1), 1, DELTA)
    with pytest.raises(PrivacyError, match="lasts for more than 100000 rounds"):
        rounds_for(Mechanism(1e5, 1), 8, DELTA)
    with pytest.raises(PrivacyError, match="no noise multiplier up to 100000"):
        noise_for(Mechanism(1, 1), 1e-7, 1e-12)
    with pytest.raises(PrivacyError, match="PRV accountant cannot count"):
        noise_for(Mechanism(1, 1, client_rate=0.5), 8, DELTA, Accountant.PRV)


def test_noise_by_prv_is_found_by_prv_where_the_reference_is_no_tight_count() -> None:
    """The reference is a closed form there, a twentieth above PRV, which would ask for more noise than PRV does."""
    planned = noise_for(Mechanism(0.0, 1000, 0.01), 1.0, 1e-11, Accountant.PRV)
    assert 0.98 < planned.epsilon <= 1.0


def test_a_delta_that_is_advised_is_small_enough() -> None:
    for units in (417, 4149, 7, 3):
        advised = float(delta_warning(0.5, units, "provider").split("less than ")[1].split(",")[0])
        assert not delta_warning(advised * (1 - 1e-9), units, "provider")
