from __future__ import annotations

import numpy as np
import pytest

from docleak.documents import Page
from docleak.documents.table_layout import break_lines, lay_out, share
from docleak.documents.table_pages import PAGE_SIZE, style_rng, table_page
from docleak.documents.tables import HEADERS, RULES, Table, TableStyle, clean, draw_style, make_table

LINES = [["Year", "Venue", ""], ["1996", "New Delhi, India", "1st"], ["2001", "Osaka", ""], ["2003", "Košice", "7th"]]


def style(number: int) -> TableStyle:
    return draw_style(np.random.default_rng(number))


def draw(table: Table, number: int, size: tuple[int, int] = PAGE_SIZE) -> Page:
    return table_page(table, (), rng=np.random.default_rng(number), size=size)


def test_texts_are_cleaned_and_short_rows_filled_up() -> None:
    assert clean(" a\n b\u00a0\ufeffc\xad ") == "a b c" and clean("é — 園") == "é — 園"
    table = make_table("t", [["a", "b"], ["1"], ["1", "2", "3"]])
    assert table.header == ("a", "b", "") and table.rows == (("1", "", ""), ("1", "2", "3"))


@pytest.mark.parametrize("number", range(24))
def test_words_and_fields_are_those_of_the_cells_in_every_style(number: int) -> None:
    page = draw(make_table("t", LINES, caption="asian games"), number)
    said = "asian games Year Venue 1996 New Delhi, India 1st 2001 Osaka 2003 Košice 7th"
    assert " ".join(word.text for word in page.words) == said
    assert [(f.key, f.value, f.words) for f in page.fields] == [
        ("caption", "asian games", (0, 1)), ("Year", "1996", (4,)), ("Venue", "New Delhi, India", (5, 6, 7)),
        ("column 3", "1st", (8,)), ("Year", "2001", (9,)), ("Venue", "Osaka", (10,)), ("Year", "2003", (11,)),
        ("Venue", "Košice", (12,)), ("column 3", "7th", (13,)),
    ]  # fmt: skip
    assert page.notes == () and page.width <= PAGE_SIZE[0] and page.height < 300


@pytest.mark.parametrize("number", range(24))
def test_boxes_hold_exactly_the_ink(number: int) -> None:
    """Against the same table with nothing in its cells but where they are: a page whose words are blanked."""
    page = draw(make_table("t", LINES), number)
    boxes = [tuple(map(int, w.box)) for w in page.words]
    for i, (x0, y0, x1, y1) in enumerate(boxes):
        inside = page.image[y0:y1, x0:x1].reshape(y1 - y0, x1 - x0, 3).astype(int)
        paper = page.image[y0, x0 - 2].astype(int)  # padding: the shade of the cell
        ink = (abs(inside - paper) > 0).any(axis=2)
        assert ink.any(axis=0)[[0, -1]].all() and ink.any(axis=1)[[0, -1]].all(), "a border of the box without ink"
        assert abs(inside - paper).max() > 90, "too pale to read"
        for a, b, c, d in boxes[i + 1 :]:
            assert x1 <= a or c <= x0 or y1 <= b or d <= y0, "two words overlap"
    bare = page.image.copy()
    for x0, y0, x1, y1 in boxes:
        bare[y0:y1, x0:x1] = page.image[y0, x0 - 2]
    rows, columns = (bare != np.roll(bare, 1, axis=axis) for axis in (0, 1))
    both = (rows.any(axis=2) & columns.any(axis=2)).sum()
    assert both < 200, "ink outside of all boxes"  # what is left are rules and shades: only their corners turn


def test_the_same_seed_draws_the_same_page_whatever_was_drawn_before() -> None:
    table = make_table("t", LINES)
    first, again = (table_page(table, (), rng=style_rng(3, "wtq", "t")) for _ in range(2))
    assert (first.image == again.image).all() and first.words == again.words
    others = [
        table_page(table, (), rng=style_rng(*key)) for key in ((4, "wtq", "t"), (3, "tabfact", "t"), (3, "wtq", "u"))
    ]
    assert all(o.image.shape != first.image.shape or (o.image != first.image).any() for o in others)


