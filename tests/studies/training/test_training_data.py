"""Documents of a training: divided without overlap, alike for every number of clients."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from docleak.documents.loaders import load_pages
from docleak.documents.partition import split_by_coin
from docleak.errors import DocumentError, RecipeError
from docleak.studies.training.config import TrainingConfig
from docleak.studies.training.data import divide, divided, folder_of

CONFIG = TrainingConfig(
    "m", documents=("synthetic", "synthetic"), pages=8, test_share=0.25, validation_share=0.125, clients=2
)


def names(folders: dict[str, Path]) -> list[str]:
    return sorted(page.name for folder in folders.values() for page in load_pages(f"folder:{folder}", seed=0))


@pytest.mark.parametrize("source", ["wtq:here", "synthetic-invoices"])
def test_under_an_epsilon_no_first_pages_are_taken(source: str, tmp_path: Path) -> None:
    """Nor those of a folder whose name begins as the pages do that are made on the spot."""
    with pytest.raises(RecipeError, match=r"pages is .*, the first ones of a list, which an epsilon does not cover"):
        divide(replace(CONFIG, documents=("synthetic", source), epsilon=8.0), tmp_path)
    assert not list(tmp_path.iterdir())


def test_under_an_epsilon_a_unit_that_leaves_stays_alone_in_its_silo_too() -> None:
    units = {name: [f"{name} {i // 2}" for i in range(200)] for name in ("one", "two")}

    def homes(of: dict[str, list[str]]) -> dict[str, str]:
        shares = split_by_coin(of, 5, seed=3)
        return {of[share.data_set][page]: share.name for share in shares for page in share.pages}

    before = homes(units)
    assert set(before.values()) == {"one-0", "one-1", "one-2", "two-0", "two-1"} and len(before) == 200
    for gone in ("one 3", "two 99"):
        after = homes({name: [unit for unit in of if unit != gone] for name, of in units.items()})
        assert after == {unit: home for unit, home in before.items() if unit != gone}
    with pytest.raises(DocumentError, match="1 clients for 2 data sets"):
        split_by_coin(units, 1, seed=3)
    with pytest.raises(DocumentError, match="no unit falls to"):
        split_by_coin({"one": ["a", "a"]}, 2, seed=3)


def test_test_documents_are_the_same_for_every_number_of_clients_and_in_no_silo(tmp_path: Path) -> None:
    places = {k: divide(replace(CONFIG, clients=k), tmp_path) for k in (1, 2, 5)}
    assert {k: len(of.silos) for k, of in places.items()} == {1: 1, 2: 2, 5: 5}
    trained = names(dict(places[2].silos))
    assert len(trained) == 2 * (8 - 2 - 1)
    for of in places.values():
        assert of.test == places[2].test and of.validation == places[2].validation
        assert names(dict(of.silos)) == trained
    parts = [names(dict(part)) for part in (places[2].test, places[2].validation, places[2].silos)]
    assert [len(part) for part in parts] == [4, 2, 10]
    assert sorted(places[2].test) == ["synthetic", "synthetic_2"]


def test_two_synthetic_sets_differ(tmp_path: Path) -> None:
    first, second = (load_pages(f"folder:{of}", seed=0) for of in divide(CONFIG, tmp_path).test.values())
    assert {w.text for w in first[0].words} != {w.text for w in second[0].words}


def test_a_part_that_is_missing_is_made_again_and_others_are_left_alone(tmp_path: Path) -> None:
    places = divide(CONFIG, tmp_path)
    before = names(dict(places.silos))
    stamp = (folder_of(CONFIG, tmp_path) / "test").stat().st_mtime_ns
    shutil.rmtree(folder_of(CONFIG, tmp_path) / "silos-2")
    assert not divided(CONFIG, tmp_path).silos
    assert names(dict(divide(CONFIG, tmp_path).silos)) == before
    assert (folder_of(CONFIG, tmp_path) / "test").stat().st_mtime_ns == stamp


def test_test_documents_replace_the_share(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    shutil.copytree(divide(CONFIG, tmp_path / "a").test["synthetic"], folder)
    config = replace(CONFIG, test_documents=(f"folder:{folder}", f"folder:{folder}"))
    places = divide(config, tmp_path / "b")
    assert names(dict(places.test)) == sorted(2 * [page.name for page in load_pages(f"folder:{folder}", seed=0)])
    assert len(names(dict(places.silos))) == 2 * 7
    assert f"synthetic_2: the test pages are those of folder:{folder}, as asked for (2 pages)." in places.said


def test_official_test_pages_are_taken_and_said(shared_data: Path, tmp_path: Path) -> None:
    spec = f"funsd:{shared_data / 'funsd'}"
    config = replace(CONFIG, documents=(spec,), pages=6, clients=1)
    places = divide(config, tmp_path)
    official = load_pages(f"{spec}:split=test", count=6, seed=0)
    tests = load_pages(f"folder:{places.test['funsd']}", seed=0)
    assert sorted(len(page.words) for page in tests) == sorted(len(page.words) for page in official)
    assert places.said == divided(config, tmp_path).said
    assert (
        places.said[0] == "funsd: the test pages are the first of its official split (6 pages)."
        and len(places.said) == 2
    )
    assert "no official validation split is here" in places.said[1]


def test_documents_that_an_older_docleak_divided_are_not_gone_on_with(tmp_path: Path) -> None:
    divide(CONFIG, tmp_path)
    note = folder_of(CONFIG, tmp_path) / "data.json"
    old = {name: value for name, value in json.loads(note.read_text()).items() if name != "said"}
    note.write_text(json.dumps(old))
    for other in (CONFIG, replace(CONFIG, clients=5)):
        with pytest.raises(RecipeError, match=r"an older docleak divided(.|\n)*Give another folder"):
            divide(other, tmp_path)
    assert not (folder_of(CONFIG, tmp_path) / "silos-5").exists() and json.loads(note.read_text()) == old
