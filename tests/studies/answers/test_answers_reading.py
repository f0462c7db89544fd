"""What counts as memory and as membership, what is refused, and the chart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docleak.attacks.answers.features import Reply
from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import open_issuers, write_blue_red
from docleak.errors import AttackError, ContradictionError, RunError
from docleak.metrics.estimate import Estimate
from docleak.privacy.empirical import COINS, LowerBound, from_scores
from docleak.privacy.lineage import PUBLIC, Lineage, Trained, claim_of
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.report.measure import CLAIMED, MEMBERSHIP, MEMORY, SHOWN
from docleak.report.policy import Policy, Rule, check
from docleak.report.severity import Severity
from docleak.report.severity import overall as verdict_of
from docleak.studies.answers import measures
from docleak.studies.answers.bench import Bench
from docleak.studies.answers.config import AnswersConfig, Release
from docleak.studies.answers.measured import compared_with, measures_of
from docleak.studies.answers.membership import NO_GUESS, measured_epsilon
from docleak.studies.answers.reading import _threat, chart, comparison
from docleak.studies.answers.store import Bill, bill_of
from docleak.studies.answers.study import AnswersStudy
from docleak.studies.answers.verdict import confidence_of, headline_of, said_of, sentences, severity_of
from docleak.studies.engine import begin
from tests.studies.answers.records import found, record


def test_what_counts_as_memory_and_as_membership() -> None:
    assert severity_of(record(0.01, 0.4, -0.1)) == "severe"
    assert severity_of(record(-0.01, 0.55, -0.1)) == "partial"
    assert severity_of(record(-0.01, 0.4, 0.02)) == "partial"
    assert severity_of(record(-0.01, 0.45, -0.1)) == "none"
    assert "provider name: 30.0 %" in sentences(record(0.01, 0.4, -0.1))[0]
    clean = record(-0.01, 0.45, -0.1)
    counts = {"asked_provider_name": Estimate.exactly(9), "disclosed_provider_name": Estimate.exactly(0)}
    assert severity_of({**clean, "disclosure": found({"provider_name": counts})}) == "none"
    told = found({"provider_name": {**counts, "disclosed_provider_name": Estimate.exactly(2)}})
    telling = {**clean, "disclosure": told}
    assert severity_of(telling) == "partial" and said_of(telling) == "Says values of its training"
    assert any("(different values: provider name 2 in 9 questions)" in line for line in sentences(telling))
    assert severity_of({**telling, "control": True}) == "none", "a control was trained on none of them"
    keys = clean["memorisation"]["numbers"]
    unknown = {**keys["provider_name"], "gap_acc": Estimate(None).to_json()}
    both = {**clean["memorisation"], "numbers": {**keys, "provider_email": unknown}}
    assert severity_of({**clean, "memorisation": both}) == "untold", "one key of two was measured"


def test_the_label_says_which_route_tells_members() -> None:
    """ "Tells members from others" stood beside "Membership told -5.9 %", where how well it answers told, no attack."""
    better, attacked = record(-0.01, 0.45, 0.05), record(-0.01, 0.6, -0.1)
    assert said_of(attacked) == said_of(record(-0.01, 0.6, 0.05)) == "Tells members from others"
    assert severity_of(better) == "partial" and said_of(better) == "Answers members better than others"
    measured = record(-0.01, 0.45, -0.1)
    measured["membership"]["numbers"]["AZK"]["epsilon_measured"] = Estimate.exactly(0.5).to_json()
    assert severity_of(measured) == "partial" and said_of(measured) == "Its losses tell members from others"


def test_a_difference_below_zero_is_less_often() -> None:
    """ "-3.7 points oftener"."""
    of = record(-0.01, 0.6, -0.1)
    assert "It answers new documents of members right 10.0 points [-10.0, 30.0] more often than" in headline_of(of)
    of["gap"]["numbers"][""]["gap_acc"] = Estimate(-0.037, -0.08, 0.01, 40, 20).to_json()
    assert "right 3.7 points [-1.0, 8.0] less often than others'" in headline_of(of)


def test_intervals_that_exclude_little_are_no_all_clear() -> None:
    """A model with a planted memory told 21.1 % [0.0, 47.4] of hidden names, and that was "nothing found"."""
    planted = record(0.0, 0.45, -0.1, memory_high=0.474)
    assert severity_of(planted) == "untold" and said_of(planted) == "Could not tell"
    why = "No all-clear: so few documents do not exclude that 47 % of the provider names are told."
    assert why in sentences(planted) and headline_of(planted).endswith(why)
    guessed = record(-0.01, 0.45, -0.1, most=0.9)
    assert severity_of(guessed) == "untold" and "right about 90 % of them" in headline_of(guessed)
    assert not any("No all-clear" in line for line in sentences(record(-0.01, 0.45, -0.1)))
    assert not any("No all-clear" in line for line in sentences({**planted, "control": True}))
    assert not any("No all-clear" in line for line in sentences(record(0.01, 0.4, -0.1, memory_high=0.5)))


def test_an_epsilon_is_printed_with_what_it_depends_on() -> None:
    """A claim of 7.9981 was printed as 7.998, below itself, and without its delta and unit."""
    of = record(-0.01, 0.45, -0.1)
    of["bill"] = {"epsilon": 7.9981, "delta": 1e-3, "unit": "provider", "claim": ""}
    of["membership"]["numbers"]["AZK"]["epsilon_measured"] = Estimate.exactly(0.12349).to_json()
    told = {one.what: one.text for one in measures_of(of)}
    assert told[CLAIMED] == "7.999 at delta 0.001 per provider"
    assert told[SHOWN] == "at least 0.1234 at delta 0.001 per provider, 0.95 confidence"


@pytest.mark.parametrize(("members", "others", "said"), [(20, 20, "x"), (1, 40, "x"), (0, 4, "x"), (20, 20, NO_GUESS)])
def test_an_epsilon_that_could_not_have_been_shown_is_no_pass(members: int, others: int, said: str) -> None:
    """Of one provider on a side no bound was known, and a gate passed; of all scores equal there is nothing to show."""
    of = record(-0.01, 0.45, -0.1)
    of["membership"] |= {"members": members, "others": others, "remarks": {"Measured": said}}
    policy = Policy(rule=(Rule(measure="epsilon-measured", at_most=1.0),))
    (one,) = check(policy, measures_of(of), verdict_of([], ""))
    assert one.outcome == ("pass" if (members, said) == (20, "x") else "could not tell")


def test_a_provider_of_one_name_and_other_documents_is_another_one() -> None:
    def held(hidden: str) -> set[str]:
        of = record(-0.01, 0.45, -0.1)
        rows = [{"key": "provider_name", "provider": "A", "member": 1, "document": "d", "question": "q",
                 "hidden": hidden, "accuracy": 0.0}]  # fmt: skip
        told = measures_of({**of, "memorisation": {**of["memorisation"], "answers": rows}})
        return {name for one in told for name in one.by}

    assert held("A SE") == held("A SE") and len(held("A SE") | held("A AG")) == 2


def test_what_was_asked_for_and_not_measured_is_said_and_is_no_all_clear() -> None:
    """A key that no document shows, and an attack that had too few providers, were left out without a word."""
    clean = record(-0.01, 0.45, -0.1)
    why = "no document of RED shows an answer to it"
    memory = {**clean["memorisation"], "remarks": {"registration_id": why}}
    lacking = {**clean, "memorisation": memory}
    said = f"Not measured, and nothing is known of it: registration id: {why}."
    assert said in sentences(lacking) and said in headline_of(lacking)
    assert severity_of(lacking) == "untold" and said_of(lacking) == "Could not tell"
    (gate,) = [one for one in measures_of(lacking) if "registration" in one.of]
    assert gate.what == MEMORY and gate.estimate.value is None and gate.text == why
    azk = clean["membership"]["numbers"]["AZK"]
    failed = {**azk, "accuracy_s0": Estimate(None, why="share 0.15 is 0 of each.").to_json(),
              "chance_s0": Estimate(None).to_json()}  # fmt: skip
    for numbers, line in (
        ({"AZK": azk, "APK": failed}, "the best of 2 attacks, AZK"),
        ({"APK": failed}, "was not measured"),
    ):
        one = {**clean, "membership": {**clean["membership"], "numbers": numbers}}
        lines = sentences(one)
        assert "Not measured, and nothing is known of it: APK: share 0.15 is 0 of each." in lines
        assert any(line in told for told in lines) and severity_of(one) == "untold"
    assert "share 0.15 is 0 of each" in [m.text for m in measures_of(one) if m.what == MEMBERSHIP]
    one["membership"]["numbers"] = {"AZK": failed, "APK": failed}
    assert any("AZK, APK: share 0.15 is 0 of each." in line for line in sentences(one)), "one reason is said once"
    not_asked = {"disclosure": {**found({}), "remarks": {"Not asked": "no public model"}}}
    assert any("do not show them: no public model" in line for line in sentences({**clean, **not_asked}))
    assert not any("nothing is known" in line for line in sentences(clean))


def test_a_sentence_says_which_providers_and_which_key() -> None:
    few = record(-0.01, 0.45, -0.1)
    azk = {name.replace("_s0", "_s10"): number for name, number in few["membership"]["numbers"]["AZK"].items()}
    few["membership"]["numbers"] = {"AZK": azk}
    assert any("guesses about 20 providers with more than 10 questions" in line for line in sentences(few))
    alone = sentences(record(-0.01, 0.45, -0.1))
    assert any("Who took part: the attack, AZK, is right" in line for line in alone)
    assert not any("with more than" in line or "not widened" in line for line in alone)
    several = record(-0.01, 0.45, -0.1)
    several["membership"]["numbers"]["APK"] = several["membership"]["numbers"]["AZK"]
    assert any("is this attack's alone, not widened for the choice" in line for line in sentences(several))
    two = record(0.01, 0.4, -0.1, label="without")
    keys = two["memorisation"]["numbers"]
    two["memorisation"]["numbers"] = {"provider_email": keys["provider_name"], "provider_name": keys["provider_name"]}
    heads = [column.head for column in comparison([two]).columns.values()]
    assert "Hidden provider email told of members" in heads
    private = {**two, "label": "with", "bill": {"epsilon": 2.0, "delta": 1e-5, "claim": "x"}}
    (line,) = compared_with(private, [two, private])
    assert "memorisation (provider email) 5.0%" in line and "memorisation (provider name) 5.0%" in line


def test_the_threat_model_names_what_the_attacks_of_the_run_know() -> None:
    def threat(settings: dict[str, str], public: bool) -> dict[str, Any]:
        numbers = {name: {"accuracy_s0": Estimate(0.6, 0.5, 0.7, 170, 20), "providers_s0": Estimate.exactly(40),
                          "seeds_s0": Estimate.exactly(5)} for name in settings}  # fmt: skip
        for of in numbers.values():
            of |= {"epsilon_measured": Estimate.exactly(0.0)} if public else {}
        attacks = {name: {"setting": setting} for name, setting in settings.items()}
        return _threat({"membership": found(numbers, attacks=attacks)})

    both = threat({"AZK": "ZK + U", "APK": "PK + S"}, public=True)
    assert both["knows"][-1] == "APK: the public model, and of 6 of 40 providers whether they took part"
    assert "public model" not in str(threat({"APK": "PK + S"}, public=False)), "nobody has one"
    assert "of 6 of 40 providers" in str(threat({"APK": "ZK + S"}, public=False)["knows"])
    alone = threat({"AZK": "ZK + U"}, public=True)
    assert len(alone["knows"]) == 1 and alone["sees"] == ["answers"]
    assert threat({"mine": "PK + S"}, public=False)["knows"][-1].startswith("mine: of 6 of 40 providers")


def test_releases_are_drawn_the_same_twice() -> None:
    useful = [found({"": {"anls": Estimate(value, value, value)}}) for value in (0.3, 0.8)]
    records = [record(0, 0.4, 0, label=label, utility=of) for label, of in zip("ab", useful, strict=True)]
    assert [row.name for row in comparison(records).rows] == ["a", "b"]
    assert chart(records).startswith("<svg") and chart(records) == chart(records)
    assert chart(records[:1]) == ""


def test_a_release_that_shows_more_than_it_claims_is_a_loud_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: the measured epsilon of a private release is above its claim."""
    write_blue_red(open_issuers(16, 4.0, BlueRedPlan(clients=2, red=0.4), seed=0), tmp_path / "data")
    plan = DpPlan(Mechanism(2.0, 3), 0.5, 2, 1e-5)
    claim = claim_of(Lineage(PUBLIC, "synthetic pages", (Trained("a", "a training", plan),)))
    assert claim.epsilon is not None
    bench = Bench(AnswersConfig((Release("a", "x"),), str(tmp_path / "data")), Release("a", "x"), tmp_path, "cpu")
    bench.__dict__["bill"] = Bill("x", claim)
    for measured, contradicted in ((claim.epsilon - 0.1, False), (claim.epsilon + 0.1, True)):
        bound = LowerBound(measured, 1e-5, 0.95, "planted", COINS)
        monkeypatch.setattr(measures, "measured_epsilon", lambda *args, bound=bound, **options: bound)
        if contradicted:
            with pytest.raises(ContradictionError, match="contradicts the accounting"):
                measures._lower_bound(bench, [], [])
        else:
            assert measures._lower_bound(bench, [], []) is bound


