"""Recipes: the shipped ones are whole, wrong ones say what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docleak.errors import AttackError, DefenseError, RecipeError
from docleak.recipes import find_recipe, list_recipes, read_recipe
from docleak.recipes.recipe import SCALES, Recipe, known_of, study_of
from docleak.recipes.rows import rows_of
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.study import GradientStudy

GOOD = """
title = "T"
models = ["m"]
[fixed]
budget = 30
[scales.tiny]
models = { m = "layoutlmv3-start" }
pages = 2
[[rows]]
name = "a"
[[rows]]
name = "b"
batch_size = 2
attack_options = "grey=no"
stages = ["vision"]
defense = "noise:sigma=1"
scales.tiny = { pages = 1 }
printed.m = { binary = 0.5 }
"""


def configs(recipe: Recipe, scale: str = "tiny", **changes: object) -> list[GradientConfig]:
    return [row.study.config for row in rows_of(recipe, GradientStudy, scale, Path("out"), changes)]


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text)
    return file


def test_the_papers_tables_are_all_there() -> None:
    assert {f"gi-dqa/table{n}" for n in range(1, 9)} | {
        "gi-dqa/figure5",
        "gi-dqa/figure6",
        "gi-dqa/section5",
        "mmgia/figure3a",
    } <= set(list_recipes())


#: What options of ``docleak reproduce`` replace (evaluations, pages, providers, networks), as notes name it.
REPLACED = re.compile(
    r"\d[\d,]* (?:evaluations|synthetic |providers (?:of|with)|pages, )|on \d+ receipts|[Ss]mall networks|"
    "three sets are|^Tiny Donut at"
)
SAID = re.compile("otherwise|--[a-z]")


@pytest.mark.parametrize("name", list_recipes())
def test_a_note_says_that_options_replace_what_it_names(name: str) -> None:
    sentences = re.split(r"(?<=[.]) ", find_recipe(name).note)
    assert [one for one in sentences if REPLACED.search(one) and not SAID.search(one)] == []


#: Recipes that compare attacks or budgets, so that not every row is the paper's.
MIXED = ("gi-dqa/table1", "gi-dqa/closed-form", "gi-dqa/evaluations", "gi-dqa/joint", "gi-dqa/solver", "gi-dqa/text")
#: Recipes of docleak's own tiny models alone.
TINY = ("gi-dqa/real", "gi-dqa/tiny")


@pytest.mark.parametrize("name", [name for name, recipe in list_recipes().items() if recipe.kind == "gradient"])
@pytest.mark.parametrize("scale", SCALES)
def test_every_row_of_every_shipped_recipe_is_a_config(name: str, scale: str) -> None:
    recipe = find_recipe(name)
    if scale not in recipe.scales and (scale in ("narrow", "base") or name in TINY):
        pytest.skip("this recipe has no rows of that scale")
    assert recipe.title and recipe.finding and recipe.paper
    assert all(set(row.printed) <= set(row.models) for row in recipe.rows)
    for row in rows_of(recipe, GradientStudy, scale, Path("out"), {}, complete=False):
        config = row.study.config
        assert config.pages >= 1 and len(config.attacks) == 1
        if scale in ("narrow", "paper") and "paper's" not in row.name and "ours" not in row.name and name not in MIXED:
            assert config.attacks[0].startswith("gi-dqa-adam") and config.budget == 5000


def test_settings_of_row_scale_and_caller_win_in_that_order(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, GOOD), "mine")
    first, config = configs(recipe)
    assert first.pages == 2
    assert (config.pages, config.budget, config.batch_size) == (1, 30, 2)
    assert config.attacks == ("gi-dqa:grey=no",)
    assert config.exposure.stages == ("vision",) and config.exposure.defense == "noise:sigma=1"
    for_m = read_recipe(
        written(tmp_path, GOOD.replace("[scales.tiny]", "[scales.tiny]\nof.m = { budget = 19, pages = 8 }")), "m"
    )
    assert [(row.budget, row.pages) for row in configs(for_m)] == [(19, 8), (19, 1)], "over the scale, under the row"
    assert configs(recipe, pages=7, models={"m": "donut-start"})[1].pages == 7
    assert configs(recipe, models={"m": "donut-start"})[1].models == ("donut-start",)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("budget = 30", "bugdet = 30"), r"\[fixed\]: unknown key 'bugdet'. Did you mean 'budget'"),
        (("batch_size", "batchsize"), r"row 2 \(b\): unknown key 'batchsize'. Did you mean 'batch_size'"),
        (('title = "T"', 'titel = "T"'), "unknown key 'titel'. Did you mean 'title'"),
        (("binary = 0.5", "binar = 0.5"), "printed.m: unknown key 'binar'. Did you mean 'binary'"),
        (("[scales.tiny]", "[scales.tinny]"), "unknown key 'tinny'. Did you mean 'tiny'"),
        (
            ("[scales.tiny]", "[scales.tiny]\nof.m = { bugdet = 3 }"),
            r"tiny\], of.m: unknown key 'bugdet'. Did you mean",
        ),
        (("[scales.tiny]", "[scales.tiny]\nof.m = { budget = 'x' }"), "of.m: budget is 'x', expected a whole number"),
        (("[scales.tiny]", "[scales.tiny]\nof.m = 3"), "of.m is 3, expected settings"),
        (("[scales.tiny]", "[scales.tiny]\nof.n = { budget = 3 }"), "it has no model 'n'; its models are m"),
        (('name = "a"', 'title = "a"'), "row 1 has no name"),
        (('title = "T"', "title = 3"), "title is 3, expected a text"),
        (('name = "a"', 'name = "a"\nnome = 1'), r"Expected one of (?!.*\bmodels\b.*\bmodels\b)"),
        (('models = ["m"]', 'models = "m"'), "models is 'm', expected a list"),
        (
            ('title = "T"', 'title = "T"\nkind = "dance"'),
            "no recipe of the kind 'dance'; known: gradient, weights, answers",
        ),
        (
            ('title = "T"', 'title = "T"\nkind = "updates"'),
            "no recipe of the kind 'updates'; known: gradient, weights, answers",
        ),
        (('title = "T"', 'title = "T"\nkind = "trainings"'), r"row 2 \(b\): unknown key 'attack_options'"),
        (("[[rows]]", "[[rows]"), "cannot be read as TOML"),
    ],
)
def test_wrong_recipes_name_the_fault(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        read_recipe(written(tmp_path, GOOD.replace(*change)), "mine")


def test_wrong_values_are_refused_before_anything_runs(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, GOOD.replace("noise:sigma=1", "noise:sigma=nan")), "mine")
    with pytest.raises(DefenseError, match="sigma is nan"):
        configs(recipe)
    recipe = read_recipe(written(tmp_path, GOOD.replace("grey=no", "grey=maybe")), "mine")
    with pytest.raises(AttackError, match="grey"):
        configs(recipe)
    nameless = read_recipe(written(tmp_path, GOOD.replace('m = "layoutlmv3-start"', 'n = "layoutlmv3-start"')), "mine")
    with pytest.raises(RecipeError, match="no checkpoint for 'm'"):
        configs(nameless)


def test_a_scale_says_which_models_its_rows_run_on(tmp_path: Path) -> None:
    more = """
