"""TabFact (Chen et al., 2020): tables of Wikipedia, drawn as pages, with statements that they entail or refute.

Layout: ``data/all_csv/<table>.html.csv`` (cells separated by ``#``, no quotes) and
``tokenized_data/{train,val,test}_examples.json`` = {table: [[statements], [1 entailed, 0 refuted], caption]}. The
repository is called Table-Fact-Checking. As in DUE and FeDocVQA a statement is a question that "yes" or "no" answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from docleak.documents.files import describe_folder, first_folder, raise_faults, read_json, read_text, require_split
from docleak.documents.page import Page, Question
from docleak.documents.pages import LazyPages, PageEntry, at_most
from docleak.documents.table_pages import style_rng, table_page
from docleak.documents.tables import Table, make_table
from docleak.errors import DocumentError
from docleak.files import shaped

SPLITS = ("train", "val", "test")
#: Answer by label.
ANSWERS = ("no", "yes")

#: Table file -> statements, labels and caption.
Examples = dict[str, tuple[tuple[str, ...], tuple[Literal[0, 1], ...], str]]


def splits(path: Path) -> tuple[str, ...]:
    """The official splits at ``path``."""
    return tuple(_examples(path)[1])


def load(path: Path, *, seed: int, limit: int | None = None, split: str | None = None) -> LazyPages:
    """One page per table, in the order of the examples; the looks of a table follow from ``seed`` and its name.

    ``path`` is the data set's folder or one of its ``*_examples.json``. A folder means the ``split``; without one its
    train examples, and where there are none all examples there are (``notes`` says so). A page is at most PAGE_SIZE;
    tables are read and drawn on access, with the caption above, and what does not fit is told in the page's ``notes``.
    Raises DocumentError, listing every fault.
    """
    if split is not None:
        require_split(path, split, splits(path))
    root, files, notes = _find(path, split)
    examples: Examples = {}
    for file in files:
        examples.update(_read_examples(file))
    chosen = at_most(examples.items(), limit)
    tables = root / "data" / "all_csv"
    faults = [f"{name}: there is no such table in data/all_csv/" for name, _ in chosen if not (tables / name).is_file()]
    raise_faults(root, faults, "Restore these tables, or take their statements out of the examples.")
    if not chosen:
        raise DocumentError(f"{files[0]}: holds no statement. Download it again.")
    return LazyPages(root, [_entry(tables / name, *example, seed) for name, example in chosen], notes=notes)


def _examples(path: Path) -> tuple[Path | None, dict[str, Path]]:
    """The data set's folder, and the files of examples in it by split."""
    root = first_folder([path, path / "Table-Fact-Checking"], ["data/all_csv", "tokenized_data"])
    named = {split: root / "tokenized_data" / f"{split}_examples.json" for split in SPLITS} if root else {}
    return root, {split: file for split, file in named.items() if file.is_file()}


def _find(path: Path, split: str | None) -> tuple[Path, list[Path], list[str]]:
    """The data set's folder, the files of examples that ``path`` means, and what is to be said about that choice."""
    if path.is_file() and path.name.endswith("_examples.json"):
        return path.parent.parent, [path], []
    root, there = _examples(path)
    if root is None or not there:
        raise DocumentError(
            f"{path} {describe_folder(path)}; expected TabFact's folder with data/all_csv/ and tokenized_data/"
            f"{{{','.join(SPLITS)}}}_examples.json, or one of these files. Clone Table-Fact-Checking and give its path."
        )
    if split or "train" in there:
        return root, [there[split or "train"]], []
    names = " and ".join(file.name for file in there.values())
    return root, list(there.values()), [f"no train_examples.json: {names} were read instead"]


def _read_examples(path: Path) -> Examples:
    advice = "Expected {table: [[statements], [labels 0 or 1], caption]}. Download the file again."
    examples = shaped(Examples, read_json(path), DocumentError, f"{path}", advice)
    faults = [f"{name}: not a plain file name" for name in examples if Path(name).name != name]
    faults += [
        f"{name}: {len(texts)} statements but {len(labels)} labels"
        for name, (texts, labels, _) in examples.items()
        if len(texts) != len(labels)
    ]
    raise_faults(path, faults, advice)
    return examples


def read_table(path: Path, name: str, caption: str) -> Table:
    """The table of one .html.csv file; raises DocumentError if it has no row."""
    lines = [line.rstrip("\r").split("#") for line in read_text(path).split("\n") if line.strip()]
    if len(lines) < 2:
        raise DocumentError(f"{path}: {len(lines)} lines; expected a header and at least one row. Restore the file.")
    return make_table(name, lines, caption=caption)


def _entry(path: Path, texts: Sequence[str], labels: Sequence[int], caption: str, seed: int) -> PageEntry:
    name = path.name.removesuffix(".html.csv")
    questions = tuple(Question(text, (ANSWERS[label],)) for text, label in zip(texts, labels, strict=True))
    return PageEntry(name, path, partial(_page, path, name, caption, questions, seed), document=name)


def _page(path: Path, name: str, caption: str, questions: Sequence[Question], seed: int) -> Page:
    return table_page(read_table(path, name, caption), questions, rng=style_rng(seed, "tabfact", name))
