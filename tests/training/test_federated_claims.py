"""What a run's numbers for machines say is a bound, or is not there."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docleak.privacy.gaussian import epsilon_of as exact
from docleak.privacy.mechanism import Mechanism, Participation, Unit
from docleak.privacy.plan import DpPlan
from docleak.training.federated.federation import Federation, impossible
from docleak.training.federated.party import Introduction
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.summary import _of_two, _privacy, facts_of, text_of
from docleak.training.federated.wire import Compression


def test_what_a_training_costs_is_a_bound_under_the_published_counting_too(tmp_path: Path) -> None:
    """Tito et al. (2024), section 6.2.3: epsilon 8 as published, which is no bound; 14.46 with known coins."""
    mechanism = Mechanism(0.771484375, 10, client_rate=0.2, participation=Participation.HIDDEN)
    plan = DpPlan(mechanism, clip_norm=5.0, denominator=400, delta=1e-5, published_counting=True)
    run = FederatedRun.open(tmp_path, Federation(rounds=10, participation=0.2, holdout=0.0, privacy=plan))
    ledger = run.ledger()
    assert ledger is not None
    while ledger.left:
        ledger = ledger.begin_round()
    run.write_ledger(ledger)
    facts = _privacy(run)
    assert facts is not None and facts["epsilon"] is None
    assert facts["epsilon_of_this_training"] == pytest.approx(14.46, abs=0.01)
    assert run.lineage().trainings[-1].epsilon == facts["epsilon_of_this_training"]


def _spent(out: Path, federation: Federation, silos: int) -> dict[str, Any]:
    """What is said of a training of one round by so many silos."""
    run = FederatedRun.open(out, federation)
    run.run.write_info("silos", [asdict(Introduction(f"s{number}", "", 0, 0, "")) for number in range(silos)])
    ledger = run.ledger()
    assert ledger is not None
    run.write_ledger(ledger.begin_round())
    facts = _privacy(run)
    assert facts is not None
    return facts


def test_a_delta_that_is_too_large_is_said_beside_its_epsilon(tmp_path: Path) -> None:
    """By public numbers, and not only in a warning on the screen while it trains."""
    for delta, rate, said in ((0.2, 1.0, True), (0.01, 1.0, False), (0.2, 0.5, True), (0.08, 0.5, False)):
        plan = DpPlan(Mechanism(1.0, 1, unit_rate=rate), clip_norm=1.0, denominator=2, delta=delta)
        facts = _spent(tmp_path / f"{delta} {rate}", Federation(rounds=1, holdout=0.0, privacy=plan), 3)
        about = 6 if rate == 1 else 12
        assert (f"Of about {about} providers, by the plan's public numbers, delta" in facts["limit"]) is said
    by_client = DpPlan(Mechanism(1.0, 1, unit=Unit.CLIENT), clip_norm=1.0, denominator=1, delta=0.4)
    limit = _spent(tmp_path / "client", Federation(rounds=1, holdout=0.0, privacy=by_client), 3)["limit"]
    assert "Of about 3 clients" in limit and "not below 1/3" in limit


def test_a_round_that_was_lost_and_a_training_that_is_not_finished_are_told(tmp_path: Path) -> None:
    """Killed in its second round and gone on with, a training of three rounds has weights of two, and an epsilon of
    three; of one that is cut off, a model and curves were named that are not there."""
    plan = DpPlan(Mechanism(1.0, 3), clip_norm=1.0, denominator=2, delta=1e-5)
    run = FederatedRun.open(tmp_path, Federation(rounds=3, holdout=0.0, privacy=plan))
    run.run.write_info("silos", [asdict(Introduction("s0", "", 0, 0, ""))])
    ledger = run.ledger()
    assert ledger is not None
    run.write_ledger(ledger.begin_round())
    rng = np.random.default_rng(0)
    text = text_of(facts_of(run, {}, rng=rng))
    assert "Not finished: 0 of 3 rounds. The same docleak train goes on" in text
    assert "Model:" not in text and "curves.png" not in text
    assert "of 0 rounds: of 1 that were begun 1 ended without any, and what they cost is counted" in text
    (tmp_path / "model").mkdir()
    assert f"Model: {tmp_path / 'model'}" in text_of(facts_of(run, {}, rng=rng))


@pytest.mark.parametrize(("noise", "silos"), [(0.0, 3), (1.0, 1)])
def test_nothing_is_said_of_a_share_of_noise_that_is_none(noise: float, silos: int, tmp_path: Path) -> None:
    plan = DpPlan(Mechanism(noise, 1), clip_norm=1.0, denominator=200, delta=1e-5)
    facts = _spent(tmp_path, Federation(rounds=1, holdout=0.0, privacy=plan), silos)
    assert "share of the noise" not in facts["limit"] and "How long silos take" in facts["limit"]


@pytest.mark.parametrize(("silos", "secure"), [(2, None), (4, None), (4, SecurePlan(3))])
def test_whoever_sees_more_than_the_models_is_told_their_own_epsilon(
    silos: int, secure: SecurePlan | None, tmp_path: Path
) -> None:
    """The server sees a share of the noise alone, another silo all shares but its own: K Gaussian shares of one."""
    plan = DpPlan(Mechanism(2.0, 1), clip_norm=1.0, denominator=200, delta=1e-5)
    limit = _spent(tmp_path, Federation(rounds=1, holdout=0.0, privacy=plan, secure=secure), silos)["limit"]
    shares = secure.threshold if secure else silos
    said = re.findall(
        r"towards (?:it|them|the server), this training alone costs epsilon ([0-9.]+) at delta 1e-05 per provider",
        limit,
    )
    alone = exact(math.sqrt(shares) / 2, 1e-5)
    wanted = [alone] * (secure is None) + [exact(1 / math.sqrt(1 - 1 / shares) / 2, 1e-5)] + [alone] * (shares > 2)
    assert [float(one) for one in said] == pytest.approx(wanted, rel=1e-3)
    assert "Trials of other settings" in limit
    assert "of a provider at several." in limit
    one = _spent(tmp_path / "one", Federation(rounds=1, holdout=0.0, privacy=plan), 1)["limit"]
    assert "towards" not in one and "at several" not in one
    other = replace(plan, mechanism=Mechanism(2.0, 1, unit=Unit.DOCUMENT))
    limit = _spent(tmp_path / "of", Federation(rounds=1, holdout=0.0, privacy=other, secure=secure), silos)["limit"]
    assert "of a document at several." in limit, "it has no documents"


def test_a_share_of_the_least_noise_hides_nothing(tmp_path: Path) -> None:
    """It was refused as too little noise for a mechanism, after the training."""
    plan = DpPlan(Mechanism(1e-9, 1), clip_norm=1.0, denominator=2, delta=1e-5)
    limit = _spent(tmp_path, Federation(rounds=1, holdout=0.0, privacy=plan), 4)["limit"]
    assert limit.count("this training alone costs epsilon inf at delta 1e-05 per provider.") == 3


def test_a_unit_in_two_silos_that_nobody_could_see_is_said(tmp_path: Path) -> None:
    """Over a network no machine has the names of two silos; its noise hides one contribution a round."""
    cases = ((Unit.PROVIDER, True, True), (Unit.PROVIDER, False, False), (Unit.CLIENT, True, False))
    for unit, deployed, said in cases:
        plan = DpPlan(Mechanism(1.0, 1, unit=unit), clip_norm=1.0, denominator=2, delta=1e-5)
        out = tmp_path / f"{unit} {deployed}"
        run = FederatedRun.open(out, Federation(rounds=1, holdout=0.0, privacy=plan))
        run.run.write_info("deployed", deployed)
        _spent(out, run.federation, 3)
        assert ("in one silo only, which docleak cannot check over a network" in run.claim().sentence) is said


@pytest.mark.parametrize(("silos", "threshold", "said"), [(2, 0, True), (3, 2, True), (3, 0, False)])
def test_what_secure_aggregation_does_not_hide_from_one_of_two_silos_is_said(
    silos: int, threshold: int, said: bool, tmp_path: Path
) -> None:
    plan = DpPlan(Mechanism(1.0, 1), clip_norm=1.0, denominator=200, delta=1e-5)
    plain = Federation(rounds=1, holdout=0.0, secure=SecurePlan(threshold))
    assert ("has the other's" in _of_two(plain, silos)) is said
    facts = _spent(tmp_path, replace(plain, privacy=plan), silos)
    assert ("has the other's" in facts["limit"]) is said


def test_a_sum_of_one_silo_is_refused_before_anything_is_trained() -> None:
    alone = Federation(rounds=1, secure=SecurePlan())
    assert any("secure aggregation expects at least 2" in fault for fault in impossible(alone, 1))
    assert any("1 of 3 silos trains" in fault for fault in impossible(replace(alone, participation=0.4), 3))
    assert not impossible(alone, 2)


@pytest.mark.parametrize("compression", ["topk:0.001", "fp16"])
def test_shares_of_noise_are_not_compressed_each_by_itself(compression: str) -> None:
    """Of 100 silos' largest thousandth a provider's move of one weight was seen: epsilon 1.37 at least, claimed 1."""
    plan = DpPlan(Mechanism(1.0, 1), clip_norm=1.0, denominator=2, delta=1e-5)
    plain = Federation(rounds=1, holdout=0.0, compression=Compression.of(compression))
    private = replace(plain, privacy=plan)
    (fault,) = impossible(private, 3)
    assert f"compression is {compression}" in fault and "3 silos share the noise" in fault
    assert not impossible(plain, 3)
    assert not impossible(private, 1), "of one silo, which adds the whole noise, all that is done later costs nothing"


def test_a_share_of_noise_is_not_rounded_away() -> None:
    """Steps of 5e-4 beside a share of 3e-7: what is left of the sum's noise are the other silos' exact numbers."""
    plan = DpPlan(Mechanism(1.0, 1), clip_norm=1e-3, denominator=2000, delta=1e-5)
    federation = Federation(rounds=1, holdout=0.0, privacy=plan, secure=SecurePlan(limit=1e6))
    (fault,) = impossible(federation, 3)
    assert "takes away a share of the noise" in fault and "expected a smaller secure limit" in fault
    for limit in (0.0, 1e-3):
        assert not impossible(replace(federation, secure=SecurePlan(limit=limit)), 3)
    assert not impossible(replace(federation, privacy=None), 3)