def test_what_so_few_providers_can_show_is_what_the_scores_of_perfectly_told_ones_show() -> None:
    """Without fair coins: "no more could have been shown" is said of what the ranks of scores show at best."""
    case = record(-0.01, 0.4, -0.1)
    shown = next(one for one in measures_of(case) if one.what == SHOWN)
    members = np.arange(40) < 20
    best = from_scores(members + 0.0, members, 1e-5, rng=np.random.default_rng(3)).epsilon
    assert shown.most == pytest.approx(best, rel=1e-3) and best > 1.9


@pytest.mark.parametrize(
    ("unit", "documents", "doubted"),
    [("provider", False, False), ("client", False, False), ("document", False, True), ("record", False, True),
     ("document", True, False), ("record", True, True)],
)  # fmt: skip
def test_a_claim_per_less_than_a_provider_does_not_keep_to_a_bound(unit: str, documents: bool, doubted: bool) -> None:
    bill = {"epsilon": 8.0, "delta": 1e-5, "claim": "", "unit": unit}
    case = record(-0.01, 0.4, -0.1, bill=bill)
    if documents:
        case = {"label": "x", "bill": bill, "documents": {"differs": ["a control"], "strangers": 0, "answered": 1.0}}
    claim = next(one for one in measures_of(case) if one.what == CLAIMED)
    assert bool(claim.doubts) is doubted and (f"per {unit}" in " ".join(claim.doubts)) is doubted


