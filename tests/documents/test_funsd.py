from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from docleak.documents import funsd
from docleak.errors import DocumentError


def entity(number: int, label: str, text: str, links: list[list[int]], y: int = 10) -> dict[str, Any]:
    words = [{"text": t, "box": [10 + 20 * i, y, 25 + 20 * i, y + 8]} for i, t in enumerate(text.split(" "))]
    return {"id": number, "label": label, "text": text, "box": [10, y, 90, y + 8], "words": words, "linking": links}


FORM = [
    entity(0, "header", "A FORM", []),
    entity(1, "question", "Date:", [[1, 2], [1, 5]], 20),
    entity(2, "answer", "1 May", [[1, 2]], 30),
    entity(3, "question", "Name:", [[3, 4]], 40),
    entity(4, "answer", "", [[3, 4]], 50),
    entity(5, "answer", "1970", [[1, 5], [6, 5]], 60),
    entity(6, "question", "", [[6, 5]], 70),
]


def write_form(root: Path, stem: str, form: object) -> None:
    for part in funsd.PARTS:
        (root / part).mkdir(parents=True, exist_ok=True)
    Image.new("L", (100, 90), 255).save(root / "images" / f"{stem}.png")
    (root / "annotations" / f"{stem}.json").write_text(form if isinstance(form, str) else json.dumps(form))


@pytest.mark.parametrize("below", ["", "training_data", "dataset/testing_data"])
def test_linked_answers_become_fields(tmp_path: Path, below: str) -> None:
    write_form(tmp_path / below, "f", {"form": FORM})
    pages = funsd.load(tmp_path)
    (page,) = pages
    assert [w.text for w in page.words] == ["A", "FORM", "Date:", "1", "May", "Name:", "1970"]
    assert [(f.key, f.value, f.words) for f in page.fields] == [("Date", "1 May", (3, 4)), ("Date", "1970", (6,))]
    assert [(q.text, q.answers, q.key) for q in page.questions] == [("What is Date?", ("1 May", "1970"), "Date")]
    entities = [(e.label, e.words) for e in page.entities]
    assert entities == [
        ("header", (0, 1)),
        ("question", (2,)),
        ("answer", (3, 4)),
        ("question", (5,)),
        ("answer", (6,)),
    ]
    assert page.links == ((1, 2), (1, 4)), "links to what has no words are left out"
    assert (page.document, page.provider) == ("f", "")
    assert pages.notes == ("2 words without text were left out",)


def test_splits(tmp_path: Path) -> None:
    write_form(tmp_path / "training_data", "a", {"form": FORM})
    write_form(tmp_path / "testing_data", "b", {"form": FORM})
    assert [e.name for e in funsd.load(tmp_path).entries] == ["a", "b"]
    assert [e.name for e in funsd.load(tmp_path / "testing_data").entries] == ["b"]
    assert [e.name for e in funsd.load(tmp_path / "training_data").entries] == ["a"]
    with pytest.raises(DocumentError, match="expected FUNSD's dataset folder with training_data/ or testing_data/"):
        funsd.load(tmp_path / "validation")


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    write_form(tmp_path, "a", '{"form": [}')
    write_form(tmp_path, "b", {"forms": []})
    write_form(tmp_path, "c", {"form": [{"id": 0}, entity(1, "question", "x", [[1, 9]])]})
    write_form(tmp_path, "d", {"form": [entity(0, "other", "x", []) | {"words": [{"text": "x", "box": [1, 2, 3]}]}]})
    write_form(tmp_path, "e", {"form": FORM})
    (tmp_path / "annotations" / "e.json").unlink()
    with pytest.raises(DocumentError) as raised:
        funsd.load(tmp_path)
    message = str(raised.value)
    for part in (
        "line 1, column 11",
        "b.json: expected",
        "entity 0: KeyError",
        "[1, 9]",
        "box [1, 2, 3]",
        "e: no file",
    ):
        assert part in message.replace("(1, 9)", "[1, 9]")


def test_folders_that_are_no_funsd(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="is an empty folder; expected FUNSD"):
        funsd.load(tmp_path)
    for part in funsd.PARTS:
        (tmp_path / part).mkdir()
    with pytest.raises(DocumentError, match="are empty"):
        funsd.load(tmp_path)


def test_the_real_forms(shared_data: Path) -> None:
    pages = funsd.load(shared_data / "funsd")
    assert len(pages) == 199 and pages.notes == ("890 words without text were left out",)
    assert len(funsd.load(shared_data / "funsd" / "dataset" / "testing_data")) == 50
    page = pages[0]
    assert page.height == 1000
    date = next(f for f in page.fields if f.key == "Date")
    assert date.value.replace(" ", "") == "9/3/92"
    assert all(page.words for page in pages[::40])
