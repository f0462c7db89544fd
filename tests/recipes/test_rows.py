"""A recipe's rows as studies: its folder, its table beside the paper's numbers, and what failed."""

from __future__ import annotations

import html
import io
import json
from dataclasses import replace
from pathlib import Path

import PIL.Image
import pytest

from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import DocleakError, RecipeError
from docleak.recipes import Recipe, Row, find_recipe
from docleak.recipes.rows import failures_of, markdown_of, reproduce, require_rows, rows_of, tables_of, write_table
from docleak.recipes.statements import table_of as decided_table
from docleak.report.table import Column
from docleak.report.templating import render
from docleak.studies.gradient.study import GradientStudy
from docleak.studies.study import TableRow

ROWS = (Row("first", ("m",), {}), Row("second", ("m",), {"batch_size": 1}, {"m": {"binary": 0.5}}))
RECIPE = Recipe(
    "test", "A test", "nobody", "none", ROWS, {"pages": 2, "budget": 18, "seed": 0},
    {"tiny": {"models": {"m": "layoutlmv3-start"}}}, kind="gradient",
)  # fmt: skip


def rows(out: Path, only: str = "", **changes: object) -> list[TableRow]:
    return rows_of(RECIPE, GradientStudy, "tiny", out, changes, only=only)


def test_the_real_work_gives_a_table_with_the_papers_column(tmp_path: Path) -> None:
    planned = rows(tmp_path, only="second", pages=1)
    reproduce(RECIPE, planned, tmp_path, scale="tiny", workers=1)
    assert len(planned[0].run.units()) == 1
    write_table(RECIPE, "tiny", planned, tmp_path, {"Command": "test"})
    text = (tmp_path / "table.md").read_text()
    assert "(paper 50.0%)" in text and "| 18 |" in text and "Seed: 0" in text
    saved = json.loads((tmp_path / "table.json").read_text())
    assert saved["rows"][0]["paper"] == {"binary": 0.5} and saved["rows"][0]["row"] == "second"
    assert (tmp_path / "table.csv").read_text().splitlines()[0].startswith("row,model,binary,binary_low")
    alone = PIL.Image.open(tmp_path / "pictures.png").size
    second = replace(planned[0], model="another model")
    picture = GradientStudy.picture([*planned, second])
    assert picture is not None
    both = PIL.Image.open(io.BytesIO(picture.png)).size
    assert both == (alone[0], 2 * (alone[1] + 26)), "a model under the other, each with its name"


def test_more_pages_take_over_what_fewer_gave_and_it_is_what_they_would_have_computed(tmp_path: Path) -> None:
    fixed = {"pages": 1, "budget": 1, "seed": 0, "attack": "random"}
    recipe = Recipe("test", "A test", "", "", (Row("pairs", ("m",), {"batch_size": 2}),), fixed,
                    {"tiny": {"models": {"m": "donut-start"}}}, kind="gradient")  # fmt: skip

    def table(name: str, pages: int) -> TableRow:
        planned = rows_of(recipe, GradientStudy, "tiny", tmp_path / name, {"pages": pages})
        reproduce(recipe, planned, tmp_path / name, scale="tiny", workers=1)
        return planned[0]

    few = table("few", 1).run
    kept = few.folder(few.units()[0]["unit"]) / "unit.json"
    kept.write_text(kept.read_text().replace('"page":', '"marked": true, "page":', 1))
    more, apart = table("more", 2), table("apart/more", 2)
    assert ["marked" in unit for unit in more.run.units()] == [True, False]
    assert [unit["score"] for unit in more.run.units()] == [unit["score"] for unit in apart.run.units()]
    assert type(more.study)(replace(more.study.config, rounds=2)).over(1) is None
    told = "Computed before: of 2 units 1 for table 'few'"
    write_table(recipe, "tiny", [more], tmp_path / "more", {})
    assert told in (tmp_path / "more" / "table.md").read_text()
    write_table(recipe, "tiny", [table("more", 2)], tmp_path / "more", {})
    assert told in (tmp_path / "more" / "table.md").read_text(), "not counted again"
    write_table(recipe, "tiny", [apart], tmp_path / "apart" / "more", {})
    assert "Computed before" not in (tmp_path / "apart" / "more" / "table.md").read_text()


def test_pages_of_one_document_are_one_document(tmp_path: Path) -> None:
    first, second, third = make_pages(3, seed=0, size=(224, 224))
    save([first, replace(second, document=first.document), third], tmp_path / "pages")
    recipe = replace(RECIPE, rows=ROWS[:1], fixed={"pages": 3, "budget": 1, "seed": 0, "attack": "random"})
    planned = rows_of(recipe, GradientStudy, "tiny", tmp_path / "out", {"documents": (str(tmp_path / "pages"),)})
    reproduce(recipe, planned, tmp_path / "out", scale="tiny", workers=1)
    (table,) = tables_of(planned)
    assert table.rows[0].values["documents"] == "2 (3 pages)"


