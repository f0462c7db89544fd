"""DocVQA's layouts rebuilt small, by the keys of the official files; no DocVQA data is at hand to test on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from docleak.documents import docvqa, load_pages
from docleak.documents.loaders import detect
from docleak.errors import DocumentError


def question(name: str = "xnbl0037_1", **more: Any) -> dict[str, Any]:
    return {
        "questionId": 337, "question": "what is the date?", "question_types": ["handwritten", "form"],
        "image": f"documents/{name}.png", "docId": 279, "ucsf_document_id": name.partition("_")[0],
        "ucsf_document_page_no": "1", "answers": ["1/8/93", "Jan 8"], "data_split": "train",
    } | more  # fmt: skip


def word(text: str, x0: int, y0: int, x1: int, y1: int) -> dict[str, Any]:
    return {"boundingBox": [x0, y0, x1, y0, x1, y1, x0, y1], "text": text, "confidence": "Low"}


WORDS = [
    word("DATE:", 20, 20, 60, 40),
    word("1/8/93", 80, 20, 140, 40),
    word(" ", 0, 0, 9, 9),
    word("out", 190, 90, 260, 120),
]


def write(
    qas: Path, split: str, rows: list[dict[str, Any]], images: Path, read: Path | None, suffix: str = "_withQT"
) -> Path:
    for folder in (qas, images, *([read] if read else [])):
        folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        name = Path(row["image"]).stem
        Image.new("L", (100, 50), 255).save(images / f"{name}.png")
        if read:
            page = {"page": 1, "clockwiseOrientation": 0.1, "width": 200, "height": 100, "unit": "pixel",
                    "lines": [{"boundingBox": [0] * 8, "text": "", "words": WORDS}]}  # fmt: skip
            (read / f"{name}.json").write_text(json.dumps({"status": "Succeeded", "recognitionResults": [page]}))
    file = qas / f"{split}_v1.0{suffix}.json"
    head = {"dataset_name": "docvqa", "dataset_version": "1.0", "dataset_split": split}
    file.write_text(json.dumps({**head, "data": rows}))
    return file


def write_portal(root: Path) -> Path:
    """As the competition's portal hands it out: spdocvqa_{qas,images,ocr}."""
    places = root / "spdocvqa_images", root / "spdocvqa_ocr"
    secret = {key: value for key, value in question("tst_4").items() if key != "answers"}
    write(root / "spdocvqa_qas", "train", [question(), question(question="who?", answers=["he"])], *places)
    write(root / "spdocvqa_qas", "val", [question("val_2")], *places)
    write(root / "spdocvqa_qas", "test", [secret], *places, suffix="")
    return root


def test_the_portals_layout(tmp_path: Path) -> None:
    root = write_portal(tmp_path)
    assert detect(root) == "docvqa" and docvqa.splits(root) == ("train", "val", "test")
    pages = load_pages(str(root), seed=0)
    (page,) = pages
    assert (page.name, page.document, page.provider) == ("xnbl0037_1", "xnbl0037", "")
    assert [(w.text, w.box) for w in page.words] == [
        ("DATE:", (10, 10, 30, 20)), ("1/8/93", (40, 10, 70, 20)), ("out", (95, 45, 100, 50)),
    ]  # fmt: skip
    assert [(f.key, f.value, f.words) for f in page.fields] == [
        ("what is the date?", "1/8/93", (1,)),
        ("who?", "he", ()),
    ]
    assert [q.answers for q in page.questions] == [("1/8/93", "Jan 8"), ("he",)]
    assert load_pages(f"docvqa:{root}:split=val", seed=0)[0].document == "val"
    test = docvqa.load(root, split="test")
    assert test.notes == ("1 questions have no answer in test_v1.0.json",) and test[0].questions[0].answers == ()
    assert len(docvqa.load(root / "spdocvqa_qas" / "val_v1.0_withQT.json")) == 1


def test_the_older_archives(tmp_path: Path) -> None:
    for split in ("train", "val"):
        folder = tmp_path / split
        write(folder, split, [question(f"{split}_1")], folder / "documents", folder / "ocr_results", suffix="")
    assert detect(tmp_path) == "docvqa" and docvqa.splits(tmp_path) == ("train", "val")
    assert docvqa.load(tmp_path)[0].words and docvqa.load(tmp_path, split="val").entries[0].name == "val_1"
    assert docvqa.load(tmp_path / "val").notes == ("no train questions: those of val were read instead",)


def test_without_ocr_results(tmp_path: Path) -> None:
    write(tmp_path, "train", [question()], tmp_path / "documents", None)
    pages = docvqa.load(tmp_path)
    assert pages[0].words == () and pages[0].fields[0].words == () and "its pages have no words" in pages.notes[0]


@pytest.mark.parametrize("place", ["imdb/imdb_{}.npy", "spdocvqa_imdb/new_imdb_{}.npy", "{}/vqa.npy"])
def test_records(tmp_path: Path, place: str) -> None:
    (tmp_path / "images").mkdir()
    for split, header in (("train", [{"version": 1}]), ("val", [])):
        name = f"{split}_7"
        Image.new("L", (100, 50), 255).save(tmp_path / "images" / f"{name}.png")
        record = {"question": "what?", "answers": ["b", "B"], "image_name": name, "ocr_tokens": ["a", "b"],
                  "ocr_normalized_boxes": np.array([[0, 0, 0.1, 0.2], [0.5, 0.5, 1, 1]])}  # fmt: skip
        file = tmp_path / place.format(split)
        file.parent.mkdir(exist_ok=True)
        np.save(file, np.array([*header, record, record | {"question": "who?"}], dtype=object))
    assert docvqa.splits(tmp_path) == ("train", "val")
    for split in ("train", "val"):
        (page,) = load_pages(f"docvqa:{tmp_path}:split={split}", seed=0)
        assert [w.box for w in page.words] == [(0, 0, 10, 10), (50, 25, 100, 50)] and page.document == split
        assert [f.words for f in page.fields] == [(1,), (1,)] and page.questions[1].answers == ("b", "B")


def test_faults(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"does not exist; expected DocVQA's train_v1\.0_withQT\.json"):
        docvqa.load(tmp_path / "absent")
    file = write(tmp_path, "train", [question(), question("b_1")], tmp_path / "documents", tmp_path / "ocr_results")
    (tmp_path / "documents" / "b_1.png").unlink()
    (tmp_path / "ocr_results" / "xnbl0037_1.json").unlink()
    with pytest.raises(DocumentError, match=r"b_1: no such image(.|\n)*xnbl0037_1: no such file in .*ocr_results"):
        docvqa.load(tmp_path)
    (tmp_path / "ocr_results" / "xnbl0037_1.json").write_text('{"recognitionResults": [{"lines": []}]}')
    with pytest.raises(DocumentError, match=r"KeyError 'width'; expected \{\"recognitionResults\""):
        docvqa.load(tmp_path, limit=1)[0]
    file.write_text(json.dumps({"data": [question(image=3), question(answers="x"), 4]}))
    with pytest.raises(
        DocumentError, match=r"question 0: no text under image(.|\n)*question 1: answers(.|\n)*2: a int"
    ):
        docvqa.load(tmp_path)
    file.write_text("[]")
    with pytest.raises(DocumentError, match=r"expected \{\"data\""):
        docvqa.load(tmp_path)
    with pytest.raises(DocumentError, match="no split 'val'; expected train"):
        docvqa.load(tmp_path, split="val")
