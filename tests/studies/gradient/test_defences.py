"""Defences side by side: who dominates whom, what each costs, and the page that says so."""

from __future__ import annotations

from dataclasses import asdict, replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from docleak.errors import AttackError, RunError
from docleak.metrics import Estimate
from docleak.report.page import joined
from docleak.report.severity import Severity
from docleak.runs.run import Run
from docleak.studies.engine import carry_out
from docleak.studies.gradient import choices, defences, utility
from docleak.studies.gradient.choices import Choice, chart, choices_of
from docleak.studies.gradient.config import DefenceConfig, Exposure, GradientConfig, threat_model
from docleak.studies.gradient.defences import DefenceStudy, most_exposed
from docleak.studies.gradient.reading import DEFENCES
from docleak.studies.gradient.study import GradientStudy
from docleak.studies.gradient.utility import Utility, sent_bytes, utility_under
from docleak.studies.registry import report_on

NAMES = {"none": "none", "good": "clip:norm=1", "dear": "clip:norm=2", "useless": "clip:norm=3",
         "unmeasured": "clip:norm=4", "failed": "clip:norm=5", "free": "clip:norm=6"}  # fmt: skip
AUDIT = GradientConfig(models=("layoutlmv3-start",), attacks=("random",), budget=1)


def choice(
    name: str, leakage: float | None, anls: float | None, kept: float | None = None, *, loss: float = 1.0,
    wide: float | None = 0.1,
) -> Choice:  # fmt: skip
    """Measured so, the leakage within ``wide`` of its value; without an interval for None."""
    findings = SimpleNamespace(share=Estimate(None), routes=(), fields=())
    ends = () if leakage is None or wide is None else (leakage - wide, leakage + wide)
    best = SimpleNamespace(estimates={"fuzz_ratio": Estimate(leakage, *ends)})
    context: Any = None if leakage is None else SimpleNamespace(
        findings=findings, best=best, severity=Severity.PARTIAL if leakage else Severity.NONE
    )  # fmt: skip
    utility = None if anls is None else asdict(Utility(Estimate(anls), loss, 10, 0.1, 1000))
    return Choice(NAMES[name], context, {"kept": kept, "utility": utility}, {})


@pytest.mark.parametrize(
    ("found", "dominated"),
    [
        ([choice("none", 1.0, 0.9), choice("good", 0.1, 0.9)], ["good", ""]),
        ([choice("none", 1.0, 0.9), choice("dear", 0.1, 0.5)], ["", ""]),
        ([choice("none", 0.5, 0.9), choice("useless", 0.5, 0.9)], ["", ""]),
        ([choice("none", 1.0, 0.9), choice("unmeasured", 0.1, None), choice("failed", None, 0.9)], ["", "", ""]),
        ([choice("none", 1.0, None, 1.0), choice("free", 0.1, None, 0.9999)], ["free", ""]),
        ([choice("none", 1.0, None, 1.0), choice("dear", 0.1, None, 0.4)], ["", ""]),
        ([choice("none", 1.0, 0.03), choice("dear", 0.1, 0.03, loss=1.2)], ["", ""]),  # neither has learned to answer
        ([choice("none", 0.83, 0.9), choice("useless", 0.81, 0.9)], ["", ""]),  # chance may make it so
        ([choice("none", 1.0, 0.9, wide=None), choice("good", 0.1, 0.9, wide=None)], ["", ""]),  # one page
    ],
)
def test_a_choice_is_dominated_by_one_that_leaks_less_and_answers_as_well(
    found: list[Choice], dominated: list[str]
) -> None:
    names = {Choice(spec, None, {}, {}).summary: name for name, spec in NAMES.items()} | {"": ""}
    assert [names[choices._dominating(c, found)] for c in found] == dominated


