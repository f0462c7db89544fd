"""The exact Gaussian mechanism: against the accountant, against brute force, and back."""

from __future__ import annotations

import math

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from docleak.errors import PrivacyError
from docleak.privacy.accounting import guarantee
from docleak.privacy.gaussian import delta_of, epsilon_of, multiplier_for
from docleak.privacy.mechanism import Mechanism


@pytest.mark.parametrize(("noise", "rounds", "delta"), [(1.0, 1, 1e-5), (2.5, 7, 1e-3), (8.0, 40, 1e-6)])
def test_it_is_what_the_accountant_counts(noise: float, rounds: int, delta: float) -> None:
    counted = guarantee(Mechanism(noise, rounds), delta).epsilon
    exact = epsilon_of(math.sqrt(rounds) / noise, delta)
    assert exact <= counted * (1 + 1e-9) and counted == pytest.approx(exact, rel=2e-3)


def test_delta_is_the_divergence_by_integration() -> None:
    for distance, epsilon in ((0.5, 0.3), (2.0, 1.0), (3.0, 8.0)):

        def gap(x: float, d: float = distance, e: float = epsilon) -> float:
            return max(norm.pdf(x, d) - math.exp(e) * norm.pdf(x), 0.0)

        start = distance / 2 + epsilon / distance
        assert delta_of(distance, epsilon) == pytest.approx(quad(gap, start, start + 40)[0], rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 8.0, 200.0])
def test_the_multiplier_keeps_to_epsilon_and_no_less_noise_does(epsilon: float) -> None:
    for releases in (1, 7):
        noise = multiplier_for(epsilon, 1e-5, releases)
        assert delta_of(math.sqrt(releases) / noise, epsilon) <= 1e-5
        assert delta_of(math.sqrt(releases) / (0.999 * noise), epsilon) > 1e-5
        assert noise == pytest.approx(math.sqrt(releases) * multiplier_for(epsilon, 1e-5, 1), rel=1e-6)


def test_the_ends() -> None:
    assert multiplier_for(math.inf, 1e-5, 3) == 0.0 and epsilon_of(math.inf, 1e-5) == math.inf
    assert epsilon_of(0.0, 1e-5) == 0.0 and epsilon_of(1e-9, 1e-5) == 0.0
    with pytest.raises(PrivacyError, match="0 releases"):
        multiplier_for(1.0, 1e-5, 0)
