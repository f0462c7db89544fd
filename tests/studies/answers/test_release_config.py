"""Rows of release recipes: every shipped one is a config, prints what the paper prints, and wrong ones are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from docleak.documents.blue_red_files import open_issuers
from docleak.errors import AttackError, RecipeError
from docleak.recipes import find_recipe, list_recipes
from docleak.recipes.recipe import Recipe, Row
from docleak.recipes.rows import rows_of
from docleak.studies.answers.config import AnswersConfig
from docleak.studies.answers.rows import COLUMNS, columns_of
from docleak.studies.answers.study import AnswersStudy
from docleak.studies.answers.targets import PRESETS, Target

PAPER = Path(__file__).parents[4] / "shared" / "papers" / "004_8e280e0c91edca03.txt"
RELEASES = [name for name, recipe in list_recipes().items() if recipe.kind == "answers"]
REAL = [f"pfl-docvqa/vrdu-{measure}" for measure in ("gap", "memorisation", "membership")]
MEMORY = "pfl-docvqa/memory"
OURS = [name for name in RELEASES if name not in (*REAL, MEMORY)]
GIVEN: dict[str, Any] = {"models": {"vt5": "vt5-start"}, "documents": ("pfl-docvqa:somewhere",)}


def config_of(recipe: Recipe, row: Row, model: str, scale: str, changes: dict[str, Any]) -> AnswersConfig:
    source, settings = recipe.settings(row, model, scale, {k: v for k, v in changes.items() if k in ("models", "seed")})
    return AnswersStudy.of_row(source, settings, changes, device="cpu").config


def target_in(config: AnswersConfig) -> Target:
    target = config.releases[0].target
    assert target is not None
    return target


def test_the_papers_tables_and_figures_are_all_there() -> None:
    wanted = {f"pfl-docvqa/table{n}" for n in range(1, 13)} | {f"pfl-docvqa/figure{n}" for n in (2, 6, 9, 12, 13)}
    assert wanted | {"pfl-docvqa/sectionD14", MEMORY, *REAL} == set(RELEASES)


def test_what_ocr_missed_is_said_of_documents_that_are_made_alone() -> None:
    recipe = find_recipe(MEMORY)
    shares = [target_in(config_of(recipe, row, "vt5", "tiny", {})).data.missed for row in recipe.rows]
    assert shares == [0.3, 0.0, 0.1, 0.3, 0.3]
    said = target_in(config_of(recipe, recipe.rows[2], "vt5-11m", "base", {})).data.sentence()
    assert (
        said == "synthetic invoices of 80 providers, 6 documents each on average, OCR missing 10% of what they say of "
        "their issuers"
    )
    with pytest.raises(
        RecipeError, match=r"data\.missed is of synthetic documents; the row reads vrdu:X\. Leave one of"
    ):
        config_of(recipe, recipe.rows[2], "vt5", "tiny", {"documents": ("vrdu:X",)})


@pytest.mark.parametrize("name", REAL)
def test_recipes_of_real_pages_ask_for_them(name: str, tmp_path: Path) -> None:
    recipe = find_recipe(name)
    with pytest.raises(RecipeError, match=r"needs --documents vrdu:DIR; docs/release.md"):
        rows_of(recipe, recipe.study, "tiny", tmp_path, {})
    for row in recipe.rows:
        data = target_in(config_of(recipe, row, "vt5", "tiny", {"documents": ("vrdu:X",)})).data
        assert (data.documents, data.plan.clients, data.official) == ("vrdu:X", 3, False)


@pytest.mark.parametrize("name", OURS)
def test_every_row_is_a_config_at_both_scales_with_a_column_for_what_is_printed(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.title and recipe.finding and recipe.paper
    for row in recipe.rows:
        tiny, paper = config_of(recipe, row, "vt5", "tiny", {}), config_of(recipe, row, "vt5", "paper", GIVEN)
        one, other = target_in(tiny), target_in(paper)
        assert (one.kind, one.epsilon, tiny.measures) == (other.kind, other.epsilon, paper.measures)
        assert set(row.printed.get("vt5", {})) <= set(columns_of(tiny)) <= set(COLUMNS)
        assert other.data.official and other.data.documents == "pfl-docvqa:somewhere"
        assert paper.attacks[0].searched == (5 if paper.attacks[0].kind == "apk" else 0)
        if tiny.measures != ("noise",):
            assert one.data.documents == "issuers"


@pytest.mark.parametrize("name", OURS)
def test_printed_values_are_in_the_paper(name: str) -> None:
    if not PAPER.is_file():
        pytest.skip(f"the paper is not at {PAPER}")
    text = re.sub(r"\s+", "", PAPER.read_text())
    for row in find_recipe(name).rows:
        for metric, value in row.printed.get("vt5", {}).items():
            if metric in ("noise_prv", "gigabytes", "providers", "documents", "pages", "questions") or "_n" in metric:
                shown = [f"{value:.10g}", f"{value:g}"]
            else:
                shown = [f"{100 * value:.2f}", f"{100 * value:.1f}", f"{100 * value:g}"]
            assert any(one in text for one in shown), (row.name, metric, value)


def test_the_papers_settings_are_those_of_table_12() -> None:
    preset = PRESETS["paper"]
    central, federated = (preset.training(kind, 8.0) for kind in ("central", "federated"))
    assert (central.rounds, central.batch_size, central.learning_rate, central.clip_norm) == (10, 8, 2e-4, 5.0)
    assert central.denominator == 1000 and central.unit_rate == pytest.approx(0.241, abs=1e-3)
    assert preset.training("central", 1.0).clip_norm == 1.0 and central.delta == federated.delta == 1e-5
    assert (federated.participation, federated.unit_rate) == (0.2, 1.0)
    assert not (central.repeatable or federated.repeatable), "real providers get noise nobody can repeat"
    plain = preset.training("central", 0.0)
    assert (plain.rounds, plain.epochs, plain.batch_size, plain.learning_rate) == (1, 10, 10, 2e-4)
    federation = plain.federation("vt5-start", 0.0, 0)
    assert (federation.rounds, federation.local.epochs) == (1, 10), "one training, whose optimiser begins once"
    assert "one training of 10 epochs" in plain.sentence(False)


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if not preset.data.official])
def test_a_presets_documents_can_be_divided_and_every_part_has_some(name: str) -> None:
    data = PRESETS[name].data
    shares = open_issuers(data.providers, data.per_provider, data.plan, seed=data.seed).shares
    silos = [share for share in shares if share.name.startswith("silos/")]
    assert len(silos) == data.plan.clients and all(share.pages for share in shares)
    assert {"test", "validation", "red-positive", "red-negative"} <= {share.name for share in shares}


def test_the_printed_noise_is_trained_with_under_a_name_without_an_epsilon() -> None:
    recipe = find_recipe("pfl-docvqa/table3")
    row = next(row for row in recipe.rows if "no bound" in row.name)
    for scale, given in (("tiny", {}), ("paper", GIVEN)):
        target = target_in(config_of(recipe, row, "vt5", scale, given))
        plan = target.training.plan(target.epsilon)
        assert plan.mechanism.noise_multiplier == 0.771484375, "Table 12, to the last digit"
        assert target.name == "VT5_FL+DP (noise 0.7715 by the published counting, no bound)"
        assert plan.bound().epsilon > 14 and "epsilon" not in row.name


def test_vt5_0_of_all_tables_is_the_one_tuned_on_docvqa() -> None:
    for name in OURS:
        scale = find_recipe(name).scales["paper"]["models"]
        assert scale == {"vt5": "rubentito/vt5-base-spdocvqa"}, name


def test_rows_of_all_tables_attack_the_same_targets(tmp_path: Path) -> None:
    targets: dict[str, set[Target]] = {}
    for name in OURS:
        for row in rows_of(find_recipe(name), AnswersStudy, "tiny", tmp_path / name.replace("/", "-"), {}):
            if row.study.config.measures != ("noise",):
                target = target_in(row.study.config)
                targets.setdefault(target.name, set()).add(target)
    assert len(targets) == 10 and all(len(same) == 1 for same in targets.values())
    rows = rows_of(find_recipe("pfl-docvqa/table4"), AnswersStudy, "tiny", tmp_path, {})
    turns = [unit.turn for row in rows for unit in row.study.units()]
    assert turns == [0, 1, 2, 3, 4, 5, 6, 0, 1, 0, 1], "one of each target trains it first"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"preset": "huge"}, "there is no preset 'huge'"),
        ({"measure": "beauty"}, "nothing is called 'beauty'"),
        ({"target": "remote"}, "there is no target 'remote'"),
        ({"epsilon": 8.0}, "expected 0 for no privacy"),
        ({"target": "central", "epsilon": -1.0}, "expected 0 for no privacy"),
        ({"attack": "apk+cls2"}, "expected azk or apk"),
        ({"minimum": ()}, "expected at least one seed"),
        ({"target": "central", "training": {"round": 2}}, "Did you mean 'rounds'"),
        ({"data": {"plan": {"client": 2}}}, "Did you mean 'clients'"),
        ({"minimum": (40,)}, "questions up to 30"),
        ({"releases": ()}, "a row has one target"),
    ],
)
def test_rows_that_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises((RecipeError, AttackError), match=re.escape(said)):
        AnswersStudy.of_row("vt5-start", change, {}, device="cpu")


def test_paths_of_the_users_are_asked_for(tmp_path: Path) -> None:
    recipe = find_recipe("pfl-docvqa/table1")
    with pytest.raises(RecipeError, match="needs --documents pfl-docvqa:DIR"):
        rows_of(recipe, recipe.study, "paper", tmp_path, {})
    noise = find_recipe("pfl-docvqa/table12")
    assert len(rows_of(noise, noise.study, "paper", tmp_path, {})) == 6
    assert config_of(noise, noise.rows[0], "vt5", "paper", {}).measures == ("noise",)
    changed = config_of(recipe, recipe.rows[1], "vt5", "tiny", {"rounds": 3, "seed": 4, "documents": ("vrdu:X",)})
    target = target_in(changed)
    assert (target.training.rounds, target.seed, target.data.seed, target.data.documents) == (3, 4, 4, "vrdu:X")
