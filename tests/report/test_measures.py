"""Measures, differences between two runs, and rules on intervals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest

from docleak.errors import PolicyError, RunError
from docleak.metrics.estimate import Estimate
from docleak.privacy.second import CONTRADICTED, doubts_of
from docleak.report.gate_files import junit, junit_unread, sarif, sarif_unread
from docleak.report.measure import CLAIMED, EXPLAINED, FIELDS, MEMORY, SHOWN, Measure, claimed, difference, share_of
from docleak.report.page import _settings, measures_table
from docleak.report.policy import Outcome, Policy, Rule, check, overall, read_policy
from docleak.report.schema import checked, json_schema
from docleak.report.severity import Part, Severity
from docleak.report.severity import overall as verdict_of
from tests.report.sarif import LOG

NOTHING = verdict_of([Part("model", Severity.NONE, "Nothing.")], "Nothing.")


def held(rule: dict[str, Any], *measures: Measure, verdict: Any = NOTHING) -> Outcome:
    return overall(check(Policy(rule=(Rule(**rule),)), measures, verdict))


def fields(value: float | None, low: float | None = None, high: float | None = None, **more: Any) -> Measure:
    return Measure(FIELDS, "model", Estimate(value, low, high, n=10, groups=5), **more)


@pytest.mark.parametrize(
    ("measure", "bound", "outcome"),
    [
        (fields(0.1, 0.05, 0.2), 0.2, Outcome.PASS),
        (fields(0.1, 0.05, 0.21), 0.2, Outcome.UNTOLD),
        (fields(0.3, 0.15, 0.4), 0.2, Outcome.FINDING),  # of the audited pages, whatever of others
        (fields(1.0, 0.16, 1.0), 0.5, Outcome.FINDING),  # as of one page: more pages take no finding back
        (fields(1.0), 1.0, Outcome.PASS),  # no more can be, on one page or many
        (fields(0.3, 0.21, 0.4), 0.2, Outcome.FINDING),
        (fields(0.0, 0.0, 0.1, doubts=("The self-test failed.",)), 0.2, Outcome.UNTOLD),
        (fields(0.3, 0.21, 0.4, doubts=("The self-test failed.",)), 0.2, Outcome.FINDING),
        (fields(0.0), 0.2, Outcome.UNTOLD),  # one document
        (fields(1.0), 0.2, Outcome.FINDING),  # what was read was read
        (fields(0.1, 0.0, 0.2), 0.0, Outcome.FINDING),
        (fields(None), 0.2, Outcome.UNTOLD),
        (fields(0.1, 0.1, 0.1), 0.2, Outcome.UNTOLD),  # every resample gave the same
    ],
)
def test_a_rule_is_about_the_ends_of_the_interval(measure: Measure, bound: float, outcome: Outcome) -> None:
    assert held({"measure": FIELDS, "at_most": bound}, measure) is outcome


def test_what_was_not_measured_is_no_pass() -> None:
    assert held({"measure": MEMORY, "at_most": 1.0}, fields(0.0, 0.0, 0.1)) is Outcome.UNTOLD
    assert held({"measure": FIELDS, "at_most": 1.0, "of": "other*"}, fields(0.0, 0.0, 0.1)) is Outcome.UNTOLD


def test_each_name_of_a_rule_has_to_be_measured() -> None:
    both = held({"measure": FIELDS, "at_most": 1.0, "of": "mod*|other*"}, fields(0.0, 0.0, 0.1))
    assert both is Outcome.UNTOLD, "nothing was measured of the other"
    assert held({"measure": FIELDS, "at_most": 1.0, "of": "mod* | model"}, fields(0.0, 0.0, 0.1)) is Outcome.PASS


@pytest.mark.parametrize("bound", [True, "0.5"])
def test_a_bound_is_a_number(bound: object) -> None:
    with pytest.raises(ValueError, match="at_most"):
        Rule(measure="fields-read", at_most=bound)  # type: ignore[arg-type]
    assert Rule(measure="fields-read", at_most=1).at_most == 1.0


def test_epsilon_claimed_and_shown() -> None:
    claim = {"measure": CLAIMED, "at_most": 8}
    assert held(claim, Measure(CLAIMED, "model", Estimate.exactly(8.0))) is Outcome.PASS
    assert held(claim, Measure(CLAIMED, "model", Estimate.exactly(8.1))) is Outcome.FINDING
    assert held(claim, Measure(CLAIMED, "model", Estimate(None), unbounded=True)) is Outcome.FINDING
    large = claimed("model", 7.99, 0.9, "provider", doubts=doubts_of("", "delta 0.9 is not ..."))
    assert large.doubts == ("Delta 0.9 is not ...",), "such a delta allows to publish everything of one"
    assert held(claim, large) is Outcome.UNTOLD
    assert held(claim, replace(large, doubts=doubts_of("epsilon 7.99, and PRV counts 8"))) is Outcome.PASS
    assert doubts_of(f"epsilon 7.99. WARNING: the PRV accountant counts 80.9, more than 2% away: {CONTRADICTED}.")
    shown = Measure(SHOWN, "model", Estimate.exactly(1.0), most=3.7)
    assert [held({"measure": SHOWN, "at_most": b}, shown) for b in (0.5, 2.0, 8.0)] == [
        Outcome.FINDING, Outcome.PASS, Outcome.UNTOLD,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("severity", "worst", "outcome"),
    [("none", "none", Outcome.PASS), ("partial", "none", Outcome.FINDING), ("partial", "partial", Outcome.PASS),
     ("severe", "partial", Outcome.FINDING), ("untold", "partial", Outcome.UNTOLD),
     ("unmeasured", "partial", Outcome.UNTOLD)],
)  # fmt: skip
def test_a_rule_on_the_verdict(severity: str, worst: str, outcome: Outcome) -> None:
    verdict = verdict_of([Part("model", Severity(severity), "So.")], "So.")
    assert held({"measure": "verdict", "at_worst": worst}, verdict=verdict) is outcome


def test_what_is_about_all_could_not_be_told_of_runs_that_are_not_finished() -> None:
    """Of two releases the one that was finished passed, and the gate with it."""
    half = verdict_of([Part("model", Severity.NONE, "So.")], "So.", ["The run is not finished: 1 of 2 releases."])
    for rule in ({"measure": "verdict", "at_worst": "none"}, {"measure": FIELDS, "at_most": 1.0}):
        read = fields(0.0, 0.0, 0.1)
        assert held(rule, read, verdict=half) is Outcome.UNTOLD
        assert held({**rule, "of": "mod*"}, read, verdict=half) is Outcome.UNTOLD, "others of such names may come"
        assert held({**rule, "of": "model"}, read, verdict=half) is Outcome.PASS, "that part is there"
        assert held(rule, read, verdict=replace(half, unfinished=())) is Outcome.PASS


def test_a_partial_leak_of_a_run_that_is_not_finished_is_no_pass_for_the_part_that_a_rule_names() -> None:
    """One of the two pages of the words was read in part, the other not yet attacked: it may be read whole."""
    half = verdict_of([Part("words", Severity.PARTIAL, "So.")], "So.", ["The run is not finished: 1 of 2 pages."])
    rule = {"measure": "verdict", "at_worst": "partial", "of": "words"}
    assert held(rule, verdict=half) is Outcome.UNTOLD
    (checked,) = check(Policy(rule=(Rule(**rule),)), (), half)
    assert checked.why == "Partial leak: So. The run is not finished: 1 of 2 pages. What is missing may be worse."
    assert held(rule, verdict=replace(half, unfinished=())) is Outcome.PASS
    assert held({**rule, "at_worst": "none"}, verdict=half) is Outcome.FINDING, "what was read was read"


def test_a_rule_on_the_verdict_says_it_in_the_words_of_the_part() -> None:
    verdict = verdict_of([Part("model", Severity.NONE, "So.", "Nothing shown")], "So.")
    (checked,) = check(Policy(rule=(Rule(measure="verdict", at_worst="none"),)), (), verdict)
    assert checked.why == "Nothing shown: So."


def test_a_finding_weighs_more_than_no_telling() -> None:
    rules = Policy(rule=(Rule(measure=FIELDS, at_most=0.2), Rule(measure=MEMORY, at_most=0.2)))
    checks = check(rules, [fields(0.9, 0.8, 1.0)], NOTHING)
    assert [one.outcome for one in checks] == [Outcome.FINDING, Outcome.UNTOLD] and overall(checks).code == 1
    assert [outcome.code for outcome in Outcome] == [1, 2, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "rule"), ("[[rule]]\nmeasure = 'fields-red'\nat_most = 1", "fields-read"), ("[[rule", "cannot be read"),
     ("[[rule]]\nmeasure = 'fields-read'\nat_worst = 'none'", "at_most"),
     ("[[rule]]\nmeasure = 'fields-read'\nat_most = nan", "finite"),
     ("[[rule]]\nmeasure = 'fields-read'\nat_most = 1\nbelow = 2", "below"),
     ("[[rule]]\nmeasure = 'fields-read'\nat_most = 1\nline = 7", "rule.0.line: Extra inputs are not permitted"),
     ("[[rule]]\nmeasure = 'fields-read'\nat_most = 1\n_line = 7", "rule.0._line: Extra inputs"),
     ("[[rule]]\nmeasure = 'fields-read'\nat_most = 5", r"fields-read takes 0 to 1, a share \(0.05 is 5 %\)"),
     ("[[rule]]\nmeasure = 'gradient-explained'\nat_most = -0.1", "gradient-explained takes 0 to 1"),
     ("[[rule]]\nmeasure = 'epsilon-claimed'\nat_most = -1", "epsilon-claimed takes 0 or more")],
)  # fmt: skip
def test_a_policy_that_is_none(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(PolicyError, match=said):
        read_policy(tmp_path / "policy.toml")


def test_a_faulty_rule_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("[[rule]]\nmeasure = 'fields-read'\nat_most = 5\n")
    with pytest.raises(PolicyError) as said:
        read_policy(tmp_path / "policy.toml")
    assert str(said.value).count("\n  - ") == 1 and "uple" not in str(said.value)


def test_of_the_gradient_the_worst_page_counts() -> None:
    rule = {"measure": EXPLAINED, "at_most": 0.5}
    assert held(rule, Measure(EXPLAINED, "model", Estimate(0.2, 0.1, 0.6, n=8))) is Outcome.FINDING
    assert held(rule, Measure(EXPLAINED, "model", Estimate(0.2, 0.1, 0.5, n=8))) is Outcome.PASS


def test_files_for_continuous_integration(tmp_path: Path) -> None:
    file = tmp_path / "my policy.toml"
    file.write_text("# mine\n[[rule]]\nmeasure = 'fields-read'\nat_most = 0.2\n"
                    "[[rule]]\nmeasure = 'memorisation'\nat_most = 0\n")  # fmt: skip
    checks = check(read_policy(file), [fields(0.9, 0.8, 1.0), fields(0.0, 0.0, 0.1)], NOTHING)
    root = ElementTree.fromstring(junit(checks, "run <1>\x00"))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "1")
    assert [[kind.tag for kind in case] for case in root.iter("testcase")] == [["failure"], [], ["error"]]
    log = json.loads(sarif(checks, Path("règles#1/my policy.toml")))
    valid(log)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules) == 2
    for result in run["results"]:  # section 3.27 of the standard
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert (result["kind"], result["level"]) in {("fail", "error"), ("open", "none")}
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "r%C3%A8gles%231/my%20policy.toml"
        assert result["message"]["text"] and set(result["partialFingerprints"]) == {"docleak/v1"}
    assert [r["locations"][0]["physicalLocation"]["region"]["startLine"] for r in run["results"]] == [2, 5]


def test_rules_of_one_bound_on_two_parts_are_two_rules() -> None:
    """SARIF showed a finding of the one with the words and the reason of the other."""
    rules = Policy(rule=tuple(Rule(measure=FIELDS, at_most=0.2, of=of, why=f"for {of}") for of in ("model", "other")))
    other = replace(fields(0.9, 0.8, 1.0), of="other")
    (run,) = json.loads(sarif(check(rules, [fields(0.9, 0.8, 1.0), other], NOTHING), Path("p.toml")))["runs"]
    described = run["tool"]["driver"]["rules"]
    for result, of in zip(run["results"], ("model", "other"), strict=True):
        assert f" of {of} at most 20.0%" in described[result["ruleIndex"]]["shortDescription"]["text"]
        assert result["message"]["text"].endswith(f"The rule is there for: for {of}")


def test_a_bound_is_printed_as_it_is() -> None:
    for bound, text in ((0.5, "50.0%"), (0.0125, "1.25%"), (0.0004, "0.04%"), (0.9996, "99.96%"), (0.07, "7.0%")):
        assert Rule(measure=FIELDS, at_most=bound).sentence == f"private fields read at most {text}"
    assert Rule(measure=SHOWN, at_most=8).sentence.endswith("at most 8.000")
    assert Rule(measure=CLAIMED, at_most=0.00025).sentence.endswith("at most 0.00025")
    assert Rule(measure="document-auc", at_most=0.6).sentence == "documents told (AUC) at most 0.600"


@pytest.mark.parametrize("of", ["", "model|", " "])
def test_a_name_of_nothing_is_refused(of: str) -> None:
    with pytest.raises(ValueError, match="a name of nothing"):
        Rule(measure="fields-read", at_most=1, of=of)


def valid(log: dict[str, Any]) -> None:
    """Against sections 3.13 to 3.58 of the standard, as far as docleak writes them."""
    jsonschema.validate(log, LOG, jsonschema.Draft7Validator, format_checker=jsonschema.FormatChecker())


def test_what_cannot_be_read_is_told_to_continuous_integration_too() -> None:
    root = ElementTree.fromstring(junit_unread("No policy.\x00", "run"))
    assert (root.get("tests"), root.get("errors"), root.get("failures")) == ("1", "1", "0")
    log = json.loads(sarif_unread("No policy."))
    valid(log)
    assert not log["runs"][0]["results"] and not log["runs"][0]["invocations"][0]["executionSuccessful"]
    with pytest.raises(jsonschema.ValidationError):
        valid({**log, "runs": [{**log["runs"][0], "results": [{"level": "fatal"}]}]})


def counted(values: list[float], names: str = "abcdefghij") -> Measure:
    by = {name: (value * 4, 4) for name, value in zip(names, values, strict=True)}
    return Measure(FIELDS, "model", share_of(by, np.random.default_rng(0)), by=by)


def test_paired_intervals_are_of_the_differences() -> None:
    hard = np.linspace(0, 0.9, 10)
    first, second = counted(list(hard)), counted(list(hard + 0.1))
    paired = difference(first, second, np.random.default_rng(0), same=True)
    apart = difference(first, second, np.random.default_rng(0), same=False)
    assert paired.paired and paired.estimate.value == pytest.approx(0.1)
    assert not paired.estimate.high or paired.estimate.high < 0.11, "the same change of every document"
    assert not apart.paired and apart.estimate.low is not None and apart.estimate.low < 0 < (apart.estimate.high or 0)
    noisy = counted([min(1.0, v + d) for v, d in zip(hard, [0.05, 0.15] * 5, strict=True)])
    one = difference(first, noisy, np.random.default_rng(0), same=True).estimate
    assert one.low is not None and one.high is not None and 0 < one.low < 0.1 < one.high < 0.2
    other = difference(first, counted(list(hard), "klmnopqrst"), np.random.default_rng(0), same=True)
    assert not other.paired


def test_equal_runs_differ_by_nothing_that_could_be_told() -> None:
    every, none = counted([1.0] * 10), counted([0.0] * 10)
    same = difference(every, every, np.random.default_rng(0), same=True).estimate
    assert same.value == 0 and same.low is not None and same.low < 0 < (same.high or 0)
    fall = difference(every, none, np.random.default_rng(0), same=True).estimate
    assert fall.value == -1 and fall.high is not None and -1 < fall.high < 0
    single = Measure(EXPLAINED, "model", Estimate.exactly(0.5))
    assert difference(single, single, np.random.default_rng(0), same=True).estimate.low is None
    alone = replace(single, estimate=Estimate(1.0, why="one document gives no interval"))
    nothing = replace(single, estimate=Estimate(None, why="no private field could be counted"))
    for pair in ((alone, nothing), (nothing, alone)):
        assert difference(*pair, np.random.default_rng(0), same=True).estimate.why == nothing.estimate.why


def test_of_few_documents_no_difference_is_told() -> None:
    """Of two documents "so the two differ" was said in one of four pairs of runs that differ by chance."""
    little, much = counted([0.1, 0.2] * 3, "abcdef"), counted([0.8, 0.9] * 3, "abcdef")
    assert difference(little, much, np.random.default_rng(0), same=True).differs is True
    for documents in (1, 2, 5):
        few = counted([0.8, 0.9, 0.8, 0.9, 0.8][:documents], "abcde"[:documents])
        for pair in ((little, few), (few, little), (counted([0.0] * documents, "abcde"[:documents]), few)):
            one = difference(*pair, np.random.default_rng(0), same=True)
            assert one.estimate.value and one.estimate.low is one.estimate.high is None and one.differs is False
            told = (
                "1 document, provider or client" if documents == 1 else f"{documents} documents, providers or clients"
            )
            assert one.estimate.why == f"no interval: {told}, and fewer than 6 decide nothing"


def test_clients_of_whom_nothing_was_counted_are_none_of_six() -> None:
    """Five clients with fields and three without any were eight, and "the two differ"."""
    few = [counted([0.1, 0.2, 0.1, 0.2, 0.1], "abcde"), counted([0.8, 0.9, 0.8, 0.9, 0.8], "abcde")]
    few = [replace(one, by={**one.by, **dict.fromkeys("fgh", (0.0, 0))}) for one in few]
    told = difference(*few, np.random.default_rng(0), same=True)
    assert told.paired and told.differs is False
    assert told.estimate.why == "no interval: 5 documents, providers or clients, and fewer than 6 decide nothing"


def test_a_side_that_is_all_or_nothing_has_its_own_risk() -> None:
    """Pages of which 95 % and 98 % are read whole: where the second came out all read, the interval ended at what the
    first had missed, and 8 to 13 of 100 left the truth out."""
    rng, lost, tries = np.random.default_rng(5), 0, 200
    for _ in range(tries):
        first, second = (counted((rng.random(10) < rate).astype(float).tolist()) for rate in (0.95, 0.98))
        ends = difference(first, second, rng, same=True).estimate
        assert ends.low is not None and ends.high is not None
        lost += not ends.low <= 0.03 <= ends.high
    assert lost / tries <= 0.05
    none, some = counted([0.0] * 10), counted([1.0] * 4 + [0.0] * 6)
    one = difference(none, some, np.random.default_rng(0), same=True)
    assert one.estimate.value == 0.4 and one.differs is False, "four of four that changed are no sure change"
    assert difference(none, counted([1.0] * 8 + [0.0] * 2), np.random.default_rng(0), same=True).differs


def test_unequal_documents_are_as_many_as_they_count() -> None:
    """Runs that differ by chance, of twenty documents of 1 to 200 fields: 7 % of their differences excluded 0."""
    rng, told, tries = np.random.default_rng(1), 0, 250

    def run() -> Measure:
        fields = np.exp(rng.uniform(0, np.log(200), 20)).astype(int).tolist()
        by = {str(name): (float(count * (rng.random() < 0.3)), count) for name, count in enumerate(fields)}
        return Measure(FIELDS, "model", share_of(by, rng), by=by)

    for _ in range(tries):
        told += difference(run(), run(), rng, same=False).differs is True
    assert told <= 0.05 * tries


def test_the_schema_is_published_and_holds() -> None:
    published = Path(__file__).parents[2] / "docs" / "results.schema.json"
    assert json.loads(published.read_text()) == json.loads(json.dumps(json_schema())), "write docleak schema there"
    least = {"format": "docleak-results-1", "redacted": False, "measures": [], "runs": [],
             "verdict": {"severity": "none", "label": "", "sentence": "", "parts": []}}  # fmt: skip
    assert json.loads(checked({**least, "mine": {"words": 3}}))["mine"] == {"words": 3}
    for wrong in ({"measures": [{"measure": "fields-read"}]}, {"verdict": {}}, {"format": "docleak-results-0"},
                  {"models": [{"model": "a"}]}, {"falls": 3}):  # fmt: skip
        with pytest.raises(RunError, match="docleak-results-1"):
            checked({**least, **wrong})


def test_what_has_no_interval_is_not_said_to_have_one() -> None:
    (one,) = check(Policy(rule=(Rule(measure=FIELDS, at_most=0.2),)), [fields(0.0)], NOTHING)
    assert one.outcome is Outcome.UNTOLD and "no interval" in one.why and "the interval reaches" not in one.why


def test_a_low_number_with_doubts_does_not_differ_for_sure() -> None:
    """Of an unfinished run, or one whose self-test failed, nothing read was told as a sure difference."""
    rng, much = np.random.default_rng, counted([1.0, 0.9] * 5)
    little = replace(counted([0.0, 0.1] * 5), doubts=("The self-test failed.",))
    assert difference(much, little, rng(0), same=True).differs is None
    assert difference(little, much, rng(0), same=True).differs is None, "whichever is first"
    assert difference(much, replace(little, doubts=()), rng(0), same=True).differs is True
    doubted = replace(much, doubts=("The run is not finished.",))
    assert difference(replace(little, doubts=()), doubted, rng(0), same=True).differs is True, "more takes nothing back"


def test_the_least_and_the_greatest_page_bound_no_difference() -> None:
    one = Measure(EXPLAINED, "model", Estimate(0.7, 0.1, 0.9, 2, 2), by={"a": (0.7, 1), "b": (0.7, 1)})
    told = difference(one, one, np.random.default_rng(0), same=True)
    assert not told.bounded and told.estimate.low is None and told.estimate.value == 0


def test_a_claim_beside_none_is_told_as_that() -> None:
    claim, none = (Measure(CLAIMED, "m", Estimate.exactly(e), unbounded=e is None) for e in (2.0, None))
    told = difference(none, claim, np.random.default_rng(0), same=True).estimate
    assert told.value is None and told.why == f"none claimed in the first, {claim.text} in the second"


@pytest.mark.parametrize("other", [(0.1, "provider"), (1e-5, "record"), (None, "provider"), (1.000001e-5, "provider")])
def test_epsilons_at_other_deltas_or_per_other_units_have_no_difference(other: tuple[float | None, str]) -> None:
    """The same noise has a lower epsilon at a larger delta, and per record one that says nothing of a provider's."""
    first, second = claimed("m", 2.0, 1e-5, "provider"), claimed("m", 1.5, *other)
    told = difference(first, second, np.random.default_rng(0), same=True).estimate
    assert told.value is None and "no difference of one epsilon" in told.why
    nameless = difference(replace(first, at=()), replace(second, at=()), np.random.default_rng(0), same=True)
    assert nameless.estimate.value is None, "nor have two of which nobody knows at which delta"
    unsaid = [claimed("m", epsilon, None, "") for epsilon in (2.0, 1.5)]
    assert difference(*unsaid, np.random.default_rng(0), same=True).estimate.value is None
    alike = replace(claimed("m", 1.5, 1e-5, "provider"), printed="1.5, said in other words")
    assert difference(first, alike, np.random.default_rng(0), same=True).estimate.value == -0.5


