from __future__ import annotations

from pathlib import Path

import pytest

from docleak.documents import wtq
from docleak.errors import DocumentError

HEAD = "id\tutterance\tcontext\ttargetValue\n"
ASKED = [
    "nt-0\twhich \\\\ city\\pplace?\tcsv/200-csv/1.csv\tParis\\nFrance",
    "nt-1\twho?\tcsv/201-csv/2.csv\tA|B\\pC",
    "nt-2\thow many?\tcsv/200-csv/1.csv\t2",
]
CSV = '"City","Said"\r\n"Paris","the \\"light\\"\nof, Europe"\r\n"Rome",""\r\n'


def write(root: Path, *lines: str, tables: tuple[str, ...] = ("200-csv/1", "201-csv/2")) -> Path:
    for name in tables:
        (root / "csv" / f"{name}.csv").parent.mkdir(parents=True, exist_ok=True)
        (root / "csv" / f"{name}.csv").write_bytes(CSV.encode())
    (root / "data").mkdir(exist_ok=True)
    (root / "data" / "training.tsv").write_text(HEAD + "".join(line + "\n" for line in lines))
    return root


@pytest.mark.parametrize("below", ["", "WikiTableQuestions", "data/training.tsv"])
def test_tables_become_pages_with_their_questions(tmp_path: Path, below: str) -> None:
    path = below.endswith(".tsv") and tmp_path / below
    write(tmp_path / ("" if path else below), *ASKED)
    pages = wtq.load(path or tmp_path, seed=0)
    assert [(e.name, e.document, e.provider) for e in pages.entries] == [("200-1", "200-1", ""), ("201-2", "201-2", "")]
    page = pages[0]
    assert [(q.text, q.answers) for q in page.questions] == [
        ("which \\ city|place?", ("Paris\nFrance",)), ("how many?", ("2",)),
    ]  # fmt: skip
    assert pages[1].questions[0].answers == ("A, B|C",)
    assert [(f.key, f.value) for f in page.fields] == [
        ("City", "Paris"), ("Said", 'the "light" of, Europe'), ("City", "Rome"),
    ]  # fmt: skip
    assert (wtq.load(path or tmp_path, seed=0)[0].image == page.image).all()
    assert len(wtq.load(path or tmp_path, seed=0, limit=1)) == 1


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    root = write(
        tmp_path, "nt-0\twho?\tcsv/200-csv/1.csv", ASKED[1], "nt-3\ta?\t../x.csv\tb", "nt-4\t\tcsv/200-csv/1.csv\tb"
    )
    with pytest.raises(
        DocumentError, match=r"line 2: 'nt-0(.|\n)*line 4: the table '\.\./x\.csv' is outside(.|\n)*line 5"
    ):
        wtq.load(root, seed=0)
    write(root, *ASKED)
    (root / "csv" / "200-csv" / "1.csv").unlink()
    (root / "csv" / "201-csv" / "2.csv").unlink()
    with pytest.raises(DocumentError, match=r"200-csv/1\.csv: there is no such table(.|\n)*201-csv/2"):
        wtq.load(root, seed=0)
    (root / "csv" / "200-csv" / "1.csv").write_text("only\n")
    with pytest.raises(DocumentError, match="1 lines; expected a header"):
        wtq.load(root, seed=0, limit=1)[0]
    write(root)
    with pytest.raises(DocumentError, match="holds no question"):
        wtq.load(root, seed=0)
    (root / "data" / "training.tsv").write_text("a,b\n")
    with pytest.raises(DocumentError, match=r"first line is 'a,b'; expected id utterance"):
        wtq.load(root, seed=0)
    with pytest.raises(DocumentError, match=r"holds 1\.csv; expected WikiTableQuestions"):
        wtq.load(root / "csv" / "200-csv", seed=0)


def test_the_real_tables(shared_data: Path) -> None:
    root = shared_data / "wtq"
    pages = wtq.load(root, seed=0)
    assert len(pages) == 280
    other = wtq.load(root / "WikiTableQuestions" / "data" / "pristine-unseen-tables.tsv", seed=0)
    assert len(other) == 120 and not {e.name for e in pages.entries} & {e.name for e in other.entries}
    drawn = [pages[i] for i in range(0, 280, 14)]
    assert sum(len(page.questions) for page in drawn) > 100 and sum(bool(page.notes) for page in drawn) < 8
    answered = [
        q.answers[0].casefold() in " ".join(f.value for f in page.fields).casefold()
        for page in drawn for q in page.questions if not page.notes and not q.answers[0].isdigit()
    ]  # fmt: skip
    assert sum(answered) / len(answered) > 0.6  # the rest is computed, or a list
