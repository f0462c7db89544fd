"""A page's pixels as a network takes them, against the processors of transformers and Pillow itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor

from docleak.documents.page import Image
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import load_model, pixels_of
from docleak.models.vlm.overview import Overview
from docleak.models.vlm.picture import Picture, canvas
from docleak.models.vlm.tiny import FAMILIES
from tests.models.vlm.conftest import model_of

TILED = ("idefics3", "smolvlm", "internvl", "granite_docling", "llava_next", "llava_onevision")


def noise_of(size: tuple[int, int], seed: int = 1) -> Image:
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3))
    return values.astype(np.uint8)


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_are_the_processors_own(family: str, folder: Path) -> None:
    """Of noise that it was not compared with before, and of an invoice; whatever else the processor says, too."""
    model = model_of(family, folder)
    for image in (noise_of(model.image_size), model.fit(make_pages(1, seed=3)[0]).image):
        theirs = model.processor.read(image, "What is the total?")
        ours = model.picture(pixels_of(image)[None])
        torch.testing.assert_close(ours[model.picture.name], theirs[model.picture.name].float(), rtol=0, atol=1e-5)
        assert all(torch.equal(ours[name], theirs[name]) for name in model.picture.constants)
        left = set(theirs) - set(ours) - {"input_ids", "attention_mask", "labels"}
        assert all(name.endswith("token_type_ids") for name in left), left


@pytest.mark.parametrize("family", FAMILIES)
def test_pages_in_a_batch_lie_one_behind_another(family: str, folder: Path) -> None:
    model = model_of(family, folder)
    images = [noise_of(model.image_size, seed) for seed in (1, 2)]
    theirs = [model.processor.read(image, "?") for image in images]
    ours = model.picture(torch.stack([pixels_of(image) for image in images]))
    for name, value in ours.items():
        torch.testing.assert_close(value, torch.cat([one[name] for one in theirs]).to(value), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_pixel_is_looked_at_and_has_its_derivative(family: str, folder: Path) -> None:
    model = model_of(family, folder)
    draw = torch.Generator().manual_seed(0)  # of so many numbers one is 0 now and then
    pixels = torch.rand(1, 3, *model.image_size[::-1], generator=draw).requires_grad_(True)
    made = model.picture(pixels)[model.picture.name]
    (derivative,) = torch.autograd.grad((made * torch.randn(made.shape, generator=draw)).sum(), pixels)
    assert bool((derivative != 0).all())
    assert (model.picture.overview is not None) == (family in TILED)


#: (height, width) of a page and of its overview: up and down, in one direction alone and in both, both orders.
SCALED = [
    ((64, 90), (20, 31)), ((64, 90), (64, 31)), ((64, 90), (7, 90)), ((64, 90), (130, 200)), ((90, 64), (31, 20)),
    ((280, 198), (140, 140)), ((198, 280), (140, 140)), ((256, 256), (128, 128)), ((1092, 728), (364, 364)),
    ((877, 620), (364, 364)),
]  # fmt: skip


@pytest.mark.parametrize("resample", [1, 2, 3, 4])
def test_an_overview_is_pillows(resample: int) -> None:
    """To the last grey level, of noise that the order was not chosen by."""
    for number, (size, target) in enumerate(SCALED):
        image = noise_of(size[::-1], seed=1 + number)
        theirs = PIL.Image.fromarray(image).resize(target[::-1], resample=PIL.Image.Resampling(resample))
        ours = Overview.of(size, target, resample)(pixels_of(image)[None])
        wrong = (ours * 255).round() != (pixels_of(np.asarray(theirs))[None] * 255).round()
        assert not wrong.any(), (size, target, int(wrong.sum()))


@pytest.mark.parametrize(("resample", "name"), [(0, "NEAREST"), (5, "HAMMING")])
def test_overviews_by_other_filters_are_refused(resample: int, name: str) -> None:
    with pytest.raises(ModelError, match=name):
        Overview.of((8, 8), (4, 4), resample)


def test_an_overviews_derivative_is_that_of_scaling() -> None:
    overview = Overview.of((12, 10), (5, 4), 1)
    pixels = torch.rand(1, 3, 12, 10, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(1, 3, 5, 4, dtype=torch.float64)
    (rounded,) = torch.autograd.grad((overview(pixels) * weights).sum(), pixels)
    expected = overview.rows.T @ weights @ overview.columns
    torch.testing.assert_close(rounded, expected)


def by_contrast(image: Image) -> Mapping[str, Tensor]:
    pixels = pixels_of(image)[None]
    return {"pixel_values": (pixels - pixels.mean()) / (pixels.std() + 1e-3)}


def in_grey(image: Image) -> Mapping[str, Tensor]:
    return {"pixel_values": pixels_of(image)[None].mean(1, keepdim=True).expand(-1, 3, -1, -1)}


def halved(image: Image) -> Mapping[str, Tensor]:
    size = image.shape[1] // 2, image.shape[0] // 2
    return {"pixel_values": pixels_of(np.asarray(PIL.Image.fromarray(image).resize(size, resample=0)))[None] ** 2}


@pytest.mark.parametrize("read", [by_contrast, in_grey, halved])
def test_processors_that_do_other_things_are_refused(read) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ModelError, match="was not understood"):
        Picture.learned(read, (24, 16), resample=2, family="made-up")


def test_processors_that_crop_pages_are_refused() -> None:
    def read(image: Image) -> Mapping[str, Tensor]:
        return {"pixel_values": pixels_of(image)[None, :, 4:20]}

    with pytest.raises(ModelError, match=r"crops pages of 16 x 24 pixels.* 33% .*--image-size 16x16"):
        Picture.learned(read, (16, 24), resample=2, family="made-up")


def test_two_inputs_of_pixels_are_refused() -> None:
    def read(image: Image) -> Mapping[str, Tensor]:
        return {"first": pixels_of(image)[None], "second": pixels_of(image)[None]}

    with pytest.raises(ModelError, match="2 inputs of pixels"):
        Picture.learned(read, (24, 16), resample=2, family="made-up")


def test_pixels_of_another_size_are_refused(folder: Path) -> None:
    model = model_of("smolvlm", folder)
    with pytest.raises(ModelError, match="expected \\(P, 3, 256, 256\\)"):
        model.picture(torch.rand(1, 3, 128, 256))


def test_pages_have_the_size_that_the_processor_leaves_alone(folder: Path) -> None:
    model = model_of("qwen2_vl", folder)
    images = model.processor.inner.image_processor
    assert canvas(lambda image: model.processor.read(image, "?"), images, (1240, 1754)) == model.image_size
    assert canvas(lambda image: model.processor.read(image, "?"), images, model.image_size) == model.image_size
    other = load_model(str(folder / "qwen2_vl"), image_size=(112, 140))
    assert other.image_size == (112, 140)
    with pytest.raises(ModelError, match="--image-size 112x140"):
        load_model(str(folder / "qwen2_vl"), image_size=(113, 141))