def test_what_no_training_taught_costs_no_answers() -> None:
    """Where the model without a defence answers nothing right, equal answers do not say that a defence is free."""
    context: Any = SimpleNamespace(
        findings=SimpleNamespace(share=Estimate(None), judgement=SimpleNamespace(of=0, read=1), routes=(), fields=()),
        best=SimpleNamespace(estimates={"fuzz_ratio": Estimate(0.5)}), severity=Severity.PARTIAL,
    )  # fmt: skip
    for anls, told in ((0.03, True), (0.5, False)):
        pair = [replace(choice(name, 0.5, anls), context=context) for name in ("none", "good")]
        assert any("cannot be seen: compare the losses" in line for line in choices.said_of(pair)) == told


def test_the_chart_shows_every_measured_choice_and_no_date() -> None:
    compared = [choice("none", 1.0, 0.9), choice("good", 0.1, 0.9), choice("unmeasured", 0.5, None)]
    assert chart(compared).startswith("<svg") and chart(compared).count("PathCollection") == 2
    assert chart([choice("none", 1.0, None)]) == ""
    assert chart(compared) == chart(compared)


def test_bytes_of_an_update() -> None:
    whole = sent_bytes("none", "layoutlmv3-start")
    assert whole == sent_bytes("noise:sigma=1", "layoutlmv3-start")
    assert sent_bytes("top-k:share=0.01", "layoutlmv3-start") == pytest.approx(0.02 * whole, rel=0.1)
    assert sent_bytes("freeze", "layoutlmv3-start") < 0.8 * whole


def test_utility_is_reproducible_and_noise_costs_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utility, "TEST_PAGES", 2)
    plain = utility_under("none", "layoutlmv3-start", steps=2, seed=0)
    low, high = plain.anls.low, plain.anls.high
    assert plain.anls.value is not None and low is not None and high is not None
    assert low <= plain.anls.value <= high
    again = utility_under("none", "layoutlmv3-start", steps=2, seed=0)
    noisy = utility_under("noise:sigma=10", "layoutlmv3-start", steps=2, seed=0)
    assert plain.loss == again.loss and plain.anls == again.anls
    assert noisy.loss > plain.loss


def test_a_comparison_end_to_end(tmp_path: Path) -> None:
    config = DefenceConfig(AUDIT, ("safe-template:steps=1", "clip", "clip"), 0)
    assert config.defenses == ("none", "safe-template:steps=1", "clip")
    run = carry_out(DefenceStudy(config), tmp_path)
    compared = choices_of(run, np.random.default_rng(0))
    ssim = compared[1].cost["ssim"]
    assert 0.2 < ssim < 1 and len(list(run.folder("01--cost").glob("*.png"))) == 2
    assert [c.cost["kept"] for c in compared] == pytest.approx([1] * 3)  # clipping changes the length only
    assert [c.words for c in compared] == [1.0] * 3 and [c.leakage for c in compared] == [1.0] * 3
    page, (reading,) = report_on([tmp_path])
    text = page.read_text()
    assert "not measured" in text and "clean on the left" in text and f"{ssim:.3f}" in text
    assert "None of the 2 defences measured here would have stopped it." in reading.lines
    assert joined([reading]).severity == "severe", "what is said first is how bad it is without a defence"
    assert [row["spec"] for row in reading.results["defences"]] == list(config.defenses)


def test_only_the_text_was_attacked_and_the_page_says_what_it_told(tmp_path: Path) -> None:
    run = carry_out(DefenceStudy(DefenceConfig(AUDIT, ("noise:sigma=0.01",), 0)), tmp_path)
    page, (reading,) = report_on([run.path])
    assert "whether it helps: Gaussian noise of 0.01" in reading.lines[1]
    assert "1 page, 1 gradient evaluation each" in page.read_text()
    exposed = reading.results["exposure"]
    assert exposed in reading.lines and exposed in unescape(page.read_text())
    assert "the client's question; the answer" in exposed and "computed on one example, with dropout off" in exposed
    assert "why: no attack on the picture was made, only the floor" in reading.lines[1]
    for text in (page.read_text(), *reading.lines):
        assert "check failed" not in text and "have stopped it." not in text


