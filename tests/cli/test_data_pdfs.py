"""PDFs as pages: text layers, OCR, values among the words, bad files. The PDFs are made here, with pdfium."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from docleak.documents import Field, Page, Word, folder
from docleak.documents.files import read_image
from docleak.documents.loaders import load_pages, pdfs_of
from docleak.documents.pdfs import reading
from docleak.documents.pdfs.converting import RECORD, REVIEW, Conversion, convert, review
from docleak.documents.pdfs.making import add_page, write_pdfs
from docleak.documents.pdfs.placing import (
    ALIKE,
    AMBIGUOUS,
    MISSING,
    NEAR,
    REPEATED,
    SHARED,
    UNCLEAR,
    Remark,
    Sheet,
    place,
)
from docleak.documents.pdfs.values import Value, read_values
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError

pdfium = pytest.importorskip("pypdfium2")
Command = Callable[..., tuple[Any, str, str]]
DPI = 150.0


def no_reader() -> Any:
    raise AssertionError("no page needs OCR")


def printed(file: Path, *pages: str, rotation: int = 0) -> Path:
    """A PDF whose pages print these words in Helvetica, a row per line of text, 300 x 200 pixels at DPI."""
    document = pdfium.PdfDocument.new()
    for text in pages:
        words = [
            Word(word, (10 + 70 * column, 10 + 30 * row, 65 + 70 * column, 26 + 30 * row))
            for row, line in enumerate(text.split("\n"))
            for column, word in enumerate(line.split())
        ]
        add_page(document, Page("x", np.full((200, 300, 3), 255, np.uint8), tuple(words)), dpi=DPI, picture=False)
    for page in document if rotation else ():
        page.set_rotation(rotation)
    file.parent.mkdir(parents=True, exist_ok=True)
    document.save(str(file))
    return file


def layer(file: Path, number: int = 0) -> tuple[reading.Layer, Any]:
    with reading.opened(file) as document, reading.page_of(document, number) as page:
        return reading.text_layer(page, DPI), reading.picture(page, DPI)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_words_of_the_text_layer_lie_on_their_ink(tmp_path: Path, rotation: int) -> None:
    """However the page is turned: each box holds ink to its edges, and outside of all boxes there is none."""
    text_layer, picture = layer(printed(tmp_path / "a.pdf", "Invoice 4711\nTotal 19.00", rotation=rotation))
    assert {word.text for word in text_layer.words} == {"Invoice", "4711", "Total", "19.00"} and not text_layer.scanned
    assert picture.shape == ((200, 300, 3) if rotation in (0, 180) else (300, 200, 3))
    rest = picture.copy()
    for word in text_layer.words:
        x0, y0, x1, y1 = map(int, word.box)
        crop = picture[y0:y1, x0:x1].min(axis=2) < 128
        assert crop[:, :3].any() and crop[:, -3:].any() and crop[:3].any() and crop[-3:].any(), word
        rest[y0:y1, x0:x1] = 255
    assert (picture < 128).any() and not (rest < 128).any()


def test_synthetic_pages_as_pdfs_and_back(tmp_path: Path) -> None:
    """Pictures pixel by pixel, words but for pieces that stand without a space, and a scan without a layer."""
    made = make_pages(3, seed=1)
    assert write_pdfs(made, tmp_path / "pdfs") == 3
    for page, file in zip(made, sorted((tmp_path / "pdfs").glob("*.pdf")), strict=True):
        text_layer, picture = layer(file)
        assert (picture == page.image).all()
        assert text_layer.scanned == (not text_layer.words) == file.name.endswith("3.pdf")
        spelt = "".join("".join(word.text.split()) for word in page.words)
        assert text_layer.scanned or "".join(word.text for word in text_layer.words) == spelt
    rows = list(csv.DictReader((tmp_path / "pdfs" / "values.csv").open(encoding="utf-8")))
    assert {row["value"] for row in rows} == {field.value for page in made for field in page.private_fields}


def test_what_was_typed_into_a_form_is_read(tmp_path: Path) -> None:
    """A text field of a form, in a PDF written by hand: pdfium's text layer alone does not have it."""
    stream = b"/Tx BT /F1 12 Tf 2 4 Td (A-839180) Tj ET"
    bodies = [
        b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[4 0 R]/DR<</Font<</F1 6 0 R>>>>/DA(/F1 12 Tf 0 g)>>>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 100]/Annots[4 0 R]>>",
        b"<</Type/Annot/Subtype/Widget/FT/Tx/T(no)/V(A-839180)/Rect[20 40 120 60]/P 3 0 R/F 4/DA(/F1 12 Tf 0 g)"
        b"/AP<</N 5 0 R>>>>",
        b"<</Type/XObject/Subtype/Form/BBox[0 0 100 20]"
        b"/Resources<</Font<</F1 6 0 R>>>>/Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    content = b"%PDF-1.7\n" + b"".join(b"%d 0 obj\n%s\nendobj\n" % (n, body) for n, body in enumerate(bodies, start=1))
    (tmp_path / "form.pdf").write_bytes(content + b"trailer<</Root 1 0 R/Size 7>>\n%%EOF")
    text_layer, picture = layer(tmp_path / "form.pdf")
    assert [word.text for word in text_layer.words] == ["A-839180"]
    x0, y0, x1, y1 = map(int, text_layer.words[0].box)
    assert (picture[y0:y1, x0:x1] < 128).any() and 40 < x0 < 60 and 80 < y0 < 130


