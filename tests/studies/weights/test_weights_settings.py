"""Recipes of games on weights: the shipped ones print what the paper prints, and wrong ones say what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from docleak.attacks.weights import CdmiConfig
from docleak.errors import AttackError, RecipeError
from docleak.recipes import Recipe, Row, find_recipe, list_recipes
from docleak.recipes.rows import rows_of
from docleak.runs.identity import digest_of
from docleak.studies.study import TableRow, plain
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.rows import asked_of, assigned, facts_of, game_asked, means
from docleak.studies.weights.study import WeightsStudy
from docleak.studies.weights.tuning import settings_of, sought_on

SHIPPED = [name for name, recipe in list_recipes().items() if recipe.kind == "weights"]
BOTH = {"documents": ("funsd:there", "sroie:there")}


def rows(recipe: Recipe, scale: str, out: Path, changes: Mapping[str, object] = BOTH) -> list[TableRow]:
    return rows_of(recipe, WeightsStudy, scale, out, changes)


def row(**settings: object) -> WeightsConfig:
    return game_asked(asked_of("layoutlm-tiny", settings, {}))


def test_the_papers_tables_and_figures_are_all_there() -> None:
    wanted = {"table2", "table3", "table5", *(f"figure{n}" for n in range(3, 9)), "section6", "appendixA"}
    assert {f"cdmi/{name}" for name in wanted} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_every_row_of_every_shipped_recipe_is_a_config(name: str, scale: str, tmp_path: Path) -> None:
    recipe = find_recipe(name)
    assert recipe.title and recipe.finding and "Dentan" in recipe.paper
    assert all(set(row.printed) <= set(row.models) for row in recipe.rows)
    for planned in rows(recipe, scale, tmp_path):
        config = planned.study.config
        assert not planned.study.missing()
        # The paper's defaults, or what its own figures and appendix change of them.
        if scale == "paper" and name not in ("cdmi/appendixA", "cdmi/figure7", "cdmi/strong"):
            assert (config.attack.candidates, config.attempts, config.fields, config.pages) == (128, 8, 0, 0)
            assert (config.target_training.epochs, config.dropout) == ({"mlm": 300}.get(config.task, 150), -1)


def test_invoices_that_are_made_need_not_be_given(tmp_path: Path) -> None:
    """They were taken for pages that are missing, and then stood under no table (KeyError)."""
    planned = rows(find_recipe("cdmi/learned"), "tiny", tmp_path, {"documents": {"sroie": "sroie"}})
    assert not any(row.study.missing() for row in planned)
    facts = facts_of([(row.name, row.study, None, None) for row in planned])
    assert facts["Documents"] == "synthetic (480 pages); sroie (all pages)" and facts["Seed"] == "varies"


def test_tiny_tables_share_what_they_train(tmp_path: Path) -> None:
    """Every target of figures 4, 5, 6, 7 and of table 3 is one of table 5's, but for figure 4's two controls and other
    seeds; figure 3 has more receipts."""

    def targets(name: str) -> set[str]:
        games = [r.study.config for r in rows(find_recipe(f"cdmi/{name}"), "tiny", tmp_path) if not r.study.config.seed]
        controls = [game for game in games if game.target_training.patch]
        assert len(controls) == 2 * (name == "figure4")
        return {str(game.target_fitting()) for game in games if game not in controls}

    whole = targets("table5")
    assert len(whole) == 18, "LayoutLM: 4 tasks, 2 data sets (EL: one), 2 modalities; BROS: masked tokens only"
    for name in ("table3", "figure4", "figure5", "figure5-backbones", "figure6", "figure7", "section6"):
        assert targets(name) <= whole, name


def test_the_printed_values_are_the_papers() -> None:
    """Table 5's means, which section 6.1 states: bimodal 1.296, unimodal 1.078, LayoutLM 1.187, BROS 1.167."""
    told = [row for row in find_recipe("cdmi/table5").rows if row.printed]
    assert sum(len(row.printed) for row in told) == 36

    def mean(model: str, bimodal: bool | None = None) -> float:
        chosen = [
            row.printed[model]["ipf"]
            for row in told
            if row.name.startswith("MLM") and bimodal in (None, row.settings.get("bimodal", False))
        ]
        return sum(chosen) / len(chosen)

    assert mean("layoutlm", True) == pytest.approx(1.296, abs=6e-4)
    assert mean("layoutlm", False) == pytest.approx(1.078, abs=6e-4)
    assert mean("layoutlm") == pytest.approx(1.187, abs=6e-4)
    assert mean("bros") == pytest.approx(1.167, abs=6e-4)
    best = (
        max(row.printed["layoutlm"]["at100"] for row in told),
        max(p["at100"] for r in told for p in r.printed.values()),
    )
    assert best == (0.032, 0.041)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"shows": "dance"}, "shows is 'dance', expected one of attack"),
        ({"task": "ner"}, "task is 'ner'"),
        ({"criterion": "best"}, "criterion is 'best', expected one of precision, loss, last, epoch-N"),
        ({"criterion": "epoch-7", "keep_every": 5}, "epoch-7 is not kept: keep_every is 5"),
        ({"keep_every": 3, "validate_every": 2}, "keep_every is 3, expected a multiple of validate_every 2"),
        ({"metric": "luck"}, "metric is 'luck'"),
        ({"fields": -1, "attempts": 0}, "fields is -1, expected 0 or more; attempts is 0"),
        ({"rounds": 3}, "rounds: of a private training"),
        ({"attack": "cdmi"}, "attack cannot be set in a row"),
    ],
)
def test_wrong_rows_name_the_fault(change: dict[str, object], named: str) -> None:
    with pytest.raises((AttackError, RecipeError), match=named):
        row(**change)


