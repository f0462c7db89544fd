"""A second accountant stands behind every epsilon that is printed, and says so loudly where it does not agree."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from docleak.errors import PrivacyError
from docleak.privacy import accounting, second
from docleak.privacy.accounting import guarantee
from docleak.privacy.distributions import epsilon_of
from docleak.privacy.lineage import PUBLIC, Lineage, Trained, claim_of
from docleak.privacy.mechanism import Mechanism, Participation, Relation, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.planning import together
from docleak.privacy.second import BESIDE, SHARE, Accountant, opinion_on, second_opinion

DELTA = 1e-5
MECHANISMS = {
    "whole": Mechanism(0.6, 1), "sampled": Mechanism(0.7715, 10, 0.2), "long": Mechanism(2.0, 1000, 0.01),
    "rare": Mechanism(3.0, 2, 0.01), "leaky": Mechanism(0.5, 3, 0.5), "little": Mechanism(50.0, 1),
    "replaced": Mechanism(1.5, 4, relation=Relation.REPLACE_ONE),
}  # fmt: skip


@pytest.mark.parametrize("name", MECHANISMS)
def test_two_accountants_agree_on_what_both_can_count(name: str) -> None:
    claim = guarantee(MECHANISMS[name], DELTA)
    said = claim.sentence()
    assert "WARNING" not in said and ", and PRV accountant of opacus" in said and " counts " in said


@pytest.mark.parametrize("mechanism", [Mechanism(50.0, 100, 0.01), Mechanism(300.0, 1)])
def test_what_prv_is_allowed_to_err_by_is_no_contradiction(mechanism: Mechanism) -> None:
    """Of an epsilon far below what PRV is asked to err by both numbers are upper bounds, though far apart."""
    claim = guarantee(mechanism, DELTA, Accountant.PRV)
    assert claim.epsilon > 2 * guarantee(mechanism, DELTA).epsilon
    assert "WARNING" not in claim.sentence()


@pytest.mark.parametrize(
    ("mechanism", "delta"),
    [(Mechanism(4.0, 1000, 0.01), 1e-11), (Mechanism(1.0, 10**7, 1e-3), 1e-5), (Mechanism(0.15, 1000, 1e-4), 1e-320)],
)
def test_a_bound_that_is_no_tight_count_does_not_contradict_a_lower_one(mechanism: Mechanism, delta: float) -> None:
    """Where delta is too small for so many rounds, or the grid too coarse, the reference is an upper bound alone."""
    claim = guarantee(mechanism, delta)
    said = claim.sentence()
    assert "WARNING" not in said and "coarse grid or in closed form, which may be far above the truth, and " in said
    for accountant in (Accountant.PRV, Accountant.RDP):
        try:
            beside = guarantee(mechanism, delta, accountant).sentence()
        except PrivacyError:
            continue
        assert "WARNING" not in beside and "at least" not in beside


def test_below_a_second_count_is_a_contradiction_however_loose_the_reference() -> None:
    claim = guarantee(Mechanism(4.0, 1000, 0.01), 1e-11)
    assert "WARNING" in replace(claim, epsilon=claim.epsilon / 100).sentence()


@pytest.mark.parametrize("mechanism", [Mechanism(0.05, 100, 0.01), Mechanism(0.1, 1000, 0.01)])
def test_an_accountant_that_finds_no_finite_epsilon_contradicts_nobody(mechanism: Mechanism) -> None:
    said = guarantee(mechanism, DELTA).sentence()
    assert "WARNING" not in said and "counts inf" not in said and "RDP accountant" in said and "at most" in said


@pytest.mark.parametrize("factor", [0.9, 1.1])
@pytest.mark.parametrize("name", ["whole", "sampled", "replaced"])
def test_a_wrong_count_is_a_warning(name: str, factor: float) -> None:
    claim = guarantee(MECHANISMS[name], DELTA)
    said = replace(claim, epsilon=claim.epsilon * factor).sentence()
    assert "WARNING" in said and "contradict each other" in said and f"{SHARE:.0%} + {BESIDE:g} away" in said


def test_a_fault_in_the_reference_is_seen_wherever_epsilon_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: half of the rounds are forgotten, as by a ledger that skips; the sentence of each place tells."""
    right = accounting.epsilon_of

    def forgetful(parts: list[Mechanism], delta: float) -> float:
        return right([replace(m, rounds=max(m.rounds // 2, 1)) for m in parts], delta)

    mechanism = Mechanism(2.0, 10)
    one = Trained("a", "first", DpPlan(mechanism, 1.0, 10, DELTA))
    two = Trained("b", "second", DpPlan(replace(mechanism, rounds=4), 1.0, 10, DELTA))

    def said() -> list[str]:
        alone, both = (claim_of(Lineage(PUBLIC, "made here", t)).sentence for t in ((one,), (one, two)))
        phases = together("pre:6,fine:4", replace(mechanism, noise_multiplier=1.0), None, 1.0, DELTA)[1]
        return [one.plan.guarantee().sentence() if one.plan else "", alone, both, phases]

    assert not any("WARNING" in text for text in said())
    for module in ("accounting", "lineage", "planning"):
        monkeypatch.setattr(f"docleak.privacy.{module}.epsilon_of", forgetful)
    guarantee.cache_clear()
    try:
        sentences = said()
    finally:
        guarantee.cache_clear()
    for text in sentences:
        assert "WARNING" in text.splitlines()[0] or "WARNING" in text.splitlines()[2], text


def test_what_prv_cannot_count_is_bracketed_or_bounded_or_said() -> None:
    known = Mechanism(0.7715, 10, 1.0, 0.2)
    opinion = opinion_on((known,), DELTA, 0.05, Accountant.PLD)
    assert opinion is not None and opinion[1] < epsilon_of([known], DELTA) < opinion[2]
    assert "puts it between" in guarantee(known, DELTA).sentence()
    hidden = replace(known, participation=Participation.HIDDEN)
    assert "opacus" in guarantee(hidden, DELTA).sentence() and "between" not in guarantee(hidden, DELTA).sentence()
    assert "WARNING" in replace(guarantee(known, DELTA), epsilon=2.0).sentence()
    many = guarantee(Mechanism(0.03, 2), DELTA)
    assert "RDP accountant of dp-accounting" in many.sentence() and "at most" in many.sentence()
    assert "WARNING" in replace(many, epsilon=2 * many.epsilon).sentence()
    unknown = Mechanism(1.5, 4, 0.5, relation=Relation.REPLACE_ONE)
    assert guarantee(unknown, DELTA).sentence().endswith("no second accountant here counts it.")
    assert second_opinion([Mechanism(0.0, 1)], DELTA, math.inf) == ""


def test_other_first_accountants_are_held_against_the_reference() -> None:
    record = Mechanism(0.7715, 10, 0.2, unit=Unit.RECORD)
    prv, rdp = (guarantee(record, DELTA, by).sentence() for by in (Accountant.PRV, Accountant.RDP))
    assert "and PLD accountant of dp-accounting" in prv and "at least" not in prv and "WARNING" not in prv
    assert "PLD accountant of dp-accounting" in rdp and "at least" in rdp and "WARNING" not in rdp
    low = replace(guarantee(record, DELTA, Accountant.RDP), epsilon=5.0)
    assert "WARNING" in low.sentence()


def test_without_opacus_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*asked: object) -> float:
        raise second.MissingExtraError("no opacus")

    monkeypatch.setattr(second, "epsilon_of_prv", missing)
    opinion_on.cache_clear()
    said = second_opinion([MECHANISMS["whole"]], DELTA, guarantee(MECHANISMS["whole"], DELTA).epsilon)
    opinion_on.cache_clear()
    assert "RDP accountant" in said and "at most" in said and "WARNING" not in said
