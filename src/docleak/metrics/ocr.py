"""Reading crops of a page back with an OCR engine: recognition only, the place of the text is known.

Detection is left out on purpose: on crops of one line it loses text that recognition reads (15-29 of 40 against 40).
Blank paper and pure noise are read as nothing *before* an engine sees them, since every engine invents text there.

Measured here (rapidocr 3.10, DejaVu Sans/Serif/Mono/Bold, 10-12 px): a crop with 2 pixels of paper around its text is
best given as it is; the engine's own bilinear enlargement to 48 pixels read 72 % of clean, noisy, blurred and faint
crops, a bicubic one 59 % (it sharpens the noise), more white margin 68-70 %.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from docleak.documents.page import Box, Image, Word
from docleak.documents.ranges import short
from docleak.errors import MissingExtraError, ModelError
from docleak.files import quietly
from docleak.registry import Choice, Entry, Registry

#: Height in pixels at which the recognisers read a line.
LINE_HEIGHT = 48
#: A crop whose grey levels (1st to 99th percentile) span less than this is blank paper.
MIN_CONTRAST = 12.0
#: A crop whose neighbouring pixels correlate less than this is noise. Text of 8-12 px has 0.34 and more, under noise
#: of 90 grey levels, where one crop in five is still read, 0.22 and more; noise has 0 +- 0.1.
MIN_CORRELATION = 0.15
#: A crop thinner than this, in pixels, holds no legible text.
MIN_SIDE = 4

#: The engines; a name may carry an argument: "trocr:PATH", "tesseract:deu".
ENGINES: Registry[OcrEngine] = Registry(
    "OCR engine",
    ModelError,
    {
        "rapidocr": Entry(f"{__name__}:RapidOcrEngine", "PP-OCRv6's recogniser on ONNX Runtime, in the wheel"),
        "tesseract": Entry(f"{__name__}:TesseractEngine", "the tesseract program; tesseract:LANGUAGE"),
        "trocr": Entry(f"{__name__}:TrocrEngine", "TrOCR, as trocr:PATH of a folder or hub name", "Li et al. (2023)"),
    },
    protocol=f"{__name__}:OcrEngine",
    argument=True,
)


@dataclass(frozen=True)
class Reading:
    """What an engine read in one crop; ``confidence`` in 0..1 is the engine's own, 0 for an empty text."""

    text: str
    confidence: float


NOTHING = Reading("", 0.0)


@runtime_checkable
class OcrEngine(Protocol):
    """Reads crops of one line each; the reading of a crop must not depend on the other crops."""

    @property
    def name(self) -> str:
        """Short name, as given to ``load_engine``."""

    @property
    def version(self) -> str:
        """Version of the program and its model, for a result's signature."""

    def read(self, crops: Sequence[Image]) -> list[Reading]:
        """One Reading per crop; a crop is uint8, (H, W, 3) RGB or (H, W) grey."""


@runtime_checkable
class PageReader(Protocol):
    """An engine that finds the words of a whole page, too."""

    def read_page(self, image: Image) -> list[Word]:
        """The page's words with their boxes, in reading order; ``image`` is uint8, (H, W, 3) RGB."""


def page_reader(choice: Choice) -> PageReader:
    """The engine of that name if it reads whole pages; ModelError if it reads crops of lines alone."""
    engine = load_engine(choice)
    if not isinstance(engine, PageReader):
        raise ModelError(
            f"{choice} reads crops of one line and finds no words on a page; expected rapidocr or tesseract."
        )
    return engine


def load_engine(choice: Choice) -> OcrEngine:
    """The engine of that name, loaded once and kept: ``rapidocr``, ``tesseract[:LANGUAGE]`` or ``trocr:PATH``.

    An object, or "module:object" of your own, is an engine, too. Raises ModelError for an unknown name or a checkpoint
    that cannot be loaded, MissingExtraError if a package or program is not installed.
    """
    return _load(choice) if type(choice) is str else ENGINES.load(choice)


