"""Every page that docleak writes: one environment, one policy, and no character that hides another."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest

import docleak
from docleak.metrics.estimate import Estimate
from docleak.recipes.recipe import Recipe
from docleak.report.table import Column, Row, Table
from docleak.report.templating import POLICY, environment, render

SOURCE = Path(docleak.__file__).parent
TEMPLATES = SOURCE / "report" / "templates"
PAGES = [name for name in environment().list_templates() if "<html" in (TEMPLATES / name).read_text("utf-8")]
HOSTILE = "<script>alert(1)</script>\"'\x1b[2J\x00\u202egpj.\u2066\x9b"


def test_there_is_one_environment() -> None:
    made = [file for file in SOURCE.rglob("*.py") if "jinja2.Environment(" in file.read_text("utf-8")]
    assert made == [SOURCE / "report" / "templating.py"]
    assert "page.html.j2" in PAGES


@pytest.mark.parametrize("name", PAGES)
def test_every_kind_of_page_forbids_everything_but_itself(name: str) -> None:
    text = (TEMPLATES / name).read_text("utf-8")
    meta = '<meta http-equiv="Content-Security-Policy" content="{{ policy }}">'
    assert text.index(meta) < text.index("<title"), "before anything that it is about"
    assert not re.search(r"<script|<link|<iframe|https?://|\bon[a-z]+=|@import|url\(", text)
    for safe in re.findall(r"\{\{[^}]*\|\s*safe[^}]*\}\}", text):
        assert "chart" in safe, "only our own charts are put in as they are"


def test_the_policy_allows_no_script_and_no_network() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in POLICY.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:" and "script-src" not in rules


def test_what_comes_from_data_is_shown_and_cannot_act() -> None:
    known = environment()
    made = known.from_string(
        '<b title="{{ it }}">{{ it }}{{ it|upper }}{% for x in [it] %}{{ x ~ "" }}{% endfor %}</b>'
    )
    page = made.render(it=HOSTILE)
    assert not set(page) & set("\x1b\x00\u202e\u2066\x9b") and "<script" not in page.lower()
    for shown in ("\\u001b[2J", "\\u0000", "\\u202e", "\\u2066", "\\u009b", "&lt;script&gt;"):
        assert page.count(shown) >= 3, shown
    assert known.from_string("{{ it }}").render(it="two\nlines\tand more") == "two\nlines\tand more"
    with pytest.raises(jinja2.UndefinedError):
        known.from_string("{{ nobody }}").render()


def test_tables_of_recipes_show_hostile_names() -> None:
    recipe = Recipe("mine", HOSTILE, HOSTILE, HOSTILE, (), {}, {})
    row = Row(HOSTILE, {HOSTILE: HOSTILE}, failed={HOSTILE: HOSTILE}, note=HOSTILE)
    table = Table(HOSTILE, {HOSTILE: Column(HOSTILE)}, [row], HOSTILE)
    page = render(
        "recipe.html.j2", recipe=recipe, scale="tiny", tables=[table], facts={HOSTILE: HOSTILE}, footnote="f",
        picture=None, uri="",
    )  # fmt: skip
    for text in (page, table.to_markdown()):
        assert not set(text) & set("\x1b\x00\u202e\u2066\x9b") and "<script" not in text and "\\u202egpj." in text


def test_what_stands_small_under_a_name_stands_in_every_form() -> None:
    """A number without its assumption ("nothing is concluded", "if one by one") would be another number."""
    table = Table("T", {"n": Column("n")}, [Row("mean", {"n": 1.0}, note="nothing is concluded"), Row("x", {"n": 2.0})])
    assert "| mean (nothing is concluded) | 1.000 |" in table.to_markdown() and "| x | 2.000 |" in table.to_markdown()
    assert [row.get("note") for row in table.to_json()] == [row.get("note") for row in table.records()]
    assert table.records()[0] == {"row": "mean", "note": "nothing is concluded", "n": 1.0}
    assert "note" not in table.records()[1] and "nothing is concluded" in table.to_csv()
    assert table.to_text().splitlines() == ["row   n", "mean  1.000", "    nothing is concluded", "x     2.000"]


def test_a_printed_bound_still_holds() -> None:
    most, least = Column("at most", 2, bound="most"), Column("at least", 1, percent=True, bound="least")
    assert [most.text(value) for value in (4.001, 4.0, 0.3, None, float("inf"))] == ["4.01", "4.00", "0.30", "-", "∞"]
    assert [least.text(Estimate(value)) for value in (0.4567, 0.3, None)] == ["45.6%", "30.0%", "-"]


def test_a_page_without_its_values_is_refused_and_compiled_once() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("page.html.j2")
    assert environment().get_template("page.html.j2") is environment().get_template("page.html.j2")