def test_what_the_attack_refuses_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(AttackError, match=r"top_p is 2\.0"):
        row(top_p=2.0)
    with pytest.raises(RecipeError, match="no preset 'small'; known: paper, tiny, base"):
        row(preset="small")
    assert row(preset="tiny", fields=3).fields == 3


def test_pages_go_to_the_data_set_of_their_name() -> None:
    wanted = ("sroie", "funsd")
    assert assigned(wanted, ["funsd:a", "sroie:b"]) == {"funsd": "funsd:a", "sroie": "sroie:b"}
    assert assigned(wanted, ["my-folder"]) == {"sroie": "my-folder"}
    assert assigned(wanted, ["my-folder", "sroie:b"]) == {"sroie": "sroie:b", "funsd": "my-folder"}
    assert assigned(("sroie",), ["funsd:a", "sroie:b"])["sroie"] == "sroie:b", "one command line fits all recipes"
    with pytest.raises(RecipeError, match="names 'sroie' twice"):
        assigned(wanted, ["sroie:a", "sroie:b"])
    with pytest.raises(RecipeError, match="all of them given"):
        assigned(wanted, ["a", "b", "c"])


def test_missing_pages_and_models_are_asked_for(tmp_path: Path) -> None:
    recipe = find_recipe("cdmi/table5")
    with pytest.raises(RecipeError, match="needs --documents sroie:DIR --documents funsd:DIR"):
        rows(recipe, "paper", tmp_path, {})
    planned = [r.study for r in rows(recipe, "tiny", tmp_path, {})]
    given = {study.asked["data"] for study in planned if not study.missing()}
    assert given == {"sroie"}, "without --documents, synthetic invoices stand in for the first data set"
    assert all(not study.units() for study in planned if study.asked["data"] == "funsd")
    with pytest.raises(RecipeError, match="needs --documents sroie:DIR --documents funsd:DIR"):
        rows(find_recipe("cdmi/figure4"), "paper", tmp_path, {})
    with pytest.raises(RecipeError, match="needs --documents sroie:DIR"):
        rows(find_recipe("cdmi/figure8"), "tiny", tmp_path, {"documents": ("funsd:there",)})
    mine = Recipe("r", "", "", "", (Row("a", ("m",), {}),), {}, {"paper": {"models": {"m": "PATH"}}}, kind="weights")
    with pytest.raises(RecipeError, match="--model m=DIR"):
        rows(mine, "paper", tmp_path)


def test_figure_7_attacks_every_fifth_of_300_epochs_at_paper_scale(tmp_path: Path) -> None:
    recipe = find_recipe("cdmi/figure7")
    given = {"documents": ["funsd:X"]}
    rows = {scale: rows_of(recipe, WeightsStudy, scale, tmp_path / scale, given) for scale in ("tiny", "paper")}
    epochs = {
        scale: [int(row.study.config.criterion.removeprefix("epoch-")) for row in table]
        for scale, table in rows.items()
    }
    assert epochs == {"tiny": list(range(10, 101, 10)), "paper": list(range(5, 301, 5))}
    paper = rows["paper"][0].study.config
    assert (paper.target_training.epochs, paper.keep_every, paper.fields) == (300, 5, 311)
    assert (paper.attack.candidates, paper.bimodal, len(epochs["paper"])) == (256, True, 60)


