from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from docleak.documents import LOADERS, LazyPages, Page, folder, load_pages
from docleak.documents.loaders import detect, drawn, format_and_path, page_source, source_names
from docleak.documents.pages import entries_of
from docleak.errors import DocumentError


@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_of_the_table_is_there_and_documented(name: str) -> None:
    function = LOADERS[name].function()
    assert function.__doc__ and function.__name__ == "load" and LOADERS[name].about
    with pytest.raises(DocumentError, match="does not exist"):
        load_pages(f"{name}:/nowhere", seed=0)


@pytest.mark.parametrize(
    ("folder_name", "name"),
    [("sroie", "sroie"), ("funsd", "funsd"), ("funsd/dataset/testing_data", "funsd"), ("vrdu_pfl", "vrdu"),
     ("vrdu_pfl/imdb", "pfl-docvqa"), ("vrdu_pfl/imdb/imdb_val.npy", "pfl-docvqa"), ("wtq", "wtq"),
     ("wtq/WikiTableQuestions", "wtq"), ("tabfact", "tabfact"), ("tabfact/Table-Fact-Checking", "tabfact")],
)  # fmt: skip
def test_real_layouts_are_recognised(shared_data: Path, folder_name: str, name: str) -> None:
    path = shared_data / folder_name
    assert detect(path) == name
    pages = load_pages(str(path), seed=0, count=2)
    assert isinstance(pages, LazyPages) and len(pages) == 2 and pages[1].private_fields
    assert [e.name for e in load_pages(f"{name}:{path}", seed=1, count=2).entries] == [e.name for e in pages.entries]


def test_the_seed_reaches_what_is_drawn(shared_data: Path) -> None:
    first, again, other = (load_pages(f"wtq:{shared_data / 'wtq'}", seed=seed, count=1)[0] for seed in (1, 1, 2))
    assert (first.image == again.image).all()
    assert first.image.shape != other.image.shape or (first.image != other.image).any()


@pytest.mark.parametrize(("name", "splits"), [
    ("sroie", ("train",)), ("funsd", ("train", "test")), ("wtq", ("train", "val", "test")),
    ("tabfact", ("val", "test")),
    ("vrdu_pfl", ("train", "val", "red_test_positive", "red_test_negative")),
])  # fmt: skip
def test_splits_of_real_data(shared_data: Path, name: str, splits: tuple[str, ...]) -> None:
    spec = str(shared_data / name)
    source = page_source(spec)
    assert set(source.splits()) == set(splits) and page_source(f"{spec}:split={splits[0]}").options.split == splits[0]
    names = [{e.document for e in entries_of(load_pages(f"{spec}:split={s}", seed=0))} for s in splits]
    assert all(names) and (name == "wtq" or sum(map(len, names)) == len(set.union(*names)))
    for other in ("nothing", "split"):
        with pytest.raises(DocumentError, match=f"there is no split '{other}'; expected {source.splits()[0]}"):
            load_pages(f"{source.format}:{spec}:split={other}", seed=0)


def test_options_behind_a_path(tmp_path: Path) -> None:
    (tmp_path / "a:split=x,b").mkdir()
    page = Page("a", np.zeros((4, 4, 3), np.uint8))
    odd = folder.save([page], tmp_path / "a:split=x,b" / "c")
    assert len(load_pages(f"folder:{odd}", seed=0)) == len(load_pages(str(odd), seed=0)) == 1
    with pytest.raises(DocumentError, match=r"cannot be told 'splt=val'; it takes split=(.|\n)*Did you mean 'split'"):
        load_pages(f"wtq:{tmp_path}:splt=val", seed=0)
    with pytest.raises(DocumentError, match="has no splits, and 'val' was asked for"):
        load_pages(f"folder:{odd}:split=val", seed=0)


def test_several_data_sets_are_one(shared_data: Path, tmp_path: Path) -> None:
    spec = f"wtq:{shared_data / 'wtq'}:split=val,tabfact:{shared_data / 'tabfact'}:split=test,synthetic"
    pages = load_pages(spec, seed=0, count=2)
    sets = tuple(entry.data_set for entry in entries_of(pages))
    assert sets == ("wtq", "wtq", "tabfact", "tabfact", "synthetic", "synthetic")
    assert all(entry.name.startswith(f"{entry.data_set}/") for entry in entries_of(pages))
    for number, entry in enumerate(entries_of(pages)):
        page = pages[number]
        assert (page.name, page.document, page.data_set) == (entry.name, entry.document, entry.data_set)
    again = load_pages(f"folder:{folder.save(pages, tmp_path / 'both')}", seed=0)
    assert [page.data_set for page in again] == [entry.data_set for entry in entries_of(again)] == list(sets)
    assert source_names([spec, "synthetic"]) == ["wtq-tabfact-synthetic", "synthetic"] and drawn(spec)
    with pytest.raises(DocumentError, match="'b' is neither a format nor an existing path"):
        load_pages("synthetic,b", seed=0)


def test_ones_own_folder_is_recognised(tmp_path: Path) -> None:
    path = folder.save([Page("a", np.zeros((4, 4, 3), np.uint8))], tmp_path / "mine")
    assert detect(path) == "folder" and load_pages(str(path), seed=0)[0].name == "a"
    assert format_and_path(f"folder:{path}") == ("folder", path)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "photo.png").touch()
    with pytest.raises(DocumentError, match=r"holds photo\.png, which is no layout") as raised:
        load_pages(str(tmp_path), seed=0)
    assert all(f"- {name}: " in str(raised.value) for name in LOADERS) and "pages.jsonl" in str(raised.value)
    assert "docleak data mark FOLDER takes a folder of pictures as it is" in str(raised.value)
    (tmp_path / "two\nlines.png").touch()
    with pytest.raises(DocumentError, match=r"two\\nlines\.png, which is no layout"):
        detect(tmp_path)
    with pytest.raises(DocumentError, match="is a file, which is no layout"):
        load_pages(str(tmp_path / "photo.png"), seed=0)
    with pytest.raises(DocumentError, match=r"neither a format nor an existing path(.|\n)*Did you mean 'sroie'"):
        load_pages("sorie:/data", seed=0)
    with pytest.raises(DocumentError, match="Did you mean 'synthetic'"):
        load_pages("synthetics", seed=0)
    with pytest.raises(DocumentError, match="'sroie:' names no path"):
        load_pages("sroie:", seed=0)
    with pytest.raises(DocumentError, match="0 pages were asked for"):
        load_pages("synthetic", seed=0, count=0)


def test_synthetic_pages_are_made_from_the_seed() -> None:
    first, again, other = (load_pages("synthetic", count=2, seed=seed)[1] for seed in (1, 1, 2))
    assert (first.image == again.image).all() and first.words == again.words
    assert first.words != other.words
    assert len(load_pages("synthetic", seed=0)) == 16


def test_documents_import_without_torch_and_without_loaders() -> None:
    code = "import sys, docleak.documents as d; print([m for m in sys.modules if m == 'torch' or m.endswith('.sroie')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
