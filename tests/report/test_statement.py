"""The first page of a report says of each run what its verdict means, and no run borrows another's words."""

from __future__ import annotations

from docleak.report.about import About
from docleak.report.severity import Part, Severity, overall
from docleak.report.statement import MEANS, Scope, Statement, statement

CLAIMED = "What is shown to leak is within what the training claims at most."
FIELDS = Scope("donut", "2 pages", "a server")
CANARIES = Scope("A private training", "100 canaries", "a reader", means={Severity.PARTIAL: CLAIMED})


def of(*scoped: tuple[Scope | None, Severity]) -> Statement:
    verdict = overall([Part(f"part {n}", severity, "Said.") for n, (_, severity) in enumerate(scoped)], "Counted.")
    return statement(verdict, scoped, [], About(), "0" * 64, synthetic=False)


def test_a_run_does_not_borrow_what_another_means() -> None:
    both = of((FIELDS, Severity.PARTIAL), (CANARIES, Severity.PARTIAL))
    assert both.means == f"{MEANS[Severity.PARTIAL]} A private training: {CLAIMED}"
    assert both.risk.endswith(both.means)
    unscoped = of((CANARIES, Severity.PARTIAL), (None, Severity.PARTIAL))
    assert unscoped.means == both.means


def test_a_run_alone_says_what_it_means() -> None:
    assert of((CANARIES, Severity.PARTIAL)).means == CLAIMED
    assert of((CANARIES, Severity.PARTIAL), (FIELDS, Severity.NONE)).means == CLAIMED
    assert of((FIELDS, Severity.SEVERE), (CANARIES, Severity.PARTIAL)).means == MEANS[Severity.SEVERE]
    assert of().means == MEANS[Severity.UNMEASURED]
