from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docleak.documents import Field, Page, Question, Word, load_pages
from docleak.documents.fonts import Type, set_line
from docleak.documents.locate import WordStream, letters
from docleak.documents.page import Entity
from docleak.documents.redaction import (
    AS_IN_THE_PAPER,
    THOROUGH,
    USUAL_HEIGHT,
    Removal,
    blue,
    blurred,
    redact,
    traces,
)
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError
from docleak.metrics import load_engine
from docleak.metrics.image import box_slices


def page_of(*texts: str, height: int = 40) -> Page:
    """Words of 30 x 10 pixels in a row, each on a ground of its own shade."""
    image = np.full((height, 34 * len(texts) + 4, 3), 255, np.uint8)
    words = []
    for i, text in enumerate(texts):
        x = 4 + 34 * i
        image[10:20, x : x + 30] = np.random.default_rng(i).integers(0, 256, (10, 30, 3))
        words.append(Word(text, (x, 10, x + 30, 20)))
    return Page("p", image, tuple(words))


def distance(one: str, other: str) -> int:
    """Levenshtein's distance by its definition."""

    @cache
    def of(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(of(i - 1, j) + 1, of(i, j - 1) + 1, of(i - 1, j - 1) + (one[i - 1] != other[j - 1]))

    return of(len(one), len(other))


texts = st.lists(st.text("abcB-1 .", min_size=1, max_size=6), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(texts, st.text("abcB-1 ", min_size=1, max_size=12))
def test_the_papers_removal_is_what_brute_force_removes(words: list[str], answer: str) -> None:
    """Every run, every target, from the words of the design: similarity >= 0.8 with the answer or a word of 4+."""
    wanted = [letters(answer), *(w for w in map(letters, answer.split()) if len(w) >= 4)]
    expected: set[int] = set()
    for start in range(len(words)):
        for end in range(start + 1, min(start + len(answer.split()) + 1, len(words)) + 1):
            run = "".join(letters(word) for word in words[start:end])
            for target in filter(None, wanted):
                near = 1 - distance(run, target) / max(len(run), len(target)) >= 0.8
                if near and letters(words[start]) and letters(words[end - 1]):
                    expected.update(range(start, end))
    assert traces(page_of(*words), [answer], AS_IN_THE_PAPER) == tuple(sorted(expected))


@pytest.mark.parametrize(
    ("words", "answer", "gone"),
    [
        ("Acme Tools Ltd, Main Road", "ACME Tools Ltd.", "Acme Tools Ltd,"),
        ("ACNE Tools Main", "Acme Tools", "ACNE Tools"),  # misread
        ("A cme Tools Main", "Acme Tools", "A cme Tools"),  # torn apart
        ("AcmeTools Main", "Acme Tools", "AcmeTools"),  # joined
        ("Tools of Main", "Acme Tools", "Tools"),  # one of its words
        ("the WBX station", "WBX", "WBX"),  # short, whole
        ("the WBY station", "WBX", ""),  # one letter in three is too much
        ("www.kcci.com KCCI 1.00", "kcci", "www.kcci.com KCCI"),
        ("sales@acmetools.example 02/20/20", "Acme 2020", "sales@acmetools.example"),
        ("DE123456789 x", "123456789", "DE123456789"),
        ("Total 12.50", "---", ""),
    ],
)
def test_what_gives_an_answer_away(words: str, answer: str, gone: str) -> None:
    page = page_of(*words.split())
    redacted = redact(page, [answer])
    assert [page.words[i].text for i in redacted.dropped] == gone.split()
    assert [w.text for w in redacted.page.words] == [w for w in words.split() if w not in gone.split()]


def test_the_papers_own_miss_is_reproduced_on_demand() -> None:
    page = page_of("www.kcci.com", "KCCI")
    assert redact(page, ["kcci"], AS_IN_THE_PAPER).dropped == (1,)
    assert redact(page, ["kcci"], THOROUGH).dropped == (0, 1)


def test_all_spellings_are_hidden() -> None:
    page = page_of("12", "May", "until", "12/05/2020")
    assert redact(page, ["12/05/2020", "12 May"]).dropped == (0, 1, 3)


def test_indices_of_what_stays_move_along() -> None:
    page = replace(
        page_of("From", "Acme", "Tools", "Total", "9.50"),
        fields=(
            Field("name", "Acme Tools", (1, 2)),
            Field("both", "Tools Total", (2, 3)),
            Field("total", "9.50", (4,)),
        ),
        questions=(Question("Who?", ("Acme Tools",), "name"),),
        entities=(Entity("header", (0, 1)), Entity("answer", (4,))),
        links=((0, 1),),
        provider="acme",
        document="d",
    )
    rest = redact(page, ["Acme Tools"]).page
    assert [field.words for field in rest.fields] == [(), (), (2,)]
    assert [(f.key, f.value) for f in rest.fields] == [(f.key, f.value) for f in page.fields]
    assert rest.words[rest.fields[2].words[0]].text == "9.50"
    assert [entity.words for entity in rest.entities] == [(0,), (2,)]
    assert (rest.questions, rest.links, rest.provider, rest.document) == (page.questions, page.links, "acme", "d")


def test_only_the_boxes_change_and_they_cover_the_words() -> None:
    page = page_of("Acme", "Tools", "and", "Acme")
    redacted = redact(page, ["Acme Tools"], Removal(margin=3))
    inside = np.zeros(page.image.shape[:2], bool)
    for box in redacted.boxes:
        inside[box_slices(box, page.height, page.width)] = True
    for index in redacted.dropped:
        assert inside[box_slices(page.words[index].box, page.height, page.width, 3)].all()
    assert not inside[:, 71:103].any(), "the word between is not of the answer"
    assert (redacted.page.image[~inside] == page.image[~inside]).all()
    assert (redacted.page.image[inside] != page.image[inside]).any()
    assert len(redacted.boxes) == 2, "words of one run are blurred together: their lengths are a clue"
    tinted = blue(redacted.page, redacted.boxes)
    assert (tinted[~inside] == page.image[~inside]).all() and (tinted[inside] != redacted.page.image[inside]).any()


def test_an_answer_that_is_not_there_changes_nothing() -> None:
    page = page_of("Total", "9.50")
    redacted = redact(page, ["Acme"])
    assert redacted.page is page and redacted.boxes == () and redacted.dropped == ()
    assert redact(page_of("Total"), []).dropped == ()


def lined(text: str) -> Page:
    """A page with the text in print, in a box that does not depend on it."""
    image = np.full((40, 200, 3), 255, np.uint8)
    list(set_line(image, text, Type("dejavu-sans", 12), 10, 24, (0, 0, 0)))
    return Page("p", image, (Word(text, (8, 10, 190, 30)),))


def test_what_is_left_of_two_answers_is_almost_the_same() -> None:
    """Blurred, two numbers of the same width differ by a few of 255 grey levels; under a weak blur by a hundred."""
    one, other = lined("83-1047562"), lined("26-9871304")
    for radius, low, high in ((THOROUGH.radius, 0, 8), (1.0, 60, 255)):
        a, b = (redact(p, [p.words[0].text], Removal(radius=radius)).page.image for p in (one, other))
        apart = int(np.abs(a.astype(int) - b).max())
        assert low <= apart <= high, f"{apart} at radius {radius}"


def test_ocr_cannot_read_what_was_hidden() -> None:
    """It reads the same places before, and under a blur that is too weak."""
    engine = load_engine("rapidocr")
    before, weak, after = [], [], []
    for page in make_pages(4, seed=3):
        for field in page.private_fields[:3]:
            places = [box_slices(box, page.height, page.width, 2) for box in page.field_boxes(field)]
            for hits, radius in ((before, None), (weak, 0.5), (after, THOROUGH.radius)):
                image = page.image if radius is None else redact(page, [field.value], Removal(radius=radius)).page.image
                read = " ".join(reading.text for reading in engine.read([image[place] for place in places]))
                hits.append(letters(read) == letters(field.value))
    assert len(before) >= 10
    assert np.mean(before) > 0.7 and np.mean(weak) > 0.5, (before, weak)
    assert not any(after)


def test_tall_pages_are_blurred_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def recording(image: np.ndarray, boxes: object, radius: float) -> np.ndarray:
        seen.append(radius)
        return image

    monkeypatch.setattr("docleak.documents.redaction.blurred", recording)
    for height in (40, USUAL_HEIGHT, 2 * USUAL_HEIGHT):
        redact(page_of("Acme", height=height), ["Acme"])
    assert seen == [20, 20, 40]


def test_the_blur_is_a_gaussian_of_that_deviation() -> None:
    """A step far from the borders, against the normal distribution (Pillow approximates it by boxes)."""
    step = np.full((40, 400, 3), 255, np.uint8)
    step[:, :200] = 0
    profile = blurred(step, [(0.0, 0.0, 400.0, 40.0)], 20.0)[20, :, 0] / 255
    expected = [0.5 * (1 + math.erf((x + 0.5 - 200) / (20 * math.sqrt(2)))) for x in range(400)]
    assert np.abs(profile - expected).max() < 0.02


def test_bad_settings_and_a_bare_text_are_refused() -> None:
    for wrong in ({"threshold": 0.0}, {"threshold": 1.1}, {"shortest": 0}, {"radius": 0.0}, {"margin": -1}):
        with pytest.raises(DocumentError, match="expected a threshold"):
            Removal(**wrong)  # type: ignore[arg-type]
    with pytest.raises(DocumentError, match="sequence"):
        redact(page_of("Acme"), "Acme")


def test_answers_are_gone_from_real_pages(shared_data: Path) -> None:
    """On invoices and registration forms no field keeps a word, and no answer is found any more."""
    pages = load_pages(f"vrdu:{shared_data / 'vrdu_pfl'}", seed=0)[:30]
    asked = 0
    for page in pages:
        for question in page.questions:
            redacted = redact(page, question.answers)
            assert redacted.dropped, (page.name, question)
            stream = WordStream.of([word.text for word in redacted.page.words])
            assert not any(stream.find_all(answer) for answer in question.answers), (page.name, question)
            for before, after in zip(page.fields, redacted.page.fields, strict=True):
                if before.key == question.key:
                    assert not after.words and set(before.words) <= set(redacted.dropped), (page.name, question)
            asked += 1
    assert asked > 60
