"""Score a reconstructed page against the true one, field by field, and aggregate scores into estimates.

Statistics are kept per field and per page (``PageScore``, saved as JSON); every table is a pure function of them
(``aggregate``), so a number can be recomputed from disk without the pictures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from docleak.documents.page import Field, Image, Page
from docleak.documents.scrub import private_mask
from docleak.errors import DocumentError, RunError
from docleak.files import shaped
from docleak.metrics.estimate import Estimate, ratio_interval
from docleak.metrics.image import PSNR_CAP_DB, box_slices, fft2d_distance, mse, psnr_from_mse, ssim
from docleak.metrics.ocr import OcrEngine, Reading, read_inked
from docleak.metrics.text import exact, fuzz_ratio, normalise


@dataclass(frozen=True)
class FieldScore:
    """One private field: what it is, what was read where it stands, and how far the picture is.

    ``mse`` (0-255 units squared), ``psnr`` (dB) and ``fft2d`` are over the boxes of its lines. None means not scored,
    which is not zero: everything for a field without a place on the page; the text for a field without a value, or
    where no engine read.
    """

    key: str
    value: str
    read: str | None = None
    confidence: float | None = None
    exact: bool | None = None
    fuzz: float | None = None
    mse: float | None = None
    psnr: float | None = None
    fft2d: float | None = None


@dataclass(frozen=True)
class PageScore:
    """One reconstructed page. ``mse``, ``psnr`` and ``ssim`` are over the pixels of all private fields (boxes grown by
    one pixel; not the places that repeat their values), ``fft2d`` the mean over its private fields; all None if the
    page has no private field with a place.

    ``document`` is the page's name where the page does not say which document it belongs to. ``engine`` names the
    OCR engine and its version.
    """

    page: str
    document: str
    fields: tuple[FieldScore, ...]
    mse: float | None = None
    psnr: float | None = None
    fft2d: float | None = None
    ssim: float | None = None
    engine: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and finite numbers: ``json.dumps(score.to_json())``."""
        return {**asdict(self), "fields": [asdict(field) for field in self.fields]}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> PageScore:
        """The inverse of ``to_json``; raises RunError if keys are missing or unknown."""
        advice = "Another version of docleak wrote it, or it is damaged: score the pages again."
        score = shaped(cls, saved, RunError, "a saved score", advice)
        if score.to_json() != saved:
            raise RunError(
                f"a saved score has only the keys {sorted(saved)}; expected {list(score.to_json())}. {advice}"
            )
        return score


def score_page(page: Page, reconstruction: Image, engine: OcrEngine | None, *, margin: int = 2) -> PageScore:
    """The reconstruction (uint8, the page's shape) held against the true page; without an engine, pictures only.

    Each line of each private field is cropped at its true box grown by ``margin`` pixels, the same crop for every
    reconstruction of the page, read on its own, and the lines are joined with spaces. Scoring ``page.image`` gives
    the ceiling of the engine, scoring the blank template the floor. Raises DocumentError if the picture does not fit.
    """
    if reconstruction.shape != page.image.shape or reconstruction.dtype != np.uint8:
        raise DocumentError(
            f"page {page.name!r}: the reconstruction is {reconstruction.dtype} of shape {reconstruction.shape}; "
            f"expected uint8 of {page.image.shape}"
        )
    readings = read_fields(page, reconstruction, engine, margin=margin) if engine is not None else {}
    scored = tuple(
        _score_field(page, field, reconstruction, readings.get(index))
        for index, field in enumerate(page.fields)
        if field.private
    )
    spectra = [field.fft2d for field in scored if field.fft2d is not None]
    mask = private_mask(page, repeats=False)
    error = mse(page.image, reconstruction, mask) if mask.any() else None
    return PageScore(
        page=page.name,
        document=page.document or page.name,
        fields=scored,
        mse=error,
        psnr=None if error is None else psnr_from_mse(error),
        fft2d=float(np.mean(spectra)) if spectra else None,
        ssim=ssim(page.image, reconstruction, mask) if mask.any() else None,
        engine=None if engine is None else f"{engine.name} {engine.version}",
    )


def read_fields(page: Page, image: Image, engine: OcrEngine, *, margin: int = 2) -> dict[int, Reading]:
    """What the engine reads in ``image`` at each private field that has a place: index into ``page.fields`` -> Reading.

    Confidence is that of the least sure line that was read; 0 if none was.
    """
    crops: list[Image] = []
    owners: list[int] = []
    for index, field in enumerate(page.fields):
        if field.private and field.words:
            for box in page.field_boxes(field):
                crops.append(image[box_slices(box, page.height, page.width, margin)])
                owners.append(index)
    lines: dict[int, list[Reading]] = {index: [] for index in owners}
    for index, reading in zip(owners, read_inked(crops, engine.read), strict=True):
        if reading.text:
            lines[index].append(reading)
    return {
        index: Reading(" ".join(line.text for line in read), min((line.confidence for line in read), default=0.0))
        for index, read in lines.items()
    }


