"""Numbers and sentences of a paper stand in recipes and on stored pages: once, and the same."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from docleak.recipes import find_recipe, list_recipes

RESULTS = Path(__file__).parents[2] / "docs" / "results"
#: Of a data set each, and so in columns of their own, not beside a row's numbers.
OF_DATA_SETS = ("_cifar100", "_openi", "_flickr30k")
#: Its caption and table 5 name different targets for one number, as its note says.
AT_ODDS = "cdmi/figure6"

Row = tuple[str, str, str, str, bool]


def stored() -> dict[Path, dict[str, Any]]:
    tables = {file: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*/*.json"))}
    return {file: table for file, table in tables.items() if "recipe" in table and "rows" in table}


def of_cdmi(name: str) -> dict[Row, dict[str, float]]:
    """What a table of CDMI prints of each target: model, task, data, criterion, bimodal."""
    printed = {}
    for row in find_recipe(name).rows:
        asked = {"task": "mlm", "data": "sroie", "criterion": "precision", "bimodal": False, **row.settings}
        for model, numbers in row.printed.items():
            key = (model, asked["task"], asked["data"], asked["criterion"], asked["bimodal"])
            printed[key] = dict(numbers)
    return printed


def test_stored_tables_print_what_their_recipes_print() -> None:
    """A printed number that is corrected in a recipe would stand beside ours as it was."""
    wrong, seen, recipes = list[str](), 0, list_recipes()
    for file, table in stored().items():
        rows = {row.name: row for row in recipes[table["recipe"]].rows}
        for row in table["rows"]:
            printed = dict(rows[row["row"]].printed.get(row["model"], {}))
            beside = {name: value for name, value in printed.items() if not name.endswith(OF_DATA_SETS)}
            if row["paper"] not in (printed, beside):
                wrong.append(f"{file.name}: {row['row']}, {row['model']}: {row['paper']}, not {beside}")
            seen += len(row["paper"])
    assert seen > 1500 and not wrong, "\n".join(wrong)


def test_stored_pages_tell_the_finding_that_their_recipe_tells() -> None:
    stale, recipes, tables = list[str](), list_recipes(), stored()
    for file, table in tables.items():
        recipe = recipes[table["recipe"]]
        said = f"{recipe.source(table['scale'])} {recipe.whose_finding}: {recipe.finding}"
        stale += [file.stem] * (said not in file.with_suffix(".md").read_text())
    assert len(tables) > 100 and not stale


def test_a_target_of_cdmi_has_one_number_in_all_tables() -> None:
    whole, compared = of_cdmi("cdmi/table5"), 0
    assert len(whole) == 36
    for name in (one for one in list_recipes() if one.startswith("cdmi/") and one not in ("cdmi/table5", AT_ODDS)):
        for key, numbers in of_cdmi(name).items():
            for column, value in numbers.items() if key in whole else ():
                assert whole[key][column] == value, (name, key, column)
                compared += 1
    assert compared > 400


@pytest.mark.parametrize(
    ("name", "said", "model", "choice"),
    [
        ("figure4", "1.296", "layoutlm", {"task": "mlm", "bimodal": True}),
        ("figure4", "1.078", "layoutlm", {"task": "mlm", "bimodal": False}),
        ("figure4", "1.187", "layoutlm", {"task": "mlm"}),
        ("figure5-backbones", "1.167", "bros", {"task": "mlm"}),
        ("learned", "1.187", "layoutlm", {"task": "mlm"}),
        ("learned", "1.128", "layoutlm", {"task": "ee"}),
        ("learned", "1.224", "layoutlm", {"task": "ee", "data": "sroie"}),
        ("learned", "1.169", "layoutlm", {"task": "mlm", "data": "sroie"}),
        ("section6", "1.296", "layoutlm", {"task": "mlm", "bimodal": True}),
    ],
)
def test_means_of_a_finding_are_those_of_the_printed_table(
    name: str, said: str, model: str, choice: dict[str, Any]
) -> None:
    names = ("model", "task", "data", "criterion", "bimodal")
    targets = {key: numbers["ipf"] for key, numbers in of_cdmi("cdmi/table5").items()}

    def chosen(key: Row) -> bool:
        of = dict(zip(names, key, strict=True))
        return of["model"] == model and all(
            str(of[one]).startswith(value) if isinstance(value, str) else of[one] == value
            for one, value in choice.items()
        )

    assert said in find_recipe(f"cdmi/{name}").finding
    assert mean(ipf for key, ipf in targets.items() if chosen(key)) == pytest.approx(float(said), abs=0.0006)


def test_how_often_the_surest_are_right_more_often_than_all() -> None:
    rows = of_cdmi("cdmi/table5").values()
    more = sum(numbers["at5"] > numbers["at100"] for numbers in rows)
    assert f"in {more} of the {len(rows)} rows" in find_recipe("cdmi/ranking").finding
