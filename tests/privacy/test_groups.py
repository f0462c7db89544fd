"""Epsilon of several units together: closed forms, a numeric integral, and group privacy's old bound."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy import integrate, stats

from docleak.errors import PrivacyError
from docleak.privacy.accounting import epsilon_of_group, guarantee
from docleak.privacy.mechanism import Mechanism, Relation, Unit

RECORD = Mechanism(1.0, 1, 0.3, unit=Unit.RECORD)


def delta_by_integral(noise: float, rate: float, size: int, epsilon: float) -> float:
    """The hockey-stick divergence of one round in the worse direction, of sums with and without the group."""
    weights = stats.binom.pmf(range(size + 1), size, rate)

    def density(x: float) -> float:
        return float(sum(w * stats.norm.pdf(x, k, noise) for k, w in enumerate(weights)))

    def without(x: float) -> float:
        return float(stats.norm.pdf(x, 0, noise))

    def over(first, second) -> float:  # type: ignore[no-untyped-def]
        integral, _ = integrate.quad(
            lambda x: max(first(x) - math.exp(epsilon) * second(x), 0), -9 * noise, size + 9 * noise, limit=400
        )
        return float(integral)

    return max(over(density, without), over(without, density))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_one_round_against_an_integral(size: int) -> None:
    claim = guarantee(RECORD, 1e-3)
    together = epsilon_of_group(claim, size)
    assert delta_by_integral(1.0, 0.3, size, together) == pytest.approx(1e-3, rel=0.03)
    assert delta_by_integral(1.0, 0.3, size, together * 1.02) < 1e-3, "an upper bound, up to its grid"


@pytest.mark.parametrize(
    "mechanism", [RECORD, replace(RECORD, rounds=40, unit_rate=0.05), replace(RECORD, unit_rate=1.0)]
)
def test_one_unit_is_no_group_and_more_cost_more_than_their_number(mechanism: Mechanism) -> None:
    claim = guarantee(mechanism, 1e-5)
    assert epsilon_of_group(claim, 1) == pytest.approx(claim.epsilon, rel=2e-3)
    pair = epsilon_of_group(claim, 2)
    assert 2 * claim.epsilon < pair < epsilon_of_group(claim, 3)
    # Group privacy (Dwork & Roth, 2014) is (2 epsilon, (1 + e^epsilon) delta), which may not be below what is tight.
    assert guarantee(mechanism, claim.delta / (1 + math.exp(claim.epsilon))).epsilon * 2 >= pair * 0.999


def test_every_round_with_everybody_is_the_gaussian_mechanism() -> None:
    mechanism = replace(RECORD, unit_rate=1.0, noise_multiplier=6.0)
    assert epsilon_of_group(guarantee(mechanism, 1e-5), 4) == guarantee(
        replace(mechanism, noise_multiplier=1.5), 1e-5
    ).epsilon  # fmt: skip
    assert epsilon_of_group(guarantee(replace(mechanism, noise_multiplier=0.0), 1e-5), 4) == math.inf


@pytest.mark.parametrize(
    "mechanism", [replace(RECORD, relation=Relation.REPLACE_ONE), Mechanism(1.0, 1, client_rate=0.5)]
)
def test_groups_that_are_not_counted(mechanism: Mechanism) -> None:
    with pytest.raises(PrivacyError, match="expected at least one unit"):
        epsilon_of_group(guarantee(mechanism, 1e-5), 2)
    with pytest.raises(PrivacyError, match="a group of 0 records"):
        epsilon_of_group(guarantee(RECORD, 1e-5), 0)
