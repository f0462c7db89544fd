from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from docleak.documents import tabfact
from docleak.errors import DocumentError

TABLE = "nation#gold#total\nspain#3#7\nitaly#3\n"
EXAMPLE = [["spain win 7 medal", "italy win most gold"], [1, 0], "judo at the 2005 games"]


def write(root: Path, examples: dict[str, Any], split: str = "train", table: str = TABLE) -> Path:
    (root / "data" / "all_csv").mkdir(parents=True, exist_ok=True)
    (root / "tokenized_data").mkdir(exist_ok=True)
    for name in ("1-1-1.html.csv", "2-2-2.html.csv"):
        (root / "data" / "all_csv" / name).write_text(table)
    (root / "tokenized_data" / f"{split}_examples.json").write_text(json.dumps(examples))
    return root


@pytest.mark.parametrize("below", ["", "Table-Fact-Checking"])
def test_statements_are_questions_answered_by_yes_and_no(tmp_path: Path, below: str) -> None:
    root = write(tmp_path / below, {"2-2-2.html.csv": EXAMPLE, "1-1-1.html.csv": EXAMPLE})
    write(root, {"1-1-1.html.csv": EXAMPLE}, "val")
    pages = tabfact.load(tmp_path, seed=0)
    assert [e.name for e in pages.entries] == ["2-2-2", "1-1-1"] and pages.notes == ()
    page = pages[0]
    assert [(q.text, q.answers) for q in page.questions] == [(EXAMPLE[0][0], ("yes",)), (EXAMPLE[0][1], ("no",))]
    assert [(f.key, f.value) for f in page.fields] == [
        ("caption", EXAMPLE[2]), ("nation", "spain"), ("gold", "3"), ("total", "7"), ("nation", "italy"), ("gold", "3"),
    ]  # fmt: skip
    assert len(tabfact.load(root / "tokenized_data" / "val_examples.json", seed=0)) == 1
    (root / "tokenized_data" / "train_examples.json").unlink()
    pages = tabfact.load(root, seed=0)
    assert pages.notes == ("no train_examples.json: val_examples.json were read instead",) and len(pages) == 1


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    shapes = {"a": [["x"], [1]], "c": [["x"], [2], "c"], "d": [[3], [0], "c"], "e": "x"}
    with pytest.raises(DocumentError) as raised:
        tabfact.load(write(tmp_path, shapes), seed=0)
    for part in ("a[2] is missing", "c[1][0] is 2, expected 0 or 1", "d[0][0] is 3", "e is 'x'"):
        assert part in str(raised.value), part
    with pytest.raises(DocumentError, match=r"b: 1 statements but 2 labels(.|\n)*|\.\./f: not a plain(.|\n)*2 fault"):
        tabfact.load(write(tmp_path, {"b": [["x"], [1, 0], "c"], "../f": EXAMPLE}), seed=0)
    with pytest.raises(DocumentError, match=r"3-3-3\.html\.csv: there is no such table"):
        tabfact.load(write(tmp_path, {"3-3-3.html.csv": EXAMPLE}), seed=0)
    with pytest.raises(DocumentError, match="holds no statement"):
        tabfact.load(write(tmp_path, {}), seed=0)
    pages = tabfact.load(write(tmp_path, {"1-1-1.html.csv": EXAMPLE}, table="a#b\n"), seed=0)
    with pytest.raises(DocumentError, match="1 lines; expected a header"):
        pages[0]
    (tmp_path / "tokenized_data" / "train_examples.json").write_text("[]")
    with pytest.raises(DocumentError, match="expected an object"):
        tabfact.load(tmp_path, seed=0)
    with pytest.raises(DocumentError, match=r"holds all_csv/; expected TabFact's folder"):
        tabfact.load(tmp_path / "data", seed=0)


def test_the_real_tables(shared_data: Path) -> None:
    pages = tabfact.load(shared_data / "tabfact", seed=0)
    assert len(pages) == 400 and "no train_examples" in pages.notes[0]
    drawn = [pages[i] for i in range(0, 400, 20)]
    counts = Counter(q.answers[0] for page in drawn for q in page.questions)
    assert set(counts) == {"yes", "no"} and 0.7 < counts["yes"] / counts["no"] < 1.5
    assert all(page.fields[0].key == "caption" for page in drawn) and sum(bool(p.notes) for p in drawn) < 4
