"""MMGIA's tables: their files hold the paper's numbers, and a miniature of one runs through, resumes and is told."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from docleak.errors import RecipeError
from docleak.models.pair.generator import GeneratorConfig, build_generator, generator_told, save_generator
from docleak.recipes.recipe import Recipe, find_recipe
from docleak.recipes.rows import reproduce, rows_of, tables_of, write_table
from docleak.studies.pairs.reading import privacy_in
from docleak.studies.pairs.rows import facts_of, unfinished
from docleak.studies.pairs.study import PairStudy
from docleak.studies.study import TableRow

NLVR = Path(__file__).parents[4] / "shared" / "data" / "nlvr"
PAPER = Path(__file__).parents[4] / "shared" / "papers" / "003_933a3e8cca596205.txt"
NAMES = ("table1", "table2", "table3", "table4", "figure3", "noise", "trained")
SMALL = {"documents": ("scenes",), "pages": 2, "budget": 16}


def mini(name: str, *rows: str) -> Recipe:
    """The recipe with some of its rows only, on its first networks."""
    recipe = find_recipe(f"mmgia/{name}")
    tiny = recipe.scales["tiny"]
    first = {**tiny, "models": dict(list(tiny["models"].items())[:1])}
    subset = tuple(row for row in recipe.rows if row.name in rows)
    return replace(recipe, rows=subset, scales={**recipe.scales, "tiny": first})


def rows(recipe: Recipe, out: Path) -> list[TableRow]:
    return rows_of(recipe, PairStudy, "tiny", out, SMALL)


def run(recipe: Recipe, out: Path) -> tuple[list[TableRow], Path]:
    planned = rows(recipe, out)
    reproduce(recipe, planned, out, scale="tiny", workers=1)
    return planned, write_table(recipe, "tiny", planned, out, {})


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper is not at ../shared/papers")
@pytest.mark.parametrize("name", NAMES)
def test_printed_numbers_are_the_papers(name: str) -> None:
    """Every printed number occurs in the paper as it is, or times 100."""
    text = PAPER.read_text()
    for row in find_recipe(f"mmgia/{name}").rows:
        for numbers in row.printed.values():
            for value in numbers.values():
                shown = (f"{value:.3f}", f"{value:.2f}", f"{100 * value:.1f}")
                assert any(re.search(rf"(?<![\d.]){re.escape(s)}(?!\d)", text) for s in shown), (row.name, value)


def test_every_scale_of_every_table_can_be_read() -> None:
    for name in NAMES:
        recipe = find_recipe(f"mmgia/{name}")
        for scale in ("tiny", "paper"):
            given = {
                "documents": ("scenes",),
                **({"generator": "mine"} if scale == "paper" and name != "figure3" else {}),
            }
            for row in rows_of(recipe, PairStudy, scale, Path("out"), given):
                assert row.study.config.count % row.study.config.batch_size == 0 and row.study.shown()
    with pytest.raises(RecipeError, match="--documents nlvr-true:DIR"):
        rows_of(recipe, PairStudy, "tiny", Path("out"), {})


def test_a_miniature_is_run_once_and_its_table_holds_what_was_saved(tmp_path: Path) -> None:
    recipe = mini("table1", "MMGIA", "DLG")
    _, page = run(recipe, tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert "| MMGIA | " in table and "0.771" in table and "paper, cifar100: SSIM" in table
    saved = json.loads((tmp_path / "table.json").read_text())
    lines = {(r["row"], r["model"]): r for r in saved["rows"]}
    assert set(lines) == {(row, model) for row in ("MMGIA", "DLG") for model in ("lenet5",)}
    for row in lines.values():
        assert row["ours"]["ssim"]["n"] == 2 and not row["failed"]
        assert max(row["evaluations_per_modality"]) <= 16
    assert page.read_text().count("data:image/png") == 1
    units = {f: f.stat().st_mtime_ns for f in tmp_path.glob("rows/*/units/*/unit.json")}
    assert len(units) == 4
    run(recipe, tmp_path)
    assert {f: f.stat().st_mtime_ns for f in units} == units, "nothing is computed twice"


@pytest.mark.skipif(not NLVR.is_dir(), reason="NLVR is not at ../shared/data")
@pytest.mark.parametrize("name", ["figure3", "trained"])
def test_the_plan_of_real_pairs_counts_batches(tmp_path: Path, name: str) -> None:
    first = find_recipe(f"mmgia/{name}").rows[0].name
    (row,) = rows_of(mini(name, first), PairStudy, "tiny", tmp_path, {"documents": (f"nlvr-true:{NLVR}",)})
    assert (row.name, len(row.study.units())) == (first, 20) and "20 batches x" in row.study.planned()


def test_a_table_of_a_part_of_its_units_says_so(tmp_path: Path) -> None:
    recipe = mini("trained", "LAMP, as drawn", "LAMP, trained")
    planned, _ = run(recipe, tmp_path)
    assert unfinished(planned) == {}
    shutil.rmtree(planned[1].run.folder("lamp-0001"))
    write_table(recipe, "tiny", planned, tmp_path, {})
    assert "Batches attacked in unfinished rows: LAMP, trained (pair) 1 of 2 " in (tmp_path / "table.md").read_text()
    drawn, trained = (next(u["scores"] for u in row.run.units()) for row in planned)
    assert drawn[0]["true"] == trained[0]["true"] and drawn != trained


def test_private_rows_say_what_they_guarantee_and_cost(tmp_path: Path) -> None:
    recipe = mini("table4", "epsilon 1", "epsilon 10, B = 2", "no DP")
    short = replace(recipe, fixed={**recipe.fixed, "steps": 10, "records": 60})
    planned, _ = run(short, tmp_path)
    noise = {}
    for row in planned:
        facts = privacy_in(row.run)
        assert all(0 <= value <= 1 for value in facts["accuracy"])
        noise[row.name] = facts["noise"]
        assert ("claim" in facts) == (row.name != "no DP")
        assert "claim" not in facts or "per record (one pair of picture and text added or removed)" in facts["claim"]
    assert noise["epsilon 1"] > noise["epsilon 10, B = 2"] > noise["no DP"] == 0
    assert "0.530" in (tmp_path / "table.md").read_text()


def planned(name: str, scale: str = "tiny", only: str = "", **changes: object) -> list[TableRow]:
    recipe = find_recipe(f"mmgia/{name}")
    return rows_of(recipe, PairStudy, scale, Path("out"), changes, only=only, complete=False)


def test_every_row_is_run_on_each_data_set_that_is_given() -> None:
    """As tables of their own, each beside the paper's numbers of that data set."""
    table = planned("table1", "paper", only="MGIS", documents=("cifar100:A", "openi:B", "openi:C"))
    assert [row.target for row in table[:3]] == ["lenet5, cifar100", "lenet5, openi_2", "lenet5, openi_3"]
    assert len({row.run.path for row in table}) == len(table) == 9
    assert [row.study.config.pairs for row in table[:3]] == ["cifar100:A", "openi:B", "openi:C"]
    assert table[0].printed == {"ssim": 0.748} and table[1].printed == {}
    both = planned("table1", "paper", only="MGIS", documents=("cifar100:A", "openi:B"))
    assert both[1].printed == {"ssim": 0.209}
    assert [t.title for t in tables_of(both)][:2] == [
        "lenet5 + google-bert/bert-large-uncased, cifar100", "lenet5 + google-bert/bert-large-uncased, openi",
    ]  # fmt: skip
    (one, *_) = planned("table1", "paper", only="MGIS", documents=("openi:B",))
    assert one.target == "lenet5" and one.printed["ssim_openi"] == 0.209
    with pytest.raises(RecipeError, match="names a data set twice"):
        planned("table1", documents=("scenes", "scenes"))