def test_failed_units_are_counted_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def broken(self: GradientStudy, unit: object, run: object, tell: object) -> None:
        tries.append(str(unit))
        raise DocleakError("planted")

    monkeypatch.setattr(GradientStudy, "compute", broken)
    monkeypatch.setattr("docleak.runs.pool._in_processes", lambda work, tasks, workers, report: (
        (task, _error(work, task)) for task in tasks))  # fmt: skip
    out = tmp_path / "table"  # beside it nothing of another test, whose units would be taken over
    planned = rows(out)
    reproduce(RECIPE, planned, out, scale="tiny", workers=1)
    assert len(tries) == 8 and set(failures_of(planned).values()) == {"DocleakError: planted"}
    page = write_table(RECIPE, "tiny", planned, out, {})
    assert "2 failed" in (out / "table.md").read_text() and "planted" in page.read_text()


def _error(work: object, task: object) -> Exception | None:
    try:
        work(task, lambda *event: None)  # type: ignore[operator]
    except DocleakError as error:
        return error
    return None


def test_a_table_of_pages_of_several_sizes_names_none_of_them_over_all_rows(tmp_path: Path) -> None:
    for rows, title in {
        "random": "Donut (tiny), start of federated training",
        "random, 256 x 448": "Donut (tiny), start of federated training, at 256 x 448 pixels",
    }.items():
        few = {"documents": ("synthetic",), "pages": 1}
        planned = rows_of(find_recipe("gi-dqa/real"), GradientStudy, "tiny", tmp_path / rows, few, only=rows)
        assert [table.title for table in tables_of(planned)] == [title]


def test_folders_of_others_are_refused_untouched(tmp_path: Path) -> None:
    other, audit = tmp_path / "other", tmp_path / "audit"
    for folder in (other, audit):
        folder.mkdir()
    (other / "recipe.json").write_text("{")
    with pytest.raises(DocleakError, match=r"recipe\.json cannot be read .* Delete the folder"):
        reproduce(RECIPE, rows(other), other, scale="tiny", workers=1)
    (other / "recipe.json").write_text('{"recipe": "other", "scale": "tiny"}')
    with pytest.raises(RecipeError, match="other"):
        reproduce(RECIPE, rows(other), other, scale="tiny", workers=1)
    (audit / "run.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"holds run\.json and no recipe\.json.*another folder \(out\)"):
        reproduce(RECIPE, rows(audit), audit, scale="tiny", workers=1)
    assert [file.name for file in audit.iterdir()] == ["run.json"]


def test_rows_are_chosen_by_name_and_model(tmp_path: Path) -> None:
    names = {
        only: [row.name for row in rows(tmp_path, only=only)]
        for only in ("", "(m)", "first (m)", "first|second", "sec | third")
    }
    both = ["first", "second"]
    assert names == {"": both, "(m)": both, "first (m)": ["first"], "first|second": both, "sec | third": ["second"]}


def test_a_whole_name_takes_no_other_row_that_holds_it(tmp_path: Path) -> None:
    attacks = replace(RECIPE, rows=(Row("DLG", ("m",), {}), Row("iDLG", ("m",), {})))
    names = {
        only: [row.name for row in rows_of(attacks, GradientStudy, "tiny", tmp_path, {}, only=only)]
        for only in ("DLG", "DLG (m)", "iDLG (m)", "DLG (m)|i")
    }
    both = ["DLG", "iDLG"]
    assert names == {"DLG": both, "DLG (m)": ["DLG"], "iDLG (m)": ["iDLG"], "DLG (m)|i": both}


def test_what_is_asked_for_and_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no scale 'paper'; it has tiny"):
        rows_of(RECIPE, GradientStudy, "paper", tmp_path, {})
    with pytest.raises(RecipeError, match="no row with 'third' in its name"):
        rows(tmp_path, only="third")
    other = replace(RECIPE, rows=(Row("third", ("m",), {}),))
    require_rows([RECIPE], "tiny", "first|second")
    require_rows([RECIPE, other], "tiny", "first|third")
    for only, said in (("first|third", "with 'third' in its name at scale 'tiny'. There are: first .m.; second .m."),
                       ("FIRST", "has no row with 'FIRST'.* Did you mean 'first'. There"),
                       ("first|", "an empty name would take every row"),
                       ("|", "an empty name would take every row")):  # fmt: skip
        with pytest.raises(RecipeError, match=said):
            require_rows([RECIPE], "tiny", only)


@pytest.mark.parametrize(
    ("paper", "ours", "source", "said"),
    [("A paper", False, "A paper, scale tiny.", "The paper's finding"), ("", True, "Scale tiny.", "Said before")],
)
def test_what_no_paper_found_is_not_called_a_papers_finding(paper: str, ours: bool, source: str, said: str) -> None:
    table = Recipe("mine", "Mine", paper, "all.", (), {}, {}, ours=ours)
    assert f"{source} {said}: all." in markdown_of(table, "tiny", [], {}).splitlines()
    page = render("recipe.html.j2", recipe=table, scale="tiny", tables=[], facts={}, footnote="", picture=None, uri="")
    assert f">{source}<" in page and f"<b>{said}:</b> all." in html.unescape(page)
    assert decided_table([], ours).title == ("Statements, tested" if ours else "The paper's findings, tested")


@pytest.mark.parametrize(("number", "shown"), [(0.5395, "54.0%"), (0.0355, "3.6%"), (0.0015, "0.2%"), (0.377, "37.7%")])
def test_a_printed_number_is_rounded_as_by_hand(number: float, shown: str) -> None:
    """The floats nearest to 53.95 and 3.55 % are less, and were shown as 53.9 and 3.5."""
    assert Column("accuracy", 1, percent=True).text("-", printed=number) == f"- (paper {shown})"