def test_styles_differ() -> None:
    styles = [style(number) for number in range(200)]
    assert {s.rules for s in styles} == set(RULES) and {s.header_fill for s in styles} == {f for f, _ in HEADERS}
    assert {s.stripe is None for s in styles} == {s.bold_header for s in styles} == {True, False}
    assert len({s.family.name for s in styles}) >= 6 and len({s.size for s in styles}) >= 4
    assert all(s.bold_header or s.header_fill for s in styles if s.rules == "none")


def test_rows_beyond_the_page_are_left_out_and_told() -> None:
    table = make_table("t", [["n", "square"], *([str(i), str(i * i)] for i in range(1, 301))])
    for number in range(6):
        page = draw(table, number)
        shown = sum(f.key == "n" for f in page.fields)
        assert 25 < shown < 80 and page.height <= PAGE_SIZE[1]
        assert page.notes == (f"rows {shown + 1} to 300 of the table are not shown",)
        assert page.fields[-1].value == str(shown**2)


def test_wide_tables_turn_the_page_then_break_words_then_lose_columns() -> None:
    turned = make_table("t", [["Organisation" + str(i) for i in range(9)], ["internationally"] * 9])
    page = draw(turned, 0)
    assert PAGE_SIZE[0] < page.width <= PAGE_SIZE[1] and not page.notes
    broken = draw(make_table("t", [["heading"] * 14, ["x" * 30] * 14]), 0)
    assert broken.width <= PAGE_SIZE[1] and not broken.notes
    cells = [f.value.replace(" ", "") for f in broken.fields]
    assert cells == ["x" * 30] * 14 and len(broken.words) > 40
    many = draw(make_table("t", [["heading"] * 60, ["x" * 30] * 60]), 0)
    count = len(many.fields)
    assert 10 < count < 25 and many.notes == (f"columns {count + 1} to 60 of the table are not shown",)


def test_one_cell_longer_than_the_page() -> None:
    page = draw(make_table("t", [["a", "b"], ["word " * 4000, "end"], ["next", "row"]]), 1)
    assert page.height <= PAGE_SIZE[1] and page.width <= PAGE_SIZE[0]
    shown = len(page.fields[0].words)
    assert page.notes == ("row 2 of the table is not shown", f"{4000 - shown} words of long cells are not shown")


@pytest.mark.parametrize("lines", [[["a"], ["1"]], [["", ""], ["", ""]], [["a", "b"]]])
def test_small_and_empty_tables(lines: list[list[str]]) -> None:
    for number in range(4):
        assert draw(make_table("t", lines), number).notes == ()


def test_other_scripts_are_drawn_from_the_broadest_face() -> None:
    words = ["Київ", "Αθήνα", "→", "東京", "ⵣ"]
    for number in range(8):
        page = draw(make_table("t", [["city"], *([w] for w in words)]), number)
        assert [w.text for w in page.words[1:]] == words
        assert page.notes == ("1 words of scripts without a typeface are drawn as empty boxes",)  # 東京
        kyiv = page.image[tuple(slice(int(page.words[1].box[i]), int(page.words[1].box[i + 2])) for i in (1, 0))]
        assert kyiv.shape[1] > 20 and len(np.unique(kyiv[:, :8], axis=0)) > 2


def test_widths_are_shared_fairly() -> None:
    assert share([10, 10], [20, 30], 60) == (20, 30)
    assert share([10, 10], [20, 500], 60) == (20, 40)
    assert share([10, 90], [10, 90], 60) == (10, 50)
    assert share([40, 90, 60], [40, 90, 60], 90) == (30, 30, 30)


def test_lines_are_broken_at_spaces_and_words_only_where_they_must_be() -> None:
    type_ = style(0).body(12)
    lines = break_lines(type_, "one two three four", type_.estimate("three four") + 1)
    assert [" ".join(line) for line in lines] == ["one two", "three four"]
    assert "".join(line[0] for line in break_lines(type_, "abcdefghij", 20)) == "abcdefghij"
    assert break_lines(type_, "", 50) == ()
    assert all(lay_out(make_table("t", LINES), style(n), PAGE_SIZE).size >= style(n).smallest for n in range(30))