def test_a_model_that_is_no_run_has_no_bill() -> None:
    assert bill_of("vt5-start").bytes is None and bill_of("vt5-start").claim.epsilon is None
    with pytest.raises(AttackError, match="at least one of each"):
        AnswersConfig((Release("a", "b"),), "x", keys=())


def test_an_audit_is_not_continued_with_a_retrained_release(tmp_path: Path) -> None:
    write_blue_red(open_issuers(16, 4.0, BlueRedPlan(clients=2, red=0.4), seed=0), tmp_path / "data")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "file").write_text("one")
    config = AnswersConfig((Release("one", str(tmp_path / "one")),), str(tmp_path / "data"))
    run = begin(AnswersStudy(config), tmp_path / "out")
    run.write_unit("one", {}, {})
    begin(AnswersStudy(config), tmp_path / "out")
    with pytest.raises(RunError, match="another config"):
        begin(AnswersStudy(replace(config, seed=1)), tmp_path / "out")
    (tmp_path / "one" / "file").write_text("trained again")
    with pytest.raises(RunError, match=r"results of other weights.*\n  - .*one: its files have the hash"):
        begin(AnswersStudy(config), tmp_path / "out")


def test_a_run_without_a_finished_release_says_so(tmp_path: Path) -> None:
    run = begin(AnswersStudy(AnswersConfig((Release("one", "vt5-start"),), "shipped")), tmp_path / "out")
    with pytest.raises(RunError, match="no finished release"):
        AnswersStudy.read([run], np.random.default_rng(0))


