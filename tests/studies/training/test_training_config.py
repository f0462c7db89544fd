"""Rows of training recipes: what is refused, and which federations follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docleak.errors import FederationError, RecipeError
from docleak.recipes import Recipe, Row, find_recipe, list_recipes
from docleak.recipes.rows import rows_of
from docleak.studies.training.config import TrainingConfig, server_of
from docleak.studies.training.study import TrainingStudy

PAPER = Path(__file__).parents[4] / "shared" / "papers" / "002_8f1c4d30b5ca7de1.txt"
OURS = [name for name, recipe in list_recipes().items() if recipe.kind == "trainings"]


def config_of(recipe: Recipe, row: Row, scale: str, changes: Mapping[str, Any]) -> TrainingConfig:
    """What a single row of the recipe trains."""
    (made,) = rows_of(replace(recipe, rows=(row,)), TrainingStudy, scale, Path("out"), changes)
    config = made.study.config
    assert isinstance(config, TrainingConfig)
    return config


def test_the_papers_tables_and_figures_are_all_there() -> None:
    wanted = {f"fedocvqa/table{n}" for n in range(3, 8)} | {f"fedocvqa/figure{n}" for n in range(3, 7)}
    assert wanted <= set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_every_row_is_a_config_at_both_scales(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.title and recipe.finding and recipe.paper
    changes = {"models": {"fedocvqa": "fedocvqa-start"}, "documents": ("a", "b", "c"), "pages": 0}
    for row in recipe.rows:
        tiny, paper = (config_of(recipe, row, scale, changes) for scale in ("tiny", "paper"))
        assert (tiny.clients, tiny.participation, tiny.pretraining, tiny.server) == (
            paper.clients, paper.participation, paper.pretraining, paper.server
        )  # fmt: skip
        assert (paper.batch_size, paper.learning_rate, paper.weight_decay, paper.epochs) == (16, 5e-4, 0.01, 1)
        assert paper.dropout and not paper.pages and not paper.max_tokens
        assert (tiny.optimiser, paper.optimiser) == ("adamw", "adam"), "the paper's, where its learning rate is used"
        assert all(phase.local.optimiser == "adam" for phase in paper.phases(0).values())
        if name != "fedocvqa/figure5":
            assert paper.rounds in (0, 10) and paper.pretraining_rounds == 10
        if "no self-pretraining" in row.name:
            assert not paper.pretraining


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's text is not here")
@pytest.mark.parametrize("name", OURS)
def test_printed_values_stand_in_the_paper(name: str) -> None:
    words = set(PAPER.read_text().split())
    printed = [row.printed["fedocvqa"]["score"] for row in find_recipe(name).rows if row.printed]
    assert all(f"{100 * value:.4g}" in words for value in printed), printed
    assert bool(printed) == ("table" in name)


def test_table_3_is_the_papers_grid() -> None:
    """Typed in from the paper once more, cell by cell."""
    grid = {1: (0.5316,), 3: (0.4654, 0.433, 0.3504), 10: (0.4567, 0.4321, 0.4166), 30: (0.3764, 0.3521, 0.3242)}
    recipe = find_recipe("fedocvqa/table3")
    scores = {
        (row.settings["clients"], row.settings["participation"]): row.printed["fedocvqa"]["score"]
        for row in recipe.rows
        if row.printed
    }
    assert scores == {(k, c): v for k, of in grid.items() for c, v in zip((1.0, 0.7, 0.35), of, strict=False)}


def test_paper_scale_says_what_it_waits_for() -> None:
    recipe = find_recipe("fedocvqa/table4")
    with pytest.raises(RecipeError, match=r"--model fedocvqa=DIR.*--documents wtq:DIR --documents due:DIR"):
        config_of(recipe, recipe.rows[0], "paper", {})


def test_rounds_of_the_command_line_leave_a_phase_out_that_the_row_leaves_out() -> None:
    figure, table = find_recipe("fedocvqa/figure6"), find_recipe("fedocvqa/table4")
    alone = config_of(figure, figure.rows[0], "tiny", {"rounds": 2})
    assert (alone.pretraining_rounds, alone.rounds) == (2, 0) and list(alone.phases(0)) == ["pretraining"]
    both = config_of(table, table.rows[-1], "tiny", {"rounds": 2})
    assert (both.pretraining_rounds, both.rounds) == (2, 2) and list(both.phases(0)) == ["pretraining", "finetuning"]


def test_phases_follow_the_paper() -> None:
    config = TrainingConfig(
        "m", participation=0.35, pretraining="tm+lm", pretraining_participation=0.7, pretraining_server="fedadam"
    )
    before, after = config.phases(4).values()
    assert (before.participation, before.local.objective, before.rounds, before.seed) == (0.7, "tm+lm", 10, 4)
    adam = before.server
    assert (adam.rule, adam.learning_rate, adam.beta1, adam.beta2, adam.epsilon) == ("fedadam", 1e-3, 0.9, 0.99, 1e-5)
    assert (after.participation, after.local.objective, after.server.rule) == (0.35, "qa", "fedavg")
    assert before.holdout == after.holdout == 0, "the recipe keeps documents out itself, the same for every row"
    same = TrainingConfig("m", participation=0.35, pretraining="tm").phases(0)["pretraining"]
    assert same.participation == 0.35


def test_servers_take_other_values() -> None:
    server = server_of("fedadam:learning_rate=0.01,beta2=0.5")
    assert (server.learning_rate, server.beta1, server.beta2) == (0.01, 0.9, 0.5)
    for wrong in ("fedsgd", "fedadam:rate=1", "fedadam:beta1=x", "fedavg:rule=1"):
        with pytest.raises(RecipeError, match=wrong.split(":")[0]):
            server_of(wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"clients": 0}, "clients is 0"),
        ({"test_share": 0.6, "validation_share": 0.4}, "shares that leave some"),
        ({"test_share": 0.0}, "test_share is 0"),
        ({"test_documents": ("a", "b")}, "2 test_documents for 1 data sets"),
        ({"documents": ()}, "no documents"),
        ({"evaluate_every": 2}, "nothing to evaluate on"),
        ({"seeds": 0, "rounds": -1}, "rounds is -1.*seeds is 0"),
        ({"server": "fedprox"}, "fedprox"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        TrainingConfig("m", **wrong)


def test_what_a_federation_refuses_is_refused_at_once() -> None:
    for wrong in ({"participation": 1.5}, {"pretraining": "mlm"}, {"batch_size": 0}):
        with pytest.raises(FederationError):
            TrainingConfig("m", **wrong)  # type: ignore[arg-type]


def test_a_table_says_the_optimiser_and_how_many_clients_train_in_a_round(tmp_path: Path) -> None:
    recipe = find_recipe("fedocvqa/table3")
    rows = rows_of(recipe, TrainingStudy, "tiny", tmp_path, {})
    facts = TrainingStudy.row_facts(rows)
    assert facts["Optimiser of the clients"] == "AdamW, learning rate 0.002, weight decay 0.01"
    assert facts["Clients in a round"].startswith("C x K without its fraction, at least one: ")
    told = set(facts["Clients in a round"].partition(": ")[2].split("; "))
    assert told == {f"K = {k}, C = {c:g}: {n}" for k, c, n in [
        (3, 0.7, 2), (10, 0.7, 7), (30, 0.7, 21), (3, 0.35, 1), (10, 0.35, 3), (30, 0.35, 10)]}  # fmt: skip