def sheet(*texts: str, ocr: bool = False) -> Sheet:
    return Sheet(tuple(Word(text, (i, 0, i + 1, 1)) for i, text in enumerate(texts)), ocr)


@pytest.mark.parametrize(
    ("texts", "value", "ocr", "words", "what"),
    [
        (("Total", "19.00"), "19.00", False, (1,), None),
        (("Jane", "Q.", "Doe", "jane"), "Jane Q. Doe", False, (0, 1, 2), None),
        (("19.00", "Total", "19.00"), "19.00", False, (0,), REPEATED),
        (("2", "Total", "2"), "2", False, (), AMBIGUOUS),
        (("Total", "1,234.50"), "1234.50", False, (1,), NEAR),
        (("No", "A-839l80"), "A-839180", True, (1,), NEAR),
        (("No", "A-839181"), "A-839180", False, (), ALIKE),
        (("A-839181", "A-839182"), "A-839180", True, (), UNCLEAR),
        (("Total", "9"), "19.00", True, (), MISSING),
        ((), "19.00", False, (), MISSING),
    ],
)
def test_a_value_is_placed_or_said(
    texts: tuple[str, ...], value: str, ocr: bool, words: tuple[int, ...], what: str | None
) -> None:
    (fields,), remarks = place([Value("d", "k", value)], [sheet(*texts, ocr=ocr)])
    assert fields == (Field("k", value, words),)
    assert [remark.what for remark in remarks] == ([what] if what else [])
    assert all(remark.placed == bool(words) for remark in remarks)


def test_values_of_several_pages_and_fields() -> None:
    """Private on every page that prints it; two fields of one value take two places; a page that is named counts."""
    sheets = [sheet("Jane", "Doe", "19.00", "19.00"), sheet("Doe", "Jane Doe")]
    values = [Value("d", "name", "Jane Doe"), Value("d", "net", "19.00"), Value("d", "total", "19.00"),
              Value("d", "last", "Doe", page=2)]  # fmt: skip
    (first, second), remarks = place(values, sheets, public=frozenset({"net"}))
    net, total = Field("net", "19.00", (2,), False), Field("total", "19.00", (3,))
    assert first == (Field("name", "Jane Doe", (0, 1)), net, total)
    assert second == (Field("name", "Jane Doe", (1,)), Field("last", "Doe", (0,)))
    assert [remark.what for remark in remarks] == [REPEATED, SHARED]


