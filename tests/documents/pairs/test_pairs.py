"""Pairs: scenes whose sentences are true, official layouts rebuilt small, and shuffling."""

from __future__ import annotations

import pickle
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from docleak.documents.pairs import Pair, load_pairs, make_scenes, resized, shuffled
from docleak.documents.pairs.scenes import COLORS
from docleak.documents.pairs.sentences import NUMBERS
from docleak.errors import DocumentError

NLVR = Path(__file__).parents[3].parent / "shared" / "data" / "nlvr"


def towers_in(pair: Pair) -> list[list[str]]:
    """The colours of every box's blocks from the top down, read off the middle column of the box."""
    towers = []
    for left in (0, 150, 300):
        column = [tuple(int(c) for c in pixel) for pixel in pair.image[:, left + 50]]
        at = [next((name for name, rgb in COLORS.items() if rgb == pixel), "") for pixel in column]
        ends = [row for row in range(100) if at[row] and (row == 99 or at[row + 1] != at[row])]
        towers.append([at[row] for row in ends])
    return [tower for tower in towers if tower]


def number_of(word: str) -> int:
    return int(word) if word.isdigit() else NUMBERS.index(word)


def holds(text: str, pair: Pair) -> bool | None:
    """Whether a sentence about towers is true of the picture; None for wordings this oracle does not know."""
    towers = towers_in(pair)
    if match := re.fullmatch(r"there (?:is|are) (exactly |only |at least )?(\w+) (\w+) blocks?", text):
        seen, said = count_in_towers(towers, match[3]), number_of(match[2])
        return seen >= said if match[1] == "at least " else seen == said
    if match := re.fullmatch(
        r"there (?:is|are) (exactly |at least )?(\w+) towers? with a (\w+) block at the (top|base|bottom)", text
    ):
        seen = sum(t[0 if match[4] == "top" else -1] == match[3] for t in towers)
        return seen >= number_of(match[2]) if match[1] == "at least " else seen == number_of(match[2])
    if match := re.fullmatch(r"there is a tower with (?:only |exactly )?(\w+) blocks?", text):
        return number_of(match[1]) in [len(t) for t in towers]
    if match := re.fullmatch(r"one tower has a (\w+) block on top of a (\w+) block", text):
        return any(pair == (match[1], match[2]) for t in towers for pair in pairwise(t))
    if match := re.fullmatch(r"the tower with (\w+) blocks? has a (\w+) block at the top", text):
        return [t[0] for t in towers if len(t) == number_of(match[1])] == [match[2]]
    return None


def count_in_towers(towers: list[list[str]], color: str) -> int:
    return sum(block == color for tower in towers for block in tower)


def test_sentences_about_towers_are_true_of_the_picture_and_of_few_others() -> None:
    pairs = [p for p in make_scenes(600, seed=3) if p.label == "tower" and towers_in(p)]
    verdicts = {p.name: holds(p.text.rstrip(".").lower(), p) for p in pairs}
    known = [p for p in pairs if verdicts[p.name] is not None]
    assert len(known) > 80
    assert [p.text for p in known if not verdicts[p.name]] == []
    others = [holds(a.text.rstrip(".").lower(), b) for a, b in pairwise(known)]
    assert sum(bool(v) for v in others) < 0.7 * len(others), "the oracle also says no"


def test_numbers_of_scattered_items_are_what_the_picture_shows() -> None:
    checked = 0
    for pair in make_scenes(600, seed=4):
        if match := re.fullmatch(
            r"there (?:is|are) (?:exactly |only )(\w+) (\w+) (?:item|object)s?\.?", pair.text.lower()
        ):
            shown = ndimage.label((pair.image == COLORS[match[2]]).all(axis=2))[1]
            assert shown == number_of(match[1]), pair.text
            checked += 1
    assert checked > 10


def test_a_description_is_true_of_its_picture_and_of_hardly_another() -> None:
    pairs = load_pairs("described", count=200, seed=4)
    assert len({pair.text for pair in pairs}) > 190
    for pair in pairs:
        boxes = [part.partition(": ") for part in pair.text.split("; ")]
        assert [place for place, _, _ in boxes] == ["left", "middle", "right"]
        for left, (_, _, said) in zip((0, 150, 300), boxes, strict=True):
            told = dict(reversed(words.split()) for words in said.split(", ")) if said != "none" else {}
            for color, rgb in COLORS.items():
                shown = ndimage.label((pair.image[:, left : left + 100] == rgb).all(axis=2))[1]
                number = number_of(told[color]) if color in told else 0
                assert shown == number or (pair.label == "scatter" and 0 < shown < number), "scattered ones may touch"


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


