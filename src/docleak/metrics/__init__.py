"""Metrics: pictures, recovered text, OCR; statistics per field and page, then a pure aggregate. No torch in here."""

from docleak.metrics.estimate import Estimate
from docleak.metrics.image import PSNR_CAP_DB, fft2d_distance, mse, psnr, ssim
from docleak.metrics.ocr import ENGINES, OcrEngine, Reading, has_ink, load_engine
from docleak.metrics.score import FieldScore, PageScore, aggregate, page_values, read_fields, score_page
from docleak.metrics.text import accuracy, anls, exact, fuzz_ratio, normalise

__all__ = [
    "ENGINES",
    "PSNR_CAP_DB",
    "Estimate",
    "FieldScore",
    "OcrEngine",
    "PageScore",
    "Reading",
    "accuracy",
    "aggregate",
    "anls",
    "exact",
    "fft2d_distance",
    "fuzz_ratio",
    "has_ink",
    "load_engine",
    "mse",
    "normalise",
    "page_values",
    "psnr",
    "read_fields",
    "score_page",
    "ssim",
]
