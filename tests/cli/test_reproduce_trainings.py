"""``docleak reproduce`` on recipes that train."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from docleak.documents.folder import save
from docleak.documents.loaders import load_pages

Command = Callable[..., tuple[Any, str, str]]

RECIPE = """
title = "Two silos"
kind = "trainings"
models = ["mine"]

[scales.tiny]
models = { mine = "fedocvqa-start" }
pages = 4
test_share = 0.25
validation_share = 0.25
evaluate_every = 1
batch_size = 4
clients = 2
rounds = 3
max_tokens = 60
dropout = false

[[rows]]
name = "fine-tuning"

[[rows]]
name = "pretraining alone"
pretraining = "tlm"
rounds = 0
"""


def test_a_training_recipe_from_plan_to_table(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(RECIPE)
    code, out, err = command("reproduce", "mine.toml", "--dry-run", "--json")
    assert code == 0, err
    first, second = json.loads(out)["plan"]
    assert first["clients"] == 2 and first["rounds"] == [3] and second["rounds"] == [10]
    assert second["bytes"] > 3 * first["bytes"], "ten rounds, and layout tokens in the model"
    assert not (tmp_path / "docleak-mine-tiny").exists(), "a plan computes nothing"
    asked = (
        "reproduce", "mine.toml", "--rounds", "1", "--rows", "fine", "--documents", "synthetic", "--documents",
        "synthetic", "--workers", "1", "--json", "--out",
    )  # fmt: skip
    code, out, err = command(*asked, "run")
    assert code == 0, err
    assert json.loads(out)["units"] == 1
    saved = json.loads((tmp_path / "run" / "table.json").read_text())
    (row,) = saved["rows"]
    assert {"score_synthetic", "score_synthetic_2"} < row["ours"].keys() and saved[
        "Documents"
    ] == "synthetic, synthetic"
    assert [point["round"] for point in row["points"]] == [1, 1]
    sentence = "synthetic_2: no official test split is here, so 1 of 4 training pages were held out for it"
    assert sentence in saved["Test and validation pages"] and sentence in (tmp_path / "run" / "table.html").read_text()
    for name, changes, taken in (("beside", (), True), ("of-another-seed", ("--seed", "1"), False)):
        code, _, err = command(*asked, name, *changes)
        assert code == 0, err
        other = json.loads((tmp_path / name / "table.json").read_text())
        assert ("Computed before" in other) is taken and (other["rows"][0]["seconds"] == row["seconds"]) is taken
    record = next((tmp_path / "run" / "rows").glob("*/units/*/unit.json"))
    older = {key: value for key, value in json.loads(record.read_text()).items() if key != "said"}
    record.write_text(json.dumps(older))
    code, out, err = command("report", str(record.parents[2]))
    assert code == 0 and "Where test and validation pages come from is not noted: an older docleak" in out, err


def test_what_means_nothing_to_the_kind_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(RECIPE)
    save(load_pages("synthetic", count=2, seed=0), tmp_path / "invoices")
    cases = (
        (("mine.toml", "--budget", "5"), "--budget: means nothing to recipe 'mine'"),
        (("mine.toml", "--image-size", "mine=320x640"), "--image-size: means nothing"),
        (
            ("gi-dqa/table1", "--rounds", "5", "--test-documents", "synthetic"),
            "--test-documents, --rounds: means nothing",
        ),
        (
            ("gi-dqa/table1", "--documents", "synthetic", "--documents", "synthetic"),
            "pages of one data set, and was given 2",
        ),
        (("fedocvqa/table3", "--scale", "paper"), "--model fedocvqa=DIR"),
        (("fedocvqa/private", "--documents", "invoices"), "the first ones of a list, which an epsilon does not cover"),
        (("pfl-docvqa/table3", "--issuers", "1"), "1 provider asked for; expected 2"),
        (("pfl-docvqa/table3", "--issuers", "12"), "expected a member in every client"),
    )
    for words, said in cases:
        code, _, err = command("reproduce", *words)
        assert code == 1 and said in err, err
    assert sorted(item.name for item in tmp_path.iterdir()) == ["invoices", "mine.toml"]


def test_two_phases_under_one_budget_in_miniature(command: Command, tmp_path: Path) -> None:
    """fedocvqa/private, one training of each: both phases together keep to epsilon, and the table says what each model
    claims."""
    recipe = files("docleak.recipes").joinpath("fedocvqa", "private.toml").read_text()
    (tmp_path / "one.toml").write_text(recipe.replace("seeds = 3", "seeds = 1"))
    code, _, err = command(
        "reproduce",
        "one.toml",
        "--rounds",
        "1",
        "--rows",
        "both",
        "--pages",
        "12",
        "--workers",
        "1",
        "--out",
        "run",
    )
    assert code == 0, err
    saved = json.loads((tmp_path / "run" / "table.json").read_text())
    (row,) = saved["rows"]
    (claim,) = row["claims"]
    assert "2 trainings composed, as if each document were in all of them" in claim and "epsilon 7.99" in claim


def test_a_model_that_is_not_there_leaves_nothing_behind(command: Command, tmp_path: Path) -> None:
    code, _, err = command("reproduce", "fedocvqa/table3", "--model", "fedocvqa=./nowhere", "--out", "table")
    assert code == 1 and "there is no model" in err
    assert not (tmp_path / "table").exists()


def test_nought_is_what_was_asked_for_and_not_the_recipes(command: Command, tmp_path: Path) -> None:
    for words, said in (
        (("gi-dqa/table1", "--pages", "0"), "pages is 0; expected at least 1"),
        (("gi-dqa/table1", "--budget", "0"), "budget is 0; expected at least 1"),
        (("gi-dqa/table1", "--seed", "-1"), "seed is -1; expected 0 to"),
        (("pfl-docvqa/table1", "--issuers", "0"), "0 providers asked for"),
        (("pfl-docvqa/table1", "--per-issuer", "0"), "a mean of 0.0 documents"),
    ):
        code, _, err = command("reproduce", *words, "--dry-run")
        assert code == 1 and said in err, (words, err)
    code, out, _ = command("reproduce", "fedocvqa/table3", "--rounds", "0", "--dry-run")
    assert code == 0 and "no training" in out and "10 rounds" not in out
    save(load_pages("synthetic", count=4, seed=1), tmp_path / "pages")
    private = ("reproduce", "fedocvqa/private", *("--documents", str(tmp_path / "pages")) * 3, "--dry-run")
    code, _, err = command(*private)
    assert code == 1 and "the first ones of a list, which an epsilon does not cover; expected 0" in err
    assert command(*private, "--pages", "0")[0] == 0
