"""MMGIA's tables: their files hold the paper's numbers, and a miniature of one runs through, resumes and is told."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from docleak.errors import RecipeError
from docleak.recipes.recipe import Recipe, find_recipe
from docleak.recipes.rows import reproduce, rows_of, write_table
from docleak.studies.pairs.reading import privacy_in
from docleak.studies.pairs.rows import unfinished
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
    own = tuple(row for row in recipe.rows if row.name in rows)
    return replace(recipe, rows=own, scales={**recipe.scales, "tiny": first})


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
            for row in rows_of(recipe, PairStudy, scale, Path("out"), {"documents": ("scenes",)}):
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
        found = privacy_in(row.run)
        assert all(0 <= value <= 1 for value in found["accuracy"])
        noise[row.name] = found["noise"]
        assert ("claim" in found) == (row.name != "no DP")
        assert "claim" not in found or "per record (one pair of picture and text added or removed)" in found["claim"]
    assert noise["epsilon 1"] > noise["epsilon 10, B = 2"] > noise["no DP"] == 0
    assert "0.530" in (tmp_path / "table.md").read_text()
