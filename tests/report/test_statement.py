"""The first page of a report says of each run what its verdict means, and no run borrows another's words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from docleak.report.about import About
from docleak.report.page import Reading, joined, write_report
from docleak.report.severity import Part, Severity, overall
from docleak.report.statement import MEANS, MODELS, SECURITY, Scope, Statement, statement

CLAIMED = "What is shown to leak is within what the training claims at most."
FIELDS = Scope("donut", "2 pages", "a server")
CANARIES = Scope("A private training", "100 canaries", "a reader", means={Severity.PARTIAL: CLAIMED})


def of(*scoped: tuple[Scope | None, Severity]) -> Statement:
    verdict = overall([Part(f"part {n}", severity, "Said.") for n, (_, severity) in enumerate(scoped)], "Counted.")
    return statement(verdict, scoped, [], About(), "0" * 64, synthetic=False)


def test_a_run_does_not_borrow_what_another_means() -> None:
    both = of((FIELDS, Severity.PARTIAL), (CANARIES, Severity.PARTIAL))
    assert both.means == f"{MEANS[Severity.PARTIAL]} A private training: {CLAIMED}"
    assert both.means in both.risk
    unscoped = of((CANARIES, Severity.PARTIAL), (None, Severity.PARTIAL))
    assert unscoped.means == both.means


def test_what_is_quoted_says_who_attacked_and_how_far_it_holds() -> None:
    """Quoted alone, a count of one page would be taken for a rate, and for what anybody can do."""
    one = replace(FIELDS, sample="Gradients of one document are an example, not a rate.")
    assert of((one, Severity.SEVERE)).risk.endswith(
        f"{MEANS[Severity.SEVERE]} Gradients of one document are an example, not a rate. Attacker assumed: a server."
    )
    both = of((one, Severity.SEVERE), (CANARIES, Severity.PARTIAL)).risk
    assert both.endswith("Attacker assumed: a server; a reader.")
    assert "Attacker" not in of((one, Severity.UNMEASURED)).risk, "nothing was attacked"


def test_a_run_alone_says_what_it_means() -> None:
    assert of((CANARIES, Severity.PARTIAL)).means == CLAIMED
    assert of((CANARIES, Severity.PARTIAL), (FIELDS, Severity.NONE)).means == CLAIMED
    assert of((FIELDS, Severity.SEVERE), (CANARIES, Severity.PARTIAL)).means == MEANS[Severity.SEVERE]
    assert of().means == MEANS[Severity.UNMEASURED]


def test_what_was_not_attacked_tests_no_measure_and_serves_no_article() -> None:
    trained = Scope("A training", "", "nobody", model=True)
    assert not of((trained, Severity.UNMEASURED)).serves
    beside = of((trained, Severity.UNMEASURED), (FIELDS, Severity.NONE)).serves
    assert beside == SECURITY and of((CANARIES, Severity.UNTOLD)).serves == SECURITY
    assert of((replace(CANARIES, model=True), Severity.UNTOLD)).serves == (*SECURITY, MODELS)


def test_categories_are_told_where_a_run_has_them_and_nothing_is_said_of_them_elsewhere() -> None:
    """A run may count private fields and not keep their keys: "none" would be untrue of it."""
    keyed = Scope("donut", "2 pages", "a server", categories=("total", "due_date"))
    named = "Private fields audited, by category"
    assert dict(of((keyed, Severity.PARTIAL), (CANARIES, Severity.PARTIAL)).facts)[named] == "total, due date"
    assert named not in dict(of((FIELDS, Severity.PARTIAL)).facts)


def test_a_run_that_is_not_finished_says_so_in_its_verdict_and_its_scope() -> None:
    half = Scope("donut", "1 page", "a server", unfinished="1 of 2 pages")
    said = of((half, Severity.UNTOLD))
    assert dict(said.facts)["Scope"] == "1 page (not finished: 1 of 2 pages)"
    unnamed = Scope("donut", "", "a server", unfinished="1 of 2 pages")
    assert dict(of((unnamed, Severity.UNTOLD)).facts)["Scope"] == "not finished: 1 of 2 pages"
    readings = [Reading("?", "", (), "Counted.", (), (), {}, scope=scope) for scope in (half, None, CANARIES)]
    assert joined(readings).sentence == "Counted. The run is not finished: 1 of 2 pages."
    assert joined(readings[1:]).sentence == "Counted."


def test_of_several_runs_those_as_bad_as_the_worst_are_counted_each_behind_its_question() -> None:
    """Whichever was named first, and however many there are."""
    mild, severe, also = (
        Reading(f"What did {name} tell?", "", (Part(name, severity, ""),), counted, (), (), {})
        for name, severity, counted in (
            ("A", Severity.PARTIAL, "1 of 3 was read."),
            ("B", Severity.SEVERE, "2 of 2 were read."),
            ("C", Severity.SEVERE, "5 of 6 were read."),
        )
    )
    beside = Reading("What would have stopped it?", "", (), "Without it 1 of 3.", (), (), {})
    for readings in ([mild, severe], [severe, mild], [beside, severe, mild]):
        assert joined(readings).headline == "What did B tell? 2 of 2 were read."
    both = "What did B tell? 2 of 2 were read. What did C tell? 5 of 6 were read."
    assert joined([mild, severe, beside, also]).headline == both
    assert joined([mild]).headline == joined([mild, beside]).headline == mild.counted
    assert joined([beside]).headline == beside.counted


def test_a_page_over_several_questions_asks_none_of_them_alone(tmp_path: Path) -> None:
    one, other = (
        Reading(f"What did {name} tell?", f"{name} was attacked.", (Part(name, Severity.NONE, ""),), "0.", (), (), {})
        for name in "AB"
    )
    page = write_report([one], tmp_path).read_text()
    assert "<title>docleak: What did A tell?</title>" in page and '<p class="lead">A was attacked.</p>' in page
    page = write_report([one, other], tmp_path).read_text()
    assert "<title>docleak: What was given away?</title>" in page
    for name in "AB":
        assert f"<li><b>What did {name} tell?</b> {name} was attacked.</li>" in page
