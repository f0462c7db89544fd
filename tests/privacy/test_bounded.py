"""Every mechanism is counted, or refused in words, in bounded time and memory, and never below what is true."""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from docleak.errors import PrivacyError
from docleak.privacy import distributions, gaussian
from docleak.privacy.accounting import epsilon_of_group, guarantee, rounded_up
from docleak.privacy.budget import noise_for
from docleak.privacy.distributions import _by_orders, epsilon_of
from docleak.privacy.mechanism import Mechanism, Relation, Unit
from docleak.privacy.phases import Phase, mechanisms, noise_for_phases, phase_of, phases_of
from docleak.privacy.second import Accountant

EXTREME = [
    Mechanism(1e-9, 5, 0.24), Mechanism(0.3, 10**9, 0.24), Mechanism(1e9, 10**9), Mechanism(0.02, 10**6),
    Mechanism(0.3, 1000, 1e-6), Mechanism(1.0, 10**9, 1e-300), Mechanism(0.011, 10**9, relation=Relation.REPLACE_ONE),
    Mechanism(1.0, 10**7, 0.1, 0.2),
]  # fmt: skip


@pytest.mark.parametrize("mechanism", EXTREME, ids=lambda m: f"{m.noise_multiplier:g}-{m.rounds}-{m.rate:.3g}")
def test_extremes_have_an_answer(mechanism: Mechanism) -> None:
    for delta in (1e-5, 1e-200, 0.99):
        assert 0 <= guarantee(mechanism, delta).epsilon < math.inf
    assert guarantee(mechanism, 1e-200).epsilon >= guarantee(mechanism, 1e-5).epsilon


@pytest.mark.parametrize(("noise", "rounds"), [(0.05, 3), (1.0, 10), (30.0, 10**6), (1e4, 10**9)])
def test_coarse_and_closed_forms_are_above_what_is_exact(noise: float, rounds: int) -> None:
    """Without sampling the exact epsilon is known (Balle and Wang, 2018); what is bounded may only be larger."""
    mu = math.sqrt(rounds) / noise

    def exactly(delta: float) -> float:
        def over(epsilon: float) -> float:
            a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
            return float(norm.cdf(a)) - math.exp(epsilon + float(norm.logcdf(b))) - delta

        return float(brentq(over, 0.0, 10 + mu * mu + 20 * mu))

    bound = epsilon_of([Mechanism(noise, rounds)], 1e-5)
    assert exactly(1e-5) <= bound * (1 + 1e-9) and bound <= 1.3 * exactly(1e-5) + 0.1


@pytest.mark.parametrize(
    ("mechanism", "delta", "least", "most"),
    [(Mechanism(4.0, 1000, 0.01), 1e-11, 0.5, 0.56), (Mechanism(1.0, 10_000, 0.01), 1e-9, 8.76, 9.5),
     (Mechanism(1.67, 41_000, 8.5e-4), 2.1e-10, 0.64, 0.8)],
)  # fmt: skip
def test_sampling_amplifies_at_the_least_deltas_too(
    mechanism: Mechanism, delta: float, least: float, most: float
) -> None:
    """Epsilon was 11.7, 161.8 and 47.6 there, where PRV, asked for an error of 0.01, counts 0.51, 8.78 and 0.66."""
    assert least <= epsilon_of([mechanism], delta) <= most


@pytest.mark.parametrize("clients", [1.0, 0.3])
@pytest.mark.parametrize(("noise", "rate"), [(0.8, 0.05), (2.0, 0.4), (5.0, 1.0)])
def test_by_orders_is_above_one_round_counted_by_itself(noise: float, rate: float, clients: float) -> None:
    """Delta at epsilon of one round is an integral: of (1 - q) N(0, s) + q N(1, s) beyond e^epsilon N(0, s), and of the
    other way round; where a client's coin is public, it is its rate times that."""
    at = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
    none, some = norm.pdf(at, 0, noise), (1 - rate) * norm.pdf(at, 0, noise) + rate * norm.pdf(at, 1, noise)
    for delta in (1e-9, 1e-5, 1e-2):
        epsilon = _by_orders([Mechanism(noise, 1, rate, clients)], delta)
        for one, other in ((none, some), (some, none)):
            beyond = float((one - math.exp(min(epsilon, 600)) * other).clip(0).sum() * (at[1] - at[0]))
            assert clients * beyond <= delta


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("delta", [1.15e-12, 1.9e-11, 1e-9, 1e-5])
def test_small_deltas_and_many_rounds_are_never_below_the_gaussian_mechanism(relation: Relation, delta: float) -> None:
    """Rounding errors of the Fourier transform grow with the rounds: 1 % of epsilon was lost up to docleak 0.2.0."""
    cases = [(86.396, 43_209), (106.83, 92_248), (1.0, 10), (20.0, 3_000), (500.0, 10**6), (3e4, 10**9), (1e5, 1)]
    distance = 2 if relation is Relation.REPLACE_ONE else 1
    for noise, rounds in cases:
        exact = gaussian.epsilon_of(distance * math.sqrt(rounds) / noise, delta)
        together = epsilon_of([Mechanism(noise, rounds, relation=relation)], delta)
        assert exact <= together <= exact * (1 + 1e-6), (noise, rounds)
        # Sampling that hardly ever leaves one out goes through the distributions, and costs hardly less.
        if rounds <= 50_000 and distance == 1:
            drawn = epsilon_of([Mechanism(noise, rounds, 1 - 1e-9)], delta)
            assert drawn >= exact * (1 - 1e-6), (noise, rounds)


