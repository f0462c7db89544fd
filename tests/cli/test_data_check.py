"""``docleak data check``: all pages, all faults, and what is probably not meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from docleak.documents import folder

Command = Callable[..., tuple[Any, str, str]]


def inked(path: Path, size: tuple[int, int], *boxes: tuple[int, int, int, int]) -> None:
    """A white picture with black blocks, each a little smaller than its box."""
    picture = Image.new("L", size, 255)
    for box in boxes:
        x0, y0, x1, y1 = box
        ImageDraw.Draw(picture).rectangle((x0 + 2, y0 + 2, x1 - 3, y1 - 3), fill=0)
    picture.save(path)


def index(path: Path, *rows: object) -> None:
    path.mkdir(exist_ok=True)
    (path / folder.INDEX).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_every_fault_of_every_page_at_once(command: Command, tmp_path: Path) -> None:
    """A line, a box, a picture that only decoding shows, and a good page beside them."""
    path = tmp_path / "pages"
    path.mkdir()
    inked(path / "a.png", (60, 40), (5, 5, 20, 15))
    (path / "cut.png").write_bytes((path / "a.png").read_bytes()[:-30])
    (path / "b.png").write_bytes(b"%PDF-1.4")
    word = {"text": "x", "box": [5, 5, 20, 15]}
    index(path, {"image": "a.png", "words": [word], "fields": [{"key": "k", "value": "x", "words": [0]}]},
          {"image": "a.png", "name": "two", "wrods": []}, {"image": "none.png"}, {"image": "cut.png"},
          {"image": "b.png"},
          {"image": "a.png", "name": "far", "words": [{"text": "x", "box": [5, 5, 99, 15]}]},
          {"image": "a.png", "name": "unit", "words": [{"text": "x", "box": [0.1, 0.1, 0.4, 0.4]}]})  # fmt: skip
    code, out, err = command("data", "check", "pages")
    assert code == 1 and "6 faults, listed above" in err and "1 page can be read: 6 faults, 0 warnings" in out
    for said in ("line 2: the page: unknown key 'wrods'", "line 3: there is no image", "cut: ", "is a PDF, expected",
                 "line 6: word 0 'x'", "line 7: all 1 boxes lie in 0-1"):  # fmt: skip
        assert any(line.startswith("FAULT") and said in line for line in out.splitlines()), (said, out)
    code, out, _ = command("data", "check", "pages", "--json")
    report = json.loads(out)
    assert code == 1 and report["pages"] == 1 and len(report["faults"]) == 6 and report["faults"][0]["fault"]


def test_what_is_probably_not_meant(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.mkdir()
    inked(path / "a.png", (1654, 2339), (5, 5, 20, 15), (5, 25, 20, 35), (5, 45, 20, 55))
    inked(path / "b.png", (1654, 2339), (5, 5, 20, 15), (5, 25, 20, 35), (5, 45, 20, 55))
    words = [
        {"text": text, "box": [5, 5 + 20 * i, 20, 15 + 20 * i]} for i, text in enumerate(["19.00", "Jane", "19.00"])
    ]
    blank = {"text": "far", "box": [500, 500, 520, 520]}
    fields = [{"key": "total", "value": "19.00", "words": [0]}, {"key": "name", "value": "Astrid", "words": [1]},
              {"key": "open", "value": "x"}, {"key": "drawn", "value": "Max", "box": [4, 24, 21, 36]}]  # fmt: skip
    index(path, {"image": "a.png", "name": "p", "words": [*words, blank], "fields": [*fields, fields[0]]},
          {"image": "b.png", "name": "p", "words": words})  # fmt: skip
    code, out, err = command("data", "check", "pages")
    assert code == 0 and not err.strip(), err
    for said in (
        "no box goes beyond 1000, though 2 pictures are larger",
        "p: the boxes of 1 of 5 words hold no ink (word 3 'far')",
        "p: field 'total', '19.00': is printed again at 1 other place, the first at 5, 45",
        "p: field 'total', '19.00': is there twice",
        "p: field 'name', 'Astrid': the words in its place are 'Jane'",
        "p: field 'drawn', 'Max': the words in its place are 'Jane'",
        "p: field 'open', 'x': has no place on the page",
        "p: another page has this name",
        "p: the same picture as",
        "1 of 2 pages have no private field with a place",
    ):
        assert any(line.startswith("warning") and said in line for line in out.splitlines()), (said, out)
    assert "2 pages can be read: 0 faults, 10 warnings" in out


def test_a_value_printed_on_another_page_of_its_document(command: Command, tmp_path: Path) -> None:
    """Not of another document, nor where it is a field as well."""
    path = tmp_path / "pages"
    path.mkdir()
    for number, name in enumerate("abcd"):
        inked(path / f"{name}.png", (60 + number, 40), (5, 5, 50, 15), (5, 20, 50, 30))
    words = [{"text": text, "box": [5, 5 + 15 * i, 50, 15 + 15 * i]} for i, text in enumerate(["Jane Roe", "9"])]
    field = [{"key": "name", "value": "Jane Roe", "words": [0]}]
    index(path, {"image": "a.png", "document": "one", "words": words, "fields": field},
          {"image": "b.png", "document": "one", "words": words},
          {"image": "c.png", "document": "two", "words": words},
          {"image": "d.png", "document": "one", "words": words, "fields": field})  # fmt: skip
    code, out, _ = command("data", "check", "pages")
    told = [line for line in out.splitlines() if "other page of" in line]
    assert code == 0 and len(told) == 2, out
    assert "a: field 'name', 'Jane Roe': is printed on 1 other page of its document, first b" in told[0]
    assert "d: field" in told[1] and "first b" in told[1]


def test_pages_that_are_passed_over_are_counted(command: Command, tmp_path: Path) -> None:
    """A page without fields by an audit, one without a question by a training; no word where all are alike."""
    assert command("data", "make", "pages", "--count", 3)[0] == 0
    lines = (tmp_path / "pages" / folder.INDEX).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert "0 warnings" in command("data", "check", "pages")[1]
    index(tmp_path / "pages", rows[0], {**rows[1], "fields": [], "questions": []}, {**rows[2], "questions": []})
    _, out, _ = command("data", "check", "pages")
    assert "1 of 3 pages have no private field with a place; docleak audit gradient passes over them" in out
    assert "2 of 3 pages have no question with an answer; trainings that ask questions pass over them" in out
    assert "No page has a question" not in out
    index(tmp_path / "pages", *({**row, "questions": []} for row in rows))
    code, out, _ = command("data", "check", "pages")
    assert code == 0 and 'trainings that ask questions, and audits of presence, need "questions" in' in out


def test_questions_that_the_words_do_not_answer_are_counted(command: Command, tmp_path: Path) -> None:
    """Not those that are answered in another spelling, that are short, or whose page has no words at all."""
    path = tmp_path / "pages"
    path.mkdir()
    for number, name in enumerate("ab"):
        inked(path / f"{name}.png", (60 + number, 40), (5, 5, 50, 15), (5, 20, 50, 30))
    words = [{"text": text, "box": [5, 5 + 15 * i, 50, 15 + 15 * i]} for i, text in enumerate(["Paid", "27.03.2018"])]

    def asked(*answers: str) -> list[dict[str, object]]:
        return [{"text": "Who?", "answers": list(answers)}]

    said = asked("27.03.2O18")  # a letter for a digit
    index(path, {"image": "a.png", "name": "1", "words": words, "questions": [*asked("27.03.2018", "27/3/18"), *said]},
          {"image": "b.png", "name": "2", "words": words, "questions": [*asked("yes"), *asked("Acme Ltd", "acme")]},
          {"image": "b.png", "name": "3", "words": [], "questions": asked("Acme Ltd")})  # fmt: skip
    code, out, _ = command("data", "check", "pages")
    told = [line for line in out.splitlines() if "no word of their page" in line]
    assert code == 0 and len(told) == 1, out
    assert told[0].startswith(
        "warning  1 of 5 questions ask for what no word of their page says, the first of 2: 'Acme Ltd'"
    )
    assert "what OCR missed, a model that reads words can only learn by heart" in told[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [("split=nope", "has no splits, and 'nope' was asked for. Give the path alone"), ("boxes=pixels", "Leave it out")],
)
def test_options_that_no_command_takes_are_faults(command: Command, options: str, said: str) -> None:
    assert command("data", "make", "pages", "--count", 1)[0] == 0
    code, out, err = command("data", "check", f"pages:{options}")
    assert code == 1 and said in out and "1 fault, listed" in err and "0 pages can be read" in out
    assert said in command("data", "convert", f"pages:{options}", "new")[2]


@pytest.mark.parametrize(
    ("spec", "code", "said"),
    [("synthetic", 0, "16 pages can be read: 0 faults"), ("nowhere", 1, "neither a format nor an existing path"),
     ("empty", 1, "is an empty folder"), ("bare", 1, "there is no page"), ("a\0b", 1, "NUL"),
     ("nothing", 0, "no page has a private field")],
)  # fmt: skip
def test_other_data_sets(command: Command, tmp_path: Path, spec: str, code: int, said: str) -> None:
    (tmp_path / "empty").mkdir()
    index(tmp_path / "bare")
    index(tmp_path / "nothing", {"image": "a.png"})
    inked(tmp_path / "nothing" / "a.png", (60, 40), (5, 5, 20, 15))
    status, out, err = command("data", "check", spec)
    assert status == code and said in out + err and "Traceback" not in err, out + err


def test_a_long_conversion_says_how_far_it_is(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of receipts takes minutes to write: a line every two seconds, with what is left."""
    assert command("data", "make", "one", "--count", 4)[0] == 0
    now = count(0.0, 2.0)
    monkeypatch.setattr("docleak.cli.data.monotonic", lambda: next(now))
    code, out, err = command("data", "convert", "one", "out")
    assert code == 0 and out == "4 pages written to out\n"
    assert "1 of 4" in err and "3 of 4" in err
    assert "of 4" not in command("data", "convert", "one", "again", "--json")[2]