def test_an_epsilon_of_which_nothing_is_shown_is_compared_by_what_it_is_of() -> None:
    """Nothing shown has no words, but a delta and a unit all the same."""
    at = (1e-5, "provider", 0.95)
    none, some = (Measure(SHOWN, "m", Estimate.exactly(of), at=at) for of in (0.0, 1.5))
    assert difference(none, some, np.random.default_rng(0), same=True).estimate.value == 1.5
    less_sure = replace(some, at=(1e-5, "provider", 0.9))
    assert difference(none, less_sure, np.random.default_rng(0), same=True).estimate.value is None


def test_a_memory_beyond_others_and_one_beyond_the_public_model_alone_are_two_numbers() -> None:
    rows = {f"p{i}": (float(i % 2), 1) for i in range(12)}
    beyond, itself = (Measure(MEMORY, "m", Estimate(0.5, 0.2, 0.8), by=rows, less=less) for less in (rows, {}))
    told = difference(beyond, itself, np.random.default_rng(0), same=True).estimate
    assert told.value is None and "beyond others' in one, beyond the public model's" in told.why


def test_the_table_of_measures_says_of_how_many() -> None:
    table = measures_table([fields(0.3, 0.1, 0.5), Measure(CLAIMED, "model", Estimate(None), unbounded=True)])
    assert table.cells(table.rows[0]) == ["30.0% [10.0%, 50.0%] (n = 10)", "none claimed"]


def test_settings_in_a_list_are_no_python() -> None:
    rows = _settings({"attacks": [{"kind": "azk", "own_votes": False, "groups": ["G1", "G2"]}, {"kind": "apk"}]})
    assert rows == [("attacks", "kind azk, own votes no, groups G1, G2; kind apk")]
    rows = _settings({"sizes": [[1, 2], [3]], "attacks": [{"kind": "azk", "guess": {}, "seeds": []}]})
    assert rows == [("sizes", "1, 2; 3"), ("attacks", "kind azk, guess none, seeds none")]