def test_rows_of_different_data_sets_take_their_own() -> None:
    """Figure 3a: what is given stands for the rows of its format; the rest waits for theirs."""
    figure = planned("figure3a", "paper", documents=("openi:B", "cifar100:A"))
    assert [row.study.config.pairs for row in figure] == ["cifar100:A"] * 2 + ["flickr30k:PATH"] * 2 + ["openi:B"] * 2
    assert [row.study.config.image_size for row in figure[::2]] == [(32, 32), (224, 224), (224, 224)]
    assert len({row.study.config.aligner for row in figure}) == 2
    for wrong in (("nlvr:A",), ("openi:A", "openi:B")):
        with pytest.raises(RecipeError, match="expected each of cifar100, flickr30k, openi once at most"):
            planned("figure3a", "paper", documents=wrong)
    assert len(planned("figure3a")) == 6, "rows of the small scale"


def test_checkpoints_are_named_where_rows_differ_in_them() -> None:
    with pytest.raises(RecipeError, match="say which: --model clip-vit-base-patch32=DIR or --model pubmed-clip"):
        planned("figure3a", "paper", aligner="mine")
    figure = planned("figure3a", "paper", models={"clip-vit-base-patch32": "here", "gpt2": "there"})
    assert [row.study.config.aligner for row in figure[:2]] == ["here", "flaviagiammarino/pubmed-clip-vit-base-patch32"]
    assert {row.study.config.language for row in figure} == {"there"}
    options = [need.option for need in figure[1].study.needed("pair")]
    assert "--model pubmed-clip-vit-base-patch32=DIR" in options
    with pytest.raises(RecipeError, match="rows have different ones"):
        planned("figure3", aligner="mine")  # its last row is of an aligner drawn at random


