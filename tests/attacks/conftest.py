"""A problem small enough that an attack takes a second: a Donut of 0.1 M parameters, 64 x 64 pixels, a short page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from docleak.attacks.gradients import GradientView, Knowledge
from docleak.documents import Field, Page, Question, Word, blank_template, private_mask
from docleak.models import DocumentModel, Encoded, pixels_of
from docleak.training.update import client_gradient
from tests.small import small_donut

SIDE = 64


@dataclass(frozen=True)
class Small:
    """One client and what the server has of it."""

    model: DocumentModel
    pages: tuple[Page, ...]
    pixels: Tensor
    inputs: list[Encoded]
    view: GradientView
    knowledge: Knowledge


def small_page(value: str) -> Page:
    """``Total`` is public, the value below it private: 16 x 16 pixels with the margin."""
    picture = Image.new("RGB", (SIDE, SIDE), "white")
    pen = ImageDraw.Draw(picture)
    pen.text((3, 3), "Total", fill="black", font=ImageFont.load_default(10))
    pen.text((32, 40), value, fill="black", font=ImageFont.load_default(12))
    words = (Word("Total", (3, 3, 30, 14)), Word(value, (32, 40, 46, 54)))
    question = Question("Total?", (value,), "total")
    return Page(f"small-{value}", np.asarray(picture), words, (Field("total", value, (1,)),), (question,))


@pytest.fixture(scope="session")
def small_model() -> DocumentModel:
    return small_donut(size=(SIDE, SIDE))


@pytest.fixture(scope="session")
def make_small(small_model: DocumentModel) -> Callable[..., Small]:
    """A problem on pages with the given values; ``names`` restricts the gradient's parameters."""

    def make(*values: str, names: list[str] | None = None) -> Small:
        pages = tuple(small_page(value) for value in values or ("42",))
        inputs = [small_model.encode(page, page.questions[0]) for page in pages]
        pixels = torch.stack([pixels_of(page.image) for page in pages])
        view = GradientView(small_model, client_gradient(small_model, pixels, inputs, names=names), len(pages))
        template = torch.stack([pixels_of(blank_template(page)) for page in pages])
        private = torch.stack([torch.from_numpy(private_mask(page)) for page in pages])
        return Small(small_model, pages, pixels, inputs, view, Knowledge(template, private, inputs))

    return make


@pytest.fixture(scope="session")
def small(make_small: Callable[..., Small]) -> Small:
    return make_small("42")


def psnr_of(found: Tensor, true: Tensor, mask: Tensor) -> float:
    """Peak signal-to-noise ratio in dB over the masked pixels; all pixels in [0, 1]."""
    counted = mask[:, None].expand_as(true)
    return float(-10 * torch.log10((found - true)[counted].square().mean()))


@pytest.fixture(scope="session")
def psnr() -> Callable[[Tensor, Tensor, Tensor], float]:
    return psnr_of