[scales.base]
on = ["m", "spread"]
models = { m = "make:layoutlmv3-base", spread = "make:layoutlmv3-base,spread=yes" }
[[rows]]
name = "bound"
models = ["m"]
"""
    recipe = read_recipe(written(tmp_path, GOOD.replace("[[rows]]", f"{more}[[rows]]", 1)), "mine")
    assert recipe.models == ("m", "spread")
    for scale, named in (("tiny", ["m"] * 3), ("base", ["m", "m", "spread", "m", "spread"])):
        assert [row.model for row in rows_of(recipe, GradientStudy, scale, tmp_path / "out", {})] == named
    changed = configs(recipe, "base", models={"spread": "donut-start"}, image_sizes={"spread": (64, 64)})
    assert [c.models[0] for c in changed[:3]] == ["make:layoutlmv3-base", "make:layoutlmv3-base", "donut-start"]
    assert [c.image_size for c in changed[:3]] == [None, None, (64, 64)]
    with pytest.raises(RecipeError, match=r"\[scales.base\], on is \[3\], expected a list of texts"):
        read_recipe(written(tmp_path, GOOD + "[scales.base]\non = [3]\n"), "mine")


def test_unknown_recipes_list_the_known() -> None:
    with pytest.raises(RecipeError, match=r"Did you mean 'gi-dqa/table1'.*gi-dqa/table8"):
        find_recipe("gi-dqa/tabel1")
    with pytest.raises(RecipeError, match=r"recipe 'cdmi'\. Of cdmi there are .*cdmi/table5; docleak reproduce --list"):
        find_recipe("cdmi")
    with pytest.raises(RecipeError, match=r"no recipe 'dance'\. There are some of cdmi, .*, pfl-docvqa; docleak"):
        find_recipe("dance")
    with pytest.raises(RecipeError, match="no recipe file"):
        find_recipe("missing.toml")


HEAD = 'title = "t"\n[scales.tiny]\nmodels.donut = "donut-start"\n[[rows]]\nname = "r"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + 'pages = "1"', "row 1: pages is '1', expected a whole number"),
        (HEAD + "pages = true", "pages is True, expected a whole number"),
        (HEAD + "budget = nan", "budget is nan, expected a whole number"),
        (HEAD + f"budget = {10**30}", "expected a whole number"),
        (HEAD + f"budget = {'9' * 6000}", "cannot be read as TOML"),
        (HEAD + "seed = -1", "seed is -1, expected 0 to 4,294,967,295"),
        (HEAD + 'image_size = ["a", "b"]', "image_size is ['a', 'b'], expected a list"),
        (HEAD + "attack = 3", "attack is 3, expected a text"),
        (HEAD + '[[rows]]\nname = "r"', "row 2 (r) is there twice: row 1 has its name and model"),
        (HEAD + "models = 2020-01-01", "models"),
        ("models = [3]\n" + HEAD, "models is [3], expected a list of texts"),
        (HEAD + 'printed.donut = "x"', "printed.donut is 'x', expected metrics and their numbers"),
        (HEAD + "printed.donut.binary = nan", "binary is nan, expected a number"),
        ('title = "t"\nrows = []', "there is no row"),
        ('title = "t"\nscales = "x"\n[[rows]]\nname = "r"', "scales is 'x', expected a table"),
        ('kind = "trainings"\n' + HEAD + "rounds = nan", "rounds is nan"),
        ("a." * 3000 + "b = 1", "is no recipe"),
    ],
)
def test_wrong_values_are_named_with_their_row(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(RecipeError) as raised:
        read_recipe(file, "own")
    assert said in str(raised.value)


def test_every_kind_has_settings_with_types_and_numbers() -> None:
    for name in ("gradient", "answers", "pairs", "trainings", "weights"):
        known = known_of(study_of(name))
        assert all(known.types.values()) and known.printed, name
    assert "model" not in known_of(study_of("trainings")).types, "the recipe's models say it"


def test_rows_of_a_study_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rows.py").write_text(
        "from docleak.studies.gradient.study import GradientStudy\nclass Own(GradientStudy):\n    extra = {}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = read_recipe(written(tmp_path, HEAD.replace("[scales", 'kind = "own_rows:Own"\n[scales', 1)), "own")
    assert recipe.study.__name__ == "Own"
