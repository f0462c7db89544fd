from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from docleak.documents import pfl_docvqa, provider_names, vrdu
from docleak.errors import DocumentError


def record(name: str = "doc_0", **more: Any) -> dict[str, Any]:
    return {
        "question": "What is the total?",
        "answers": "9.00",
        "image_name": name,
        "ocr_tokens": ["Total", "9.00", " ", "flat", "edge"],
        "ocr_normalized_boxes": np.array(
            [[0.1, 0.1, 0.3, 0.2], [0.4, 0.1, 0.5, 0.2], [0, 0, 0.1, 0.1], [0.2, 0.2, 0.2, 0.3], [0.9, 0.9, 1.01, 1]],
            dtype=np.float32,
        ),
        "set_name": "train",
    } | more


def write_records(path: Path, records: list[Any], images: tuple[str, ...] = ("doc_0",)) -> Path:
    imdb = path / "imdb"
    imdb.mkdir(parents=True, exist_ok=True)
    (path / "images").mkdir(exist_ok=True)
    for name in images:
        Image.new("L", (100, 50), 255).save(path / "images" / f"{name}.jpg")
    array = np.empty(len(records) + 1, dtype=object)
    array[0], array[1:] = {"version": "1"}, records
    np.save(imdb / "imdb_train_client_0.npy", array)
    return imdb / "imdb_train_client_0.npy"


def test_records_of_one_image_become_one_page(tmp_path: Path) -> None:
    file = write_records(tmp_path, [record(), record(question="Which total?", answers=["9", "9.00"], field="total")])
    for path in (tmp_path, tmp_path / "imdb", file):
        pages = pfl_docvqa.load(path)
        (page,) = pages
    assert [(w.text, w.box) for w in page.words] == [
        ("Total", (10.0, 5.0, 30.0, 10.0)),
        ("9.00", (40.0, 5.0, 50.0, 10.0)),
        ("edge", (90.0, 45.0, 100.0, 50.0)),
    ]
    assert [(f.key, f.value, f.words) for f in page.fields] == [
        ("What is the total?", "9.00", (1,)),
        ("total", "9", ()),
    ]
    assert [(q.text, q.answers, q.key) for q in page.questions] == [
        ("What is the total?", ("9.00",), "What is the total?"),
        ("Which total?", ("9", "9.00"), "total"),
    ]
    assert (page.document, page.provider) == ("doc", "")
    assert pages.notes == ("1 tokens without text were left out", "1 tokens whose box has no area were left out")


def test_providers_come_from_the_record_or_from_data_points(tmp_path: Path) -> None:
    write_records(tmp_path, [record("a_0"), record("b_0", provider="own", document="B")], ("a_0", "b_0"))
    points = tmp_path / "imdb" / "data_points.json"
    points.write_text(json.dumps({"client_1": {"wrong": [1]}, "client_0": {"acme": [1], "other": [2]}}))
    pages = pfl_docvqa.load(tmp_path)
    assert provider_names(pages) == ("acme", "own") and pages.entries[1].document == "B"
    points.write_text(json.dumps({"acme": [1]}))
    assert provider_names(pfl_docvqa.load(tmp_path)) == ("acme", "own")
    points.write_text(json.dumps({"client_0": {"acme": [0, 3], "b": 2.5}}))
    with pytest.raises(DocumentError, match=r"expected rows 1 to 2 (.|\n)*row 0(.|\n)*row 3(.|\n)*row 2\.5"):
        pfl_docvqa.load(tmp_path)


