"""OCR engines: small text is read, blank paper and noise are not, missing programs say what to install."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import ImageDraw, ImageFont

from docleak.errors import MissingExtraError, ModelError
from docleak.metrics import ENGINES, OcrEngine, Reading, exact, has_ink, load_engine
from docleak.metrics.ocr import at_line_height, neighbour_correlation, read_inked
from docleak.registry import resolve

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
TEXTS = ("Maria Schmidt", "24/06/2025", "$9,129.59", "INV-42643", "665 Main Street")


def crop_of(text: str, font: str = "DejaVuSans", size: int = 11, margin: int = 2) -> np.ndarray:
    """Black text on white paper, its box grown by ``margin`` pixels."""
    face = ImageFont.truetype(str(FONTS / f"{font}.ttf"), size)
    x0, y0, x1, y1 = (round(side) for side in face.getbbox(text))
    picture = PillowImage.new("RGB", (x1 - x0 + 2 * margin, y1 - y0 + 2 * margin), "white")
    ImageDraw.Draw(picture).text((margin - x0, margin - y0), text, font=face, fill="black")
    return np.asarray(picture)


def inkless() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (16, 90, 3)
    return {
        "white": np.full(shape, 255, np.uint8),
        "constant grey": np.full(shape, 128, np.uint8),
        "black": np.zeros(shape, np.uint8),
        "near blank": np.clip(rng.normal(252, 2, shape), 0, 255).astype(np.uint8),
        "faint gradient": np.broadcast_to(np.linspace(245, 255, 90)[None, :, None], shape).astype(np.uint8),
        "uniform noise": rng.integers(0, 256, shape, dtype=np.uint8),
        "grey uniform noise": np.repeat(rng.integers(0, 256, (16, 90, 1), dtype=np.uint8), 3, axis=2),
        "black and white noise": np.repeat(255 * rng.integers(0, 2, (16, 90, 1), dtype=np.uint8), 3, axis=2),
        "noise on paper": np.clip(rng.normal(240, 30, shape), 0, 255).astype(np.uint8),
        "two pixels high": rng.integers(0, 256, (2, 90, 3), dtype=np.uint8),
    }


@pytest.fixture(scope="module")
def rapidocr() -> OcrEngine:
    return load_engine("rapidocr")


@pytest.mark.parametrize("name", inkless())
def test_inkless_crops_are_seen_as_such_and_text_is_not(name: str) -> None:
    assert not has_ink(inkless()[name])


@pytest.mark.parametrize("size", [8, 10, 12, 24])
@pytest.mark.parametrize("text", [*TEXTS, "1", "i.", "-5"])
def test_text_has_ink_also_when_faint_or_noisy(text: str, size: int) -> None:
    crop = crop_of(text, size=size)
    faint = (255 - 0.15 * (255.0 - crop)).astype(np.uint8)
    noisy = np.clip(crop + np.random.default_rng(1).normal(0, 40, crop.shape), 0, 255).astype(np.uint8)
    assert has_ink(crop) and has_ink(crop[:, :, 0]) and has_ink(faint) and has_ink(noisy)


def test_neighbour_correlation_agrees_with_a_loop() -> None:
    grey = np.random.default_rng(2).normal(size=(5, 7)).cumsum(axis=1)
    c = grey - grey.mean()
    across = np.mean([c[y, x] * c[y, x + 1] for y in range(5) for x in range(6)])
    down = np.mean([c[y, x] * c[y + 1, x] for y in range(4) for x in range(7)])
    assert neighbour_correlation(grey) == pytest.approx((across + down) / 2 / np.mean(c**2))
    assert neighbour_correlation(np.ones((4, 4))) == 0.0


def test_an_engine_only_sees_crops_with_ink_and_answers_keep_their_places() -> None:
    seen: list[int] = []

    def recognise(crops: Sequence[np.ndarray]) -> list[Reading]:
        seen.append(len(crops))
        return [Reading(f" {crop.shape[1]} ", 0.9) for crop in crops]

    a, b = crop_of("abc"), crop_of("abcdef")
    blank = inkless()["white"]
    assert read_inked([blank, a, blank, b], recognise) == [
        Reading("", 0.0),
        Reading(str(a.shape[1]), 0.9),
        Reading("", 0.0),
        Reading(str(b.shape[1]), 0.9),
    ]
    assert read_inked([blank], recognise) == [Reading("", 0.0)] and seen == [2], "no call for nothing"
    assert read_inked([a], lambda crops: [Reading("  ", 0.8)]) == [Reading("", 0.0)]
    with pytest.raises(ModelError, match="0 readings for 1 crops"):
        read_inked([a], lambda crops: [])
    for returned in (None, ["abc"], [Reading(3, 0.9)], "a"):  # type: ignore[arg-type]
        with pytest.raises(ModelError, match=r"read gave .*; expected a list of docleak\.metrics\.ocr\.Reading"):
            read_inked([a], lambda crops, returned=returned: returned)  # type: ignore[misc]


def test_rapidocr_reads_small_print(rapidocr: OcrEngine) -> None:
    fonts = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans-Bold")
    asked = [(text, crop_of(text, font, size)) for font in fonts for size in (10, 11, 12) for text in TEXTS]
    readings = rapidocr.read([crop for _, crop in asked])
    right = [exact(reading.text, text) for reading, (text, _) in zip(readings, asked, strict=True)]
    assert np.mean(right) >= 0.95
    assert all(0 < reading.confidence <= 1 for reading in readings)


def test_rapidocr_reads_nothing_where_nothing_is(rapidocr: OcrEngine) -> None:
    assert {reading.text for reading in rapidocr.read(list(inkless().values()))} == {""}
    rng = np.random.default_rng(5)
    sides = rng.integers((4, 8), (24, 120), size=(30, 2))
    noise = [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in sides]
    assert {reading.text for reading in rapidocr.read(noise)} == {""}


def test_a_reading_does_not_depend_on_its_neighbours(rapidocr: OcrEngine) -> None:
    short, long = crop_of("7"), crop_of("a much longer line of text, " * 3)
    assert rapidocr.read([short, long])[0] == rapidocr.read([short])[0] == rapidocr.read([long, short])[1]


def test_grey_large_and_floor_of_confidence(rapidocr: OcrEngine) -> None:
    assert rapidocr.read([crop_of("INV-42643")[:, :, 0]])[0].text == "INV-42643"
    assert rapidocr.read([crop_of("INV-42643", size=90)])[0].text == "INV-42643"
    from docleak.metrics.ocr import RapidOcrEngine

    assert RapidOcrEngine(min_confidence=1.1).read([crop_of("INV-42643")]) == [Reading("", 0.0)]


def test_rapidocr_is_loaded_once_names_its_version_and_is_quiet(
    rapidocr: OcrEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert load_engine("rapidocr") is rapidocr
    assert rapidocr.name == "rapidocr" and rapidocr.version.split()[1].startswith("PP-OCR")
    rapidocr.read([crop_of("quiet")])
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("RapidOCR").level == logging.CRITICAL


def test_at_line_height_keeps_proportions() -> None:
    assert at_line_height(np.zeros((12, 30, 3), np.uint8)).shape == (48, 120, 3)
    assert at_line_height(np.zeros((480, 3, 3), np.uint8)).shape == (48, 1, 3)


@pytest.mark.parametrize("name", ["", "abbyy", "rapidocr:fast", "trocr"])
def test_unknown_names_and_wrong_arguments_are_refused_with_the_choices(name: str) -> None:
    with pytest.raises(ModelError, match=r"(?i)expected .*rapidocr.*tesseract.*trocr"):
        load_engine(name)


def test_every_engine_of_the_table_exists_and_is_documented() -> None:
    for entry in ENGINES.entries.values():
        assert resolve(entry.target).__doc__ and entry.summary


def fake_tesseract(folder: Path, body: str) -> Path:
    program = folder / "tesseract"
    program.write_text(f"#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'tesseract 9.9.9'; exit 0; fi\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return program


def test_tesseract_missing_names_the_apt_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from docleak.metrics.ocr import TesseractEngine

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match="apt-get install tesseract-ocr"):
        TesseractEngine()


def test_tesseract_output_is_parsed_by_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from docleak.metrics.ocr import TesseractEngine

    header = "level page_num block_num par_num line_num word_num left top width height conf text".replace(" ", "\t")
    rows = [(1, 1, -1, ""), (5, 1, 90.0, "Main"), (5, 1, 80.0, '"St'), (5, 2, 20.0, "eee")]
    lines = [f"{level}\t{page}\t1\t1\t1\t1\t0\t0\t1\t1\t{sure}\t{text}" for level, page, sure, text in rows]
    (tmp_path / "out.tsv").write_text("\n".join([header, *lines]) + "\n")
    fake_tesseract(tmp_path, f'wc -l < "$1" > {tmp_path}/asked; cat {tmp_path}/out.tsv')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine = TesseractEngine()
    assert engine.version == "9.9.9 eng"
    crops = [crop_of("Main"), inkless()["white"], crop_of("junk")]
    first, blank, unsure = engine.read(crops)
    assert first.text == 'Main "St' and first.confidence == pytest.approx(0.85)
    assert blank == unsure == Reading("", 0.0)
    assert (tmp_path / "asked").read_text().strip() == "2", "blank crops are not shown to the program"


def test_tesseract_failure_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from docleak.metrics.ocr import TesseractEngine

    fake_tesseract(tmp_path, "echo 'no such language' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ModelError, match="-l xyz failed with code 1: no such language"):
        TesseractEngine("xyz").read([crop_of("Main")])


def test_tesseract_itself_reads_small_print() -> None:
    try:
        engine = load_engine("tesseract")
    except MissingExtraError:
        pytest.skip("tesseract is not installed")
    readings = engine.read([crop_of(text, size=12) for text in TEXTS] + list(inkless().values()))
    right = [exact(reading.text, text) for reading, text in zip(readings, TEXTS, strict=False)]
    assert np.mean(right) >= 0.8
    assert {reading.text for reading in readings[len(TEXTS) :]} == {""}


@pytest.fixture(scope="module")
def tiny_trocr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random VisionEncoderDecoderModel of a few kB with its processor: it cannot read, but runs the same code."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("trocr")
    vocabulary = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"abcdefgh"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    size = {"height": 32, "width": 32}
    transformers.TrOCRProcessor(transformers.ViTImageProcessor(size=size), tokenizer).save_pretrained(folder)
    encoder = transformers.ViTConfig(
        image_size=32, patch_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    decoder = transformers.TrOCRConfig(
        vocab_size=12,
        d_model=16,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=16,
        cross_attention_hidden_size=16,
    )
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 0, 1, 2
    torch.manual_seed(0)
    transformers.VisionEncoderDecoderModel(config).save_pretrained(folder)
    return folder


def test_trocr_runs_from_a_folder_and_sees_no_blank_crops(tiny_trocr: Path) -> None:
    engine = load_engine(f"trocr:{tiny_trocr}")
    crops = [crop_of("Main Street"), *inkless().values()]
    first, *others = engine.read(crops)
    assert isinstance(first.text, str) and 0 <= first.confidence <= 1
    assert {reading.text for reading in others} == {""}
    assert engine.read(crops[:1]) == [first]
    assert str(tiny_trocr) in engine.version


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is there")
def test_a_trocr_whose_pictures_need_torchvision_says_so(tiny_trocr: Path, tmp_path: Path) -> None:
    """Where transformers knows the pictures' class only with torchvision: it was its ImportError."""
    shutil.copytree(tiny_trocr, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "processor_config.json"
    said = json.loads(file.read_text())
    said["image_processor"]["image_processor_type"] = "Llama4ImageProcessorFast"
    file.write_text(json.dumps(said))
    with pytest.raises(ModelError, match=r"(?s)TrOCR cannot be loaded.*Torchvision.*trocr:FOLDER"):
        load_engine(f"trocr:{tmp_path}")


def test_trocr_offline_says_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ModelError, match="trocr:FOLDER"):
        load_engine(f"trocr:{tmp_path}")
