"""What a division holds, counted, against its manifests and its pages one by one."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest

from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import BlueRed, open_issuers, read_blue_red, write_blue_red
from docleak.documents.silos import read_silo
from docleak.errors import RecipeError
from docleak.studies.answers.counting import by_key, by_provider, draw_keys, draw_providers, part_of, size_of


@pytest.fixture(scope="module")
def division(tmp_path_factory: pytest.TempPathFactory) -> BlueRed:
    out = tmp_path_factory.mktemp("data") / "out"
    write_blue_red(open_issuers(14, 4.0, BlueRedPlan(2, test=0.3), seed=1), out)
    return read_blue_red(out)


def test_a_divisions_parts_are_counted_and_its_test_by_whose_providers_are_trained_on(division: BlueRed) -> None:
    """Against the manifests that were written with the pages, and each page looked at."""
    for name, folder in {**{f"silos/{n}": p for n, p in division.silos.items()}, **division.parts}.items():
        silo, size = read_silo(folder), size_of(part_of(division, name))
        assert {key: of.value for key, of in size.items()} == {
            "providers": len(silo.providers), "documents": silo.documents, "pages": silo.pages,
            "questions": silo.questions,
        }  # fmt: skip
    test, both = division.pages("test"), [part_of(division, f"test-{side}") for side in ("positive", "negative")]
    assert sorted(page.name for pages in both for page in pages) == sorted(page.name for page in test)
    assert all((page.provider in division.members) == (pages is both[0]) for pages in both for page in pages)
    training = part_of(division, "training")
    assert len(training) == sum(read_silo(folder).pages for folder in division.silos.values())
    numbers, counts = by_provider(training)
    held: dict[str, set[str]] = {}
    for page in training:
        held.setdefault(page.provider, set()).add(page.document)
    assert counts == sorted((len(names) for names in held.values()), reverse=True)
    assert (numbers["median"].value, numbers["most"].value) == (np.median(counts), max(counts))
    kinds, asked = by_key(training)
    assert sum(asked.values()) == sum(len(page.questions) for page in training) == kinds["questions"].value
    assert kinds["commonest"].value == max(asked.values()) / sum(asked.values())
    with pytest.raises(RecipeError, match=r"there is no part 'tests'; the division has silos/client-0"):
        part_of(division, "tests")
    for png in (draw_providers({"training": counts}), draw_keys({"training": asked})):
        assert np.asarray(PIL.Image.open(io.BytesIO(png))).std() > 5
