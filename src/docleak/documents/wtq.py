"""WikiTableQuestions (Pasupat and Liang, 2015): tables of Wikipedia, drawn as pages, with questions.

Layout: ``csv/NNN-csv/M.csv`` (a backslash escapes quotes) and ``data/*.tsv`` with the columns id, utterance, context
(the table's path) and targetValue (answers joined with ``|``; ``\\n``, ``\\p`` and ``\\\\`` stand for a line end, ``|``
and ``\\``). Release 1.0.2 unpacks to ``WikiTableQuestions/``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from docleak.documents.files import first_folder, raise_faults, read_text, require_folder, require_split
from docleak.documents.page import Page, Question
from docleak.documents.pages import LazyPages, PageEntry, at_most
from docleak.documents.table_pages import style_rng, table_page
from docleak.documents.tables import Table, make_table
from docleak.errors import DocumentError

#: The file of each official split. DUE and FeDocVQA draw train and validation from training.tsv by a division of their
#: own; the first of the official divisions of it stands for both here.
SPLITS = {"train": "training", "val": "random-split-1-dev", "test": "pristine-unseen-tables"}
COLUMNS = ["id", "utterance", "context", "targetValue"]
ESCAPES = {"n": "\n", "p": "|", "\\": "\\"}


def splits(path: Path) -> tuple[str, ...]:
    """The official splits at ``path``: "train" is all of training.tsv, of which "val" is a part."""
    root = first_folder([path, path / "WikiTableQuestions"], ["csv", "data"])
    return tuple(split for split, name in SPLITS.items() if root and (root / "data" / f"{name}.tsv").is_file())


def load(path: Path, *, seed: int, limit: int | None = None, split: str | None = None) -> LazyPages:
    """One page per table, in the order of its first question; the looks of a table follow from ``seed`` and its name.

    ``path`` is the data set's folder, whose questions are those of the ``split`` (train, data/training.tsv, if none is
    named), or another .tsv file of it. A page is at most PAGE_SIZE; tables are read and drawn on access, and what does
    not fit is told in the page's ``notes``. Several answers are one list, joined with ", ". Raises DocumentError,
    listing every fault.
    """
    if split is not None:
        require_split(path, split, splits(path))
    root, questions = _find(path, split or "train")
    asked = _read_questions(questions)
    chosen = at_most(asked.items(), limit)
    faults = [f"{context}: there is no such table" for context, _ in chosen if not (root / context).is_file()]
    raise_faults(root, faults, f"Restore these tables, or take their questions out of {questions.name}.")
    if not chosen:
        raise DocumentError(f"{questions}: holds no question. Download it again.")
    return LazyPages(root, [_entry(root, context, tuple(rows), seed) for context, rows in chosen])


def _find(path: Path, split: str) -> tuple[Path, Path]:
    """The data set's folder and the file of questions that ``path`` means."""
    if path.is_file() and path.suffix == ".tsv":
        return path.parent.parent, path
    expected = (
        f"WikiTableQuestions' folder with csv/ and data/{SPLITS[split]}.tsv, or another of the files of questions in "
        "data/. Unpack the data set and give that path."
    )
    root = require_folder(path, ("WikiTableQuestions",), ["csv", f"data/{SPLITS[split]}.tsv"], expected)
    return root, root / "data" / f"{SPLITS[split]}.tsv"


def _read_questions(path: Path) -> dict[str, list[Question]]:
    """The questions of each table, by its path below the data set's folder."""
    lines = read_text(path).split("\n")
    head = lines[0].rstrip("\r").split("\t")
    if head[:4] != COLUMNS:
        raise DocumentError(f"{path}: its first line is {lines[0][:80]!r}; expected {' '.join(COLUMNS)}, with tabs.")
    asked: dict[str, list[Question]] = {}
    faults = []
    for number, line in enumerate(lines[1:], start=2):
        cells = line.rstrip("\r").split("\t")
        if not line.strip():
            continue
        if len(cells) < 4 or not all(cell.strip() for cell in cells[:4]):
            faults.append(f"line {number}: {line[:60]!r}")
        elif PurePosixPath(cells[2]).is_absolute() or ".." in PurePosixPath(cells[2]).parts:
            faults.append(f"line {number}: the table {cells[2]!r} is outside the data set")
        else:
            answers = [unescape(answer) for answer in cells[3].split("|")]
            asked.setdefault(cells[2], []).append(Question(unescape(cells[1]), (", ".join(answers),)))
    raise_faults(path, faults, f"Expected {', '.join(COLUMNS)}, separated by tabs. Download the file again.")
    return asked


def unescape(text: str) -> str:
    """The text of a cell of a .tsv file."""
    return re.sub(r"\\([np\\])", lambda found: ESCAPES[found[1]], text)


def read_table(path: Path, name: str) -> Table:
    """The table of one .csv file; raises DocumentError if it has no row."""
    try:
        text = io.StringIO(read_text(path), newline="")
        lines = list(csv.reader(text, doublequote=False, escapechar="\\", strict=True))
    except csv.Error as error:
        raise DocumentError(f"{path}: cannot be read as a table ({error}). Restore the file.") from error
    if len(lines) < 2:
        raise DocumentError(f"{path}: {len(lines)} lines; expected a header and at least one row. Restore the file.")
    return make_table(name, lines)


def _entry(root: Path, context: str, questions: Sequence[Question], seed: int) -> PageEntry:
    name = "-".join(re.findall(r"\d+", context)) or PurePosixPath(context).stem
    make = partial(_page, root / context, name, questions, seed)
    return PageEntry(name, root / context, make, document=name)


def _page(path: Path, name: str, questions: Sequence[Question], seed: int) -> Page:
    return table_page(read_table(path, name), questions, rng=style_rng(seed, "wtq", name))
