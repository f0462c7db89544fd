"""Statements of a recipe: confirmed, refuted or open by what rows measured, and tables that stop once they know."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from docleak.errors import RecipeError
from docleak.metrics.estimate import Estimate
from docleak.metrics.sequence import mean_over_time
from docleak.recipes import Recipe, Row, list_recipes
from docleak.recipes.recipe import read_recipe
from docleak.recipes.rows import reproduce, rows_of, write_table
from docleak.recipes.statements import (
    CONFIRMED,
    LEAST,
    OPEN,
    REFUTED,
    Statement,
    _apart,
    _decided,
    _verdict,
    decide,
    statement_of,
)
from docleak.report.page import Reading
from docleak.report.table import Column
from docleak.runs.run import Run
from docleak.studies.study import TableRow, TableStudy, Tell, Unit
from scripts.publish_tables import placeless
from scripts.scoreboard import scoreboard


@dataclass(frozen=True)
class CoinsConfig:
    """Coins of ``bias``, thrown ``pages`` times."""

    bias: float = 0.5
    pages: int = 30
    seed: int = 0
    apart: bool = False


class CoinsStudy(TableStudy[CoinsConfig]):
    """A page is a coin; ``apart`` rows keep to themselves what each came to."""

    kind = "coins"
    Config = CoinsConfig
    columns = {"heads": Column("heads"), "metres": Column("metres")}  # noqa: RUF012
    parts, shares, stoppable = "coins", ("heads",), True

    def units(self) -> list[Unit]:
        return [Unit(f"coin-{n:03d}", 1, n, n) for n in range(self.config.pages)]

    def identity(self) -> dict[str, str]:
        return {"pages": str(self.config.pages)}

    def over(self, pages: int) -> CoinsStudy:
        return type(self)(replace(self.config, pages=pages))

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Any]]:
        rng = np.random.default_rng([self.config.seed, unit.what])
        return {"heads": float(rng.random() < self.config.bias), "metres": 7 + rng.random() + self.config.bias}, {}

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        raise NotImplementedError

    def numbers(self, run: Run) -> dict[str, Estimate]:
        heads = [unit["heads"] for unit in run.units()]
        mean = float(np.mean(heads))
        return {"heads": Estimate(mean, mean - 0.1, mean + 0.1, len(heads), len(heads)), "metres": Estimate(9.0)}

    def measured(self, run: Run, column: str) -> Mapping[str, float]:
        return {} if self.config.apart else {unit["unit"]: unit[column] for unit in run.units()}

    def planned_parts(self) -> int:
        return self.config.pages

    @classmethod
    def of_row(cls, source: str, settings: Mapping[str, Any], changes: Mapping[str, Any], *, device: str) -> CoinsStudy:
        return cls(CoinsConfig(**{**settings, **{k: v for k, v in changes.items() if k in ("pages", "seed")}}))


def table(
    tmp_path: Path, *statements: Statement, until: bool = False, beside: bool = False, **fixed: Any
) -> list[TableRow]:
    """Three coins, thrown."""
    rows = tuple(Row(name, ("m",), {"bias": bias}) for name, bias in (("fair", 0.5), ("good", 1.0), ("same", 0.5)))
    recipe = Recipe("coins", "Coins", "", "", rows, fixed, {"tiny": {"models": {"m": "x"}}}, statements=statements)
    tmp_path = tmp_path if beside else tmp_path / "alone"
    planned = rows_of(recipe, CoinsStudy, "tiny", tmp_path, {})
    reproduce(recipe, planned, tmp_path, scale="tiny", workers=1, until_decided=until)
    write_table(recipe, "tiny", planned, tmp_path, {})
    return planned


def stated(column: str, row: str, relation: str, other: str = "", **more: Any) -> Statement:
    return Statement(f"{row} {relation} {other}", column, row, relation, other, **more)


def test_paired_differences_confirm_refute_or_leave_open(tmp_path: Path) -> None:
    said = {
        stated("heads", "good", "above", "fair"): CONFIRMED,
        stated("heads", "fair", "above", "good"): REFUTED,
        stated("heads", "fair", "below", "good"): CONFIRMED,
        stated("heads", "same", "like", "fair", by=0.2): CONFIRMED,  # the same coins: no difference on any page
        stated("heads", "good", "like", "fair", by=0.01): REFUTED,
        stated("heads", "same", "above", "fair"): OPEN,
        stated("heads", "good", "above", "fair", by=0.9): REFUTED,
        stated("heads", "good", "between", bounds=(0.8, 1.0)): CONFIRMED,
        stated("heads", "good", "between", bounds=(0.0, 0.5)): REFUTED,
        stated("heads", "good", "between", bounds=(0.8, 1.0), beyond="heads"): REFUTED,  # less itself it is 0
        stated("metres", "good", "above", "fair"): CONFIRMED,  # no share: how often, over the same pages
    }
    planned = table(tmp_path, *said)
    assert {one.statement: one.verdict for one in decide(list(said), planned, "tiny")} == said
    text = (tmp_path / "alone/table.md").read_text()
    assert "| fair above good | m | -" in text and "share of the same coins where it is so" in text
    saved = json.loads((tmp_path / "alone/table.json").read_text())["statements"]
    assert saved[0]["verdict"] == CONFIRMED and saved[0]["quantity"]["groups"] == 30 and saved[0]["above"] == "fair"


def test_a_statement_of_another_scale_is_not_decided(tmp_path: Path) -> None:
    said = [stated("heads", "good", "above", "fair", scales=("paper",))]
    assert decide(said, table(tmp_path, *said), "tiny") == []


def test_rows_that_do_not_say_page_by_page_are_compared_by_their_intervals(tmp_path: Path) -> None:
    said = [stated("heads", "good", "above", "fair"), stated("heads", "same", "above", "fair"),
            stated("metres", "good", "between", bounds=(8.9, 9.1))]  # fmt: skip
    decisions = decide(said, table(tmp_path, *said, apart=True), "tiny")
    assert [one.verdict for one in decisions] == [CONFIRMED, OPEN, CONFIRMED]
    assert decisions[0].how == "the table's two intervals, not paired" and decisions[2].how == "the number itself"
    assert decisions[0].quantity.low == pytest.approx(decisions[0].quantity.value - 0.2)


def test_an_interval_without_width_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [stated("heads", "good", "between", bounds=(0.9, 1.0))]
    monkeypatch.setattr(CoinsStudy, "numbers", lambda self, run: {"heads": Estimate(1.0, 1.0, 1.0, 3, 3)})
    assert decide(said, table(tmp_path, *said, apart=True), "tiny")[0].verdict == OPEN


def test_a_table_stops_at_the_page_that_decides_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    good = stated("heads", "good", "above", "fair")
    planned = table(tmp_path, good, until=True)
    thrown = [len(row.run.units()) for row in planned]
    assert 6 < thrown[0] == thrown[1] < 30 and thrown[2] == LEAST  # the third is in no statement
    assert decide([good], planned, "tiny")[0].verdict == CONFIRMED
    again = table(tmp_path, good, until=True)
    assert [len(row.run.units()) for row in again] == thrown  # nothing more is computed
    never = table(tmp_path / "other", stated("heads", "same", "above", "fair"), until=True)
    assert [len(row.run.units()) for row in never] == [30, LEAST, 30]


def test_a_row_stops_when_no_open_statement_needs_it(tmp_path: Path) -> None:
    said = stated("heads", "good", "above", "fair"), stated("heads", "same", "above", "fair")
    thrown = [len(row.run.units()) for row in table(tmp_path, *said, until=True)]
    assert thrown[0] == thrown[2] == 30 and LEAST < thrown[1] < 30


def test_an_interval_that_is_of_one_look_alone_stops_no_row(tmp_path: Path) -> None:
    """The table's interval of three pages would have decided, and so would that of the first page that happens to."""
    said = stated("metres", "same", "like", "fair", by=1.5)
    rows = table(tmp_path, said, until=True)
    assert [len(row.run.units()) for row in rows] == [30, LEAST, 30]
    (one,) = decide([said], rows, "tiny")
    assert one.verdict == CONFIRMED and one.how == "the numbers themselves"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The units that are computed, ROW/UNIT."""
    units: list[str] = []
    original = CoinsStudy.compute

    def compute(self: CoinsStudy, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Any]]:
        units.append(f"{run.path.name}/{unit.id}")
        return original(self, unit, run, tell)

    monkeypatch.setattr(CoinsStudy, "compute", compute)
    return units


def test_units_of_a_table_beside_are_taken_over(tmp_path: Path, computed: list[str]) -> None:
    good = stated("heads", "good", "above", "fair")
    first = table(tmp_path / "first", good, beside=True)
    picture = first[0].run.folder("coin-000") / "truth.png"
    picture.write_bytes(b"a picture")
    (first[1].run.folder("coin-004") / "unit.json").unlink()  # was not finished there
    (first[2].run.path / "run.json").write_text("{")  # damaged there
    computed.clear()
    second = table(tmp_path / "second", good, beside=True)
    assert computed == ["01-m/coin-004"]  # the third has the coins of the first
    assert (second[0].run.folder("coin-000") / "truth.png").read_bytes() == b"a picture"
    assert second[0].run.units() == first[0].run.units()
    computed.clear()
    table(tmp_path / "third", good, beside=True, seed=1)  # other coins
    assert len(computed) == 90


def test_more_pages_go_on_from_fewer_and_fewer_are_there_already(tmp_path: Path, computed: list[str]) -> None:
    few = table(tmp_path / "few", beside=True, pages=4)
    assert len(computed) == 12
    computed.clear()
    more = table(tmp_path / "more", beside=True, pages=6)
    assert sorted(computed) == [f"0{row}-m/coin-00{n}" for row in range(3) for n in (4, 5)]
    assert [row.run.units()[:4] for row in more] == [row.run.units() for row in few]
    computed.clear()
    fewer = table(tmp_path / "fewer", beside=True, pages=3)
    assert not computed and [len(row.run.units()) for row in fewer] == [3, 3, 3]


def test_more_pages_after_a_look_lay_no_bet_anew_and_come_in_the_order_they_were_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = stated("heads", "good", "above", "fair")

    def backwards(self: CoinsStudy, run: Run, column: str) -> Mapping[str, float]:
        return {f"page-{99 - n}": unit[column] for n, unit in enumerate(run.units())}

    monkeypatch.setattr(CoinsStudy, "measured", backwards)
    looks = {pages: table(tmp_path / str(pages), good, beside=True, pages=pages) for pages in (6, 9, 30)}
    fair, better, _ = (np.array([unit["heads"] for unit in row.run.units()]) for row in looks[30])
    values = (better - fair + 1) / 2
    for pages, plans in ((6, [6]), (9, [6, 9]), (30, [6, 9, 30])):
        quantity = decide([good], looks[pages], "tiny")[0].quantity
        low, high = mean_over_time(values[:pages], planned=plans)
        assert (quantity.low, quantity.high) == (2 * low - 1, 2 * high - 1), pages


def test_pages_that_are_others_or_may_depend_on_their_number_are_computed(
    tmp_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path / "few", beside=True, pages=4)
    computed.clear()
    with monkeypatch.context() as changed:
        changed.setattr(CoinsStudy, "over", lambda self, pages: None)
        table(tmp_path / "all", beside=True, pages=5)
        assert len(computed) == 15
    computed.clear()
    # of six pages the first four are not those that four were
    monkeypatch.setattr(CoinsStudy, "over", lambda self, pages: CoinsStudy(replace(self.config, pages=pages + 10)))
    table(tmp_path / "others", beside=True, pages=6)
    assert len(computed) == 18


def test_what_cannot_stop_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="states nothing that could be decided"):
        table(tmp_path, until=True)
    monkeypatch.setattr(CoinsStudy, "stoppable", False)
    with pytest.raises(RecipeError, match="not computed page by page"):
        table(tmp_path, stated("heads", "good", "above", "fair"), until=True)


WRONG = {
    "there is no row 'third'": 'says = "a"\ncolumn = "binary"\nrow = "third"\nabove = "one"',
    "there is no column 'colour'": 'says = "a"\ncolumn = "colour"\nrow = "one"\nbetween = [0, 1]',
    "needs one of above, below, like and between": 'says = "a"\ncolumn = "binary"\nrow = "one"',
    "like needs by": 'says = "a"\ncolumn = "binary"\nrow = "one"\nlike = "one"',
    "between is [1, 0]": 'says = "a"\ncolumn = "binary"\nrow = "one"\nbetween = [1, 0]',
    "beyond is of between": 'says = "a"\ncolumn = "binary"\nrow = "one"\nabove = "one"\nbeyond = "psnr"',
    "unknown key 'over'": 'says = "a"\ncolumn = "binary"\nrow = "one"\nbetween = [0, 1]\nover = 2',
}


@pytest.mark.parametrize("fault", WRONG)
def test_faults_in_a_file_are_named(fault: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f'title = "t"\n[scales.tiny.models]\ndonut = "donut-start"\n[[rows]]\nname = "one"\n'
                    f"[[statements]]\n{WRONG[fault]}\n")  # fmt: skip
    with pytest.raises(RecipeError) as caught:
        read_recipe(file, "own")
    assert fault in str(caught.value)


def test_nearly_every_shipped_table_states_what_its_paper_finds() -> None:
    without = {name for name, recipe in list_recipes().items() if not recipe.statements}
    assert without == {"pfl-docvqa/canaries", "pfl-docvqa/table5"}


def test_the_scoreboard_counts_what_stored_tables_say(tmp_path: Path) -> None:
    table(tmp_path / "run", stated("heads", "good", "above", "fair"), stated("heads", "same", "above", "fair"))
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "coins.json").write_text((tmp_path / "run/alone/table.json").read_text())
    recipe = Recipe("coins", "Coins", "A paper", "", (), {}, {}, statements=(stated("heads", "good", "above", "fair"),))
    text = scoreboard(folder, {"coins": recipe, "other": recipe})
    assert "Of the papers' findings: 2 statements on one model each, 1 confirmed, 0 refuted, 1 cannot tell" in text
    assert "Of docleak's own" not in text
    assert "- other: not computed by its recipe" in text and "| good above fair | m | 30 |" in text
    assert "1 have no stored numbers" in text and "| coins: Coins | 1 | 0 | 1 |" in text
    assert "cannot tell | the seen difference lies on the line itself" in text
    of_paper = replace(recipe, statements=(replace(recipe.statements[0], scales=("paper",)),))
    silent = json.loads((folder / "coins.json").read_text()) | {"statements": []}
    (folder / "quiet.json").write_text(json.dumps(silent))
    text = scoreboard(folder, {"coins": recipe, "quiet": of_paper})
    assert "- quiet: stored at scale tiny; its statements are of scale paper" in text
    assert "0 have no stored numbers" in text
    part = json.loads((folder / "coins.json").read_text()) | {"scale": "base"}
    (folder / "coins-base-receipts.json").write_text(json.dumps(part))
    text = scoreboard(folder, {"coins": recipe})
    assert (
        "4 statements on one model each, 2 confirmed" in text and "| good above fair | m, base, receipts | 30 |" in text
    )
    (folder / "coins.json").rename(folder / "coins-tiny-forms.json")
    for page in ("coins-tiny-forms.md", "coins-base-receipts.md"):
        (folder / page).write_text("# Coins")
    text = scoreboard(folder, {"coins": recipe})
    links = "[tiny, forms](coins-tiny-forms.md), [base, receipts](coins-base-receipts.md)"
    assert f"### coins ({links}): Coins" in text and "| good above fair | m, forms | 30 |" in text


def test_what_was_computed_of_more_pages_counts_once(tmp_path: Path) -> None:
    """As many verdicts as questions: one of few pages is no second verdict beside that of more."""
    said = stated("heads", "good", "above", "fair")
    folder = tmp_path / "results"
    folder.mkdir()
    many = (("coins-tiny-many", 30, ""), ("coins-tiny-real", 31, " --documents x"), ("coins-tiny-trained", 32, ""))
    for name, pages, more in (("coins", 3, ""), *many):
        table(tmp_path / name, said, pages=pages)
        made = json.loads((tmp_path / name / "alone/table.json").read_text())
        made["Command"] = f"docleak reproduce coins --pages {pages} --workers 1{more}"
        made["Models"] = f"m:{'1234' if pages == 32 else '0815'}" + ", other:4711" * (pages == 3)
        (folder / f"{name}.json").write_text(json.dumps(made))
    text = scoreboard(folder, {"coins": Recipe("coins", "Coins", "A paper", "", (), {}, {}, statements=(said,))})
    assert "findings: 3 statements on one model each, 3 confirmed, 0 refuted, 0 cannot tell" in text
    assert "| cannot tell (not counted: see that of 30) |  |" in text and "| coins: Coins | 3 | 0 | 0 |" in text


def test_the_scoreboard_tells_the_papers_findings_from_its_own(tmp_path: Path) -> None:
    """A headline that added both up let docleak's own tables pass for decided ones of the papers'."""
    said = stated("heads", "good", "above", "fair")
    table(tmp_path / "run", said, replace(said, says="good above fair (ours)"), replace(said, column="metres"))
    text = (tmp_path / "run/alone/table.json").read_text()
    for name in ("coins", "asked"):
        (tmp_path / f"{name}.json").write_text(text)
    recipe = Recipe("coins", "Coins", "A paper", "", (), {}, {}, statements=(said,))
    text = scoreboard(tmp_path, {"coins": recipe, "asked": replace(recipe, ours=True, paper="nobody's")})
    of_papers, own = (line for line in text.splitlines() if line.startswith("**Of "))
    assert "findings: 2 statements on one model each, 2 confirmed" in of_papers and "Of 1 tables and" in of_papers
    assert "questions: 4 statements on one model each, 4 confirmed" in own and "Of 1 tables and" in own
    assert "| coins: Coins | 3 | 0 | 0 |" in text
    assert "nobody's; docleak's own question" in text and "A paper; docleak's" not in text


def test_the_scoreboard_leaves_out_what_is_said_of_other_models_now(tmp_path: Path) -> None:
    """A verdict that newer code is known not to give is withdrawn in the recipe, and gone from the page at once."""
    said = stated("heads", "good", "above", "fair")
    table(tmp_path / "run", said)
    (tmp_path / "coins.json").write_text((tmp_path / "run/alone/table.json").read_text())
    recipe = Recipe("coins", "Coins", "A paper", "", (), {}, {}, statements=(replace(said, models=("other",)),))
    assert "| good above fair |" not in scoreboard(tmp_path, {"coins": recipe})
    recipe = replace(recipe, statements=(replace(said, models=("m",)),))
    assert "| good above fair | m |" in scoreboard(tmp_path, {"coins": recipe})


def test_the_scoreboard_says_where_a_verdict_has_no_interval(tmp_path: Path) -> None:
    table(tmp_path / "run", stated("heads", "good", "above", "fair"))
    stored = json.loads((tmp_path / "run/alone/table.json").read_text())
    stored["statements"][0]["quantity"] = Estimate.exactly(0.9).to_json()
    (tmp_path / "coins.json").write_text(json.dumps(stored))
    text = scoreboard(tmp_path, {"coins": Recipe("coins", "Coins", "A paper", "", (), {}, {})})
    assert "| m | - | 0.900 | confirmed by the number itself |  |" in text
    for trainings, said in ((1.0, " of one training"), (3.0, "")):
        row = next(row for row in stored["rows"] if row["row"] == stored["statements"][0]["row"])
        row["ours"]["trainings"] = Estimate.exactly(trainings).to_json()
        (tmp_path / "coins.json").write_text(json.dumps(stored))
        text = scoreboard(tmp_path, {"coins": Recipe("coins", "Coins", "A paper", "", (), {}, {})})
        assert f"| m | - | 0.900 | confirmed by the number itself{said} |  |" in text


def test_the_scoreboard_says_how_sure_and_how_large(tmp_path: Path) -> None:
    """ "Confirmed" of SSIM 0.013 beside 0.006 is an order among failures, which a share of batches does not show."""
    table(tmp_path / "run", stated("heads", "good", "above", "fair"), stated("metres", "good", "above", "fair"))
    stored = json.loads((tmp_path / "run/alone/table.json").read_text())
    for row in stored["rows"]:
        row["ours"]["metres"] = Estimate.exactly({"good": 0.0128, "fair": 0.0057}.get(row["row"], 1.0)).to_json()
    assert [one["verdict"] for one in stored["statements"]] == [CONFIRMED, CONFIRMED]
    text = json.dumps(stored)
    (tmp_path / "coins.json").write_text(text)
    recipe = Recipe("coins", "Coins", "A paper", "", (), {}, {})
    sure, large = (line for line in scoreboard(tmp_path, {"coins": recipe}).splitlines() if " | m | 30 | " in line)
    assert "against" not in sure and large.endswith("], the rows 0.0128 against 0.0057 | confirmed |  |")


def test_the_scoreboard_says_what_chance_would_decide(tmp_path: Path) -> None:
    """52 tables decided something, three of them by one number; and 290 intervals of 95 % miss some by chance."""
    table(tmp_path / "run", *[stated("heads", "good", "above", "fair", by=step / 100) for step in range(30)])
    stored = json.loads((tmp_path / "run/alone/table.json").read_text())
    (tmp_path / "coins.json").write_text(json.dumps(stored))
    number = json.loads(json.dumps(stored)) | {"statements": stored["statements"][:1]}
    number["statements"][0]["quantity"] = Estimate.exactly(0.9).to_json()
    (tmp_path / "number.json").write_text(json.dumps(number))
    recipe = Recipe("coins", "Coins", "A paper", "", (), {}, {})
    text = scoreboard(tmp_path, {"coins": recipe, "number": recipe})
    assert (
        "Of 2 tables and figures 2 decide one statement or more, 1 of them by a number without interval alone" in text
    )
    assert (
        "30 of the statements have a 95 % interval: if each truth lay on its line, chance would decide some 2" in text
    )


def test_the_scoreboard_says_how_each_table_was_made(tmp_path: Path) -> None:
    table(tmp_path / "run", stated("heads", "good", "above", "fair"))
    told = {"Command": "docleak reproduce coins", "Seed": "0", "Wall time of this call": "31 s (a continued run)"}
    stored = json.loads((tmp_path / "run/alone/table.json").read_text()) | told
    (tmp_path / "coins.json").write_text(json.dumps(stored))
    (tmp_path / "coins.md").write_text(
        "# Coins\n\nWall time: 31 s  \nMachine: an abacus; commit 0dc3b025\n\n## What it shows\n"
    )
    del stored["Wall time of this call"]
    (tmp_path / "coins-base-receipts.json").write_text(json.dumps(stored | {"scale": "base"}))
    lines = scoreboard(tmp_path, {"coins": Recipe("coins", "Coins", "A paper", "", (), {}, {})}).splitlines()
    assert "- tiny: seed 0, commit 0dc3b025, 31 s: `docleak reproduce coins`" in lines
    assert "- base, receipts: seed 0: `docleak reproduce coins`" in lines


class TwoSetsStudy(CoinsStudy):
    """Two data sets one behind the other: the first all heads, the second none; without bias none at all."""

    kind, stoppable = "two-sets", False

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"heads": float(unit.what < self.config.pages * self.config.bias)}, {}


def test_the_interval_holds_where_parts_come_sorted(tmp_path: Path) -> None:
    """A sequence that took the first half for draws would have left the mean out."""
    said = stated("heads", "half", "above", "none"), stated("heads", "half", "between", bounds=(0.0, 1.0))
    rows = Row("half", ("m",), {"bias": 0.5}), Row("none", ("m",), {"bias": 0.0})
    recipe = Recipe("two", "Two", "", "", rows, {"pages": 80}, {"tiny": {"models": {"m": "x"}}}, statements=said)
    planned = rows_of(recipe, TwoSetsStudy, "tiny", tmp_path, {})
    reproduce(recipe, planned, tmp_path, scale="tiny", workers=1)
    paired, alone = decide(recipe.statements, planned, "tiny")
    quantity = paired.quantity
    assert quantity.low is not None and quantity.high is not None
    assert quantity.value == 0.5 and quantity.low < 0.45 and quantity.high > 0.55
    assert alone.how == "the table's interval" and alone.quantity.low == pytest.approx(0.4)  # it cannot be stopped


def test_stored_tables_state_what_their_recipes_state() -> None:
    """A statement that a recipe no longer makes at that scale would stand on the scoreboard for good."""
    results = Path(__file__).parents[2] / "docs" / "results"
    stored = [json.loads(file.read_text()) for file in sorted(results.glob("*/*.json"))]
    tables = [table for table in stored if "recipe" in table and "statements" in table]
    assert len(tables) > 50
    stale, recipes = list[str](), list_recipes()
    for table in tables:
        now = {
            one.says for one in recipes[table["recipe"]].statements if not one.scales or table["scale"] in one.scales
        }
        stale += [f"{table['recipe']}: {one['says']}" for one in table["statements"] if one["says"] not in now]
    assert not stale, "run again: docleak reproduce, scripts/publish_tables.py, scripts.scoreboard\n" + "\n".join(stale)


def test_stored_tables_name_no_folder_of_a_machine() -> None:
    results = Path(__file__).parents[2] / "docs" / "results"
    commands = {file: str(json.loads(file.read_text()).get("Command", "")) for file in results.glob("*/*.json")}
    assert sum(map(bool, commands.values())) > 50
    assert not [f"{file.name}: {said}" for file, said in commands.items() if re.search(r"(--out |[:=])/", said)]
    assert placeless('"--documents sroie:/a/b/sroie --out /c/x/y",') == '"--documents sroie:DATA/sroie --out RUN",'
    assert (
        placeless('"Models": "/a/public", "--model fedocvqa=/a/public"')
        == '"Models": "PUBLIC", "--model fedocvqa=PUBLIC"'
    )


def test_parts_that_are_too_few_for_an_interval_decide_nothing() -> None:
    few = Estimate(0.9, n=3, groups=1, why="one document gives no interval")
    assert _verdict(few, (0.5, 1.0)) == OPEN
    apart, how = _apart(few, Estimate(0.4, n=3, groups=1), 1)
    assert _verdict(apart, (0.0, float("inf"))) == OPEN and "too few for an interval" in how
    counted = Estimate.exactly(0.9)  # of no parts: a count is what it is
    assert _verdict(counted, (0.5, 1.0)) == CONFIRMED


def test_a_statement_may_take_chance_off_first() -> None:
    """An attack that calls all of 100 providers members is right about the 70 who are, and tells nobody."""
    row = {"accuracy": Estimate(0.7, 0.6, 0.79, n=100, groups=100), "chance": Estimate.exactly(0.7)}
    study = SimpleNamespace(stoppable=False, shares=(), numbers=lambda run: row, measured=lambda run, column: {})
    planned: Any = SimpleNamespace(study=study, run=SimpleNamespace(path=Path(__file__).parent))
    said = statement_of({"says": "it tells members", "column": "accuracy", "row": "a", "between": [0, 1]})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("docleak.recipes.statements._begun", lambda row: True)
        assert _decided(said, "x", [planned]).verdict == CONFIRMED
        beyond = _decided(replace(said, beyond="chance"), "x", [planned])
    assert beyond.verdict == OPEN and beyond.quantity.text(2) == "0.00 [-0.10, 0.09]"
    assert beyond.to_json()["beyond"] == "chance"


def test_what_is_taken_off_may_be_uncertain_itself() -> None:
    """0 of the surest 8, up to 22 %, is not below 23 % [16, 29] of all: 22 % and 16 % are both possible."""
    row = {"surest": Estimate(0.0, 0.0, 0.222, 8, 59), "all": Estimate(0.228, 0.161, 0.293, 167, 59)}
    study = SimpleNamespace(stoppable=False, shares=(), numbers=lambda run: row, measured=lambda run, column: {})
    planned: Any = SimpleNamespace(study=study, run=SimpleNamespace(path=Path(__file__).parent))
    text = {"says": "the surest are", "column": "surest", "row": "a", "between": [0, 1], "beyond": "all"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("docleak.recipes.statements._begun", lambda row: True)
        decided = _decided(statement_of(text), "x", [planned])
    assert decided.verdict == OPEN and decided.quantity.text(3) == "-0.228 [-0.293, 0.061]"
    assert decided.quantity.groups == 59