def test_convert_takes_the_first_pages_of_each_data_set_and_says_so(command: Command) -> None:
    for name in ("one", "two"):
        assert command("data", "make", name, "--count", 2)[0] == 0
    assert "2 pages written" in command("data", "convert", "one,two", "out", "--count", 1)[1]
    assert "of several data sets those of each" in " ".join(command("data", "convert", "--help")[1].split())


def test_what_is_met_often_is_counted(command: Command, tmp_path: Path) -> None:
    """Ten warnings of one kind are three lines and a count; nine of another stand whole; --json has every one."""
    path = tmp_path / "pages"
    path.mkdir()
    inked(path / "a.png", (60, 40), (5, 5, 20, 15))
    word = {"text": "x", "box": [5, 5, 20, 15]}
    lost = [{"key": f"k{i}", "value": "x"} for i in range(10)]
    unlike = [{"key": f"u{i}", "value": f"other-{i}", "words": [0]} for i in range(9)]
    index(path, {"image": "a.png", "name": "p", "words": [word], "fields": [*lost, *unlike]})
    code, out, _ = command("data", "check", "pages")
    shown = [line for line in out.splitlines() if line.startswith("warning")]
    assert code == 0 and "1 page can be read: 0 faults, 19 warnings" in out
    assert (
        sum("has no place" in line for line in shown) == 3 and sum("words in its place" in line for line in shown) == 9
    )
    assert "warning  (no place) 7 more, on 1 pages; --json lists them" in shown
    code, out, _ = command("data", "check", "pages", "--json")
    assert code == 0 and len(json.loads(out)["warnings"]) == 19
