"""Rehearsals: nothing is missing unnoticed, and a step of each paper's recipes runs on mirrors and official layouts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from docleak.errors import RecipeError
from docleak.models.assemble import assemble
from docleak.models.published import make
from docleak.recipes import Recipe, Row, find_recipe, list_recipes
from docleak.recipes.rehearsal import Rehearsed, _whole, rehearse
from docleak.recipes.rehearsed import duration, write_rehearsal
from docleak.recipes.rows import rows_of
from docleak.studies.study import Done

#: But that of the accountants, whose rows lack nothing and are computed.
PAPER = [name for name, recipe in list_recipes().items() if "paper" in recipe.scales and name != "pfl-docvqa/table12"]


def rehearsed(recipe: Recipe, out: Path, only: str = "", scale: str = "paper", **changes: object) -> list[Rehearsed]:
    rows = rows_of(recipe, recipe.study, scale, out, changes, only=only, complete=False)
    return rehearse(rows)


def mirror(name: str, folder: Path) -> str:
    make(name, folder / name, seed=0, scale="narrow")
    return str(folder / name)


@pytest.mark.parametrize("name", PAPER)
def test_every_recipe_of_the_paper_scale_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    for found in rehearsed(find_recipe(name), tmp_path):
        assert not found.stops and (found.seconds is None) == bool(found.missing)
        assert all(lack.option.startswith("--") and "PATH" not in lack.option for lack in found.missing)
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


def test_a_small_row_is_rehearsed_and_scaled_up(tmp_path: Path) -> None:
    rows = (Row("long", ("m",), {}), Row("twice as long", ("m",), {"pages": 6}))
    recipe = Recipe("test", "A test", "nobody", "", rows, {"pages": 3, "budget": 90, "seed": 0, "attack": "dlg"},
                    {"tiny": {"models": {"m": "layoutlmv3-start"}}})  # fmt: skip
    planned = rows_of(recipe, recipe.study, "tiny", tmp_path, {}, complete=False)
    said: list[str] = []
    once, twice = rehearse(planned, said.append)
    assert said == ["long (m)"], "rows with the same least part are computed once"
    assert once.seconds == twice.seconds and once.peak > 10**8
    assert once.estimate is not None and twice.estimate == pytest.approx(2 * once.estimate)
    assert once.work == {"pages": 3, "gradient evaluations": 270}
    write_rehearsal([(recipe, list(zip(planned, (once, twice), strict=True)))], "tiny", tmp_path, {"Command": "test"})
    page = (tmp_path / "rehearsal.md").read_text()
    assert "| long (m) |" in page and "3 pages, 270 gradient evaluations" in page and "What is missing" not in page
    saved = json.loads((tmp_path / "rehearsal.json").read_text())
    assert saved["rows"][1]["work"] == {"pages": 6, "gradient evaluations": 540}


def test_the_base_scale_is_rehearsed_on_models_made_on_the_spot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    narrow = {name: f"make:layoutlmv3-base,narrow=yes{spread}" for name, spread in
              (("start", ""), ("spread", ",spread=yes"))}  # fmt: skip
    found = rehearsed(find_recipe("gi-dqa/closed-form"), tmp_path, only="as sent", scale="base", models=narrow)
    assert [row.stops for row in found] == ["", ""] and all(row.seconds and not row.missing for row in found)
    drawn = ["default", "spread"]
    assert [row.there[0] for row in found] == [
        f"model microsoft/layoutlmv3-base, made narrow, random weights ({how} initialisation, seed 0)" for how in drawn
    ]


@pytest.mark.parametrize("name", [name for name, recipe in list_recipes().items() if "base" in recipe.scales])
def test_every_model_of_the_base_scale_is_made_or_known(name: str) -> None:
    recipe = find_recipe(name)
    at = recipe.scales["base"]
    assert set(at.get("on", ())) <= set(at["models"]), "each model that rows run on has a checkpoint"
    for row in rows_of(recipe, recipe.study, "base", Path("out"), {}, complete=False):
        sources = [need.source for need in row.study.needed(row.model) if need.kind == "model"]
        assert sources and not any("PATH" in source for source in sources)


def test_what_is_given_and_wrong_stops_the_row(tmp_path: Path) -> None:
    wrong = tmp_path / "nothing"
    (found,) = rehearsed(
        find_recipe("gi-dqa/table1"), tmp_path, only="Random", scale="tiny", documents=(f"sroie:{wrong}",)
    )[:1]
    assert str(wrong) in found.stops and found.seconds is None


def test_seconds_of_a_kind_of_work_are_scaled_by_its_count() -> None:
    assert _whole([Done(2, 3.0, 100), Done(2, 1.0, 100)]) == pytest.approx(100.0)
    assert _whole([Done(0, 0.0, 0)]) == 0.0
    assert [duration(seconds) for seconds in (1, 59, 130, 7200, 86_400 * 30)] == [
        "1.0 s", "59 s", "2.2 min", "2.0 h", "30 days",
    ]  # fmt: skip


def reports(folder: Path, count: int) -> str:
    """Open-I as it is unpacked: reports and pictures, normal and abnormal by turns."""
    (folder / "ecgen-radiology").mkdir(parents=True)
    (folder / "NLMCXR_png").mkdir()
    for number in range(1, count + 1):
        shade = np.full((8, 8), number % 256, np.uint8)
        PIL.Image.fromarray(shade).save(folder / "NLMCXR_png" / f"x{number}.png")
        term = "normal" if number % 2 else "opacity"
        (folder / "ecgen-radiology" / f"{number}.xml").write_text(
            f'<eCitation><AbstractText Label="FINDINGS">the heart of case {number} is clear</AbstractText>'
            f'<MeSH><major>{term}</major></MeSH><parentImage id="x{number}"/></eCitation>'
        )
    return f"openi:{folder}"


def some_of(vrdu: Path, out: Path, providers: int) -> str:
    """Two documents each of vrdu_pfl's first providers, a question a page: all that there is would be rewritten, and of
    20 providers be asked."""
    out.mkdir()
    for part in ("ocr", "images"):
        (out / part).symlink_to(vrdu / part, target_is_directory=True)
    rows = {name: [json.loads(line) for line in (vrdu / name).read_text().splitlines()]
            for name in ("docs.jsonl", "fields.jsonl", "qa.jsonl")}  # fmt: skip
    named: dict[str, list[str]] = {}
    for row in rows["docs.jsonl"]:
        named.setdefault(row["provider"], []).append(row["doc_id"])
    kept = {name for names in list(named.values())[:providers] for name in names[:2]}
    rows["docs.jsonl"] = [row for row in rows["docs.jsonl"] if row["doc_id"] in kept]
    rows["fields.jsonl"] = [row for row in rows["fields.jsonl"] if row["doc_id"] in kept]
    first = {row["image_name"]: row for row in reversed(rows["qa.jsonl"])}
    rows["qa.jsonl"] = [row for page, row in first.items() if page.rpartition("_")[0] in kept]
    for name, lines in rows.items():
        (out / name).write_text("".join(json.dumps(row) + "\n" for row in lines))
    return f"vrdu:{out}"


@pytest.mark.slow
def test_gi_dqa_is_rehearsed_on_a_published_layoutlmv3(tmp_path: Path, shared_data: Path) -> None:
    given = {"layoutlmv3": mirror("layoutlmv3-base", tmp_path), "donut": "donut-start"}
    found = rehearsed(
        find_recipe("gi-dqa/table1"), tmp_path, only="APRIL", models=given, pages=2,
        documents=(f"vrdu:{shared_data / 'vrdu_pfl'}",), ocr=f"trocr:{mirror('trocr-base-printed', tmp_path)}",
    )  # fmt: skip
    assert len(found) == 2 and not any(row.stops for row in found)
    assert sum(there.startswith("model trocr-base-printed") for row in found for there in row.there) == 2
    assert all(row.work == {"pages": 2, "gradient evaluations": 10_000} for row in found)


@pytest.mark.slow
def test_cdmi_is_rehearsed_on_published_encoders(tmp_path: Path, shared_data: Path) -> None:
    given = {name: mirror(f"{name}-base-uncased", tmp_path) for name in ("layoutlm", "bros")}
    found = rehearsed(
        find_recipe("cdmi/table5"), tmp_path, only="MLM, FUNSD, unimodal, Prec", models=given,
        documents=(f"funsd:{shared_data / 'funsd'}",),
    )  # fmt: skip
    assert len(found) == 2 and not any(row.stops for row in found)
    assert found[0].work["pages seen by the target"] == 300 * 75, "300 epochs of half of the 150 training forms"


@pytest.mark.slow
def test_fedocvqa_is_rehearsed_on_assembled_checkpoints(tmp_path: Path, shared_data: Path) -> None:
    text, vision = mirror("t5-base", tmp_path), mirror("vit-mae-base", tmp_path)
    assemble("fedocvqa", tmp_path / "model", text=text, vision=vision, seed=0, allow_pickle=True)
    sets = (f"wtq:{shared_data / 'wtq' / 'WikiTableQuestions'}", f"vrdu:{shared_data / 'vrdu_pfl'}",
            f"tabfact:{shared_data / 'tabfact' / 'Table-Fact-Checking'}")  # fmt: skip
    given = {"models": {"fedocvqa": str(tmp_path / "model")}, "documents": sets}
    (central,) = rehearsed(find_recipe("fedocvqa/table3"), tmp_path, only="K = 10, C = 0.7", **given)
    assert not central.stops and central.work["steps of finetuning"] > 10 * 7


@pytest.mark.slow
def test_pfl_docvqa_is_rehearsed_on_the_published_vt5(tmp_path: Path, shared_data: Path) -> None:
    given = {
        "models": {"vt5": mirror("vt5-base-spdocvqa", tmp_path)},
        "documents": (some_of(shared_data / "vrdu_pfl", tmp_path / "vrdu", providers=30),),
    }
    (found, *_) = rehearsed(find_recipe("pfl-docvqa/table4"), tmp_path, only="AZK: G1", **given)
    assert not found.stops and found.work.keys() == {"training steps", "questions"}


@pytest.mark.slow
def test_mmgia_is_rehearsed_on_open_i_and_a_published_clip(tmp_path: Path) -> None:
    given = {
        "models": {"pair": "+".join(mirror(name, tmp_path) for name in ("resnet-50", "bert-large-uncased"))},
        "documents": (reports(tmp_path / "openi", 2101),),
        "aligner": mirror("clip-vit-base-patch32", tmp_path), "language": mirror("gpt2", tmp_path),
    }  # fmt: skip
    (found,) = rehearsed(find_recipe("mmgia/table4"), tmp_path, only="epsilon 5, B = 2", **given)
    assert not found.stops, found.stops
    assert found.there[-1] == "2,100 pairs of openi, as many as are needed"
    assert found.work["training steps"] == 200
    few = {**given, "documents": (reports(tmp_path / "few", 30),)}
    (found,) = rehearsed(find_recipe("mmgia/table4"), tmp_path, only="epsilon 5, B = 2", **few)
    assert "has 30 pairs" in found.stops and "2100 were asked for" in found.stops