@lru_cache(maxsize=4)
def _load(choice: str) -> OcrEngine:
    return ENGINES.load(choice)


def has_ink(crop: Image) -> bool:
    """False for a crop without text: under MIN_SIDE pixels, blank (MIN_CONTRAST) or noise (MIN_CORRELATION)."""
    if min(crop.shape[:2]) < MIN_SIDE:
        return False
    grey = crop.astype(np.float64) if crop.ndim == 2 else crop.mean(axis=2, dtype=np.float64)
    low, high = np.percentile(grey, (1, 99))
    return bool(high - low >= MIN_CONTRAST and neighbour_correlation(grey) >= MIN_CORRELATION)


def neighbour_correlation(grey: NDArray[np.float64]) -> float:
    """Autocorrelation of (H, W) at one pixel, mean of across and down: 0 for white noise, towards 1 for smooth."""
    centred = grey - grey.mean()
    power = float(np.mean(centred**2))
    if power == 0:
        return 0.0
    across, down = np.mean(centred[:, 1:] * centred[:, :-1]), np.mean(centred[1:] * centred[:-1])
    return float(across + down) / (2 * power)


def read_inked(crops: Sequence[Image], recognise: Callable[[Sequence[Image]], list[Reading]]) -> list[Reading]:
    """One Reading per crop: NOTHING for crops without ink, what ``recognise`` says of the others, outer space stripped.

    Raises ModelError if ``recognise`` does not return readings, one per crop.
    """
    inked = [index for index, crop in enumerate(crops) if has_ink(crop)]
    texts = recognise([crops[index] for index in inked]) if inked else []
    if not isinstance(texts, list | tuple) or not all(isinstance(getattr(one, "text", None), str) for one in texts):
        raise ModelError(f"the OCR engine's read gave {short(texts)}; expected a list of docleak.metrics.ocr.Reading.")
    if len(texts) != len(inked):
        raise ModelError(f"the OCR engine returned {len(texts)} readings for {len(inked)} crops; expected one for each")
    readings = [NOTHING] * len(crops)
    for index, reading in zip(inked, texts, strict=True):
        text = reading.text.strip()
        readings[index] = Reading(text, float(reading.confidence)) if text else NOTHING
    return readings


class RapidOcrEngine:
    """The default: rapidocr's recogniser (PP-OCRv6 small, in its wheel, no network), on ONNX Runtime.

    A reading below ``min_confidence`` counts as nothing: on smooth noise the engine writes text at 0.1-0.5, where
    right readings of noisy crops have 0.5 and more (95 % have 0.85). 0.5 is also rapidocr's own default.
    Crops are recognised one at a time: on a CPU a batch gains nothing, and it would make a reading depend on its
    neighbours, through the width they are padded to. Raises MissingExtraError if rapidocr is not installed.
    """

    name = "rapidocr"

    def __init__(self, *, threads: int = 1, min_confidence: float = 0.5) -> None:
        try:
            from rapidocr import RapidOCR
        except ImportError as error:
            raise MissingExtraError(f"rapidocr is not installed ({error}); pip install rapidocr onnxruntime") from error
        self.min_confidence = min_confidence
        limits = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": threads for kind in ("intra", "inter")}
        self._reader: Any = RapidOCR(params={"Global.log_level": "critical", **limits})
        self.version = f"{installed_version('rapidocr')} {self._reader.cfg.Rec.ocr_version.value}"

    def read(self, crops: Sequence[Image]) -> list[Reading]:
        return read_inked(crops, lambda inked: [self._recognise(crop) for crop in inked])

    def read_page(self, image: Image) -> list[Word]:
        """Words of the lines that rapidocr's detector finds; the first and last of a line reach to its ends."""
        lines = self._reader(np.ascontiguousarray(image[:, :, ::-1]), return_word_box=True)
        words: list[Word] = []
        for line, parts in zip(lines.boxes, lines.word_results, strict=True) if lines.boxes is not None else ():
            boxes = [_around(corners, image) for _, _, corners in parts]
            if boxes:
                left, _, right, _ = _around(line, image)
                boxes[0] = (min(left, boxes[0][0]), *boxes[0][1:])
                boxes[-1] = (*boxes[-1][:2], max(right, boxes[-1][2]), boxes[-1][3])
            words += [
                Word(text.strip(), box) for (text, _, _), box in zip(parts, boxes, strict=True)
                if text.strip() and box[0] < box[2] and box[1] < box[3]
            ]  # fmt: skip
        return words

    def _recognise(self, crop: Image) -> Reading:
        rgb = as_rgb(crop)
        line = rgb if rgb.shape[0] <= LINE_HEIGHT else at_line_height(rgb)  # its own shrinking would alias
        recognition = self._reader.recognize_txt([np.ascontiguousarray(line[:, :, ::-1])])  # BGR
        confidence = float(recognition.scores[0])
        return Reading(recognition.txts[0], confidence) if confidence >= self.min_confidence else NOTHING