def aggregate(
    scores: Sequence[PageScore], *, rng: np.random.Generator, level: float = 0.95, resamples: int = 2000
) -> dict[str, Estimate]:
    """The table's columns: psnr, mse, fft2d, ssim (means over pages), binary and fuzz_ratio (means over fields).

    ``binary`` is the fraction of fields read exactly. Intervals are percentile bootstraps over *documents*, since the
    pages and fields of a document stand or fall together, with the percentiles widened for few documents as Hesterberg
    (2015, section 4.3, "expanded percentile") does; simulated, a 95 % interval held the truth 94 % of the time with 8
    documents or more. A share's interval over fewer than six is no narrower than the exact one of so many documents
    that are alike, that of other numbers no narrower than Student's, and over any number of documents than one that is
    transformed for skewness, within what these can be (``ratio_interval``). Where all fields of some resamples are 0,
    or 1, these see no risk: the free end is at least the exact binomial bound for so many documents that are alike
    (``share_ends``), so 0 of 10 is not printed as "0 to 0". One document gives no interval. What was not scored is
    counted, and does not enter.
    Raises ValueError for a level outside (0, 1), RunError if the scores come from different OCR engines.
    """
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level is {level} and resamples {resamples}; expected a level in (0, 1) and resamples >= 1")
    engines = {score.engine for score in scores}
    if len(engines) > 1:
        raise RunError(f"scores were read by different OCR engines ({engines}); score all pages with the same one")
    n = sum(len(score.fields) for score in scores)
    estimates = {}
    for name, (units, is_scored) in _COLUMNS.items():
        scored = sum(is_scored(field) for score in scores for field in score.fields)
        by_document: dict[str, list[float]] = {}
        for score in scores:
            if values := units(score):
                by_document.setdefault(score.document, []).extend(values)
        sums = np.array([sum(values) for values in by_document.values()])
        counts = np.array([len(values) for values in by_document.values()])
        low, high = ratio_interval(sums, counts, rng, level, resamples, share=name in ("binary", "fuzz_ratio"))
        value = float(sums.sum() / counts.sum()) if len(sums) else None
        estimate = Estimate(value, low, high, scored, len(sums), n - scored)
        estimates[name] = estimate.within(*_RANGE.get(name, (0.0, 1.0)))
    return estimates


def page_values(score: PageScore, column: str) -> list[float]:
    """What a page brings to the mean of one of ``aggregate``'s columns: a number, or one per field; [] for others."""
    return _COLUMNS[column][0](score) if column in _COLUMNS else []


#: column -> the least and the greatest that it can be, where these are not 0 and 1.
_RANGE = {"psnr": (-math.inf, PSNR_CAP_DB), "mse": (0.0, math.inf), "ssim": (-1.0, 1.0)}
#: column -> the values of a page that enter its mean, and whether a field was scored for it.
_COLUMNS: dict[str, tuple[Callable[[PageScore], list[float]], Callable[[FieldScore], bool]]] = {
    "psnr": (lambda page: _present([page.psnr]), lambda field: field.psnr is not None),
    "fft2d": (lambda page: _present([page.fft2d]), lambda field: field.fft2d is not None),
    "mse": (lambda page: _present([page.mse]), lambda field: field.mse is not None),
    "ssim": (lambda page: _present([page.ssim]), lambda field: field.mse is not None),
    "binary": (lambda page: _present([field.exact for field in page.fields]), lambda field: field.exact is not None),
    "fuzz_ratio": (lambda page: _present([field.fuzz for field in page.fields]), lambda field: field.fuzz is not None),
}


def _score_field(page: Page, field: Field, reconstruction: Image, reading: Reading | None) -> FieldScore:
    if not field.words:
        return FieldScore(field.key, field.value)
    boxes = page.field_boxes(field)
    places = [box_slices(box, page.height, page.width) for box in boxes]
    sizes = [page.image[place].size for place in places]
    error = float(np.average([mse(page.image[place], reconstruction[place]) for place in places], weights=sizes))
    text = None if reading is None else reading.text
    compared = text if normalise(field.value) else None
    return FieldScore(
        key=field.key,
        value=field.value,
        read=text,
        confidence=None if reading is None else reading.confidence,
        exact=None if compared is None else exact(compared, field.value),
        fuzz=None if compared is None else fuzz_ratio(compared, field.value),
        mse=error,
        psnr=psnr_from_mse(error),
        fft2d=fft2d_distance(page.image, reconstruction, boxes),
    )


def _present(values: Sequence[float | bool | None]) -> list[float]:
    return [float(value) for value in values if value is not None]
