"""Scores of a page: what is compared where, what is read, what is not scored, and the round trip through JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import ImageDraw, ImageFont

from docleak.documents.page import Field, Page, Word
from docleak.documents.scrub import blank_template, private_mask
from docleak.errors import DocumentError, RunError
from docleak.metrics import PSNR_CAP_DB, PageScore, Reading, fft2d_distance, load_engine, mse, psnr, score_page, ssim

DEJAVU = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
#: text and the corner of its first pixel
PRINTED = [
    ("Invoice to:", 10, 10),
    ("Maria", 80, 10),
    ("Schmidt", 112, 10),
    ("665 Main", 80, 30),
    ("Street", 80, 46),
    ("Total", 10, 70),
    ("$9,129.59", 80, 70),
]


class Scribe:
    """An engine that says the width of each crop, to see which crops it is shown."""

    name, version = "scribe", "1"

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def read(self, crops: Sequence[np.ndarray]) -> list[Reading]:
        self.shapes += [crop.shape for crop in crops]
        return [Reading(str(crop.shape[1]), 1 - 0.1 * index) for index, crop in enumerate(crops)]


@pytest.fixture(scope="module")
def page() -> Page:
    """A small invoice: a name of two words, an address on two lines, a total, a field without place, a public one."""
    face = ImageFont.truetype(str(DEJAVU), 12)
    picture = PillowImage.new("RGB", (200, 100), "white")
    draw = ImageDraw.Draw(picture)
    words = []
    for text, x, y in PRINTED:
        x0, y0, x1, y1 = face.getbbox(text)
        draw.text((x - x0, y - y0), text, font=face, fill="black")
        words.append(Word(text, (x, y, x + x1 - x0, y + y1 - y0)))
    fields = (
        Field("name", "Maria Schmidt", (1, 2)),
        Field("title", "Invoice to:", (0,), private=False),
        Field("address", "665 Main Street", (3, 4)),
        Field("iban", "DE00", ()),
        Field("total", "$9,129.59", (6,)),
    )
    return Page("p1", np.asarray(picture).copy(), tuple(words), fields, document="d1")


def test_the_true_page_is_read_and_the_blank_template_is_not(page: Page) -> None:
    engine = load_engine("rapidocr")
    ceiling = score_page(page, page.image, engine)
    assert [(f.key, f.exact, f.fuzz) for f in ceiling.fields if f.key != "iban"] == [
        ("name", True, 1.0),
        ("address", True, 1.0),
        ("total", True, 1.0),
    ]
    assert ceiling.mse == 0 and ceiling.psnr == PSNR_CAP_DB and ceiling.ssim == pytest.approx(1)
    floor = score_page(page, blank_template(page), engine)
    assert {(f.read, f.confidence, f.exact, f.fuzz) for f in floor.fields if f.key != "iban"} == {("", 0, False, 0)}
    assert floor.engine == f"rapidocr {engine.version}"


def test_picture_metrics_are_those_of_the_private_region(page: Page) -> None:
    rng = np.random.default_rng(0)
    noisy = rng.integers(0, 256, page.image.shape, dtype=np.uint8)
    mask = private_mask(page)
    score = score_page(page, noisy, None)
    assert score.mse == pytest.approx(mse(page.image, noisy, mask))
    assert score.psnr == pytest.approx(psnr(page.image, noisy, mask))
    assert score.ssim == pytest.approx(ssim(page.image, noisy, mask))
    placed = list(page.private_fields)
    distances = [fft2d_distance(page.image, noisy, page.field_boxes(field)) for field in placed]
    assert [f.fft2d for f in score.fields if f.mse is not None] == pytest.approx(distances)
    assert score.fft2d == pytest.approx(np.mean(distances))
    assert all(f.read is None and f.exact is None for f in score.fields) and score.engine is None


def test_damage_outside_the_private_region_does_not_count(page: Page) -> None:
    damaged = np.where(private_mask(page)[:, :, None], page.image, 255 - page.image).astype(np.uint8)
    score = score_page(page, damaged, None)
    assert score.mse == 0 and score.fft2d == pytest.approx(0, abs=1e-12)


def test_damage_to_one_field_shows_in_that_field(page: Page) -> None:
    x0, y0, x1, y1 = (int(side) for side in page.words[6].box)
    damaged = page.image.copy()
    damaged[y0:y1, x0:x1] = 255
    score = score_page(page, damaged, None)
    by_key = {field.key: field for field in score.fields}
    assert by_key["name"].mse == by_key["address"].mse == 0
    assert by_key["total"].mse == pytest.approx(mse(page.image[y0:y1, x0:x1], damaged[y0:y1, x0:x1]))


def test_lines_are_cropped_with_the_margin_and_joined_with_spaces(page: Page) -> None:
    scribe = Scribe()
    score = score_page(page, page.image, scribe, margin=3)
    boxes = [box for field in page.private_fields for box in page.field_boxes(field)]
    assert scribe.shapes == [(y1 - y0 + 6, x1 - x0 + 6, 3) for x0, y0, x1, y1 in boxes]
    address = score.fields[1]
    assert address.read == f"{boxes[1][2] - boxes[1][0] + 6} {boxes[2][2] - boxes[2][0] + 6}"
    assert address.confidence == pytest.approx(0.8), "the least sure line"


def test_a_field_without_place_is_not_scored_and_a_public_one_not_listed(page: Page) -> None:
    score = score_page(page, page.image, Scribe())
    assert [field.key for field in score.fields] == ["name", "address", "iban", "total"]
    iban = score.fields[2]
    assert (iban.read, iban.exact, iban.fuzz, iban.mse, iban.psnr, iban.fft2d) == (None,) * 6


def test_a_field_without_value_has_no_text_score(page: Page) -> None:
    field = Field("stamp", " ", (6,))
    blank = Page("p", page.image, page.words, (field,))
    (scored,) = score_page(blank, page.image, Scribe()).fields
    assert scored.exact is None and scored.fuzz is None and scored.read and scored.mse == 0


def test_a_page_without_private_fields_has_no_score_and_names_itself_as_document(page: Page) -> None:
    score = score_page(Page("alone", page.image), page.image, Scribe())
    assert score == PageScore("alone", "alone", (), engine="scribe 1")


def test_json_round_trip_is_exact(page: Page) -> None:
    noisy = np.random.default_rng(1).integers(0, 256, page.image.shape, dtype=np.uint8)
    score = score_page(page, noisy, Scribe())
    assert PageScore.from_json(json.loads(json.dumps(score.to_json(), allow_nan=False))) == score


@pytest.mark.parametrize("change", [{"psnr_db": 1.0}, {"psnr": ...}, {"fields": [{"key": "a", "value": "b"}]}])
def test_a_damaged_score_is_refused(page: Page, change: dict[str, object]) -> None:
    saved = {**score_page(page, page.image, None).to_json(), **change}
    kept = {key: value for key, value in saved.items() if value is not ...}
    with pytest.raises(RunError, match="score the pages again"):
        PageScore.from_json(kept)


@pytest.mark.parametrize("wrong", [np.zeros((5, 5, 3), np.uint8), np.zeros((100, 200, 3))])
def test_a_picture_that_does_not_fit_is_refused(page: Page, wrong: np.ndarray) -> None:
    with pytest.raises(DocumentError, match="expected uint8"):
        score_page(page, wrong, None)


def test_a_place_that_repeats_a_private_value_is_not_scored(page: Page) -> None:
    """It is private for the attack, but the score is of the fields: damage to a repeat alone changes nothing."""
    again = Word("$9,129.59", (10, 86, 70, 97))
    repeated = replace(page, words=(*page.words, again))
    assert private_mask(repeated)[90, 30] and not private_mask(repeated, repeats=False)[90, 30]
    damaged = repeated.image.copy()
    damaged[86:97, 10:70] = 0
    score = score_page(repeated, damaged, None)
    assert score.mse == 0 and score.ssim == pytest.approx(1)
    assert score_page(repeated, 255 - damaged, None).mse == score_page(page, 255 - page.image, None).mse