def test_pictures_of_another_size() -> None:
    sizes = {"openi": (64, 64), "lenet5": (48, 48)}
    table = planned("table1", "paper", only="MGIS", documents=("cifar100:A", "openi:B"), image_sizes=sizes)
    assert [row.study.config.image_size for row in table[:3]] == [(48, 48), (64, 64), (32, 32)]
    with pytest.raises(RecipeError, match="no row has pairs of flickr30k; they are of cifar100"):
        planned("table1", "paper", image_sizes={"flickr30k": (8, 8)})


def test_gifds_generator_is_named_and_told(tmp_path: Path) -> None:
    table = planned("table1", "paper", only="GIFD")
    assert "--model generator=DIR" in [need.option for need in table[0].study.needed("lenet5")]
    (other, *_) = planned("table1", "paper", only="DLG")
    assert "--model generator=DIR" not in [need.option for need in other.study.needed("lenet5")]
    assert planned("table1", "paper", only="GIFD", generator="mine")[0].study.config.generator == "mine"
    told = facts_of(planned("table1", only="GIFD"))["GIFD's generator"]
    assert told == "generator-tiny, trained on 5,000 pictures of scenes, 64 x 16 pixels"
    assert "GIFD's generator" not in facts_of(planned("table1", only="DLG"))
    save_generator(build_generator(GeneratorConfig(height=8, width=8, channels=(4, 4)), seed=0), tmp_path, {})
    assert generator_told(str(tmp_path)).endswith("its card does not say on what it was trained")


def test_two_data_sets_in_one_call(tmp_path: Path) -> None:
    recipe = replace(mini("table1", "GIFD"), name="two")
    lines = rows_of(recipe, PairStudy, "tiny", tmp_path, {**SMALL, "documents": ("scenes", "pages:synthetic")})
    reproduce(recipe, lines, tmp_path, scale="tiny", workers=1)
    write_table(recipe, "tiny", lines, tmp_path, {})
    text = (tmp_path / "table.md").read_text()
    assert "### lenet5 + bert-tiny, scenes" in text and "### lenet5 + bert-tiny, pages" in text
    assert "Pairs: 2 of scenes, pictures of 64 x 16 pixels; 2 of pages," in text
    saved = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["data_set"] for row in saved] == ["scenes", "pages"]
    assert saved[0]["ours"]["ssim"] != saved[1]["ours"]["ssim"]


def test_gains_are_over_stage_1_at_the_same_budget(tmp_path: Path) -> None:
    recipe = mini("evaluations", "stage 1 alone, 60", "stage 1 alone, 400", "MMGIA, 60")
    lines = rows_of(recipe, PairStudy, "tiny", tmp_path, {"documents": ("scenes",), "pages": 1}, only="60")
    reproduce(recipe, lines, tmp_path, scale="tiny", workers=1)
    facts = facts_of([*rows_of(recipe, PairStudy, "tiny", tmp_path, {"documents": ("scenes",), "pages": 1})])
    assert facts["Budget"].startswith("60 or 400 gradient evaluations")
    assert [name for name in facts if "more than" in name] == ["MMGIA, 60 (pair), more than 'stage 1 alone, 60'"]