@pytest.mark.skipif(not NLVR.is_dir(), reason="NLVR is not at ../shared/data/nlvr")
def test_true_sentences_of_nlvr() -> None:
    true = load_pairs(f"nlvr-true:{NLVR}", count=101, seed=0)
    alike = [p for p in load_pairs(f"nlvr:{NLVR}", count=200, seed=0) if p.label == "true"]
    assert [(p.name, p.text) for p in true] == [(p.name, p.text) for p in alike]
    for pair in true[:30]:
        columns = {left: (pair.image[:, left + 2] == (211, 211, 211)).all() for left in (0, 150, 300)}
        assert pair.label in ("tower", "scatter")
        if pair.label == "tower":
            assert all(columns.values()), "a tower leaves its box's left edge free"
        if "tower" in pair.text:
            assert pair.label == "tower"


def cifar(folder: Path, content: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple", b"aquarium_fish"]}))
    (folder / "test").write_bytes(pickle.dumps(content))


def test_cifar100(tmp_path: Path) -> None:
    data = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3072)
    cifar(tmp_path / "cifar-100-python", {b"data": data, b"fine_labels": [1, 0]})
    pairs = load_pairs(f"cifar100:{tmp_path}", count=2, seed=0)
    assert pairs[0].text == "A aquarium fish in the image."
    assert (pairs[0].image[5, 7] == data[0].reshape(3, 32, 32)[:, 5, 7]).all()
    larger = load_pairs(f"cifar100:{tmp_path}", count=1, seed=0, size=(64, 48))
    assert larger[0].image.shape == (48, 64, 3)
    with pytest.raises(DocumentError, match="there is no split 'train'; expected test"):
        load_pairs(f"cifar100:{tmp_path}:split=train", count=1, seed=0)
    (tmp_path / "cifar-100-python" / "train").write_bytes((tmp_path / "cifar-100-python" / "test").read_bytes())
    names = [pair.name for pair in load_pairs(f"cifar100:{tmp_path}", count=4, seed=0)]
    assert names == ["test-0", "test-1", "train-0", "train-1"]
    assert load_pairs(f"cifar100:{tmp_path}:split=train", count=1, seed=0)[0].name == "train-0"
    with pytest.raises(DocumentError, match=r"cannot be told 'every=yes'; it takes split="):
        load_pairs(f"cifar100:{tmp_path}:every=yes", count=1, seed=0)
    cifar(tmp_path / "cifar-100-python", {b"data": data, b"fine_labels": [1, 2]})
    with pytest.raises(DocumentError, match="fine_labels"):
        load_pairs(f"cifar100:{tmp_path}", count=1, seed=0)


def test_several_data_sets_take_turns(tmp_path: Path) -> None:
    data = np.zeros((2, 3072), dtype=np.uint8)
    cifar(tmp_path / "cifar-100-python", {b"data": data, b"fine_labels": [1, 0]})
    pairs = load_pairs(f"scenes,cifar100:{tmp_path}:split=test,pages:synthetic", count=7, seed=0, size=(32, 32))
    assert [p.data_set for p in pairs] == ["scenes", "cifar100", "pages"] * 2 + ["scenes"]
    assert pairs[1].name == "cifar100/test-0" and {p.image.shape for p in pairs} == {(32, 32, 3)}
    with pytest.raises(DocumentError, match="0 x 4 pixels"):
        load_pairs("scenes", count=1, seed=0, size=(0, 4))


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
        load_pairs(f"cifar100:{tmp_path}", count=1, seed=0)
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
    both = load_pairs(f"flickr30k:{tmp_path}:every=yes", count=2, seed=0)
    assert [(p.name, p.label) for p in both] == [("1.jpg#0", "other"), ("1.jpg#1", "man")]
    (tmp_path / "test.txt").write_text("1\n")
    (tmp_path / "val.txt").write_text("2\n")
    assert len(load_pairs(f"flickr30k:{tmp_path}:split=test", count=1, seed=0)) == 1
    with pytest.raises(DocumentError, match="has 0 pairs"):
        load_pairs(f"flickr30k:{tmp_path}:split=val", count=1, seed=0)
    with pytest.raises(DocumentError, match="no split 'train'; expected val, test"):
        load_pairs(f"flickr30k:{tmp_path}:split=train", count=1, seed=0)
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
    Image.new("L", (12, 12)).save(tmp_path / "NLMCXR_png" / "CXR1_2.png")
    both = load_pairs(f"openi:{tmp_path}:every=yes", count=2, seed=0)
    assert [p.name for p in both] == ["CXR1_1", "CXR1_2"] and {p.text for p in both} == {pair.text}


def test_pages_become_pairs() -> None:
    pair = load_pairs("pages:synthetic", count=1, seed=0)[0]
    assert "invoice number" in pair.text and pair.label


@pytest.mark.parametrize("spec", ["nonsense", "nlvr:", "nlvr:/no/such/folder", "photos:/tmp"])
def test_specs_that_name_nothing(spec: str) -> None:
    with pytest.raises(DocumentError, match="expected"):
        load_pairs(spec, count=1, seed=0)