def test_labels_are_beyond_chance_as_often_as_the_page_says() -> None:
    """Of releases trained on nobody whose ten numbers are all noise, at most one in twenty is called a leak."""
    rng, leaks, draws = np.random.default_rng(0), 0, 3000

    def number(mean: float) -> dict[str, Any]:
        value = float(rng.normal(mean, 0.05))
        return Estimate(value, value - 0.098, value + 0.098, n=200, groups=100).to_json()

    chance = {"chance_s0": Estimate.exactly(0.5).to_json()}
    for _ in range(draws):
        record = {
            "label": "release", "control": False, "bill": {"epsilon": None},
            "memorisation": {"numbers": {f"key {n}": {"gap_acc": number(0.0)} for n in range(4)}},
            "membership": {"numbers": {f"attack {n}": {"accuracy_s0": number(0.5), **chance} for n in range(4)}},
            "gap": {"numbers": {"": {"beyond_acc": number(0.0), "beyond_anls": number(0.0)}}},
        }  # fmt: skip
        leaks += severity_of(record) in (Severity.SEVERE, Severity.PARTIAL)
    assert confidence_of([record]) == 95
    assert leaks / draws <= 0.05 + 3 * (0.05 * 0.95 / draws) ** 0.5
    assert leaks / draws > 0.02, "the correction throws away little"


