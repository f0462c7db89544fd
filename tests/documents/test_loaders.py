from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from docleak.documents import LOADERS, LazyPages, Page, folder, load_pages
from docleak.documents.loaders import detect, format_and_path
from docleak.errors import DocumentError


@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_of_the_table_is_there_and_documented(name: str) -> None:
    function = LOADERS[name].function()
    assert function.__doc__ and function.__name__ == "load" and LOADERS[name].about
    with pytest.raises(DocumentError, match="does not exist"):
        load_pages(f"{name}:/nowhere", seed=0, allow_pickle=True)


@pytest.mark.parametrize(
    ("folder_name", "name"),
    [("sroie", "sroie"), ("funsd", "funsd"), ("funsd/dataset/testing_data", "funsd"), ("vrdu_pfl", "vrdu"),
     ("vrdu_pfl/imdb", "pfl-docvqa"), ("vrdu_pfl/imdb/imdb_val.npy", "pfl-docvqa"), ("wtq", "wtq"),
     ("wtq/WikiTableQuestions", "wtq"), ("tabfact", "tabfact"), ("tabfact/Table-Fact-Checking", "tabfact")],
)  # fmt: skip
def test_real_layouts_are_recognised(shared_data: Path, folder_name: str, name: str) -> None:
    path = shared_data / folder_name
    assert detect(path) == name
    pages = load_pages(str(path), seed=0, count=2, allow_pickle=True)
    assert isinstance(pages, LazyPages) and len(pages) == 2 and pages[1].private_fields
    assert [e.name for e in load_pages(f"{name}:{path}", seed=1, count=2, allow_pickle=True).entries] == [
        e.name for e in pages.entries
    ]


def test_the_seed_reaches_what_is_drawn(shared_data: Path) -> None:
    first, again, other = (load_pages(f"wtq:{shared_data / 'wtq'}", seed=seed, count=1)[0] for seed in (1, 1, 2))
    assert (first.image == again.image).all()
    assert first.image.shape != other.image.shape or (first.image != other.image).any()


def test_pickles_need_permission(shared_data: Path) -> None:
    with pytest.raises(DocumentError, match="--allow-pickle"):
        load_pages(f"pfl-docvqa:{shared_data / 'vrdu_pfl'}", seed=0)


def test_ones_own_folder_is_recognised(tmp_path: Path) -> None:
    path = folder.save([Page("a", np.zeros((4, 4, 3), np.uint8))], tmp_path / "mine")
    assert detect(path) == "folder" and load_pages(str(path), seed=0)[0].name == "a"
    assert format_and_path(f"folder:{path}") == ("folder", path)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "photo.png").touch()
    with pytest.raises(DocumentError, match=r"holds photo\.png, which is no layout") as raised:
        load_pages(str(tmp_path), seed=0)
    assert all(f"- {name}: " in str(raised.value) for name in LOADERS) and "pages.jsonl" in str(raised.value)
    with pytest.raises(DocumentError, match="is a file, which is no layout"):
        load_pages(str(tmp_path / "photo.png"), seed=0)
    with pytest.raises(DocumentError, match=r"neither a format nor an existing path(.|\n)*Did you mean sroie"):
        load_pages("sorie:/data", seed=0)
    with pytest.raises(DocumentError, match="Did you mean synthetic"):
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
