"""Defences side by side: who dominates whom, and the page that says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from docleak.errors import AttackError
from docleak.evidence.audit import AuditConfig, run_audit
from docleak.evidence.report import write_report
from docleak.evidence.utility import Utility, sent_bytes, utility_under
from docleak.metrics import Estimate
from docleak.models import load_model
from docleak.recipes import comparison
from docleak.recipes.audits import experiments
from docleak.recipes.comparison import Choice, chart, choices_of, recipe_of, write_comparison
from docleak.recipes.runner import reproduce
from docleak.recipes.table import Line
from docleak.runs.run import DEFENCES, Run


def choice(name: str, leakage: float | None, anls: float | None, kept: float | None = None) -> Choice:
    estimates = {"fuzz_ratio": Estimate(leakage, None, None, 4, 1)}
    result: Any = None if leakage is None else SimpleNamespace(estimates=estimates)
    utility = None if anls is None else Utility(anls, 1.0, 10, 0.1, 1000)
    nothing = SimpleNamespace(findings=SimpleNamespace(share=SimpleNamespace(value=None), routes=()))
    context: Any = None if leakage is None else nothing
    return Choice(name, name, Line(name, "model", result, context, {}, {}, 1), utility, update_kept=kept)


@pytest.mark.parametrize(
    ("found", "dominated"),
    [
        ([choice("none", 1.0, 0.9), choice("good", 0.1, 0.9)], ["good", ""]),
        ([choice("none", 1.0, 0.9), choice("dear", 0.1, 0.5)], ["", ""]),
        ([choice("none", 0.5, 0.9), choice("useless", 0.5, 0.9)], ["", ""]),
        ([choice("none", 1.0, 0.9), choice("unmeasured", 0.1, None), choice("failed", None, 0.9)], ["", "", ""]),
        ([choice("none", 1.0, None, 1.0), choice("free", 0.1, None, 0.9999)], ["free", ""]),
        ([choice("none", 1.0, None, 1.0), choice("dear", 0.1, None, 0.4)], ["", ""]),
    ],
)
def test_a_choice_is_dominated_by_one_that_leaks_less_and_answers_as_well(
    found: list[Choice], dominated: list[str]
) -> None:
    assert [comparison._dominating(c, found) for c in found] == dominated


def test_the_chart_shows_every_measured_choice_and_no_date() -> None:
    found = [choice("none", 1.0, 0.9), choice("good", 0.1, 0.9), choice("unmeasured", 0.5, None)]
    assert chart(found).startswith("<svg") and chart(found).count("PathCollection") == 2
    assert chart([choice("none", 1.0, None)]) == ""
    assert chart(found) == chart(found)


def test_bytes_of_an_update() -> None:
    whole = sent_bytes("none", "layoutlmv3-start")
    assert whole == sent_bytes("noise:sigma=1", "layoutlmv3-start")
    assert sent_bytes("top-k:share=0.01", "layoutlmv3-start") == pytest.approx(0.02 * whole, rel=0.1)
    assert sent_bytes("freeze", "layoutlmv3-start") < 0.8 * whole


def test_utility_is_reproducible_and_noise_costs_some() -> None:
    plain = utility_under("none", "layoutlmv3-start", steps=4, seed=0, test_pages=1)
    again = utility_under("none", "layoutlmv3-start", steps=4, seed=0, test_pages=1)
    noisy = utility_under("noise:sigma=10", "layoutlmv3-start", steps=4, seed=0, test_pages=1)
    assert plain.loss == again.loss and plain.anls == again.anls
    assert noisy.loss > plain.loss


def test_a_comparison_end_to_end(tmp_path: Path) -> None:
    config = AuditConfig(models=("layoutlmv3-start",), attacks=("random",), budget=1)
    recipe = recipe_of(["safe-template:steps=1", "clip"], config)
    planned = experiments(recipe, "tiny", tmp_path, {})
    assert [e.config.exposure.defense for e in planned] == ["none", "safe-template:steps=1", "clip"]
    reproduce(recipe, planned, tmp_path, scale="tiny", device="cpu", workers=1)
    ssim = comparison.write_templates(planned[1], tmp_path, "cpu")
    assert 0.2 < ssim < 1 and len(list((tmp_path / "templates").glob("*.png"))) == 2
    kept = {e.config.exposure.defense: comparison.update_kept(e, "cpu") for e in planned}
    assert all(value == pytest.approx(1) for value in kept.values())  # clipping changes the length only
    found = choices_of(planned, {}, {"safe-template:steps=1": ssim}, kept)
    assert [c.words for c in found] == [1.0] * 3 and [c.leakage for c in found] == [1.0] * 3
    page = write_comparison(found, tmp_path, {"Command": "test"})
    text = page.read_text()
    assert "not measured" in text and "clean on the left" in text and f"{ssim:.3f}" in text


def test_little_of_a_sparse_or_noisy_update_arrives(tmp_path: Path) -> None:
    config = AuditConfig(models=("layoutlmv3-start",), attacks=("random",), budget=1)
    planned = experiments(recipe_of(["top-k:share=0.01", "noise:sigma=1", "freeze"], config), "tiny", tmp_path, {})
    none, sparse, noisy, frozen = (comparison.update_kept(e, "cpu") for e in planned)
    assert none == pytest.approx(1) and 0.1 < sparse < 0.8 and abs(noisy) < 0.1 and 0.2 < frozen < 0.95


def test_a_model_that_has_only_units_of_the_floor_is_compared_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = AuditConfig(models=("donut-start",), attacks=("closed-form",), budget=9)
    found = SimpleNamespace(model="donut-start", attacks=[SimpleNamespace(attack="random")],
                            findings=SimpleNamespace(share=SimpleNamespace(value=0.5)),
                            best=SimpleNamespace(seconds=SimpleNamespace(mean=1.0)))  # fmt: skip
    monkeypatch.setattr(comparison, "prepare", lambda runs, rng: SimpleNamespace(models=[found]))
    assert comparison.most_exposed(config, Run(tmp_path)).attacks == ("random",)


def test_an_attack_that_cannot_be_made_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = AuditConfig(models=("donut-start",), attacks=("closed-form",), budget=9)
    with pytest.raises(AttackError, match="none of the attacks applies: closed-form needs"):
        comparison.compare(["clip"], config, tmp_path / "out", device="cpu", workers=1, command="")
    assert not (tmp_path / "out").exists()


def test_leave_to_read_pickles_reaches_every_defence(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    config = AuditConfig(("layoutlmv3-start",), f"pfl-docvqa:{folder}", attacks=("random",), allow_pickle=True)
    (none, clip) = experiments(recipe_of(["clip"], config), "tiny", tmp_path, {})
    assert none.config.allow_pickle and clip.config.allow_pickle
    asked: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "pages_for", lambda *args, allow_pickle, **kwargs: asked.append(allow_pickle) or [])
        comparison._pages_of(none.config, load_model("layoutlmv3-start"))
    assert asked == [True]


def test_an_audit_ends_with_the_most_exposed_model(tmp_path: Path) -> None:
    config = AuditConfig(models=("layoutlmv3-start",), attacks=("random",), budget=9, pages=2)
    run = run_audit(config, tmp_path / "run", device="cpu", workers=1, on_progress=lambda *event: None)
    chosen = comparison.most_exposed(config, run)
    assert (chosen.models, chosen.attacks, chosen.pages, chosen.budget) == (config.models, ("random",), 1, 4)
    page, choices = comparison.compare(
        ["clip"], chosen, run.path / DEFENCES, device="cpu", workers=1, command="docleak audit"
    )
    assert page.is_file() and len(choices) == 2
    text = write_report(run, rng=np.random.default_rng(0)).read_text()
    assert "None of the 1 defences measured here would have stopped it." in text
    assert "has not measured a defence" not in text