def test_each_kind_of_evidence_takes_its_part_of_the_confidence() -> None:
    attacked = {"membership": {"numbers": {"AZK": {"epsilon_measured": Estimate.exactly(0.5).to_json()}}}}
    assert confidence_of([attacked]) == 90
    assert confidence_of([attacked, {"documents": {}}]) == 85
    assert confidence_of([{"documents": {}}]) == 95


def test_how_many_questions_a_provider_is_asked_is_no_membership() -> None:
    """Members with 20 documents and others with 2, a release that knows neither: a forest learned which means are over
    few (right beyond chance in 16 of 16 draws), and losses "showed" an epsilon in 9 of 10."""
    rng, shown = np.random.default_rng(0), 0
    whose = {f"p{n:02d}": n % 2 == 0 for n in range(80)}
    for _ in range(6):
        said = [[Reply(name, f"{name} {n}", "total", 0.0, 0.0, float(loss))
                 for name, inside in whose.items() for n, loss in enumerate(3 + rng.random(20 if inside else 2))]
                for _ in range(2)]  # fmt: skip
        shown += measured_epsilon(*said, whose, coins=0.0, delta=1e-5, seed=0).epsilon > 0
    assert shown >= 4, "were it read as membership"
    asked = [{"provider": n, "member": int(inside), "questions": 20 if inside else 2} for n, inside in whose.items()]
    alike = [{**row, "questions": 2 + 18 * (n % 4 < 2)} for n, row in enumerate(asked)]
    told = record(0.0, 0.6, -0.1)
    told["membership"]["numbers"]["AZK"]["epsilon_measured"] = Estimate.exactly(0.4).to_json()
    for rows, coins, severity in (
        (asked, 0.0, Severity.UNTOLD), (alike, 0.0, Severity.PARTIAL), (asked, 0.5, Severity.PARTIAL),
        ([], 0.0, Severity.PARTIAL),
    ):  # fmt: skip
        held = {**told, "membership": {**told["membership"], "scores": rows, "coins": coins}}
        assert severity_of(held) is severity
        measures = {one.what: one for one in measures_of(held)}
        assert (SHOWN in measures and measures[MEMBERSHIP].estimate.value is not None) is (severity != "untold")
        assert ("ask as many of each" in " ".join(sentences(held))) is (severity == "untold")
    better = record(0.0, 0.6, 0.05)
    assert severity_of({**better, "membership": {**better["membership"], "scores": asked, "coins": 0.0}}) == "partial"


def test_a_training_without_privacy_is_said_once() -> None:
    """The claim of a lineage begins with the words that the sentence begins with."""
    bill = {"epsilon": None, "claim": "no differential privacy: trained without it (federated). Its start is public."}
    record = {"label": "x", "control": False, "bill": bill, "membership": {"remarks": {}, "numbers": {}, "rates": {}}}
    said = [line for line in sentences(record) if "differential privacy" in line]
    assert said == ["It claims no differential privacy: trained without it (federated). Its start is public."]
