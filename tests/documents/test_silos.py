from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docleak.documents import LazyPages, Page, load_pages
from docleak.documents.division import divide
from docleak.documents.loaders import source_names
from docleak.documents.partition import Share
from docleak.documents.silos import MANIFEST, Silo, read_silo, write_silos
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError

QUESTIONS = [
    "nt-0\tlight?\tcsv/200-csv/1.csv\tParis",
    "nt-1\twho?\tcsv/201-csv/2.csv\tA|B",
    "nt-2\tq\tcsv/200-csv/1.csv\t2",
]


def write_wtq(root: Path) -> Path:
    """Two tables with three questions in the official layout."""
    for name in ("200-csv/1", "201-csv/2"):
        (root / "csv" / f"{name}.csv").parent.mkdir(parents=True)
        (root / "csv" / f"{name}.csv").write_text('"City","Said"\n"Paris","the \\"light\\" of, Europe"\n')
    (root / "data").mkdir()
    (root / "data" / "training.tsv").write_text("\n".join(["id\tutterance\tcontext\ttargetValue", *QUESTIONS]))
    return root


def write_tabfact(root: Path) -> Path:
    """Two tables that are too long for a page in the official layout."""
    (root / "data" / "all_csv").mkdir(parents=True)
    (root / "tokenized_data").mkdir()
    for name in ("1-1-1", "2-2-2"):
        lines = ["a#b", *(f"{i}#{i}" for i in range(200))]
        (root / "data" / "all_csv" / f"{name}.html.csv").write_text("\n".join(lines))
    examples = {f"{name}.html.csv": [["1 be 1", "1 be 2"], [1, 0], "numbers"] for name in ("1-1-1", "2-2-2")}
    (root / "tokenized_data" / "train_examples.json").write_text(json.dumps(examples))
    return root


def content(page: Page) -> tuple[Any, ...]:
    rest = (page.name, page.words, page.fields, page.questions, page.document, page.provider, page.template, page.notes)
    return (page.image.shape, page.image.tobytes(), *rest)


def test_silos_are_read_back_equal(tmp_path: Path) -> None:
    specs = [str(write_wtq(tmp_path / "wtq")), f"tabfact:{write_tabfact(tmp_path / 'facts')}", "synthetic"]
    division = divide(specs, 7, by="documents", seed=3, count=4)
    assert [s.name for s in division.shares] == ["wtq-0", "wtq-1", "tabfact-0", "tabfact-1", "synthetic-0",
                                                 "synthetic-1", "synthetic-2"]  # fmt: skip
    told: list[tuple[int, int, str]] = []
    out = tmp_path / "new" / "silos"
    silos = write_silos(
        division.shares, division.sources, out, by="documents", seed=3, on_page=lambda *a: told.append(a)
    )
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["silos"] and told[-1] == (8, 8, "synthetic-2")
    assert [number for number, _, _ in told] == list(range(1, 9))
    for share, silo in zip(division.shares, silos, strict=True):
        read = load_pages(str(out / share.name), seed=0)
        source = division.sources[share.data_set]
        assert isinstance(read, LazyPages)
        assert [content(page) for page in read] == [content(source[number]) for number in share.pages]
        assert read_silo(out / share.name) == silo
        assert silo.pages == silo.documents == len(read) and silo.questions == sum(len(p.questions) for p in read)
    assert [silo.cut for silo in silos] == [0, 0, 1, 1, 0, 0, 0]
    assert silos[0].providers == () and len(silos[4].providers) == silos[4].pages == 2
    assert silos[0] == Silo("wtq-0", "wtq", 1, 1, silos[0].questions, (), 0, "documents", 7, 3)
    assert sum(silo.questions for silo in silos[:2]) == len(QUESTIONS)


def test_the_same_seed_divides_and_writes_the_same(tmp_path: Path) -> None:
    trees = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        division = divide(["synthetic"], 3, by="documents", seed=seed, count=7)
        write_silos(division.shares, division.sources, tmp_path / name, by="documents", seed=seed)
        trees.append(
            {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()}
        )
    assert trees[0] == trees[1] != trees[2]


