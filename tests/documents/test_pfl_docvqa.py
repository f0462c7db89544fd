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
    np.save(imdb / "imdb_train_client_0.npy", array, allow_pickle=True)
    return imdb / "imdb_train_client_0.npy"


def test_records_of_one_image_become_one_page(tmp_path: Path) -> None:
    file = write_records(tmp_path, [record(), record(question="Which total?", answers=["9", "9.00"], field="total")])
    for path in (tmp_path, tmp_path / "imdb", file):
        pages = pfl_docvqa.load(path, allow_pickle=True)
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
    pages = pfl_docvqa.load(tmp_path, allow_pickle=True)
    assert provider_names(pages) == ("acme", "own") and pages.entries[1].document == "B"
    points.write_text(json.dumps({"acme": [1]}))
    assert provider_names(pfl_docvqa.load(tmp_path, allow_pickle=True)) == ("acme", "own")
    points.write_text(json.dumps({"client_0": {"acme": [0, 3], "b": 2.5}}))
    with pytest.raises(DocumentError, match=r"expected rows 1 to 2 (.|\n)*row 0(.|\n)*row 3(.|\n)*row 2\.5"):
        pfl_docvqa.load(tmp_path, allow_pickle=True)


def test_pickles_are_refused_until_trusted(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    write_records(tmp_path, [Bomb()])
    with pytest.raises(DocumentError, match=r"pickles(.|\n)*--allow-pickle"):
        pfl_docvqa.load(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_every_bad_record_is_reported(tmp_path: Path) -> None:
    pixels = record(ocr_normalized_boxes=[[0, 0, 90, 90]] * 5)
    short = record(ocr_tokens=["x"])
    ragged = record(ocr_normalized_boxes=[[1, 2, 3], [1]])
    absent = {k: v for k, v in record().items() if k != "answers"}
    write_records(tmp_path, ["text", pixels, short, ragged, absent, record()])
    with pytest.raises(DocumentError) as raised:
        pfl_docvqa.load(tmp_path, allow_pickle=True)
    message = str(raised.value)
    for part in (
        "1: a str",
        "2: boxes up to 90",
        "3: 1 ocr_tokens but 5",
        "4: ocr_normalized_boxes",
        "5: without answers",
    ):
        assert f"element {part}" in message
    assert "element 6" not in message


def test_missing_images_are_all_named(tmp_path: Path) -> None:
    write_records(tmp_path, [record("a_0"), record("b_0"), record()])
    with pytest.raises(DocumentError, match=r"a_0: no such image(.|\n)*b_0: no such image"):
        pfl_docvqa.load(tmp_path, allow_pickle=True)
    (tmp_path / "images").rename(tmp_path / "pictures")
    with pytest.raises(DocumentError, match="no such folder of page images"):
        pfl_docvqa.load(tmp_path, allow_pickle=True)
    (tmp_path / "pictures").rename(tmp_path / "images")
    for name in ("a_0", "b_0"):
        Image.new("L", (100, 50)).save(tmp_path / "images" / f"{name}.png")
    assert len(pfl_docvqa.load(tmp_path, allow_pickle=True)) == 3


def test_files_that_are_no_records(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"does not exist; expected a PFL-DocVQA"):
        pfl_docvqa.load(tmp_path / "absent", allow_pickle=True)
    file = write_records(tmp_path, [])
    with pytest.raises(DocumentError, match="no record"):
        pfl_docvqa.load(file, allow_pickle=True)
    np.save(file, np.zeros((2, 2)))
    with pytest.raises(DocumentError, match="one-dimensional object array"):
        pfl_docvqa.load(file, allow_pickle=True)
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(DocumentError, match="cannot be unpickled"):
        pfl_docvqa.load(file, allow_pickle=True)
    file.write_bytes(b"text")
    with pytest.raises(DocumentError, match=r"not a NumPy \.npy file"):
        pfl_docvqa.load(file, allow_pickle=True)


def test_the_real_pages_agree_with_their_exact_annotation(shared_data: Path) -> None:
    root = shared_data / "vrdu_pfl"
    pages = pfl_docvqa.load(root, allow_pickle=True)
    exact = {entry.name: entry for entry in vrdu.load(root).entries}
    assert len(pages) == 477 and {e.name for e in pages.entries} == set(exact)
    assert all(e.provider == exact[e.name].provider for e in pages.entries)
    agreed = placed = 0
    for entry in pages.entries[::16]:
        page, truth = entry.make(), exact[entry.name].make()
        assert page.document == truth.document and len(page.words) == len(truth.words)
        found, wanted = ({f.key: f.words for f in p.fields} for p in (page, truth))
        assert set(found) == set(wanted)
        placed += len(wanted)
        agreed += sum(found[key] == wanted[key] for key in wanted)
    assert placed > 60 and agreed / placed > 0.95  # the rest is printed more than once


def test_one_client_of_the_real_data(shared_data: Path) -> None:
    assert len(pfl_docvqa.load(shared_data / "vrdu_pfl" / "imdb" / "imdb_val.npy", allow_pickle=True)) == 25
