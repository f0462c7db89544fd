from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from docleak.documents import load_pages, vrdu
from docleak.documents.locate import letters
from docleak.errors import DocumentError

FIELD = {"doc_id": "d", "page": 0, "field": "total", "value": "9", "text_on_page": "9.00", "word_span": [1, 2]}
QUESTION = {"image_name": "d_0", "question": "Total?", "answers": "9", "field": "total", "set_name": "train"}
DOCUMENT = {"doc_id": "d", "provider": "acme"}
WORDS = [{"text": "Total", "box": [1, 1, 9, 9]}, {"text": "9.00", "box": [11, 1, 19, 9]}]


def write_data(root: Path, fields: list[Any], questions: list[Any], documents: list[Any], ocr: object) -> Path:
    for name, rows in (("fields", fields), ("qa", questions), ("docs", documents)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for folder in ("ocr", "images"):
        (root / folder).mkdir()
    for name in ("d_0", "d_1"):
        (root / "ocr" / f"{name}.json").write_text(json.dumps(ocr))
        Image.new("L", (30, 20), 255).save(root / "images" / f"{name}.jpg")
    return root


def test_a_page_with_an_exactly_located_field(tmp_path: Path) -> None:
    (page,) = vrdu.load(write_data(tmp_path, [FIELD], [QUESTION], [DOCUMENT], {"words": WORDS}))
    assert [(f.key, f.value, f.words) for f in page.fields] == [("total", "9.00", (1,))]
    assert [(q.text, q.answers, q.key) for q in page.questions] == [("Total?", ("9", "9.00"), "total")]
    assert (page.name, page.document, page.provider) == ("d_0", "d", "acme")


def test_faults_of_the_index_and_of_the_ocr(tmp_path: Path) -> None:
    bad = [FIELD | {"word_span": [2, 2]}, FIELD | {"page": "0"}, {k: v for k, v in FIELD.items() if k != "word_span"}]
    root = write_data(tmp_path, bad, [QUESTION], [DOCUMENT], {"words": [{"text": "x"}]})
    with pytest.raises(
        DocumentError, match=r"line 2: page is '0'(.|\n)*line 1: word_span(.|\n)*line 3: word_span is None"
    ):
        vrdu.load(root)
    rows = [FIELD, FIELD | {"doc_id": "e"}]
    (root / "fields.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DocumentError, match=r"e_0: no file in images/(.|\n)*e_0: its document is not in docs"):
        vrdu.load(root)
    with pytest.raises(DocumentError, match="no split 'tset'; expected train"):
        vrdu.load(root, split="tset")
    pages = vrdu.load(root, limit=1)
    with pytest.raises(DocumentError, match=r"d_0\.json: KeyError 'box'"):
        pages[0]
    (root / "ocr" / "d_0.json").write_text(json.dumps({"words": WORDS[:1]}))
    with pytest.raises(DocumentError, match=r"word indices \[1\] do not exist"):
        pages[0]
    (root / "fields.jsonl").write_text("")
    with pytest.raises(DocumentError, match="no page holds a field"):
        vrdu.load(root)
    with pytest.raises(DocumentError, match=r"expected the folder that holds docs\.jsonl"):
        vrdu.load(root / "ocr")


def test_the_real_pages(shared_data: Path) -> None:
    pages = vrdu.load(shared_data / "vrdu_pfl")
    assert len(pages) == 477 and len({e.provider for e in pages.entries}) == 94
    for page in pages[::24]:
        for field in page.fields:
            assert letters("".join(page.words[i].text for i in field.words)) == letters(field.value)
    train, test = (vrdu.load(shared_data / "vrdu_pfl", split=s) for s in ("train", "red_test_negative"))
    assert not {e.provider for e in train.entries} & {e.provider for e in test.entries}
    assert train[0].questions and len(vrdu.load(shared_data / "vrdu_pfl", limit=2)) == 2


def test_few_shot_divisions(tmp_path: Path) -> None:
    """As VRDU publishes them: lists of PDFs by part, besides counts of entities."""
    other = {"doc_id": "e", "provider": "acme", "source_pdf": "ad-buy-form/main/pdfs/other.pdf"}
    root = write_data(tmp_path, [FIELD, FIELD | {"doc_id": "e"}], [QUESTION, QUESTION | {"image_name": "e_0"}],
                      [DOCUMENT, other], {"words": WORDS})  # fmt: skip
    (root / "ocr" / "e_0.json").write_text(json.dumps({"words": WORDS}))
    Image.new("L", (30, 20), 255).save(root / "images" / "e_0.jpg")
    folder = root / "ad-buy-form" / "few_shot-splits"
    folder.mkdir(parents=True)
    name = "DeepForm-kno_template-train_10-test_5-valid_100-SD_2"
    division = {
        "train": ["d.pdf", "x.pdf"],
        "valid": [],
        "test": ["other.pdf"],
        "train_entity_number_dict": {"total": 1},
    }
    (folder / f"{name}.json").write_text(json.dumps(division))
    assert vrdu.splits(root) == ("train", f"{name}/train", f"{name}/valid", f"{name}/test")
    assert [e.name for e in load_pages(f"vrdu:{root}:split={name}/train", seed=0).entries] == ["d_0"]  # type: ignore[attr-defined]
    assert [e.name for e in vrdu.load(root, split=f"{name}/test").entries] == ["e_0"]
    with pytest.raises(DocumentError, match=f"no page of '{name}/valid' holds a field"):
        vrdu.load(root, split=f"{name}/valid")
    (folder / f"{name}.json").write_text("[]")
    with pytest.raises(DocumentError, match="names of PDFs"):
        vrdu.load(root, split=f"{name}/test")
