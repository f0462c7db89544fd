from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from docleak.documents import provider_names, sroie
from docleak.documents.sroie import normal_name, split_line
from docleak.errors import DocumentError

LINES = [
    "10,5,90,5,90,15,10,15,ACME SDN BHD",
    "10,20,60,20,60,30,10,30,SUBTOTAL 9.00",
    "10,40,40,40,40,50,10,50,TOTAL, RM",
]
VALUE = "60,41,90,41,90,51,60,51,9.00"
ENTITIES = {"company": "Acme Sdn. Bhd.", "date": "1/2/2018", "total": "9.00", "address": ""}


def write_receipt(root: Path, stem: str, lines: list[str], entities: object) -> None:
    for part in sroie.PARTS:
        (root / part).mkdir(parents=True, exist_ok=True)
    Image.new("L", (100, 80), 255).save(root / "img" / f"{stem}.jpg")
    (root / "box" / f"{stem}.txt").write_text("\r\n".join(lines) + "\r\n\r\n")
    text = entities if isinstance(entities, str) else json.dumps(entities)
    (root / "entities" / f"{stem}.txt").write_text(text)


@pytest.mark.parametrize("below", ["", "train", "SROIE2019/train"])
def test_a_receipt_is_read_from_any_level(tmp_path: Path, below: str) -> None:
    write_receipt(tmp_path / below, "X1", [*LINES, VALUE], ENTITIES)
    pages = sroie.load(tmp_path)
    (page,) = pages
    assert [w.text for w in page.words] == ["ACME", "SDN", "BHD", "SUBTOTAL", "9.00", "TOTAL,", "RM", "9.00"]
    fields = {f.key: f.words for f in page.fields}
    assert fields == {"company": (0, 1, 2), "date": (), "total": (7,)}  # not the subtotal
    assert (page.provider, page.document, page.name) == ("acme sdn bhd", "X1", "X1")
    assert [q.key for q in page.questions] == ["company", "date", "total"]
    assert pages.notes == ("date not found in the words of 1 of 1 receipts",)


def test_a_line_is_split_in_proportion_to_its_characters() -> None:
    words = split_line((10.0, 5.0, 60.0, 15.0), " ab  cdef g ")
    assert [(w.text, w.box) for w in words] == [
        ("ab", (10.0, 5.0, 20.0, 15.0)),
        ("cdef", (30.0, 5.0, 50.0, 15.0)),
        ("g", (55.0, 5.0, 60.0, 15.0)),
    ]
    assert split_line((0.0, 0.0, 1.0, 1.0), "  ") == []


def test_spellings_of_a_company_agree() -> None:
    assert normal_name("ACME (M) SDN. BHD.") == normal_name("Acme M Sdn Bhd") == "acme m sdn bhd"


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    write_receipt(tmp_path, "X1", ["1,2,3"], ENTITIES)
    write_receipt(tmp_path, "X2", [VALUE, "a,b,c,d,e,f,g,h,text"], ENTITIES)
    write_receipt(tmp_path, "X3", [VALUE], '{"company": "x",}')
    write_receipt(tmp_path, "X4", [VALUE], {"compny": "x"})
    write_receipt(tmp_path, "X5", [VALUE], {"total": 9})
    write_receipt(tmp_path, "X6", [VALUE], ENTITIES)
    (tmp_path / "img" / "X6.jpg").unlink()
    with pytest.raises(DocumentError) as raised:
        sroie.load(tmp_path)
    message = str(raised.value)
    for part in ("X6: no file in img/", "X1.txt", "line 2", "line 1, column 17", "compny", "X5.txt", "Restore"):
        assert part in message


def test_folders_that_are_no_sroie(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"does not exist; expected SROIE's train folder"):
        sroie.load(tmp_path / "absent")
    for part in sroie.PARTS:
        (tmp_path / part).mkdir()
    with pytest.raises(DocumentError, match="are empty"):
        sroie.load(tmp_path)


def test_boxes_off_the_page_and_broken_images_show_on_access(tmp_path: Path) -> None:
    write_receipt(tmp_path, "X1", ["10,5,140,5,140,15,10,15,FAR"], ENTITIES)
    write_receipt(tmp_path, "X2", ["40,5,10,5,10,5,40,5,FLAT"], ENTITIES)
    write_receipt(tmp_path, "X3", [VALUE], ENTITIES)
    (tmp_path / "img" / "X3.jpg").write_bytes(b"no image")
    pages = sroie.load(tmp_path)
    for index, words in enumerate(["leaves the page", "inverted or empty", "cannot be decoded"]):
        with pytest.raises(DocumentError, match=words):
            pages[index]


def test_the_real_receipts(shared_data: Path) -> None:
    pages = sroie.load(shared_data / "sroie")
    assert len(pages) == 500
    counts = {note.split()[0]: int(note.split()[-4]) for note in pages.notes}
    assert counts == {"company": 13, "address": 30, "date": 3, "total": 1}  # as many as the README counts, or fewer
    assert sum(count >= 5 for count in Counter(provider_names(pages)).values()) >= 16
    first = pages[0]
    texts = {f.key: " ".join(first.words[i].text for i in f.words) for f in first.fields}
    assert texts["date"] == "25/12/2018" and texts["total"] == "9.00" and texts["address"].endswith("JOHOR.")
    (total,) = (f for f in first.fields if f.key == "total")
    assert first.words[total.words[0]].box[1] == 703  # the line of the rounded total
    assert len(sroie.load(shared_data / "sroie", limit=3)) == 3
    assert all(page.words for page in pages[::50])
