"""GI-DQA's figure 5 as a recipe: attention maps, page by page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docleak.documents import Field, Page, Question, Word
from docleak.errors import AttackError, ModelError, RecipeError
from docleak.recipes import find_recipe
from docleak.recipes.rehearsal import rehearse
from docleak.recipes.rows import reproduce, rows_of, write_table
from docleak.studies.attention.study import AttentionConfig, AttentionStudy, _place
from docleak.studies.engine import carry_out
from docleak.studies.registry import report_on


def test_figure_5_is_a_table_of_both_models_with_their_maps(tmp_path: Path) -> None:
    recipe = find_recipe("gi-dqa/figure5")
    rows = rows_of(recipe, AttentionStudy, "tiny", tmp_path, {"pages": 2, "seed": 3})
    reproduce(recipe, rows, tmp_path, scale="tiny", workers=1)
    write_table(recipe, "tiny", rows, tmp_path, {})
    trained, start = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert (trained["model"], start["model"]) == ("donut-trained", "donut-start")
    assert trained["ours"]["cells"]["value"] < 3 and start["ours"]["cells"]["value"] > 700
    assert trained["ours"]["answer"]["value"] > 0.5 > 0.1 > start["ours"]["answer"]["value"]
    assert start["ours"]["answer"]["value"] == pytest.approx(start["ours"]["place"]["value"], rel=0.1), "evenly spread"
    assert start["ours"]["cells"]["n"] == 2
    assert (tmp_path / "pictures.png").is_file() and "Documents: synthetic" in (tmp_path / "table.md").read_text()
    units = rows[0].run.units()
    assert {unit["of"] for unit in units} == {768}
    said = [("".join(unit["tokens"]).replace("\u0120", ""), unit["answer"].replace(" ", "")) for unit in units]
    assert all(tokens.startswith(answer[:4]) for tokens, answer in said), said
    (reading,) = report_on([rows[0].run.path])[1]
    assert "nothing was attacked" in reading.lead and "cells looked at" in reading.lines[0]


def test_the_answers_place_is_what_its_words_touch() -> None:
    words = (Word("12", (10, 10, 29, 19)), Word("May", (50, 10, 60, 19)))
    fields = (Field("date", "12 May", (0, 1)), Field("total", "12", (0,)))
    page = Page("p", np.zeros((40, 80, 3), np.uint8), words=words, fields=fields)
    total = _place(page, Question("What is the total?", ("12",), "total"), (4, 8))
    assert total.sum() == 2 and total[1, 1:3].all()
    assert _place(page, Question("What is the date?", ("12 May",), "date"), (4, 8)).sum() > total.sum()
    assert not _place(page, Question("Who?", ("me",), "name"), (4, 8)).any()


def test_what_is_no_donut_or_not_given_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AttackError, match="pages is 0"):
        AttentionConfig(pages=0)
    with pytest.raises(RecipeError, match="--documents pfl-docvqa:DIR"):
        rows_of(find_recipe("gi-dqa/figure5"), AttentionStudy, "paper", tmp_path, {})
    with pytest.raises(RecipeError, match="was given 2"):
        rows_of(find_recipe("gi-dqa/figure5"), AttentionStudy, "tiny", tmp_path, {"documents": ("a", "b")})
    with pytest.raises(ModelError, match="attention maps are of a Donut's decoder"):
        carry_out(AttentionStudy(AttentionConfig("layoutlmv3-start", pages=1)), tmp_path / "run")


def test_a_rehearsal_counts_pages(tmp_path: Path) -> None:
    recipe = replace(find_recipe("gi-dqa/figure5"), fixed={"pages": 2, "seed": 0})
    (place := tmp_path / "place").mkdir()
    rehearsals = rehearse(rows_of(recipe, AttentionStudy, "tiny", tmp_path, {}, only="cross"), place)
    assert all(not one.stops and one.work == {"pages": 2} for one in rehearsals)