def test_what_the_adversary_sees_and_knows_is_said_as_it_was_asked_for() -> None:
    audit = replace(AUDIT, batch_size=3, rounds=2, exposure=Exposure(train_mode=True, question_known=False))
    said = defences._exposed(SimpleNamespace(info={"threat_model": threat_model(audit)}))  # type: ignore[arg-type]
    for told in ("a batch of 3 pages, averaged", "in 2 rounds", "dropout on", "no question: random", "it imitates"):
        assert told in said


def test_a_training_under_a_defence_says_on_what_and_how_many_it_was_measured() -> None:
    said = choices._cost(choice("good", 0.1, 0.9))
    assert said == "right answers after 10 training steps on synthetic invoices, ANLS 0.900 on 20 unseen ones"
    cost = asdict(Utility(Estimate(0.9, 0.8, 0.95), 1.0, 10, 0.1, 1000))
    sure = replace(choice("good", 0.1, 0.9), cost={"utility": cost})
    assert "ANLS 0.900 [0.800, 0.950] on 20 unseen ones" in choices._cost(sure)
    other = replace(sure, cost={"utility": cost | {"anls": 0.9}})
    with pytest.raises(
        RunError, match=r"what 'clip:norm=1' costs cannot be used: anls is 0\.9, .*docleak defend again"
    ):
        other.utility  # noqa: B018
    assert "synthetic invoices, whatever was attacked" in choices.MEANING and "20 unseen ones" in choices.MEANING


def test_a_comparison_that_is_not_finished_says_so_and_names_the_categories(tmp_path: Path) -> None:
    run = carry_out(DefenceStudy(DefenceConfig(AUDIT, ("clip",), 0)), tmp_path)
    (reading,) = report_on([run.path])[1]
    assert reading.notices == ()
    run.write_info("questions_made", "1 of 1 pages has no question.")
    assert report_on([run.path])[1][0].notices == ("1 of 1 pages has no question.",)
    assert reading.scope is not None and "invoice_number" in reading.scope.categories
    assert "not finished" not in joined([reading]).sentence
    attack, cost = (next(r["unit"] for r in run.units() if r["unit"].startswith("01") and ("cost" in r) is kind)
                    for kind in (False, True))  # fmt: skip
    (run.folder(attack) / "unit.json").unlink()
    page, (reading,) = report_on([run.path])
    assert "The run is not finished: 1 of 2 attacks on a page, 2 of 2 costs." in joined([reading]).sentence
    assert "no other defence was measured yet" in page.read_text()
    (run.folder(cost) / "unit.json").unlink()
    assert "1 of 2 attacks on a page, 1 of 2 costs." in joined(report_on([run.path])[1]).sentence


def test_little_of_a_sparse_or_noisy_update_arrives() -> None:
    study = DefenceStudy(DefenceConfig(AUDIT, ("top-k:share=0.01", "noise:sigma=1", "freeze"), 0))
    none, sparse, noisy, frozen = (study._cost(spec)[0]["kept"] for spec in study.config.defenses)
    assert none == pytest.approx(1) and 0.1 < sparse < 0.8 and abs(noisy) < 0.1 and 0.2 < frozen < 0.95


def test_a_template_defence_leaves_training_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utility, "TEST_PAGES", 1)
    run = carry_out(DefenceStudy(DefenceConfig(AUDIT, ("safe-template:steps=1",), utility_steps=2)), tmp_path)
    none, template = choices_of(run, np.random.default_rng(0))
    assert none.utility is not None and template.utility is not None
    assert replace(template.utility, bytes_per_round=0) == replace(none.utility, bytes_per_round=0)


def found(model: str, seconds: float, rank: float = 0.0) -> SimpleNamespace:
    share, took = (SimpleNamespace(value=value) for value in (0.5, seconds))
    return SimpleNamespace(model=model, attacks=[SimpleNamespace(attack="random")],
                           findings=SimpleNamespace(share=share),
                           best=SimpleNamespace(seconds=took, rank=lambda: (rank,)))  # fmt: skip


