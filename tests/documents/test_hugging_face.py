"""Folders of datasets' save_to_disk and parquet files, made here with pyarrow as ``datasets`` lays them out."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from docleak.documents import Field, Question, load_pages
from docleak.documents.loaders import detect, page_source
from docleak.errors import DocumentError

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

NAMES = ["O", "B-HEADER", "B-ANSWER", "I-ANSWER"]


def png(grey: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (200, 100), grey).save(buffer, format="PNG")
    return buffer.getvalue()


def table(count: int = 2, **columns: Any) -> Any:
    """Rows as FUNSD has them on the hub; ``columns`` replaces some, None takes one out."""
    rows: dict[str, Any] = {
        "id": [f"page{i}" for i in range(count)],
        "image": [{"bytes": png(50 + i), "path": None} for i in range(count)],
        "words": [["Name", "Jane", "Doe"]] * count,
        "bboxes": [[[10, 10, 40, 20], [50, 10, 80, 20], [85, 10, 110, 20]]] * count,
        "ner_tags": [[1, 2, 3]] * count,
    }
    made = pa.table({key: value for key, value in (rows | columns).items() if value is not None})
    label = {"feature": {"names": NAMES, "_type": "ClassLabel"}, "_type": "List"}
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": {"ner_tags": label}}})})


def saved(path: Path, made: Any, *, split: str = "") -> Path:
    """What save_to_disk writes: a stream of Arrow in a file, and state.json."""
    home = path / split
    home.mkdir(parents=True)
    with pa.OSFile(str(home / "data-00000-of-00001.arrow"), "wb") as sink, pa.ipc.new_stream(sink, made.schema) as out:
        out.write_table(made)
    (home / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (home / "dataset_info.json").write_text("{}")
    if split:
        there = sorted(p.name for p in path.iterdir() if p.is_dir())
        (path / "dataset_dict.json").write_text(json.dumps({"splits": there}))
    return path


def test_a_saved_data_set(tmp_path: Path) -> None:
    path = saved(tmp_path / "funsd", table())
    assert detect(path) == "datasets" and page_source(str(path)).splits() == ()
    first, second = load_pages(f"datasets:{path}:public=header", seed=0)
    assert first.fields == (Field("HEADER", "Name", (0,), False), Field("ANSWER", "Jane Doe", (1, 2)))
    assert [entity.label for entity in first.entities] == ["HEADER", "ANSWER"]
    assert (first.name, first.width, first.height, first.words[1].box) == ("page0", 200, 100, (50, 10, 80, 20))
    assert (first.image == 50).all() and (second.image == 51).all()


def test_tagged_words_without_text_are_no_field(tmp_path: Path) -> None:
    path = saved(tmp_path / "blank", table(words=[["Name", "Jane", "Doe"], ["Name", "", " "]]))
    first, second = load_pages(f"datasets:{path}:public=header", seed=0)
    assert len(first.private_fields) == 1 and second.private_fields == () and len(second.entities) == 2


def test_a_private_field_without_a_value_is_refused(tmp_path: Path) -> None:
    fields = [[{"key": "k", "value": "", "words": [1]}], [{"key": "k", "value": "", "words": [1], "private": False}]]
    with pytest.raises(DocumentError, match=r"row 0: a private field is .*, expected a value") as raised:
        load_pages(f"datasets:{saved(tmp_path / 'told', table(fields=fields))}", seed=0)
    assert "row 1" not in str(raised.value)


def test_splits_of_both_layouts(tmp_path: Path) -> None:
    for split, count in (("train", 1), ("validation", 2)):
        saved(tmp_path / "disk", table(count), split=split)
        (tmp_path / "hub" / "data").mkdir(parents=True, exist_ok=True)
        pq.write_table(table(count), tmp_path / "hub" / "data" / f"{split}-00000-of-00001.parquet", row_group_size=1)
    for path in (tmp_path / "disk", tmp_path / "hub"):
        assert set(page_source(str(path)).splits()) == {"train", "val"}
        assert len(load_pages(str(path), seed=0)) == 1
        pages = load_pages(f"{path}:split=val", seed=0)
        assert len(pages) == 2 and (pages[1].image == 51).all() and pages[0].fields[1].value == "Jane Doe"
    one = load_pages(str(tmp_path / "hub" / "data" / "validation-00000-of-00001.parquet"), seed=0, count=1)
    assert len(one) == 1 and one[0].name == "page0"


def test_a_table_that_was_written_over_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "train-00000-of-00001.parquet"
    for last in ("Doe", "Roe, to be longer"):
        file.unlink(missing_ok=True)
        pq.write_table(table(1, words=[["Name", "Jane", last]]), file)
        (page,) = load_pages(str(file), seed=0)
        assert page.words[2].text == last and (page.image == 50).all()


def test_boxes_of_another_scale_are_said_and_not_guessed(tmp_path: Path) -> None:
    thousand = [[[50, 100, 200, 200], [250, 100, 400, 200], [425, 100, 425, 999]]]
    path = saved(tmp_path / "a", table(1, bboxes=thousand))
    with pytest.raises(DocumentError, match=r"reach to 999 on a picture of 200 x 100 pixels(.|\n)*boxes=1000"):
        load_pages(str(path), seed=0)[0]
    (page,) = load_pages(f"{path}:boxes=1000", seed=0)
    assert [word.box for word in page.words] == [(10, 10, 40, 20), (50, 10, 80, 20), (85, 10, 86, 100)]
    unit = [[[0.1, 0.1, 0.2, 0.2]] * 3]
    path = saved(tmp_path / "b", table(1, bboxes=unit))
    with pytest.raises(DocumentError, match="boxes=1"):
        load_pages(str(path), seed=0)[0]
    assert load_pages(f"{path}:boxes=1", seed=0)[0].words[0].box == (20, 10, 40, 20)


def test_questions_and_fields_of_ones_own(tmp_path: Path) -> None:
    asked = table(1, ner_tags=None, query=[{"de": "Wer?", "en": "Who?"}], answers=[["Jane Doe", "J. Doe"]])
    (page,) = load_pages(str(saved(tmp_path / "a", asked)), seed=0)
    assert page.questions == (Question("Who?", ("Jane Doe", "J. Doe")),)
    assert page.fields == (Field("Who?", "Jane Doe", (1, 2)),)
    fields = [[{"key": "name", "value": "Jane", "words": [1], "private": False}]]
    (page,) = load_pages(str(saved(tmp_path / "b", table(1, fields=fields, provider=["acme"]))), seed=0)
    assert page.fields == (Field("name", "Jane", (1,), False),) and page.provider == "acme"


def test_pictures_beside_the_tables(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(png(9))
    (tmp_path / "out.png").write_bytes(png(9))
    images = [{"bytes": None, "path": name} for name in ("x.png", "../out.png", "gone.png")]
    pq.write_table(table(3, image=images), tmp_path / "a" / "all.parquet")
    pages = load_pages(str(tmp_path / "a"), seed=0)
    assert (np.asarray(pages[0].image) == 9).all()
    for number in (1, 2):
        with pytest.raises(DocumentError, match="holds no picture, and names none in the folder"):
            pages[number]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"words": None}, r"no column for words \(words or tokens\) among bboxes, id, image, ner_tags"),
        ({"bboxes": [[[1, 1, 2, 2]]] * 2}, "row 0: 3 words and 1 boxes(.|\n)*row 1: 3 words"),
        ({"bboxes": [[[1, 1, 2]] * 3] * 2}, "expected .x0, y0, x1, y1"),
        ({"ner_tags": [[1, 2]] * 2}, "3 words and 2 tags"),
        ({"ner_tags": [[1, 2, 9]] * 2}, "tags are numbers, of which the table names 4"),
        ({"fields": [[{"key": "k", "value": "v", "words": [7]}]] * 2}, "a field is"),
        ({"words": [[1, 2, 3]] * 2}, "expected a list of texts"),
    ],
)
def test_tables_that_do_not_fit_together(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        load_pages(str(saved(tmp_path / "a", table(**columns))), seed=0)


def test_damaged_files_and_wrong_options(tmp_path: Path) -> None:
    path = saved(tmp_path / "a", table())
    for spec, said in ((f"{path}:boxes=7", "expected pixels, 1000 or 1"), (f"{path}:public=x", "expected answer, head"),
                       (f"{path}:split=val", "has no splits"), ("x:boxes=1", "neither a format")):  # fmt: skip
        with pytest.raises(DocumentError, match=said):
            load_pages(spec, seed=0)
    for name in ("x.parquet", "x.arrow"):
        (tmp_path / name).write_bytes(b"PAR1 no table")
        with pytest.raises(DocumentError, match="cannot be read as a table"):
            load_pages(str(tmp_path / name), seed=0)
    (path / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}')
    with pytest.raises(DocumentError, match="names no data files in this folder"):
        load_pages(str(path), seed=0)
    (tmp_path / "none").mkdir()
    with pytest.raises(DocumentError, match="is an empty folder; expected what datasets' save_to_disk wrote"):
        load_pages(f"datasets:{tmp_path / 'none'}", seed=0)