def test_nothing_is_left_half_done(tmp_path: Path) -> None:
    class Broken(LazyPages):
        def __getitem__(self, index: Any) -> Any:
            raise RuntimeError("stop")

    shares = (Share("a-0", "a", (0,)), Share("b-0", "b", (0,)))
    sources = {"a": make_pages(1, seed=0), "b": Broken(tmp_path, ())}
    with pytest.raises(RuntimeError):
        write_silos(shares, sources, tmp_path / "out", by="documents", seed=0)
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(DocumentError, match="holds x; silos are only written to a new folder"):
        write_silos(shares[:1], sources, tmp_path / "full", by="documents", seed=0)


def test_manifests_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"empty folder; expected silo\.json"):
        read_silo(tmp_path)
    good = {"name": "a", "source": "b", "documents": 1, "pages": 1, "questions": 1, "providers": [], "cut": 0,
            "by": "documents", "clients": 1, "seed": 0}  # fmt: skip
    for value, words in (
        ([], "expected an object"),
        (good | {"x": 1}, "x is an unknown key"),
        (good | {"pages": "1"}, "pages is '1'"),
    ):
        (tmp_path / MANIFEST).write_text(json.dumps(value))
        with pytest.raises(DocumentError, match=words):
            read_silo(tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps(good))
    assert read_silo(tmp_path).providers == ()


def faults() -> Iterator[tuple[dict[str, Any], str]]:
    base: dict[str, Any] = {"specs": ["synthetic"], "clients": 2, "by": "documents", "seed": 0}
    yield base | {"by": "pages"}, "by 'pages'; expected one of documents, providers, clients"
    yield base | {"seed": -1}, "seed is -1"
    yield base | {"clients": 0}, "0 clients were asked for"
    yield base | {"clients": 17}, "17 clients for 16 documents"
    yield base | {"clients": 17, "by": "providers"}, "17 clients for 1. providers"
    yield base | {"specs": ["synthetic", "synthetic"], "by": "providers"}, "2 data sets to divide by providers"
    yield base | {"by": "clients"}, "synthetic pages have no official clients"
    yield base | {"specs": ["nowhere"]}, "neither a format nor an existing path"


@pytest.mark.parametrize(("options", "words"), list(faults()))
def test_what_cannot_be_divided(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        divide(**options)


def test_names_of_data_sets_of_one_format() -> None:
    assert source_names(["synthetic", "sroie:a", "sroie:b", "synthetic"]) == [
        "synthetic",
        "sroie",
        "sroie_2",
        "synthetic_2",
    ]


def test_official_clients_of_real_data(shared_data: Path) -> None:
    spec = f"pfl-docvqa:{shared_data / 'vrdu_pfl'}"
    division = divide([spec], 3, by="clients", seed=0)
    assert [s.name for s in division.shares] == ["client_0", "client_1", "client_2"]
    assert [p for share in division.shares for p in share.pages] == list(range(len(division.sources["pfl-docvqa"])))
    with pytest.raises(DocumentError, match="has the 3 clients client_0, client_1, client_2, but 10 were asked for"):
        divide([spec], 10, by="clients", seed=0)
    division = divide([spec], 4, by="providers", seed=0)
    assert len(division.shares) == 4


def test_a_data_set_is_given_once(tmp_path: Path) -> None:
    """Twice, each of its providers would be with two clients, and whoever protects a client protects neither."""
    tables = write_wtq(tmp_path / "wtq")
    again = tmp_path / "other" / ".." / "wtq"
    (tmp_path / "other").mkdir()
    for specs in (
        [f"wtq:{tables}", f"wtq:{again}"],
        ["synthetic", "synthetic"],
        [f"wtq:{tables},synthetic", f"wtq:{tables}"],
    ):
        with pytest.raises(DocumentError, match=r"is given twice, so that several clients .* Give each data set once"):
            divide(specs, 2, by="documents", seed=0, count=2)
    assert len(divide([f"wtq:{tables}", "synthetic"], 2, by="documents", seed=0, count=2).sources) == 2
