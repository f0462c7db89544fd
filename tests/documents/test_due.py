"""The layout follows the schemas and examples of due-benchmark/du-schema; no DUE data is at hand to test on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from docleak.documents import due, load_pages
from docleak.documents.loaders import detect
from docleak.errors import DocumentError

DOCUMENT: dict[str, Any] = {
    "name": "pybv_1", "extension": "pdf", "language": "en", "split": "train",
    "annotations": [
        {"id": "1", "key": "Who met?", "values": [{"value": "We", "value_variants": ["We", "we"]}]},
        {"id": "2", "key": "Which cities?", "values": [{"value": "Kingston"}, {"value": "Rome"}]},
        {"id": "3", "key": "Table?", "values": [{"value": "x", "children": []}]},
    ],
}  # fmt: skip


def layer(key: str = "tokens_layer", tool: str = "microsoft_cv", **more: Any) -> dict[str, Any]:
    inner = {
        "tokens": ["we", "met", " ", "flat", "over", "next"],
        "positions": [
            [20, 10, 60, 30],
            [70, 10, 110, 30],
            [0, 0, 9, 9],
            [5, 5, 5, 9],
            [180, 80, 230, 120],
            [1, 1, 9, 9],
        ],
        "structures": {
            "pages": {"structure_value": [[0, 5], [5, 6]], "positions": [[0, 0, 200, 100], [0, 0, 200, 100]]}
        },
    }
    return {"tool_name": tool, "text": "", key: inner | more}


EMPTY = layer(tool="tesseract", tokens=[], positions=[])


def write(root: Path, documents: list[Any], contents: list[Any], image: str = "images/{}.png") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / due.ANNOTATIONS).write_text("".join(json.dumps(d) + "\n" for d in documents))
    (root / due.CONTENTS).write_text("".join(json.dumps(c) + "\n" for c in contents))
    for document in documents:
        path = root.parent / image.format(document["name"])
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (100, 50), 255).save(path)
    return root


def content(name: str = "pybv_1", *layers: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "contents": list(layers or (EMPTY, layer()))}


@pytest.mark.parametrize("image", ["images/{}.png", "png/{}/0.png", "train/documents/{}.jpg"])
@pytest.mark.parametrize("key", ["tokens_layer", "common_format"])
def test_a_document_becomes_a_page(tmp_path: Path, image: str, key: str) -> None:
    root = write(tmp_path / "train", [DOCUMENT], [content("other"), content("pybv_1", EMPTY, layer(key))], image)
    pages = due.load(tmp_path)
    (page,) = pages
    assert [(w.text, w.box) for w in page.words] == [
        ("we", (10.0, 5.0, 30.0, 15.0)), ("met", (35.0, 5.0, 55.0, 15.0)), ("over", (90.0, 40.0, 100.0, 50.0)),
    ]  # fmt: skip
    assert [(q.text, q.answers) for q in page.questions] == [
        ("Who met?", ("We", "we")), ("Which cities?", ("Kingston, Rome",)),
    ]  # fmt: skip
    assert [(f.key, f.value, f.words) for f in page.fields] == [
        ("Who met?", "We", (0,)), ("Which cities?", "Kingston, Rome", ()),
    ]  # fmt: skip
    assert (page.name, page.document, page.provider) == ("pybv_1", "pybv_1", "")
    assert pages.notes == ("1 annotations with nested values were left out",)
    assert detect(tmp_path) == detect(root) == "due" and len(load_pages(str(root), seed=0)) == 1


def test_splits_and_tools(tmp_path: Path) -> None:
    write(tmp_path / "dev", [DOCUMENT], [content()])
    write(tmp_path / "test", [DOCUMENT | {"name": "b_2"}], [content("b_2")])
    pages = due.load(tmp_path)
    assert [e.name for e in pages.entries] == ["pybv_1", "b_2"]
    assert pages.notes[0] == "no train split: dev and test were read instead"
    assert len(due.load(tmp_path, limit=1)) == 1 and len(due.load(tmp_path / "test")) == 1


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    bad = [{"name": "a"}, {"name": "b", "annotations": [{"key": 1}]}, {"name": "c", "annotations": [{"key": "k"}]},
           {"name": "d", "annotations": [{"key": "k", "values": [{}]}]}]  # fmt: skip
    with pytest.raises(
        DocumentError, match=r"line 1: without(.|\n)*line 2: an annotation(.|\n)*line 3: 'val(.|\n)*line 4: a"
    ):
        due.load(write(tmp_path / "train", bad, []))
    contents = [content("pybv_1", layer(tokens=["x"])), {"name": "b"}, [], content("c", EMPTY)]
    write(tmp_path / "train", [DOCUMENT], contents)
    with pytest.raises(
        DocumentError, match=r"line 1: 'pybv_1', microsoft_cv: tokens and(.|\n)*line 2(.|\n)*line 3: no obj"
    ):
        due.load(tmp_path)
    write(tmp_path / "train", [DOCUMENT, DOCUMENT | {"name": "b"}], [content()])
    (tmp_path / "images" / "pybv_1.png").unlink()
    with pytest.raises(DocumentError, match=r"pybv_1: no page image(.|\n)*b: not in documents_content(.|\n)*pdftoppm"):
        due.load(tmp_path)
    pages = due.load(write(tmp_path / "train", [DOCUMENT], [content("pybv_1", layer(positions=[[1, 2]] * 6))]))
    with pytest.raises(DocumentError, match=r"documents_content\.jsonl, line 1: ValueError"):
        pages[0]
    write(tmp_path / "train", [], [])
    with pytest.raises(DocumentError, match="holds no document"):
        due.load(tmp_path)
    with pytest.raises(DocumentError, match="expected a DUE data set with train/"):
        due.load(tmp_path / "images")