def test_at_paper_scale_bimodal_targets_see_a_resnet_and_settings_are_sought_on_layoutlm(tmp_path: Path) -> None:
    """14 configurations (data set, task and modality of LayoutLM's), each of whose settings serve four rows or two."""
    given = {"documents": ["funsd:X", "sroie:X"]}
    rows = rows_of(find_recipe("cdmi/table5"), WeightsStudy, "paper", tmp_path, given)
    configs = [row.study.config for row in rows]
    assert all((config.resnet == "microsoft/resnet-50") is config.bimodal for config in configs)
    assert all(config.image_size == ((512, 704) if config.bimodal else (160, 224)) for config in configs)
    games = {digest_of(plain(sought_on(config))) for config in configs}
    assert len(games) == 14, "whatever the backbone and the epoch that a row attacks"
    assert all(sought_on(config).model == "microsoft/layoutlm-base-uncased" for config in configs)
    assert all(len(settings_of(config)) == (6 if config.task == "mlm" else 18) for config in configs)
    tiny = rows_of(find_recipe("cdmi/table5"), WeightsStudy, "tiny", tmp_path / "tiny", given)
    assert not any(row.study.config.tuning or row.study.config.resnet for row in tiny)
    mine = rows_of(
        find_recipe("cdmi/table5"),
        WeightsStudy,
        "paper",
        tmp_path / "own",
        {**given, "resnet": "my-resnet", "tuned_on": "mine"},
    )
    assert {row.study.config.resnet for row in mine} == {"", "my-resnet"}
    assert {row.study.config.tuning.model for row in mine} == {"mine"}
    bimodal = next(row.study for row in mine if row.study.config.bimodal)
    asked = {need.option for need in bimodal.needed("layoutlm")}
    assert {"--model resnet=DIR", "--model tuned_on=DIR"} <= asked


def test_a_public_model_that_guesses_nothing_allows_no_all_clear() -> None:
    from types import SimpleNamespace

    from docleak.metrics.estimate import Estimate
    from docleak.studies.weights.verdict import verdict_of

    for wrong, severity in ((0.955, "untold"), (0.86, "none")):
        estimates = {"improvement_factor": Estimate(1.0, 0.99, 1.01), "baseline_hamming": Estimate(wrong, wrong, wrong)}
        unread = SimpleNamespace(perfect=0.0)
        fields = [
            SimpleNamespace(name=str(number), value=str(number), document="", match=unread) for number in range(36)
        ]
        part = verdict_of(SimpleNamespace(estimates=estimates, baseline=[], fields=fields), {}, of="x")  # type: ignore[arg-type]
        assert part.severity == severity
        said = "public data alone tell on average 4.5 % of the tokens of a field, too few"
        assert (said in part.sentence) == (severity == "untold"), "whatever attack it is whose baseline that was"


def test_controls_count_in_no_mean_beside_the_papers(tmp_path: Path) -> None:
    planned = rows(find_recipe("cdmi/figure4"), "tiny", tmp_path)
    controls = [row for row in planned if row.study.config.target_training.patch]
    told = means([(row.name, row.study, None, 9.0 if row in controls else 1.25) for row in planned])
    assert len(controls) == 2 * 3 and told[0].name == "all rows"
    assert {level.printed for level in told} == {1.25}, "what the controls say is in none of them"


@dataclass(frozen=True)
class Blind(CdmiConfig):
    """An own attack that is its own baseline."""

    def baseline(self) -> Blind:
        return self


def test_an_attack_that_never_looks_at_the_target_finds_nothing_and_is_refused() -> None:
    """Nothing found by it would be said of any weights."""
    for attack in ("cdmi:weight=0", "cdmi-strong:weight=0", Blind(weight=0.4)):
        with pytest.raises(AttackError, match="never looks at the target"):
            WeightsConfig(task="ee-bio", attack=attack)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Baseless(CdmiConfig):
    """An own attack whose baseline is none."""

    def baseline(self) -> Any:
        return None if self.weight else 1 / 0


def test_a_baseline_that_is_no_attack_is_refused_before_anything_is_trained() -> None:
    """It was an AttributeError of NoneType, after both trainings."""
    for attack, said in ((Baseless(), "its baseline is a NoneType"), (Baseless(weight=0.0), "cannot be asked for")):
        with pytest.raises(AttackError, match=said):
            WeightsConfig(task="ee-bio", attack=attack)  # type: ignore[arg-type]


def test_settings_of_the_attack_that_a_task_does_not_read_are_refused() -> None:
    """A target trained for mlm is read without weight and mean, which were taken and ignored."""
    for idle in ("weight=0.6", "mean=arithmetic"):
        with pytest.raises(AttackError, match=f"given {idle.split('=')[0]}, for a target whose loss is asked"):
            WeightsConfig(attack=f"cdmi:{idle}")  # type: ignore[arg-type]
        WeightsConfig(task="ee-spade", attack=f"cdmi:{idle}")  # type: ignore[arg-type]