WIDE = "file;provider;total;name\na.pdf;acme;19.00;Jane Doe\nsub/b;;4.50;\n"
LONG = "file,page,key,value\na,1,total,19.00\na.pdf,,name,Jane Doe\nsub/b.pdf,,total,4.50\n"
OBJECT = {"a.pdf": {"provider": "acme", "total": ["19.00"], "name": "Jane Doe"}, "sub/b": {"total": "4.50"}}


@pytest.mark.parametrize(("name", "text"), [("v.csv", WIDE), ("v.csv", LONG), ("v.tsv", LONG.replace(",", "\t")),
                                            ("v.json", json.dumps(OBJECT))])  # fmt: skip
def test_files_of_values(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text("\ufeff" + text)
    values = read_values(tmp_path / name, {"a": 2, "sub/b": 1})
    assert {(v.document, v.key, v.text) for v in values.items} == {
        ("a", "total", "19.00"), ("a", "name", "Jane Doe"), ("sub/b", "total", "4.50")}  # fmt: skip
    assert values.providers == ({} if text.startswith("file,") or name == "v.tsv" else {"a": "acme"})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("v.csv", "file,total\nb.pdf,1\nax,1\n", ["line 2: there is no PDF 'b.pdf'", "line 3: there is no PDF 'ax'"]),
        ("v.csv", "total\n1\n", ["no column 'file' among total"]),
        ("v.csv", "file,total,total\na,1,2\n", ["the column 'total' is there twice"]),
        ("v.csv", "file,total\na,1,000\n", ["line 2: 3 cells, expected 2", "in quotes"]),
        ("v.csv", "file,page,total\na,3,1\na,x,1\n", ["'page' is '3'; expected 1 to 2", "'page' is 'x'"]),
        ("v.csv", "file,key,value,else\na,k,1,2\n", ["'else' stands beside 'key' and 'value'"]),
        ("v.csv", "file,provider,total\na,x,1\na,y,2\n", ["has the provider 'y' here and 'x' above"]),
        ("v.csv", "file,total\na,\n", ["holds no value"]),
        ("v.csv", "file,key\na,total\n", ["the column 'key' is there without 'value'"]),
        ("v.csv", "file,value\na,1\n", ["the column 'value' is there without 'key'"]),
        ("v.csv", "", ["no column 'file'"]),
        ("v.csv", 'file,total\na,"1\n', ["line"]),
        ("v.json", '{"a": {"total": 19.0}}', ["'total' is 19.0, expected a text in quotes"]),
        ("v.json", '{"a": 3}', ["a int, expected an object"]),
        ("v.json", "3", ["a int, expected an object"]),
        ("v.json", "[", ["not JSON"]),
        ("v.xlsx", "x", ["expected a .csv, .tsv or .json"]),
    ],
)
def test_bad_files_of_values(tmp_path: Path, name: str, text: str, said: list[str]) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DocumentError) as raised:
        read_values(tmp_path / name, {"a": 2})
    assert all(words in str(raised.value) for words in said), raised.value