def test_code_in_pickles_is_refused(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    write_records(tmp_path, [Bomb()])
    with pytest.raises(DocumentError, match=r"wants to call pathlib\.Path\.touch"):
        pfl_docvqa.load(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_every_bad_record_is_reported(tmp_path: Path) -> None:
    pixels = record(ocr_normalized_boxes=[[0, 0, 90, 90]] * 5)
    short = record(ocr_tokens=["x"])
    ragged = record(ocr_normalized_boxes=[[1, 2, 3], [1]])
    absent = {k: v for k, v in record().items() if k != "question"}
    several = record(image_name=["doc_0", "doc_1"])
    odd = [record(ocr_tokens=[1] * 5), record(answers=[1]), record(provider=3), record(question=None)]
    write_records(tmp_path, ["text", pixels, short, ragged, absent, record(), several, *odd])
    with pytest.raises(DocumentError) as raised:
        pfl_docvqa.load(tmp_path)
    message = str(raised.value)
    for part in (
        "1: a str",
        "2: boxes up to 90",
        "3: 1 ocr_tokens but 5",
        "4: ocr_normalized_boxes",
        "5: without question",
        "7: a question about several pages (MP-DocVQA)",
        "8: ocr_tokens are not texts",
        "9: answers are not texts",
        "10: provider expected to be text",
        "11: question expected to be text",
    ):
        assert f"element {part}" in message
    assert "element 6" not in message


def test_missing_images_are_all_named(tmp_path: Path) -> None:
    write_records(tmp_path, [record("a_0"), record("b_0"), record()])
    with pytest.raises(DocumentError, match=r"a_0: no such image(.|\n)*b_0: no such image"):
        pfl_docvqa.load(tmp_path)
    (tmp_path / "images").rename(tmp_path / "pictures")
    with pytest.raises(DocumentError, match="no such folder of page images"):
        pfl_docvqa.load(tmp_path)
    (tmp_path / "pictures").rename(tmp_path / "images")
    for name in ("a_0", "b_0"):
        Image.new("L", (100, 50)).save(tmp_path / "images" / f"{name}.png")
    assert len(pfl_docvqa.load(tmp_path)) == 3


def test_files_that_are_no_records(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"does not exist; expected a PFL-DocVQA"):
        pfl_docvqa.load(tmp_path / "absent")
    file = write_records(tmp_path, [])
    with pytest.raises(DocumentError, match="no record"):
        pfl_docvqa.load(file)
    np.save(file, np.zeros((2, 2)))
    with pytest.raises(DocumentError, match="expected objects in one dimension"):
        pfl_docvqa.load(file)
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(DocumentError, match="cannot be read as PFL-DocVQA's records"):
        pfl_docvqa.load(file)
    file.write_bytes(b"text")
    with pytest.raises(DocumentError, match=r"not a NumPy \.npy file"):
        pfl_docvqa.load(file)


def test_the_real_pages_agree_with_their_exact_annotation(shared_data: Path) -> None:
    root = shared_data / "vrdu_pfl"
    pages = pfl_docvqa.load(root)
    exact = {entry.name: entry for entry in vrdu.load(root).entries}
    assert len(pages) == 477 and {e.name for e in pages.entries} == set(exact)
    assert all(e.provider == exact[e.name].provider for e in pages.entries)
    agreed = placed = 0
    for entry in pages.entries[::16]:
        page, truth = entry.make(), exact[entry.name].make()
        assert page.document == truth.document and len(page.words) == len(truth.words)
        fields, wanted = ({f.key: f.words for f in p.fields} for p in (page, truth))
        assert set(fields) == set(wanted)
        placed += len(wanted)
        agreed += sum(fields[key] == wanted[key] for key in wanted)
    assert placed > 60 and agreed / placed > 0.95  # the rest is printed more than once


def test_one_client_of_the_real_data(shared_data: Path) -> None:
    assert len(pfl_docvqa.load(shared_data / "vrdu_pfl" / "imdb" / "imdb_val.npy")) == 25


def test_answers_that_are_kept_secret(tmp_path: Path) -> None:
    secret = {key: value for key, value in record(question="Who?").items() if key != "answers"}
    write_records(tmp_path, [record(), secret])
    pages = pfl_docvqa.load(tmp_path)
    assert [q.answers for q in pages[0].questions] == [("9.00",), ()] and len(pages[0].fields) == 1
    assert pages.notes[-1] == "1 questions have no answer in the files"


def move(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    file.rename(to)


def test_blue_and_red_as_the_membership_study_keeps_them(tmp_path: Path) -> None:
    """{train,val,test}/{blue_train,blue_val,red_test}.npy, providers by rows and by documents in JSON files."""
    for split, name, image, sets in (
        ("train", "blue_train", "a_0", ["train"]), ("val", "blue_val", "b_0", ["val"]),
        ("test", "red_test", "c_0", ["red_test_positive"]),
    ):  # fmt: skip
        records = [record(image, set_name=said) for said in sets]
        records += [record("d_3", set_name="red_test_negative")] if split == "test" else []
        move(write_records(tmp_path, records, (image, "d_3")), tmp_path / split / f"{name}.npy")
    (tmp_path / "train" / "data_points.json").write_text('{"acme": [1]}')
    (tmp_path / "train" / "provider2docs.json").write_text('{"wrong": ["a"], "other": ["z"]}')
    (tmp_path / "test" / "red_doc2provider.json").write_text('{"c": {"provider": "acme"}, "d": {"provider": "away"}}')
    (tmp_path / "imdb").rmdir()
    assert pfl_docvqa.splits(tmp_path) == ("train", "val", "red_test_positive", "red_test_negative")
    named = {split: pfl_docvqa.load(tmp_path, split=split).entries for split in pfl_docvqa.splits(tmp_path)}
    assert {split: [(e.name, e.provider) for e in entries] for split, entries in named.items()} == {
        "train": [("a_0", "acme")], "val": [("b_0", "")],
        "red_test_positive": [("c_0", "acme")], "red_test_negative": [("d_3", "away")],
    }  # fmt: skip
    assert len(pfl_docvqa.load(tmp_path)) == 4
    with pytest.raises(DocumentError, match="no record of the split 'test'"):
        pfl_docvqa.load(tmp_path, split="test")
    (tmp_path / "test" / "red_doc2provider.json").write_text('{"c": "acme"}')
    with pytest.raises(DocumentError, match=r"red_doc2provider\.json: TypeError"):
        pfl_docvqa.load(tmp_path)


def test_members_by_the_labels_of_the_red_kit(tmp_path: Path) -> None:
    records = [record("a_0", set_name="", label="member", provider="p", document="A"),
               record("b_0", set_name="", label="non_member", provider="q")]  # fmt: skip
    move(write_records(tmp_path, records, ("a_0", "b_0")), tmp_path / "imdb" / "SaTML_PMIA_with_label.npy")
    assert pfl_docvqa.splits(tmp_path) == ("red_test_positive", "red_test_negative")
    (entry,) = pfl_docvqa.load(tmp_path, split="red_test_positive").entries
    assert (entry.provider, entry.document) == ("p", "A")
    array = np.load(tmp_path / "imdb" / "SaTML_PMIA_with_label.npy", allow_pickle=True)
    array[2]["label"] = "unknown"
    np.save(tmp_path / "imdb" / "SaTML_PMIA_with_label.npy", array)
    with pytest.raises(DocumentError, match="row 2: 'b_0' is of the set 'unknown'"):
        pfl_docvqa.splits(tmp_path)


def test_the_splits_of_real_data(shared_data: Path) -> None:
    root = shared_data / "vrdu_pfl"
    assert pfl_docvqa.splits(root) == ("train", "val", "red_test_positive", "red_test_negative")
    held = {s: {e.provider for e in pfl_docvqa.load(root, split=s).entries} for s in pfl_docvqa.splits(root)}
    assert {s: len(of) for s, of in held.items()} == {
        "train": 66, "val": len(held["val"]), "red_test_positive": 59, "red_test_negative": 28,
    }  # fmt: skip
    assert held["red_test_positive"] <= held["train"] and not held["red_test_negative"] & held["train"]