class TesseractEngine:
    """The ``tesseract`` program as one line per crop (--psm 7), at 48 pixels height; ``language`` as in its -l.

    One process for all crops of a call. Confidence is the mean over words; readings below ``min_confidence`` count as
    nothing. Raises MissingExtraError if the program is not there.
    """

    name = "tesseract"

    def __init__(self, language: str = "eng", *, min_confidence: float = 0.5) -> None:
        program = shutil.which("tesseract")
        if program is None:
            raise MissingExtraError("tesseract is not on PATH; apt-get install tesseract-ocr tesseract-ocr-eng")
        self.language = language
        self.min_confidence = min_confidence
        self._program = program
        banner = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        words = (banner.stdout or banner.stderr).split()
        self.version = f"{words[1] if len(words) > 1 else 'unknown'} {language}"

    def read(self, crops: Sequence[Image]) -> list[Reading]:
        return read_inked(crops, self._recognise)

    def _recognise(self, crops: Sequence[Image]) -> list[Reading]:
        with tempfile.TemporaryDirectory(prefix="docleak-tesseract-") as folder:
            paths = [str(Path(folder) / f"{index}.png") for index in range(len(crops))]
            for path, crop in zip(paths, crops, strict=True):
                PIL.Image.fromarray(at_line_height(as_rgb(crop))).save(path)
            listing = Path(folder) / "crops.txt"
            listing.write_text("\n".join(paths) + "\n")
            rows = self._table([str(listing), "stdout", "--psm", "7"])
        words: list[list[tuple[str, float]]] = [[] for _ in crops]
        for row in rows:
            if row["level"] == "5" and row["text"].strip():
                words[int(row["page_num"]) - 1].append((row["text"], float(row["conf"]) / 100))
        return [self._line(line) for line in words]

    def read_page(self, image: Image) -> list[Word]:
        """Words as tesseract finds them on the whole page (--psm 3)."""
        with tempfile.TemporaryDirectory(prefix="docleak-tesseract-") as folder:
            file = Path(folder) / "page.png"
            PIL.Image.fromarray(image).save(file)
            rows = self._table([str(file), "stdout", "--psm", "3"])
        words = []
        for row in rows:
            if row["level"] == "5" and row["text"].strip() and float(row["conf"]) >= 100 * self.min_confidence:
                x, y, width, height = (int(row[key]) for key in ("left", "top", "width", "height"))
                words.append(Word(row["text"].strip(), (x, y, x + width, y + height)))
        return words

    def _table(self, about: Sequence[str]) -> list[dict[str, str]]:
        run = subprocess.run(
            [self._program, *about, "-l", self.language, "-c", "tessedit_create_tsv=1"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_THREAD_LIMIT": "1"},
        )
        if run.returncode:
            raise ModelError(f"tesseract -l {self.language} failed with code {run.returncode}: {run.stderr.strip()}")
        return list(csv.DictReader(io.StringIO(run.stdout), delimiter="\t", quoting=csv.QUOTE_NONE))

    def _line(self, words: list[tuple[str, float]]) -> Reading:
        confidence = float(np.mean([confidence for _, confidence in words])) if words else 0.0
        return (
            Reading(" ".join(text for text, _ in words), confidence) if confidence >= self.min_confidence else NOTHING
        )


class TrocrEngine:
    """TrOCR (Li et al., 2023), GI-DQA's reader: a VisionEncoderDecoderModel and its processor, at ``path``.

    ``path`` is a local folder or a hub name such as microsoft/trocr-base-printed. Greedy decoding; confidence is the
    mean probability of the generated tokens. It always writes something where there is ink, so no reading is dropped.
    Raises MissingExtraError without transformers and torch, ModelError if the checkpoint cannot be loaded.
    """

    name = "trocr"

    def __init__(self, path: str, *, max_new_tokens: int = 64) -> None:
        try:
            import torch
            import transformers
        except ImportError as error:
            raise MissingExtraError(f"TrOCR needs {error.name}; pip install torch transformers") from error
        self._torch: Any = torch
        self.max_new_tokens = max_new_tokens
        try:
            with quietly():  # what is missing is looked for below
                self._processor: Any = transformers.TrOCRProcessor.from_pretrained(path)
                model, report = transformers.VisionEncoderDecoderModel.from_pretrained(path, output_loading_info=True)
        except (OSError, ValueError, ImportError) as error:  # the last where its pictures' class needs torchvision
            raise ModelError(
                f"TrOCR cannot be loaded from {path!r} ({error}); expected a folder with a VisionEncoderDecoderModel "
                "and its processor, or a hub name and a network. Download it once, then give its folder: trocr:FOLDER"
            ) from error
        # No published TrOCR has the encoder's pooler, and nothing reads it.
        lacking = sorted(name for name in report["missing_keys"] if not name.startswith("encoder.pooler."))
        if lacking:
            raise ModelError(
                f"the weights of the TrOCR in {path!r} lack {len(lacking)} parameters, first: {lacking[0]}; expected "
                "all of a VisionEncoderDecoderModel. Download it again."
            )
        self._model: Any = model.eval()
        self.version = f"transformers {transformers.__version__} {path}"

    def read(self, crops: Sequence[Image]) -> list[Reading]:
        return read_inked(crops, lambda inked: [self._recognise(crop) for crop in inked])

    def _recognise(self, crop: Image) -> Reading:
        pixels = self._processor(images=PIL.Image.fromarray(as_rgb(crop)), return_tensors="pt").pixel_values
        with self._torch.no_grad():
            out = self._model.generate(
                pixels,
                max_new_tokens=self.max_new_tokens,
                num_beams=1,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
            )
            chances = self._model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True).exp()
        text = self._processor.batch_decode(out.sequences, skip_special_tokens=True)[0]
        return Reading(text, float(chances.mean()))


def _around(corners: Any, image: Image) -> Box:
    """The box around the corners of a quadrangle, within the picture."""
    x, y = np.asarray(corners, dtype=float).T
    height, width = image.shape[:2]
    return max(float(x.min()), 0.0), max(float(y.min()), 0.0), min(float(x.max()), width), min(float(y.max()), height)


def as_rgb(crop: Image) -> Image:
    """A grey or RGB crop as RGB, shape (H, W, 3)."""
    return np.repeat(crop[:, :, None], 3, axis=2) if crop.ndim == 2 else crop


def at_line_height(crop: Image) -> Image:
    """The crop scaled bilinearly (with anti-aliasing where it shrinks) to LINE_HEIGHT pixels, proportions kept."""
    height, width = crop.shape[:2]
    size = (max(1, round(width * LINE_HEIGHT / height)), LINE_HEIGHT)
    return np.asarray(PIL.Image.fromarray(crop).resize(size, PIL.Image.Resampling.BILINEAR))