def test_conversion_of_a_folder(command: Command, tmp_path: Path) -> None:
    """Several pages, a folder in the folder, remarks in file and terminal; what comes out loads."""
    printed(tmp_path / "in" / "a.pdf", "Invoice A-4711\nTotal 19.00", "again A-4711\n3 to 3")
    printed(tmp_path / "in" / "sub" / "b.PDF", "Invoice\nTotal 4.50")
    (tmp_path / "v.csv").write_text("file,provider,number,total,count\na,acme,A-4711,19.00,3\nsub/b,,=x1,4.50,\n")
    words = ("data", "convert", "pdf:in", "out", "--values", "v.csv", "--public", "total", "--dpi", 150)
    code, out, err = command(*words)
    assert code == 0, err
    assert "a, count '3': not placed: several places" in out and "sub/b, number '=x1': not placed: no words" in out
    assert "5 values: 3 at one place exactly, 0 placed and to be looked at, 2 not placed" in out
    assert "3 pages at 150 dots per inch" in out and "of 3 from the text layer, of 0 by OCR" in out
    pages = load_pages("out", seed=0)
    assert [(p.name, p.document, p.provider) for p in pages] == [
        ("a-1", "a", "acme"), ("a-2", "a", "acme"), ("sub/b", "sub/b", "")]  # fmt: skip
    assert [[(f.key, bool(f.words), f.private) for f in page.fields] for page in pages] == [
        [("number", True, True), ("total", True, False), ("count", False, True)], [("number", True, True)],
        [("number", False, True), ("total", True, False)]]  # fmt: skip
    rows = list(csv.reader((tmp_path / "out" / REVIEW).open(encoding="utf-8")))
    assert len(rows) == 4 and rows[1][:3] == ["a", "count", "3"] and rows[3][2] == "'=x1"
    assert json.loads((tmp_path / "out" / RECORD).read_text())["dpi"] == 150
    code, out, _ = command(*words, "--json")
    assert code == 1 and "only written to a new folder" in json.loads(out)["error"]
    code, out, _ = command("data", "convert", "in", "first", "--count", 2, "--json")
    assert code == 0 and json.loads(out)["pages"] == 2 and len(load_pages("first", seed=0)) == 2
    code, out, _ = command("data", "convert", "in", "begun", "--count", 1, "--values", "v.csv")
    assert code == 0 and "3 values: " in out, "of the document that was converted, not of sub/b"


def test_scans_are_read_by_ocr(tmp_path: Path) -> None:
    """rapidocr finds the words of a picture; the crop of each holds them."""
    from docleak.metrics.ocr import page_reader

    page = make_pages(1, seed=3)[0]
    write_pdfs([page], tmp_path / "in", scans=1)
    made = convert(
        tmp_path / "in", tmp_path / "out", Conversion(lambda: page_reader("rapidocr").read_page),
        values=tmp_path / "in" / "values.csv",
    )  # fmt: skip
    (read,) = load_pages(str(tmp_path / "out"), seed=0)
    assert made.of("ocr") == 1 and len(read.private_fields) >= 4
    for field in read.private_fields:
        truth = next(f for f in page.private_fields if f.value == field.value)
        ours, theirs = page.field_boxes(truth)[0], read.field_boxes(field)[0]
        assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 8, field


