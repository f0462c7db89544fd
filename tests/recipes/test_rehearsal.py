"""Rehearsals: nothing is missing unnoticed. A step of each paper's recipes: tests/cli/test_reproduce_page.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from docleak.cli.reproduce import Given
from docleak.documents.loaders import LOADERS
from docleak.documents.page import Page
from docleak.documents.pairs.loading import PAIR_FORMATS
from docleak.errors import RecipeError
from docleak.models.base import DocumentModel
from docleak.models.published import make
from docleak.recipes import Recipe, Row, find_recipe, list_recipes, rehearsal
from docleak.recipes.rehearsal import HANDED_OUT, MADE_FROM, Rehearsed, _key, _whole, fewest, keep_ended, rehearse
from docleak.recipes.rehearsed import duration, write_rehearsal
from docleak.recipes.rows import count_rows, rows_of
from docleak.runs.pool import results
from docleak.studies.engine import begin
from docleak.studies.study import STEP, Done, TableRow, TableStudy
from docleak.training.federated import local
from docleak.training.objectives.objective import Example
from tests.cli.published_layouts import openi

#: But that of the accountants, whose rows lack nothing and are computed.
PAPER = [name for name, recipe in list_recipes().items() if "paper" in recipe.scales and name != "pfl-docvqa/table12"]
#: What the page of all tables says that each lacks.
SUMMARY = (Path(__file__).parents[2] / "docs" / "results" / "rehearsal.md").read_text()


def rehearsed(recipe: Recipe, out: Path, only: str = "", scale: str = "paper", **changes: object) -> list[Rehearsed]:
    rows = rows_of(recipe, recipe.study, scale, out, changes, only=only, complete=False)
    with TemporaryDirectory() as place:
        return rehearse(rows, Path(place))


def mirror(name: str, folder: Path) -> str:
    make(name, folder / name, seed=0, scale="narrow")
    return str(folder / name)


@pytest.mark.parametrize("name", PAPER)
def test_every_row_of_the_paper_scale_has_a_least_part(name: str, tmp_path: Path) -> None:
    recipe = find_recipe(name)
    for row in rows_of(recipe, recipe.study, "paper", tmp_path, {}, complete=False):
        assert isinstance(row.study.least(), recipe.study)


@pytest.mark.parametrize("name", PAPER)
def test_every_recipe_of_the_paper_scale_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    rows = rehearsed(find_recipe(name), tmp_path)
    for row in rows:
        assert not row.stops and (row.seconds is None) == bool(row.missing)
        assert all(lack.option.startswith("--") and "PATH" not in lack.option for lack in row.missing)
    (line,) = (line.split(" | ") for line in SUMMARY.splitlines() if line.startswith(f"| {name} | "))
    options = dict.fromkeys(lack.option for row in rows for lack in row.missing)
    assert (line[1], line[3]) == (str(len(rows)), ", ".join(options)), "docs/results/rehearsal.md is of other rows"
    assert not list(tmp_path.iterdir()), "nothing is written where the rows' runs would be"


def test_what_is_missing_is_named_with_where_it_is_and_its_bytes(tmp_path: Path) -> None:
    (first, *_) = rehearsed(find_recipe("gi-dqa/table1"), tmp_path, only="Random")
    model, pages, reader = first.missing
    assert (model.option, model.where) == ("--model donut=DIR", "naver-clova-ix/donut-base")
    assert model.bytes == 809_008_096
    assert pages.option == "--documents pfl-docvqa:DIR" and "elsa-ai.eu" in pages.where
    assert (reader.option, reader.where) == ("--ocr trocr:DIR", "microsoft/trocr-base-printed") and reader.bytes > 10**9
    assert dict(first.work) == {"gradient evaluations": 395 * 5000}
    with pytest.raises(RecipeError, match="--model fedocvqa=DIR --documents wtq:DIR"):
        rows_of(find_recipe("fedocvqa/table3"), find_recipe("fedocvqa/table3").study, "paper", tmp_path, {})


def test_every_format_and_every_model_that_is_left_to_the_user_has_a_place() -> None:
    assert HANDED_OUT.keys() == {*LOADERS, *PAIR_FORMATS} - {"folder", "pdf", "datasets"}  # of one's own
    assert all("https://" in where for where in HANDED_OUT.values())
    models = [recipe.scales.get("paper", {}).get("models", {}) for recipe in list_recipes().values()]
    left = {name for named in models if isinstance(named, dict) for name, where in named.items() if where == "PATH"}
    trained = {name for name in left if name.endswith("trained")}
    assert left - trained == {*MADE_FROM}, (
        "what is no published checkpoint, and not trained by the user, is made from some"
    )


def test_a_small_row_is_rehearsed_and_scaled_up(tmp_path: Path) -> None:
    rows = (Row("long", ("m",), {}), Row("twice as long", ("m",), {"pages": 6}))
    recipe = Recipe("test", "A test", "nobody", "", rows, {"pages": 3, "budget": 90, "seed": 0, "attack": "dlg"},
                    {"tiny": {"models": {"m": "layoutlmv3-start"}}})  # fmt: skip
    planned = rows_of(recipe, recipe.study, "tiny", tmp_path, {}, complete=False)
    said: list[str] = []
    place = tmp_path / "place"
    (place / "docleak-store").mkdir(parents=True)
    (place / "docleak-store" / "model.safetensors").touch()
    once, twice = rehearse(planned, place, said.append)
    assert said == ["long (m)"], "rows with the same least part are computed once"
    assert not (place / "docleak-store").exists(), "models of one table fill no disk while the next is rehearsed"
    assert once.seconds == twice.seconds and once.peak > 10**8
    assert once.estimate is not None and twice.estimate == pytest.approx(2 * once.estimate)
    assert once.work == {"pages": 3, "gradient evaluations": 270}
    (thrice,) = rehearse(rows_of(recipe, recipe.study, "tiny", tmp_path, {"pages": 9}, only="long (m)"), place)
    assert thrice.seconds == once.seconds, "another table's row with the same least part is not computed again"
    assert thrice.estimate == pytest.approx(3 * once.estimate) and thrice.work["pages"] == 9
    write_rehearsal([(recipe, list(zip(planned, (once, twice), strict=True)))], "tiny", tmp_path, {"Command": "test"})
    page = (tmp_path / "rehearsal.md").read_text()
    assert "| long (m) |" in page and "3 pages, 270 gradient evaluations" in page and "What is missing" not in page
    saved = json.loads((tmp_path / "rehearsal.json").read_text())
    assert saved["rows"][1]["work"] == {"pages": 6, "gradient evaluations": 540}


def test_models_of_one_row_fill_no_disk_while_the_next_is_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 rows of CDMI's Table 5 leave six checkpoints of 0.5 GB each."""
    rows = tuple(Row(name, ("m",), {"attack": name}) for name in ("random", "dlg"))
    recipe = Recipe("test", "A test", "nobody", "", rows, {"pages": 1, "budget": 9, "seed": 0},
                    {"tiny": {"models": {"m": "layoutlmv3-start"}}})  # fmt: skip
    measured = rehearsal._measured

    def trained(studies: Sequence[TableStudy[Any]], folder: Path) -> list[dict[str, Any]]:
        assert not list(tmp_path.rglob("*.safetensors")), "the row before left its own"
        record = measured(studies, folder)
        (folder / "models").mkdir()
        (folder / "models" / "model.safetensors").touch()
        return record

    monkeypatch.setattr(rehearsal, "_measured", trained)
    planned = rows_of(recipe, recipe.study, "tiny", tmp_path, {}, complete=False)
    assert [row.stops for row in rehearse(planned, tmp_path / "place")] == ["", ""]
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("name", ["gi-dqa/table8", "mmgia/table1", "pfl-docvqa/table3"])
def test_a_row_of_the_base_scale_can_be_computed_where_docleak_makes_the_documents(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe = find_recipe(name)
    smaller = {
        model: "lenet5+bert-tiny" if "+" in source else f"{source},narrow=yes"
        for model, source in recipe.scales["base"]["models"].items()
    }
    rows = rows_of(recipe, recipe.study, "base", tmp_path, {"models": smaller}, complete=False)
    ((row,),) = fewest([rows])
    (told,) = rehearse([row], tmp_path / "place")
    assert not told.stops and not told.missing and told.seconds


def test_the_base_scale_is_rehearsed_on_models_made_on_the_spot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    narrow = {name: f"make:layoutlmv3-base,narrow=yes{spread}" for name, spread in
              (("start", ""), ("spread", ",spread=yes"))}  # fmt: skip
    rows = rehearsed(find_recipe("gi-dqa/closed-form"), tmp_path, only="as sent", scale="base", models=narrow)
    assert [row.stops for row in rows] == ["", ""] and all(row.seconds and not row.missing for row in rows)
    drawn = ["default", "spread"]
    assert [row.there[0] for row in rows] == [
        f"model microsoft/layoutlmv3-base, made narrow, random weights ({how} initialisation, seed 0)" for how in drawn
    ]


@pytest.mark.parametrize("name", ["gi-dqa/table2", "gi-dqa/table4", "gi-dqa/figure6"])
def test_the_narrow_scale_computes(name: str, tmp_path: Path) -> None:
    """A step of the first row of one page, a batch, and a training, on a network made on the spot and slips of its
    size."""
    recipe = find_recipe(name)
    for model in recipe.scales["narrow"]["on"]:
        row = rehearsed(recipe, tmp_path, only=f"{recipe.rows[0].name} ({model})", scale="narrow")[0]
        assert row.seconds and not row.stops and not row.missing


@pytest.mark.parametrize("name", [name for name, recipe in list_recipes().items() if "base" in recipe.scales])
def test_every_model_of_the_base_scale_is_made_or_known(name: str) -> None:
    recipe = find_recipe(name)
    at = recipe.scales["base"]
    assert set(at.get("on", ())) <= set(at["models"]), "each model that rows run on has a checkpoint"
    for row in rows_of(recipe, recipe.study, "base", Path("out"), {}, complete=False):
        assert not any(need.kind == "model" and "PATH" in need.source for need in row.study.needed(row.model))


def test_where_memory_forbids_a_step_it_is_counted_and_not_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, given = find_recipe("gi-dqa/table1"), {
        "models": {"donut": mirror("donut-base", tmp_path)}, "documents": ("synthetic",), "ocr": "rapidocr",
        "image_sizes": {"donut": (320, 448)},
    }  # fmt: skip
    only = "Random (donut)|GI-DQA, the paper's Adam (donut)"
    rows = rows_of(recipe, recipe.study, "paper", tmp_path / "rows", given, only=only, complete=False)
    client, evaluation = (row.study.held() for row in rows)
    assert 5e7 < 1.5 * client < evaluation < 5e8
    monkeypatch.setattr(rehearsal, "_memory_of", lambda device: rehearsal.ITS_OWN + evaluation - 1)
    drawn, adam = rehearse(rows, tmp_path / "place")
    assert drawn.seconds and not drawn.missing, "what takes the client's gradient alone has room"
    (lack,) = adam.missing
    assert lack.option == "memory" and "--image-size takes smaller pages" in lack.where
    assert adam.seconds is None and not adam.stops and adam.peak == rehearsal.ITS_OWN + evaluation
    (tmp_path / "donut-base" / "pytorch_model.bin").write_bytes(b"no weights")
    (_, adam) = rehearse(rows, tmp_path / "other")
    assert "could not be loaded" in adam.stops, "a model that cannot be loaded stops its row and no other"


def test_what_is_given_and_wrong_stops_the_row(tmp_path: Path) -> None:
    wrong = tmp_path / "nothing"
    (row,) = rehearsed(
        find_recipe("gi-dqa/table1"), tmp_path, only="Random", scale="tiny", documents=(f"sroie:{wrong}",)
    )[:1]
    assert str(wrong) in row.stops and row.seconds is None


def test_seconds_of_a_kind_of_work_are_scaled_by_its_count() -> None:
    assert _whole([Done(2, 3.0, 100), Done(2, 1.0, 100)]) == pytest.approx(100.0)
    assert _whole([Done(0, 0.0, 0)]) == 0.0
    assert [duration(seconds) for seconds in (1, 59, 130, 7200, 86_400 * 30)] == [
        "1.0 s", "59 s", "2.2 min", "2.0 h", "30 days",
    ]  # fmt: skip


def test_tables_of_one_call_share_the_division_of_their_documents_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("docleak.recipes.rehearsal.results", lambda *a, apart, **more: results(*a, **more))
    told: list[dict[str, Any]] = []
    for name in ("pfl-docvqa/table5", "pfl-docvqa/figure2", "pfl-docvqa/table3"):
        recipe, few = find_recipe(name), {"issuers": 60, "per_issuer": 4.0}
        row = rows_of(recipe, recipe.study, "tiny", tmp_path / "rows", few)[0]
        (found,) = rehearse([row], tmp_path / "place")
        assert found.seconds is not None and not found.stops
        (division,) = (tmp_path / "place" / "docleak-releases").iterdir()
        assert division.name.startswith("data-"), "targets and replies are made anew: their time is the table's"
        told.append({str(file): file.stat().st_mtime_ns for file in division.rglob("*.png")})
    assert told[0] and told[0] == told[1] == told[2], "written once"
    keep_ended(tmp_path / "place")
    assert [folder.name for folder in (tmp_path / "place").iterdir()] == ["table"]


def test_documents_are_divided_before_the_first_unit_and_not_for_what_is_finished(tmp_path: Path) -> None:
    recipe = find_recipe("pfl-docvqa/table5")
    few = {"issuers": 60, "per_issuer": 4.0}
    study = rows_of(recipe, recipe.study, "tiny", tmp_path, few)[0].study
    run = begin(study, tmp_path / "table" / "rows" / "first")
    study.prepare(run, lambda text: None)
    (unit,), store = study.units(), tmp_path / "docleak-releases"
    (division,) = store.iterdir()
    record, images = study.compute(unit, run, lambda count: None)
    run.write_unit(unit.id, record, images)
    shutil.rmtree(division)
    study.prepare(run, lambda text: None)
    assert not list(store.iterdir())


def test_pairs_that_are_too_few_stop_a_row(tmp_path: Path) -> None:
    openi(tmp_path / "few", count=30)
    given = {
        "models": {"pair": "lenet5+bert-tiny"}, "documents": (f"openi:{tmp_path / 'few'}",),
        "aligner": mirror("clip-vit-base-patch32", tmp_path), "language": mirror("gpt2", tmp_path),
    }  # fmt: skip
    (row,) = rehearsed(find_recipe("mmgia/table4"), tmp_path, only="epsilon 5, B = 2", **given)
    assert "has 30 pairs" in row.stops and "2100 were asked for" in row.stops


def test_a_row_in_which_a_pair_is_taken_for_another_is_rehearsed_on_two(tmp_path: Path) -> None:
    (oracle,) = rehearsed(find_recipe("mmgia/aligner"), tmp_path, only="MMGIA, oracle, error 0.5", scale="tiny")
    assert oracle.seconds and not oracle.stops


def test_of_what_is_given_a_table_takes_what_its_rows_have(tmp_path: Path) -> None:
    given = Given(("layoutlm=here", "resnet=there", "tuned_on=elsewhere"))
    for name, taken in (
        ("cdmi/strong", ("layoutlm=here",)), ("cdmi/table5", given.models), ("mmgia/table1", ()),
        ("cdmi/appendixA", ("layoutlm=here", "resnet=there")),
    ):  # fmt: skip
        recipe = find_recipe(name)
        rows = rows_of(recipe, recipe.study, "paper", tmp_path, {}, complete=False)
        assert given.of_use_to(recipe, rows).models == taken, name


def done_by(row: TableRow, out: Path) -> list[Done]:
    """What the least part of a row says that it did of its training."""
    least = row.study.least()
    run = begin(least, out / "place" / "table" / "rows" / "least")
    least.prepare(run, lambda text: None)
    (unit,) = least.units()
    record, images = least.compute(unit, run, lambda count: None)
    run.write_unit(unit.id, record, images)
    return [done for kind, done in row.study.done(unit, run, 100.0).items() if "questions" not in kind]


def test_a_step_of_a_training_is_rehearsed_on_few_examples_and_scaled_up(tmp_path: Path) -> None:
    recipe = find_recipe("fedocvqa/figure3")
    (row,) = rows_of(recipe, recipe.study, "tiny", tmp_path / "rows", {}, only="C = 1")[:1]
    steps = done_by(row, tmp_path)
    assert [done.count for done in steps] == [3 * STEP / 8], "three clients, batches of 8"


def test_a_private_training_is_estimated_by_its_rounds(tmp_path: Path) -> None:
    recipe = find_recipe("fedocvqa/private")
    name = "no self-pretraining, epsilon 8"
    rows = rows_of(recipe, recipe.study, "tiny", tmp_path / "rows", {"pages": 12}, only=name)
    (done,) = done_by(rows[0], tmp_path)
    config = rows[0].study.config
    assert config.epsilon == 8.0 and config.seeds == 3
    assert (done.count, done.of) == (1, config.seeds * config.rounds * config.participation)


@pytest.mark.parametrize("only", ["VT5_C", "VT5_FL", "VT5_FL+DP, epsilon 8"])
def test_a_release_is_estimated_by_the_examples_that_it_is_trained_on(
    only: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = 0

    def counting(model: DocumentModel, pages: Sequence[Page], batch: Sequence[Example], *rest: Any) -> float:
        nonlocal counted
        counted += len(batch)
        return add_gradient(model, pages, batch, *rest)

    add_gradient = local._add_gradient
    monkeypatch.setattr(local, "_add_gradient", counting)
    recipe = find_recipe("pfl-docvqa/table6")
    few = {"issuers": 90, "per_issuer": 3.0}
    rows = rows_of(recipe, recipe.study, "tiny", tmp_path / "rows", few, only=only)
    (row,) = (row for row in rows if row.name == only)
    (examples,) = done_by(row, tmp_path)
    assert counted and (counted == examples.count or "DP" in only), "coins draw the units of a private training"
    assert counted == pytest.approx(examples.count, rel=0.3) and examples.of > 5 * examples.count


@pytest.mark.parametrize("name", PAPER)
def test_all_rows_of_a_scale_are_not_called_some(name: str, tmp_path: Path) -> None:
    recipe = find_recipe(name)
    rows = rows_of(recipe, recipe.study, "paper", tmp_path, {}, complete=False)
    assert len({(row.name, row.model) for row in rows}) == count_rows(recipe, "paper", ())


def test_of_each_table_the_fewest_rows_are_one_and_shared_where_tables_have_it(tmp_path: Path) -> None:
    def planned(name: str, **changes: object) -> list[TableRow]:
        recipe = find_recipe(name)
        return rows_of(recipe, recipe.study, "paper", tmp_path, changes, complete=False)

    chosen = fewest([planned(name) for name in PAPER])
    assert [len(rows) for rows in chosen] == [1] * len(PAPER)
    assert len({_key(row.study) for (row,) in chosen}) <= 40
    names = ("cdmi/control", "cdmi/ranking", "cdmi/strong")
    assert len({_key(row.study) for (row,) in fewest([planned(name) for name in names])}) == 1


def test_a_row_that_lacks_something_is_not_among_the_fewest(tmp_path: Path) -> None:
    recipe = find_recipe("gi-dqa/closed-form")
    rows = rows_of(recipe, recipe.study, "paper", tmp_path, {
        "documents": ("synthetic",), "ocr": "rapidocr", "models": {"trained": mirror("layoutlmv3-base", tmp_path)},
    }, complete=False)  # fmt: skip
    assert rows[0].model == "start"
    ((row,),) = fewest([rows])
    assert row.model == "trained"
