from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from docleak.documents import Field, LazyPages, Page, Question, Word, folder
from docleak.documents.files import read_image
from docleak.documents.loaders import load_pages
from docleak.documents.marking import Marking
from docleak.documents.page import Entity
from docleak.documents.scale import blank_boxes
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError

GUIDE = Path(__file__).parents[2] / "docs" / "data-format.md"

texts = st.text(max_size=12)


def content(page: Page) -> tuple[Any, ...]:
    rest = (page.name, page.words, page.fields, page.questions, page.document, page.provider, page.template, page.notes)
    return (page.image.shape, page.image.tobytes(), page.entities, page.links, *rest)


@st.composite
def pages(draw: st.DrawFn) -> Page:
    height, width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    fraction = st.floats(0, 0.5)
    words = tuple(
        Word(draw(texts), (draw(fraction), draw(fraction), draw(st.floats(0.51, width)), draw(st.floats(0.51, height))))
        for _ in range(draw(st.integers(0, 3)))
    )
    places = st.lists(st.integers(0, len(words) - 1), max_size=3).map(tuple) if words else st.just(())
    fields = st.builds(Field, texts, texts, places, st.booleans()).filter(
        lambda field: bool(field.value.strip() or not field.words or not field.private)  # others are refused
    )
    entities = tuple(draw(st.lists(st.builds(Entity, texts, places), max_size=3)))
    ends = st.integers(0, max(len(entities) - 1, 0))
    return Page(
        name=draw(texts),
        image=rng.integers(0, 256, (height, width, 3), dtype=np.uint8),
        words=words,
        fields=tuple(draw(st.lists(fields, max_size=3))),
        questions=tuple(
            draw(st.lists(st.builds(Question, texts, st.lists(texts).map(tuple), st.none() | texts), max_size=2))
        ),
        document=draw(texts),
        provider=draw(texts),
        template=draw(st.none() | texts),
        notes=tuple(draw(st.lists(texts, max_size=2))),
        entities=entities,
        links=tuple(draw(st.lists(st.tuples(ends, ends), max_size=2))) if entities else (),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(pages(), min_size=1, max_size=4))
def test_what_is_saved_is_read_back_unchanged(saved: list[Page]) -> None:
    with TemporaryDirectory() as directory:
        read = folder.load(folder.save(saved, Path(directory) / "pages"))
        assert [content(page) for page in read] == [content(page) for page in saved]


def test_pages_of_the_same_name_get_files_of_their_own(tmp_path: Path) -> None:
    paper = np.zeros((4, 4, 3), np.uint8)
    names = ["a", "A", "../a", "", "x" * 200]
    folder.save((Page(name, paper + i) for i, name in enumerate(names)), tmp_path / "new" / "pages")
    read = folder.load(tmp_path / "new" / "pages")
    assert [page.name for page in read] == names and [int(page.image[0, 0, 0]) for page in read] == [0, 1, 2, 3, 4]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["pages"]  # nothing half written is left beside it