def test_a_scan_with_a_stamp_is_a_scan_and_layer_means_layer(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    page = Page("x", np.full((200, 300, 3), 240, np.uint8), (Word("Page", (5, 5, 30, 15)), Word("1", (35, 5, 40, 15))))
    document = pdfium.PdfDocument.new()
    add_page(document, page, dpi=DPI)
    document.save(str(tmp_path / "in" / "a.pdf"))
    assert layer(tmp_path / "in" / "a.pdf")[0].scanned
    asked: list[tuple[int, ...]] = []

    def reader(image: Any) -> list[Word]:
        asked.append(image.shape)
        return []

    convert(tmp_path / "in", tmp_path / "auto", Conversion(lambda: reader))
    convert(tmp_path / "in", tmp_path / "layer", Conversion(no_reader, text_from="layer"))
    assert asked == [(200, 300, 3)] and len(load_pages(str(tmp_path / "layer"), seed=0)[0].words) == 2
    assert load_pages(str(tmp_path / "auto"), seed=0)[0].words == ()


@pytest.mark.parametrize("returned", [None, ["Total"], "Total"])
def test_a_reader_that_gives_no_words(tmp_path: Path, returned: Any) -> None:
    printed(tmp_path / "in" / "a.pdf", "Total 19.00")
    with pytest.raises(DocumentError, match=r"read_page gave .*; expected a list of docleak\.documents\.Word"):
        convert(tmp_path / "in", tmp_path / "out", Conversion(lambda: lambda image: returned, text_from="ocr"))
    assert not (tmp_path / "out").exists()


def test_letters_that_a_font_only_numbers_are_no_text_layer(tmp_path: Path) -> None:
    """As printers' drivers embed fonts: "Total" is drawn, and ",RWDO" is what its numbers would be as letters."""
    codes = "".join(f"{ord(letter) - 29:04x}" for letter in "Total 19.00 for Astrid")
    drawn = f"BT /F 12 Tf 10 50 Td <{codes}> Tj ET"
    (tmp_path / "a.pdf").write_text(
        "%PDF-1.7\n1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj\n"
        "2 0 obj <</Type /Pages /Count 1 /Kids [3 0 R]>> endobj\n"
        "3 0 obj <</Type /Page /Parent 2 0 R /MediaBox [0 0 300 100] /Contents 4 0 R /Resources <</Font "
        f"<</F 5 0 R>>>>>> endobj\n4 0 obj <</Length {len(drawn)}>>\nstream\n{drawn}\nendstream endobj\n"
        "5 0 obj <</Type /Font /Subtype /Type0 /BaseFont /X /Encoding /Identity-H /DescendantFonts [6 0 R]>> endobj\n"
        "6 0 obj <</Type /Font /Subtype /CIDFontType2 /BaseFont /X /DW 600 /CIDSystemInfo <</Registry "
        "(Adobe) /Ordering (Identity) /Supplement 0>>>> endobj\ntrailer <</Root 1 0 R>>\n%%EOF"
    )
    read = layer(tmp_path / "a.pdf")[0]
    assert read.scanned and all("Total" not in word.text for word in read.words)


def test_pages_of_two_pdfs_that_would_have_one_name(command: Command, tmp_path: Path) -> None:
    printed(tmp_path / "in" / "a.pdf", "Total 19.00", "Thanks")
    printed(tmp_path / "in" / "a-2.pdf", "Total 4.00")
    code, _, err = command("data", "convert", "pdf:in", "out")
    assert code == 1 and "a.pdf: page 'a-2' would have the name of another PDF's. Rename one" in err, err
    assert not (tmp_path / "out").exists()


def test_all_bad_pdfs_are_told_at_once_and_nothing_is_written(command: Command, tmp_path: Path) -> None:
    good = printed(tmp_path / "in" / "good.pdf", "Total 19.00").read_bytes()
    (tmp_path / "in" / "cut.pdf").write_bytes(good[: len(good) // 3])
    (tmp_path / "in" / "empty.pdf").touch()
    (tmp_path / "in" / "text.pdf").write_text("no PDF")
    document = pdfium.PdfDocument.new()
    document.new_page(14_400, 14_400)
    document.save(str(tmp_path / "in" / "huge.pdf"))
    encrypted = good.replace(b"trailer\r\n<<", b"trailer\r\n<</Encrypt<</Filter/Standard/V 1/R 2/P -4/O<" + b"00" * 32
                             + b">/U<" + b"00" * 32 + b">>>/ID[<00><00>]", 1)  # fmt: skip
    assert encrypted != good
    (tmp_path / "in" / "locked.pdf").write_bytes(encrypted)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = command("data", "convert", "pdf:in", "out")
    assert (code, out) == (1, "") and "5 faults" in err and sorted(tmp_path.rglob("*")) == before
    for name, said in (("cut", "cannot be read as a PDF"), ("empty", "cannot be read as a PDF"), ("text", "cannot be"),
                       ("huge", "30000 x 30000 pixels at 150 dots"), ("locked", "the PDF is encrypted")):  # fmt: skip
        assert any(f"{name}.pdf" in line and said in line for line in err.splitlines()), (name, err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data", "convert", "pdf:nowhere", "out"), "nowhere does not exist; expected a PDF"),
        (("data", "convert", "pdf:empty", "out"), "empty is an empty folder; expected a PDF"),
        (("data", "convert", "pdf:in", "out", "--values", "v.csv", "--public", "x"), "--public names x"),
        (("data", "convert", "pdf:in", "out", "--public", "x"), "--public belongs to --values"),
        (("data", "convert", "pdf:in", "out", "--text-from", "magic"), "expected auto, layer or ocr"),
        (("data", "convert", "pdf:in", "out", "--text-from", "layer", "--ocr", "rapidocr"), "--ocr"),
        (("data", "convert", "pdf:in", "out", "--text-from", "ocr", "--ocr", "magic"), "unknown OCR engine"),
        (("data", "convert", "pdf:in", "out", "--dpi", 9), "--dpi is 9"),
        (("data", "convert", "synthetic", "out", "--dpi", 90), "--dpi belongs to pdf:FOLDER"),
        (("data", "convert", "pdf:in", "out", "--image-root", "in"), "--image-root"),
        (("audit", "gradient", "--documents", "in"), "docleak data convert pdf:in NEW-FOLDER"),
        (("audit", "gradient", "--documents", "in a"), "docleak data convert 'pdf:in a' NEW-FOLDER"),
        (("audit", "gradient", "--documents", "in/a.pdf"), "in/a.pdf holds PDFs, of which docleak has to know"),
        (("data", "inspect", "pdf:in"), "docleak data mark"),
        (("data", "inspect", "pdf:empty"), "empty is an empty folder; expected a PDF"),
        (("data", "mark", "empty"), "expected page images"),
        (("data", "mark", "in"), "docleak data convert pdf:FOLDER"),
    ],
)
def test_one_sentence_for_what_cannot_be(
    command: Command, tmp_path: Path, words: tuple[object, ...], said: str
) -> None:  # fmt: skip
    printed(tmp_path / "in" / "a.pdf", "Total 19.00")
    printed(tmp_path / "in a" / "a.pdf", "Total 19.00")
    (tmp_path / "empty").mkdir()
    (tmp_path / "v.csv").write_text("file,total\na,19.00\n")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = command(*words)
    assert code == 1 and said in err and "Traceback" not in err, err
    assert sorted(tmp_path.rglob("*")) == before


def test_pictures_beside_pdfs_are_not_passed_over_in_silence(command: Command, tmp_path: Path) -> None:
    printed(tmp_path / "in" / "a.pdf", "Total 19.00")
    for name in ("b.JPG", "c.heic", "values.csv"):
        (tmp_path / "in" / name).write_text("")
    code, out, err = command("data", "convert", "pdf:in", "out")
    assert code == 0, err
    assert "2 pictures beside the PDFs were left out: b.JPG, c.heic. Print them as PDFs, too, or mark them alone" in out
    code, out, _ = command("data", "convert", "pdf:in", "again", "--json")
    assert json.loads(out)["left_out"] == ["b.JPG", "c.heic"]


def test_a_pdf_among_the_pictures_and_a_link_out_of_the_folder(tmp_path: Path) -> None:
    file = printed(tmp_path / "in" / "a.pdf", "x")
    file.rename(tmp_path / "a.png")
    with pytest.raises(DocumentError, match="is a PDF, expected a picture"):
        read_image(tmp_path / "a.png")
    (tmp_path / "in" / "b.pdf").symlink_to(tmp_path / "a.png")
    with pytest.raises(DocumentError, match="is a link out of the folder"):
        reading.find_pdfs(tmp_path / "in")
    assert pdfs_of("synthetic") is None and pdfs_of(f"pdf:{tmp_path}") == tmp_path
    Image.new("L", (4, 4)).save(tmp_path / "p.png")
    (tmp_path / folder.INDEX).write_text('{"image": "p.png"}')
    assert pdfs_of(str(tmp_path)) is None


def test_the_list_is_safe_for_spreadsheets() -> None:
    assert "'=cmd()" in review([Remark(Value("d", "k", "=cmd()"), MISSING, ((1, "+1"),))])