def test_a_model_that_has_only_units_of_the_floor_is_compared_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = GradientConfig(models=("donut-start",), attacks=("closed-form",), budget=9)
    models = [found("donut-start", 1.0)]
    monkeypatch.setattr(defences, "prepare", lambda runs, rng: SimpleNamespace(models=models))
    assert most_exposed(config, Run(tmp_path)).audit.attacks == ("random",)


def test_which_model_is_compared_does_not_hang_on_how_busy_the_machine_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = GradientConfig(models=("donut-start", "donut-trained"), attacks=("random",), budget=9)
    for seconds in ((1.0, 2.0), (2.0, 1.0)):
        models = [found(name, took) for name, took in zip(config.models, seconds, strict=True)]
        monkeypatch.setattr(defences, "prepare", lambda runs, rng, known=models: SimpleNamespace(models=known))
        assert most_exposed(config, Run(tmp_path)).audit.models == ("donut-start",)
    models = [found("donut-start", 1.0, rank=0.0), found("donut-trained", 1.0, rank=-1.0)]
    monkeypatch.setattr(defences, "prepare", lambda runs, rng: SimpleNamespace(models=models))
    assert most_exposed(config, Run(tmp_path)).audit.models == ("donut-trained",)


def test_an_attack_that_cannot_be_made_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = GradientConfig(models=("donut-start",), attacks=("closed-form",), budget=9)
    with pytest.raises(AttackError, match="none of the attacks applies: closed-form needs"):
        carry_out(DefenceStudy(DefenceConfig(config, ("clip",), 0)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(AttackError, match="on one model by one attack; found 4 and 6"):
        DefenceConfig(GradientConfig())


def test_a_defence_under_which_the_attack_does_not_apply_is_told_and_no_safe_one(tmp_path: Path) -> None:
    config = GradientConfig(models=("layoutlmv3-start",), attacks=("closed-form",), budget=2)
    run = carry_out(DefenceStudy(DefenceConfig(config, ("freeze", "clip"), 0)), tmp_path)
    page, (reading,) = report_on([run.path])
    none, frozen, clipped = reading.results["defences"]
    assert frozen["leakage"] is None and frozen["severity"] is None and frozen["kept"] < 1
    assert "the gradient lacks layoutlmv3.pos_embed" in frozen["inapplicable"] and "inapplicable" not in none
    assert none["read"] == clipped["read"] == none["of"] and not clipped["dominated"]
    told = "Not tried, since the attack does not apply under it, so nothing is known of it: vision and text parameters"
    assert any(line.startswith(told) for line in reading.lines) and told in page.read_text()
    assert "not tried, since it does not apply here: closed-form: the gradient lacks" in page.read_text()
    assert "The defence measured here would not have stopped it." in reading.lines
    assert reading.scope is not None and not reading.scope.unfinished


def test_leave_to_fail_the_self_test_reaches_every_defence_and_is_no_part_of_the_run() -> None:
    study = DefenceStudy(DefenceConfig(replace(AUDIT, allow_failed_self_test=True), ("clip",), 0))
    assert all(audit.config.allow_failed_self_test for audit in study.studies.values())
    assert "allow_failed_self_test" not in study.settings()["audit"]


def test_an_audit_ends_with_the_most_exposed_model(tmp_path: Path) -> None:
    config = replace(AUDIT, budget=9, pages=2)
    run = carry_out(GradientStudy(config), tmp_path / "run")
    chosen = most_exposed(config, run).audit
    assert (chosen.models, chosen.attacks, chosen.pages, chosen.budget) == (config.models, ("random",), 1, 4)
    assert "No defence was measured" in report_on([run.path])[0].read_text()
    carry_out(DefenceStudy(DefenceConfig(chosen, ("clip",), 0)), run.path / DEFENCES)
    text = report_on([run.path])[0].read_text()
    assert "The defence measured here would not have stopped it." in text
    assert "No defence was measured" not in text and text.count('id="advice"') == 1