def test_a_coarser_grid_never_says_less(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = Mechanism(0.9, 400, 0.05, client_rate=0.5)
    fine = epsilon_of([mechanism], 1e-5)
    monkeypatch.setattr(distributions, "ALL_POINTS", 400)
    assert fine < epsilon_of([mechanism], 1e-5) < 3 * fine + 1


def test_composition_of_equals_is_more_rounds_and_of_others_lies_between() -> None:
    one, two = Mechanism(1.0, 5, 0.3), Mechanism(1.0, 10, 0.3)
    assert epsilon_of([one, one], 1e-5) == pytest.approx(epsilon_of([two], 1e-5), rel=1e-6)
    other = Mechanism(2.0, 5, 0.3)
    assert epsilon_of([one], 1e-5) < epsilon_of([one, other], 1e-5) < epsilon_of([one, one], 1e-5)
    with pytest.raises(PrivacyError, match="does not add up to one epsilon"):
        epsilon_of([one, Mechanism(1.0, 5, 0.3, unit=Unit.RECORD)], 1e-5)


def test_huge_groups_and_impossible_numbers() -> None:
    record = guarantee(Mechanism(1.0, 20, 0.1, unit=Unit.RECORD), 1e-5)
    assert epsilon_of_group(record, 400) < epsilon_of_group(record, 10**6) < math.inf
    for wrong in ({"rounds": 10**9 + 1}, {"noise_multiplier": 1e-10}, {"noise_multiplier": math.inf}):
        with pytest.raises(PrivacyError, match="expected"):
            Mechanism(**{"noise_multiplier": 1.0, "rounds": 1, **wrong})  # type: ignore[arg-type]
    for asked in (Mechanism(1.0, 10**9), Mechanism(0.01, 5)):
        with pytest.raises(PrivacyError, match="would need more than"):
            guarantee(asked, 1e-5, Accountant.PRV)


def test_printed_deltas_are_no_smaller_than_what_epsilon_holds_at() -> None:
    said = {d: guarantee(Mechanism(1.0, 1), d).sentence() for d in (1e-5, 0.1, 0.00010049, 1 / 4149, 1e-320)}
    printed = ("1e-05", "0.1", "0.0001005", "0.0002411", "1e-320")
    assert all(f"at delta {of} per" in text for text, of in zip(said.values(), printed, strict=True))


def test_printed_epsilons_are_rounded_up() -> None:
    assert [rounded_up(x) for x in (7.99943, 8.0, 14.46081, 0.20931, 0.0, 2.5e18)] == [
        "8", "8", "14.47", "0.2094", "0", "2.5e+18",
    ]  # fmt: skip


def test_one_noise_for_two_phases() -> None:
    phases = phases_of("pretraining:5, finetuning:10:1/2")
    assert (
        phases == (Phase("pretraining", 5), Phase("finetuning", 10, 0.5))
        and phase_of(phases, "finetuning").rounds == 10
    )
    like = Mechanism(1.0, 1)
    noise = noise_for_phases(phases, like, 8.0, 1e-5)
    both = [epsilon_of(mechanisms(phases, Mechanism(n, 1)), 1e-5) for n in (noise, noise - 2e-4)]
    assert both[0] <= 8 < both[1]
    assert noise > noise_for(Mechanism(1.0, 10, 0.5), 8.0, 1e-5).mechanism.noise_multiplier
    alone = noise_for_phases(phases[:1], like, 8.0, 1e-5)
    assert alone == pytest.approx(noise_for(Mechanism(1.0, 5), 8.0, 1e-5).mechanism.noise_multiplier, abs=2e-4)
    for wrong in ("", "a", "a:x", "a:1:2:3", "a:1,a:2", "a:1:5/0"):
        with pytest.raises(PrivacyError, match=r"expected NAME:ROUNDS|each name once"):
            phases_of(wrong)


@pytest.mark.parametrize(
    "words",
    ["--epsilon 1e6", "--epsilon 1e-9 --rounds 1000000", "--noise 0.3 --rounds 1000000000", "--epsilon 500 --noise 2 "
     "--accountant prv"],
)  # fmt: skip
def test_budget_within_ten_seconds_and_two_gigabytes(words: str) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))

    code = "import sys; from docleak.cli import main; sys.argv = ['docleak', 'budget', *sys.argv[1:]]; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=False, preexec_fn=limited,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=200,
    )  # fmt: skip
    assert done.returncode in (0, 1), (done.returncode, done.stderr[-500:])
    assert "Traceback" not in done.stderr and (done.stdout.strip() or done.stderr.startswith("docleak: "))
