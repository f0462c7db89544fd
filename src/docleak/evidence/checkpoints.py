"""The recorded recipe of the tiny checkpoints: start, training on synthetic invoices, ANLS on unseen ones."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from docleak.documents.page import Page
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.metrics.text import accuracy, anls
from docleak.models.base import DocumentModel, pixels_of
from docleak.models.tiny import DONUT_SIZE, LAYOUTLMV3_SIZE, donut_start, layoutlmv3_start
from docleak.training.pretrain import PretrainConfig, pretrain

PAGES = 3000
RECIPES = {
    "donut": PretrainConfig(steps=5000, pages_per_step=4, questions_per_page=4),
    "layoutlmv3": PretrainConfig(steps=2500, pages_per_step=4, questions_per_page=4),
}


class Remembered(Sequence[Page]):
    """Pages kept in memory once made."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = pages
        self._made: dict[int, Page] = {}

    def __len__(self) -> int:
        return len(self._pages)

    @overload
    def __getitem__(self, index: int) -> Page: ...
    @overload
    def __getitem__(self, index: slice) -> list[Page]: ...
    def __getitem__(self, index: int | slice) -> Page | list[Page]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index not in self._made:
            self._made[index] = self._pages[index]
        return self._made[index]


def start_model(architecture: str, pages: Sequence[Page], *, seed: int) -> DocumentModel:
    """The start checkpoint; LayoutLMv3's vocabulary is learned from the first 1,000 pages."""
    if architecture == "donut":
        return donut_start(seed=seed)
    if architecture == "layoutlmv3":
        return layoutlmv3_start(seed=seed, texts=_texts(pages[:1000]))
    raise ModelError(f"unknown architecture {architecture!r}; docleak makes tiny checkpoints of {', '.join(RECIPES)}.")


def _texts(pages: Sequence[Page]) -> Iterator[str]:
    for page in pages:
        yield " ".join(word.text for word in page.words)
        yield from (question.text for question in page.questions)


def measure(model: DocumentModel, pages: Sequence[Page]) -> dict[str, float | int]:
    """ANLS and accuracy over all questions of ``pages``."""
    scores, right = [], []
    for page in map(model.fit, pages):
        pixels = pixels_of(page.image)[None]
        for question in page.questions:
            text = model.answer(pixels, [model.encode(page, question)])[0].text
            scores.append(anls(text, question.answers))
            right.append(float(accuracy(text, question.answers)))
    return {"anls": float(np.mean(scores)), "accuracy": float(np.mean(right)), "anls_questions": len(scores)}


def make_checkpoints(
    architecture: str, out: Path, *, steps: int | None, seed: int, quiet: bool = False
) -> dict[str, object]:
    """Write OUT/ARCH-start and OUT/ARCH-trained with their cards (docleak.json); returns the trained one's card."""
    size = DONUT_SIZE if architecture == "donut" else (LAYOUTLMV3_SIZE, LAYOUTLMV3_SIZE)
    pages = Remembered(make_pages(PAGES, seed=seed, split="train", size=size))
    model = start_model(architecture, pages, seed=seed)
    config = RECIPES[architecture]
    if steps is not None:
        config = PretrainConfig(steps, config.pages_per_step, config.questions_per_page)
    start = f"spread initialisation, seed {seed}"
    write_checkpoint(model, out / f"{architecture}-start", {"recipe": start})
    began = time.perf_counter()
    recent: list[float] = []

    def show(step: int, loss: float) -> None:
        recent.append(loss)
        if not quiet and (step + 1) % 50 == 0:
            spent = time.perf_counter() - began
            left = spent / (step + 1) * (config.steps - step - 1)
            mean = float(np.mean(recent[-50:]))
            print(f"step {step + 1} of {config.steps}: loss {mean:.3f}, ETA {left / 60:.0f} min", file=sys.stderr)

    pretrain(model, pages, config, rng=np.random.default_rng(seed), on_step=show)
    minutes = (time.perf_counter() - began) / 60
    recipe = (
        f"{start}; {config.steps} steps of {config.pages_per_step} pages x {config.questions_per_page} questions from "
        f"{PAGES} synthetic invoices (split train), AdamW {config.learning_rate:g} cosine"
        + (f", dense reading loss x {config.reading_weight:g}" if architecture == "donut" else "")
        + f"; {minutes:.0f} min on one CPU thread"
    )
    card: dict[str, object] = {
        "recipe": recipe,
        **measure(model, make_pages(100, seed=seed, split="validation", size=size)),
    }
    return write_checkpoint(model, out / f"{architecture}-trained", card)


def write_checkpoint(model: DocumentModel, directory: Path, card: dict[str, object]) -> dict[str, object]:
    """Save the model and its card."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save(str(directory))
    card = {**card, "parameters": sum(p.numel() for p in model.module.parameters())}
    (directory / "docleak.json").write_text(json.dumps(card, indent=2) + "\n")
    return card
