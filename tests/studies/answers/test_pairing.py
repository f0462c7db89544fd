"""Statements about two released models are decided over the same providers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from docleak.errors import RecipeError
from docleak.metrics.memorisation import Outcome
from docleak.recipes import Recipe, Row
from docleak.recipes.rows import rows_of
from docleak.recipes.statements import CONFIRMED, OPEN, Decision, Statement, decide
from docleak.studies.answers.red import by_provider_means, together
from docleak.studies.answers.study import AnswersStudy
from docleak.studies.engine import begin
from docleak.studies.study import BY_PROVIDER

ROWS = (Row("VT5_0", ("vt5",), {}), Row("VT5_C", ("vt5",), {"target": "central"}))
ABOVE = Statement("training helps", "anls", "VT5_C", "above", "VT5_0")


def decided(out: Path, values: dict[str, dict[str, float]], *, apart: bool = True) -> Decision:
    """What is said of two rows, of which each came to these values on its providers."""
    fixed = {"measure": "utility"}
    recipe = Recipe("t", "A test", "", "", ROWS, fixed, {"tiny": {"models": {"vt5": "vt5-start"}}}, kind="answers")
    planned = rows_of(recipe, AnswersStudy, "tiny", out, {})
    for row in planned:
        outcomes = [Outcome(name, False, 0.0, value) for name, value in values[row.name].items()]
        accuracy, anls = together(outcomes, np.random.default_rng(0))
        numbers = {"": {"anls": anls.to_json(), "accuracy": accuracy.to_json()}}
        measured = {"numbers": numbers, "remarks": {}, **({BY_PROVIDER: by_provider_means(outcomes)} if apart else {})}
        begin(row.study, row.run.path).write_unit(row.study.units()[0].id, {"utility": measured}, {})
    (decision,) = decide([ABOVE], planned, "tiny")
    return decision


def providers(count: int) -> np.ndarray:
    """What the public model comes to on so many providers, who differ more from one another than trainings do."""
    return np.random.default_rng(5).uniform(0.1, 0.8, count)


def test_a_shift_is_seen_over_the_same_providers_and_hidden_by_how_much_they_differ(tmp_path: Path) -> None:
    before = providers(150)
    after = np.clip(before + np.random.default_rng(6).normal(0.06, 0.1, 150), 0, 1)
    said = {"VT5_0": named(before), "VT5_C": named(after)}
    paired = decided(tmp_path / "paired", said)
    assert paired.verdict == CONFIRMED and paired.quantity.groups == 150
    assert paired.how == "mean difference over the same providers"
    loose = decided(tmp_path / "loose", said, apart=False)
    assert loose.verdict == OPEN and loose.how == "the table's two intervals, not paired"


@pytest.mark.parametrize("seed", range(4))
def test_an_equal_pair_stays_open(tmp_path: Path, seed: int) -> None:
    """Whatever the order in which its providers come: sorted ones have once left their own mean out."""
    before = np.sort(providers(150))
    after = np.clip(before + np.random.default_rng(seed).permutation(np.linspace(-0.1, 0.1, 150)), 0, 1)
    said = decided(tmp_path, {"VT5_0": named(before), "VT5_C": named(after)})
    assert said.verdict == OPEN and said.quantity.low is not None and said.quantity.high is not None
    assert said.quantity.low < 0 < said.quantity.high and abs(said.quantity.value or 0.0) < 0.01


def test_providers_that_only_one_row_asked_about_do_not_count(tmp_path: Path) -> None:
    before = named(providers(40))
    after = {name: min(1.0, value + 0.2) for name, value in before.items()}
    said = decided(tmp_path, {"VT5_0": before, "VT5_C": {**dict(list(after.items())[:30]), "another": 0.0}})
    assert said.quantity.groups == 30 and said.quantity.value == pytest.approx(0.2, abs=0.03)


def test_a_provider_counts_by_its_questions() -> None:
    outcomes = [Outcome("a", True, 1.0, 1.0), Outcome("a", True, 0.0, 0.5), Outcome("b", False, 0.0, 0.0)]
    assert by_provider_means(outcomes) == {"anls": {"a": 0.75, "b": 0.0}, "accuracy": {"a": 0.5, "b": 0.0}}


def test_issuers_say_how_many_documents_are_made(tmp_path: Path) -> None:
    def division(documents: str, changes: dict[str, object]) -> object:
        row = {"preset": "crowd", "data": {"documents": documents}}
        return AnswersStudy.of_row("vt5-start", row, changes, device="cpu").config.division

    many = division("issuers", {"issuers": 2000, "per_issuer": 4.0})
    assert (many.providers, many.per_provider) == (2000, 4.0) and division("issuers", {}).providers == 800
    with pytest.raises(RecipeError, match="--issuers and --per-issuer say how many synthetic documents are made"):
        division("vrdu:PATH", {"issuers": 2000})


def named(values: np.ndarray) -> dict[str, float]:
    return {f"provider {number:03d}": float(value) for number, value in enumerate(values)}
