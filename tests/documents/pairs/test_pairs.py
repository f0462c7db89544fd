"""Pairs: scenes whose sentences are true, official layouts rebuilt small, and shuffling."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from docleak.documents.pairs import Pair, load_pairs, make_scenes, resized, shuffled
from docleak.documents.pairs.scenes import COLORS, NUMBERS
from docleak.errors import DocumentError

NLVR = Path(__file__).parents[3].parent / "shared" / "data" / "nlvr"


def count_in(pair: Pair, color: str) -> int:
    """How many patches of a colour the picture shows, by connected components."""
    return int(ndimage.label((pair.image == COLORS[color]).all(axis=2))[1])


def test_exact_numbers_in_sentences_are_what_the_picture_shows() -> None:
    said = [p for p in make_scenes(400, seed=3) if p.label == "tower" and "exactly" in p.text and "tower" not in p.text]
    assert len(said) > 10
    for pair in said:
        words = pair.text.rstrip(".").split()
        number, color = words[3], words[4]
        assert NUMBERS[count_in(pair, color)] == number if number in NUMBERS else str(count_in(pair, color)), pair.text


def test_scenes_are_the_same_for_the_same_seed_only() -> None:
    first, again, other = make_scenes(5, seed=1), make_scenes(5, seed=1), make_scenes(5, seed=2)
    assert [p.text for p in first] == [p.text for p in again]
    assert all(np.array_equal(a.image, b.image) for a, b in zip(first, again, strict=True))
    assert [p.text for p in first] != [p.text for p in other]


def test_shuffled_pairs_keep_no_text_of_their_own() -> None:
    pairs = make_scenes(7, seed=0)
    mixed = shuffled(pairs, np.random.default_rng(0))
    assert sorted(p.text for p in mixed) == sorted(p.text for p in pairs)
    assert all(m.name.split("|")[1] != p.name for m, p in zip(mixed, pairs, strict=True))
    for pair in mixed:
        giver = next(p for p in pairs if p.name == pair.name.split("|")[1])
        assert (pair.text, pair.labels[1]) == (giver.text, giver.label)
    with pytest.raises(DocumentError, match="at least two"):
        shuffled(pairs[:1], np.random.default_rng(0))


def test_resized_averages() -> None:
    image = np.zeros((4, 8, 3), dtype=np.uint8)
    image[:, ::2] = 200
    assert (resized(Pair("a", image, "x", "y"), (4, 2)).image == 100).all()


@pytest.mark.skipif(not NLVR.is_dir(), reason="NLVR is not at ../shared/data/nlvr")
def test_nlvr() -> None:
    pairs = load_pairs(f"nlvr:{NLVR}", count=3, skip=1, seed=0)
    assert pairs[0].text == "There is at least one black block on a blue block."
    assert pairs[0].image.shape == (100, 400, 3)
    assert {p.label for p in load_pairs(f"nlvr:{NLVR}", count=20, seed=0)} == {"true", "false"}


def cifar(folder: Path, content: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple", b"aquarium_fish"]}))
    (folder / "test").write_bytes(pickle.dumps(content))


def test_cifar100(tmp_path: Path) -> None:
    data = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3072)
    cifar(tmp_path / "cifar-100-python", {b"data": data, b"fine_labels": [1, 0]})
    pairs = load_pairs(f"cifar100:{tmp_path}", count=2, seed=0, allow_pickle=True)
    assert pairs[0].text == "A aquarium fish in the image."
    assert (pairs[0].image[5, 7] == data[0].reshape(3, 32, 32)[:, 5, 7]).all()
    with pytest.raises(DocumentError, match="allow-pickle"):
        load_pairs(f"cifar100:{tmp_path}", count=1, seed=0)


class Harm:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, (f"touch {self.mark}",)


def test_a_pickle_that_calls_something_is_refused(tmp_path: Path) -> None:
    cifar(tmp_path / "cifar-100-python", {b"data": Harm(tmp_path / "mark")})
    with pytest.raises(DocumentError, match="wants to call"):
        load_pairs(f"cifar100:{tmp_path}", count=1, seed=0, allow_pickle=True)
    assert not (tmp_path / "mark").exists()


def test_flickr30k(tmp_path: Path) -> None:
    (tmp_path / "flickr30k_images").mkdir()
    Image.new("RGB", (20, 10), "red").save(tmp_path / "flickr30k_images" / "1.jpg")
    lines = ["1.jpg#0\tTwo young , White males", "1.jpg#1\tA man"]
    (tmp_path / "results_20130124.token").write_text("\n".join(lines) + "\n")
    (pair,) = load_pairs(f"flickr30k:{tmp_path}", count=1, seed=0)
    assert (pair.text, pair.label, pair.image.shape) == ("Two young , White males", "other", (10, 20, 3))
    with pytest.raises(DocumentError, match="has 1 pairs"):
        load_pairs(f"flickr30k:{tmp_path}", count=2, seed=0)
    (tmp_path / "results_20130124.token").write_text("no tab here\n")
    with pytest.raises(DocumentError, match="line 1"):
        load_pairs(f"flickr30k:{tmp_path}", count=1, seed=0)


REPORT = """<eCitation><MedlineCitation><Article><Abstract><AbstractText Label="FINDINGS">{text}</AbstractText>
<AbstractText Label="IMPRESSION">Clear.</AbstractText></Abstract></Article></MedlineCitation>
<MeSH><major>{term}</major></MeSH><parentImage id="CXR1_1"/><parentImage id="CXR1_2"/></eCitation>"""


@pytest.mark.parametrize(("text", "term", "expected"), [
    ("The heart is normal.", "normal", ("The heart is normal.", "normal")),
    ("", "Opacity/lung", ("Clear.", "abnormal")),
])  # fmt: skip
def test_openi(tmp_path: Path, text: str, term: str, expected: tuple[str, str]) -> None:
    (tmp_path / "ecgen-radiology").mkdir()
    (tmp_path / "NLMCXR_png").mkdir()
    (tmp_path / "ecgen-radiology" / "1.xml").write_text(REPORT.format(text=text, term=term))
    Image.new("L", (12, 12)).save(tmp_path / "NLMCXR_png" / "CXR1_1.png")
    (pair,) = load_pairs(f"openi:{tmp_path}", count=1, seed=0)
    assert (pair.text, pair.label) == expected


def test_pages_become_pairs() -> None:
    pair = load_pairs("pages:synthetic", count=1, seed=0)[0]
    assert "invoice number" in pair.text and pair.label


@pytest.mark.parametrize("spec", ["nonsense", "nlvr:", "nlvr:/no/such/folder", "photos:/tmp"])
def test_specs_that_name_nothing(spec: str) -> None:
    with pytest.raises(DocumentError, match="expected"):
        load_pairs(spec, count=1, seed=0)
