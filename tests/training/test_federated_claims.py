"""What a run's numbers for machines say is a bound, or is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from docleak.privacy.mechanism import Mechanism, Participation
from docleak.privacy.plan import DpPlan
from docleak.training.federated.federation import Federation
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.summary import _privacy


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
