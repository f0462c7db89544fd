"""Where a Donut's decoder looks while it says each token of an answer (GI-DQA figure 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
import torch
from numpy.typing import NDArray

from docleak.documents.page import Image, Page, Question
from docleak.errors import ModelError
from docleak.models import DocumentModel, pixels_of
from docleak.models.base import device_of
from docleak.models.donut import Donut

TOKENS_SHOWN = 8
GAP = 6


def attention_maps(model: DocumentModel, page: Page, question: Question) -> list[tuple[str, NDArray[np.float64]]]:
    """(token, map (rows, columns) that sums to 1) for each answer token, the last layer's heads averaged.

    Raises ModelError for models without cross-attention to the picture.
    """
    if not isinstance(model, Donut):
        raise ModelError(
            f"{model.name!r} is a {model.architecture}: attention maps are of a Donut's decoder. Name one."
        )
    example = model.encode(page, question)
    with torch.no_grad():
        cells = model.encoded(pixels_of(page.image, device_of(model))[None])
        _, attention, labels = model.attending_loss(cells, [example])
    mean = attention[0].mean(0).cpu().double().numpy()  # (T, cells)
    steps = [int(t) for t in (labels[0] >= 0).nonzero().flatten()]
    names = model.tokenizer.convert_ids_to_tokens(labels[0][steps].tolist())
    rows, columns = model.grid
    return [(name, mean[step].reshape(rows, columns)) for name, step in zip(names, steps, strict=True)]


def spread_of(maps: Sequence[tuple[str, NDArray[np.float64]]]) -> float:
    """The mean number of cells that the attention is spread over: the exponential of its entropy."""
    entropies = [-(m[m > 0] * np.log(m[m > 0])).sum() for _, m in maps]
    return float(np.exp(np.mean(entropies)))


def attention_picture(models: Sequence[DocumentModel], page: Page, question: Question) -> Image:
    """A row per model: the page with the attention of each of the first answer tokens over it in red."""
    strips = []
    for model in models:
        fitted = model.fit(page)
        maps = attention_maps(model, fitted, question)
        panels = [_panel(fitted.image, name, m) for name, m in maps[:TOKENS_SHOWN]]
        title = f"{model.name}: attention over {spread_of(maps):.0f} of {maps[0][1].size} cells (exp. of the entropy)"
        strips.append(_strip(title, panels))
    width = max(strip.shape[1] for strip in strips)
    padded = [np.pad(s, ((0, GAP), (0, width - s.shape[1]), (0, 0)), constant_values=255) for s in strips]
    return np.ascontiguousarray(np.concatenate(padded))


def _panel(image: Image, name: str, attention: NDArray[np.float64]) -> Image:
    height, width = image.shape[:2]
    scaled = PIL.Image.fromarray((255 * attention / attention.max()).astype(np.uint8)).resize((width, height))
    weight = np.asarray(scaled, dtype=np.float64)[..., None] / 255
    red = np.array([220.0, 20.0, 20.0])
    blended = (image * (1 - 0.75 * weight) + red * 0.75 * weight).astype(np.uint8)
    return _titled(blended, name.replace("\u0120", "\u2423"))


def _strip(title: str, panels: Sequence[Image]) -> Image:
    spaced = [np.pad(panel, ((0, 0), (0, GAP), (0, 0)), constant_values=255) for panel in panels]
    return _titled(np.concatenate(spaced, axis=1), title)


def _titled(image: Image, text: str) -> Image:
    canvas = PIL.Image.new("RGB", (image.shape[1], image.shape[0] + 20), "white")
    canvas.paste(PIL.Image.fromarray(image), (0, 20))
    PIL.ImageDraw.Draw(canvas).text((2, 2), text, fill=(0, 0, 0), font=PIL.ImageFont.load_default(13))
    return np.asarray(canvas)