def test_save_never_touches_what_is_there_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    page = Page("a", np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(DocumentError, match="only written to a new folder"):
        folder.save([page], tmp_path / "full")
    with pytest.raises(DocumentError, match="no pages to write"):
        folder.save([], tmp_path / "none")

    def broken() -> Any:
        yield page
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        folder.save(broken(), tmp_path / "broken")
    assert [p.name for p in tmp_path.iterdir()] == ["full"]
    (tmp_path / "empty").mkdir()
    assert len(folder.load(folder.save([page], tmp_path / "empty"))) == 1


def write(path: Path, *lines: object) -> Path:
    Image.new("RGB", (30, 20), "white").save(path / "a.png")
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (path / folder.INDEX).write_text(text)
    return path


def test_only_the_image_is_needed(tmp_path: Path) -> None:
    (page,) = folder.load(write(tmp_path, {"image": "a.png"}))
    assert (page.name, page.width, page.words, page.fields, page.provider, page.template) == ("a", 30, (), (), "", None)


def test_images_of_one_name_in_several_folders_are_pages_of_several_names(tmp_path: Path) -> None:
    """So the pages, and documents that have no name, are not counted as one; two lines of one image keep its name."""
    for image in ("x/1.png", "y/1.png", "y/1.jpg", "z/2.png"):
        (tmp_path / image).parent.mkdir(exist_ok=True)
        Image.new("RGB", (30, 20), "white").save(tmp_path / image)
    rows = [{"image": "x/1.png"}, {"image": "./y/1.png"}, {"image": "y/1.jpg"}, {"image": "y/1.png", "name": "1"}]
    rows += [{"image": "z/2.png"}, {"image": "z/2.png", "provider": "acme"}]
    names = [page.name for page in folder.load(write(tmp_path, *rows))]
    assert names == ["x/1.png", "y/1.png", "y/1.jpg", "1", "2", "2"]
    assert [page.name for page in folder.load(tmp_path, limit=1)] == ["x/1.png"]
    assert [row["name"] for row in Marking(tmp_path).overview()] == names


def test_a_field_without_a_value_is_refused_unless_it_is_public_or_has_no_place(tmp_path: Path) -> None:
    fields = [{"key": "k", "value": "", "box": [0, 0, 9, 9], "private": False}, {"key": "l", "value": ""}]
    (page,) = folder.load(write(tmp_path, {"image": "a.png", "fields": fields}))
    assert page.private_fields == ()
    word = {"text": "x", "box": [0, 0, 9, 9]}
    private = [{"key": "k", "value": "", "box": [0, 0, 9, 9]}, {"key": "l", "value": " ", "words": [0]}]
    with pytest.raises(DocumentError) as raised:
        folder.load(write(tmp_path, {"image": "a.png", "words": [word], "fields": private}))
    expected = "expected what the page shows there; give it, or leave the field out"
    assert f"line 1: fields[0]: 'value' is '', {expected}" in str(raised.value)
    assert f"line 1: fields[1]: 'value' is ' ', {expected}" in str(raised.value)


def test_a_field_given_by_a_box_gets_a_word(tmp_path: Path) -> None:
    word = {"text": "x", "box": [0, 0, 5, 5]}
    fields = [{"key": "k", "value": "v w", "box": [10, 10, 31, 15]}, {"key": "l", "value": "x", "words": [0]}]
    (page,) = folder.load(write(tmp_path, {"image": "a.png", "words": [word], "fields": fields}))
    assert page.words == (Word("x", (0, 0, 5, 5)), Word("v w", (10, 10, 30, 15)))
    assert page.fields == (Field("k", "v w", (1,)), Field("l", "x", (0,)))


BAD = [
    ({"image": "b.png"}, "there is no image 'b.png'"),
    ({}, "'image' is missing"),
    ({"image": 3}, "'image' is 3, expected a text"),
    ({"image": "a.png", "provder": "x"}, "unknown key 'provder'"),
    ({"image": "a.png", "words": {}}, "'words' is a dict, expected a list"),
    ({"image": "a.png", "words": [{"text": "x"}]}, "words[0]: 'box' is missing"),
    ({"image": "a.png", "words": ["x"]}, "words[0] is a str"),
    ({"image": "a.png", "words": [{"text": 1, "box": [1, 2, 3]}]}, "box [1, 2, 3], expected"),
    ({"image": "a.png", "words": [{"text": "x", "box": [True, 0, 2, 2]}]}, "box [True, 0, 2, 2], expected"),
    ({"image": "a.png", "fields": [{"key": "k", "value": "v", "words": [0]}]}, "numbers of the page's 0 words"),
    ({"image": "a.png", "fields": [{"key": "k", "value": "v", "words": [], "box": [0, 0, 1, 1]}]}, "both 'words'"),
    ({"image": "a.png", "fields": [{"key": "k", "value": 9, "private": 1}]}, "'private' is 1"),
    ({"image": "a.png", "notes": "cut"}, "'notes' is 'cut', expected a list of texts"),
    ({"image": "a.png", "questions": [{"text": "t", "answers": "x"}]}, "'answers' is 'x'"),
    ({"image": "a.png", "entities": [{"label": "l", "words": [0]}]}, "entities[0]: 'words' is [0]"),
    ({"image": "a.png", "entities": [{"words": []}]}, "entities[0]: 'label' is missing"),
    ({"image": "a.png", "links": [[0, 1]]}, "'links' is [[0, 1]], expected pairs of numbers of the 0 entities"),
    ('{"image": "a.png"', "line 18, column 18: not JSON"),
]


def test_all_faults_of_the_index_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as raised:
        folder.load(write(tmp_path, *(line for line, _ in BAD)))
    message = str(raised.value)
    for _, words in BAD[:-1]:
        assert words in message
    assert "line 18, column 18: not JSON" in message and "docs/data-format.md" in message


def test_boxes_of_all_pages_are_held_against_the_headers_of_their_images(tmp_path: Path) -> None:
    words = [{"text": "far", "box": [0, 0, 90, 9]}, {"text": "turned", "box": [9, 0, 1, 9]}]
    shares = [{"text": "share", "box": [0.1, 0.2, 0.5, 0.9]}]
    write(tmp_path, {"image": "a.png", "words": words}, {"image": "a.png", "name": "b", "words": shares})
    with pytest.raises(DocumentError) as raised:
        folder.load(tmp_path)
    for said in (
        "line 1: word 0 'far'",
        "leaves the page (30 x 20",
        "'turned'",
        "inverted",
        "line 2: all 1 boxes lie in 0-1",
    ):
        assert said in str(raised.value)


def test_boxes_that_end_before_1000_on_larger_pages_are_doubted(tmp_path: Path) -> None:
    Image.new("L", (1654, 2339), 255).save(tmp_path / "large.png")
    words = [{"text": "low", "box": [100, 940, 200, 960]}]
    assert not folder.load(write(tmp_path, {"image": "a.png", "words": [{"text": "a", "box": [1, 1, 9, 9]}]})).notes
    (note,) = folder.load(write(tmp_path, {"image": "large.png", "words": words})).notes
    assert "1 picture is larger (the first 1654 x 2339 pixels)" in note and "width / 1000" in note
    words.append({"text": "lower", "box": [100, 1800, 200, 1860]})
    assert not folder.load(write(tmp_path, {"image": "large.png", "words": words})).notes


def test_boxes_without_ink_are_doubted(tmp_path: Path) -> None:
    page = make_pages(1, seed=0)[0]
    assert not blank_boxes([page])
    (doubt,) = blank_boxes([page.with_image(np.full_like(page.image, 255))])
    assert f"{len(page.words)} of {len(page.words)}" in doubt and "docleak data inspect" in doubt


def test_images_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    inner, root = tmp_path / "pages", tmp_path / "scans"
    inner.mkdir()
    root.mkdir()
    Image.new("L", (30, 20)).save(root / "secret.png")
    (inner / "link.png").symlink_to(root / "secret.png")
    names = ("../scans/secret.png", str(root / "secret.png"), "link.png")
    write(inner, *({"image": name} for name in names))
    with pytest.raises(DocumentError) as raised:
        folder.load(inner)
    for name in names:
        assert f"the image {name!r} lies outside of the folder" in str(raised.value)
    assert len(load_pages(f"folder:{inner}", seed=0, image_root=root)) == 3
    with pytest.raises(DocumentError, match="lies outside"):
        load_pages(f"folder:{inner}", seed=0, image_root=tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"image": "a.png", "words": [{"text": "x", "box": [0, 0, 1' + "0" * 390 + ", 9]}]}", "beyond all pixels"),
        (
            '{"image": "a.png", "words": [{"text": "x", "box": [0, 0, ' + "9" * 6000 + ", 9]}]}",
            "a number of 6000 digits",
        ),
        ('{"image": "a.png", "words": [{"text": "x", "box": [0, 0, NaN, 9]}]}', "NaN is no number"),
        ('{"image": "a.png", "words": [{"text": "x", "box": [0, 0, 1e999, 9]}]}', "expected [x0, y0, x1, y1]"),
        ('{"image": "a.png", "name": "\\ud800"}', "lone surrogate"),
        ('{"image": "a.png", "fields": [{"key": "k", "value": "\\udc00"}]}', "lone surrogate"),
        ('{"image": "a.png", "name": "one", "name": "two"}', "the key 'name' is given twice"),
        ("[" * 100_000 + "]" * 100_000, "nested more than 100 deep"),
        ('{"image": "a.png", "words": ' + "[" * 99_000 + "]" * 99_000 + "}", "nested more than 100 deep"),
        ('{"image": "a.png"}\n{"image": "a.png"}', "line 2: the same page as line 1"),
        ('{"image": "big.png"}', "'big.png' has 8000 x 8000 pixels, expected at most 40,000,000"),
        ('{"image": "nul\\u0000.png"}', "lies outside"),
        ('{"image": ".."}', "lies outside"),
        ('{"image": "' + "long" * 65 + '.png"}', "lies outside"),
    ],
)
def test_what_python_would_stumble_over_is_one_sentence(tmp_path: Path, line: str, said: str) -> None:
    if "big" in line:
        Image.new("1", (8000, 8000)).save(tmp_path / "big.png")
    write(tmp_path, line)
    with pytest.raises(DocumentError) as raised:
        folder.load(tmp_path)
    assert said in str(raised.value) and len(str(raised.value)) < 600


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    Image.new("1", (12_000, 12_000)).save(tmp_path / "big.png")
    with pytest.raises(DocumentError, match=r"12000 x 12000 pixels, expected at most 40,000,000(.|\n)*not decoded"):
        read_image(tmp_path / "big.png")


def test_folders_without_pages(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r'is an empty folder; expected pages\.jsonl(.|\n)*{"image": "page\.png"}'):
        folder.load(tmp_path)
    with pytest.raises(DocumentError, match="holds no page"):
        folder.load(write(tmp_path, ""))
    assert isinstance(
        folder.load(write(tmp_path, *({"image": "a.png", "name": name} for name in "abc")), limit=2), LazyPages
    )


def test_the_examples_of_the_guide_work(tmp_path: Path) -> None:
    text = GUIDE.read_text()
    (example,) = re.findall(r"```json\n(.*?)```", text, flags=re.DOTALL)
    Image.new("L", (120, 120), 255).save(tmp_path / "invoice-1.png")
    (tmp_path / folder.INDEX).write_text(json.dumps(json.loads(example)))
    (page,) = folder.load(tmp_path)
    assert [f.key for f in page.private_fields] == ["invoice_number", "total", "signature"]
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(code, str(GUIDE), "exec"), {})
