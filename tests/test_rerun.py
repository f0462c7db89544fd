"""What ``scripts.rerun`` says of a result page that was computed anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.rerun import candidates, command_of, compared, judged, main, verdicts


def number(value: float, low: float | None = None, high: float | None = None) -> dict[str, float | None]:
    return {"value": value, "low": low, "high": high}


def test_numbers_beside_one_another() -> None:
    assert judged(number(0.5, 0.4, 0.6), number(0.5 + 1e-8, 0.4, 0.6)) == "the same"
    assert judged(number(0.5, 0.4, 0.6), number(0.55, 0.45, 0.65)) == "agrees"
    assert judged(number(0.5, 0.4, 0.6), number(0.55, 0.54, 0.65)) == "differs", "ours lies in theirs, not the reverse"
    assert judged(number(100), number(104)) == "agrees" and judged(number(100), number(106)) == "differs"
    assert judged(number(1.0, 0.9, 1.0), None) == "missing"
    assert judged("3 of 4", "3 of 4") == "the same" and judged("3 of 4", "4 of 4") == "differs"


def test_rows_and_verdicts_of_a_table_beside_its_page() -> None:
    page = {
        "rows": [{"row": "a", "model": "m", "ours": {"binary": number(0.5, 0.4, 0.6), "seconds": number(9)}},
                 {"row": "b", "model": "m", "ours": {"binary": number(0.5, 0.4, 0.6)}}],
        "statements": [{"says": "a > b", "model": "m", "verdict": "confirmed"}],
    }  # fmt: skip
    anew = {
        "rows": [{"row": "a", "model": "m", "ours": {"binary": number(0.9, 0.8, 1.0), "seconds": number(90)}}],
        "statements": [{"says": "a > b", "model": "m", "verdict": "cannot tell"}],
    }
    counts, said = compared(page, anew)
    assert counts == {"differs": 1, "missing": 1}
    assert said == ["a, binary: 0.5 [0.400, 0.600], now 0.9 [0.800, 1.000]", "b, binary: 0.5 [0.400, 0.600], now None"]
    assert verdicts(page, anew) == (0, 1) and verdicts(page, page) == (1, 1)


def test_the_command_of_a_page_with_this_machines_folders(tmp_path: Path) -> None:
    told = {"Command": "docleak reproduce x/y --model fedocvqa=PUBLIC --documents wtq:DATA/wtq --out cdmi/figure6"}
    words = command_of(told, tmp_path / "out", Path("/d"), Path("/p"))
    assert words[3:] == ["reproduce", "x/y", "--model", "fedocvqa=/p", "--documents", "wtq:/d/wtq", "--out",
                         str(tmp_path / "out")]  # fmt: skip
    assert command_of({"Command": "docleak reproduce x/y"}, Path("/o"), Path("/d"), Path("/p"))[-2:] == ["--out", "/o"]


def test_pages_whose_command_is_dear_are_not_drawn() -> None:
    few, many = candidates(100), candidates(1e9)
    assert set(few) < set(many) and all("-base" not in file.name for file in many)


def test_a_page_that_was_not_computed_is_not_said_to_agree(tmp_path: Path) -> None:
    asked = ["--seed", "27", "--at-most", "600", "--data", str(tmp_path / "nowhere"), "--work", str(tmp_path)]
    main([*asked, "--draw", "1", "--patience", "0.01", "--out", str(tmp_path / "page.md")])
    said = (tmp_path / "page.md").read_text()
    assert "cut off after" in said and "not computed" in said and "Nothing differs" not in said
    with pytest.raises(SystemExit):
        main([*asked, "--draw", "1000", "--out", str(tmp_path / "page.md")])
