"""The recorded recipes of the shipped tiny models: start, training on synthetic invoices, quality on unseen ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from docleak.documents.issuers import LAST, make_issuers
from docleak.documents.loaders import load_pages
from docleak.documents.page import Page
from docleak.documents.pages import remembered
from docleak.documents.synthetic import make_pages
from docleak.documents.synthetic_providers import PROVIDERS
from docleak.errors import ModelError
from docleak.files import drafted_folder, reported
from docleak.models.base import DocumentModel
from docleak.models.encoders.loading import save_encoder, save_for_transformers
from docleak.models.encoders.tiny import TINY, WORDS_OF_V3, shipped_tokenizer, tiny_encoder
from docleak.models.tiny import (
    DONUT_SIZE,
    LAYOUTLMV3_SIZE,
    donut_start,
    fedocvqa_start,
    layoutlmv3_start,
    vt5_start,
)
from docleak.privacy.lineage import UNKNOWN, Lineage
from docleak.training.extraction.fit import Epoch, FitConfig, fit, validate
from docleak.training.federated.validation import answered
from docleak.training.lineage import SYNTHETIC, write_lineage
from docleak.training.pretrain import PretrainConfig, pretrain

#: Training invoices per architecture: one that learns to read needs more.
PAGES = {"donut": 8000, "layoutlmv3": 3000, "vt5": 3200, "vt5-public": 3000, "fedocvqa": 3000}
#: Checkpoints that are another recipe's start trained otherwise: name -> architecture.
VARIANTS = {"vt5-public": "vt5"}
#: Trained to answer about the issuer as well, of invoices whose providers are public (see ``documents.issuers``).
READS_ISSUERS = ("vt5",)
#: Of a T5 reader that reads what stands there at once.
SHORT = PretrainConfig(
    steps=400, pages_per_step=8, questions_per_page=3, warmup_steps=50, dropout=False, text_only_steps=350
)
#: Phases per architecture; each starts the optimiser and the learning rate's course anew.
RECIPES: dict[str, tuple[PretrainConfig, ...]] = {
    "donut": (
        PretrainConfig(
            steps=16000, pages_per_step=4, questions_per_page=4, pointing_weight=1.0, dropout=False, bfloat16=True
        ),
    ),
    "layoutlmv3": (PretrainConfig(steps=4000, pages_per_step=8, questions_per_page=3, text_only_steps=3600),),
    "vt5": (replace(SHORT, steps=1800, warmup_steps=100, text_only_steps=1500),),
    "vt5-public": (replace(SHORT, learning_rate=2e-3),),
    "fedocvqa": (SHORT,),
}
#: Encoders: invoices of the split "train", which no game is played on, and of "validation"; and how they are trained.
ENCODER_PAGES, ENCODER_VALIDATION = 2000, 100
ENCODER_RECIPE = FitConfig(epochs=20, batch_size=16, learning_rate=2e-3)


def phases_of(architecture: str, steps: int | None) -> tuple[PretrainConfig, ...]:
    """The recorded phases, shortened or stretched in proportion to ``steps`` in all."""
    phases = RECIPES[architecture]
    if steps is None:
        return phases
    share = steps / sum(phase.steps for phase in phases)
    return tuple(
        replace(p, steps=max(1, round(p.steps * share)), text_only_steps=round(p.text_only_steps * share))
        for p in phases
    )


def start_model(architecture: str, pages: Sequence[Page], *, seed: int) -> DocumentModel:
    """The start checkpoint; all but Donut learn their vocabulary from the first 1,000 pages."""
    if architecture == "donut":
        return donut_start(seed=seed)
    if architecture == "layoutlmv3":
        return layoutlmv3_start(seed=seed, texts=_texts(pages[:1000]))
    if architecture == "vt5":
        return vt5_start(seed=seed, pages=pages[:1000])
    if architecture == "fedocvqa":
        return fedocvqa_start(seed=seed, pages=pages[:1000])
    raise ModelError(f"unknown architecture {architecture!r}; docleak makes tiny checkpoints of {', '.join(RECIPES)}.")


def _texts(pages: Sequence[Page]) -> Iterator[str]:
    for page in pages:
        yield " ".join(word.text for word in page.words)
        yield from (question.text for question in page.questions)


def measure(model: DocumentModel, pages: Sequence[Page]) -> dict[str, float | int]:
    """ANLS and accuracy over all questions of ``pages``."""
    scores = np.array([score for page in pages for score in answered(model, page)])
    return {"anls": float(scores[:, 0].mean()), "accuracy": float(scores[:, 1].mean()), "anls_questions": len(scores)}


def make_checkpoints(
    architecture: str, out: Path, *, steps: int | None, seed: int, quiet: bool = False
) -> dict[str, object]:
    """Write OUT/ARCH-start and OUT/ARCH-trained with their cards (docleak.json); returns the trained one's card.

    ``architecture`` is one of RECIPES; a variant ends in OUT/VARIANT, trained from its architecture's start.
    """
    recipe_name, architecture = architecture, VARIANTS.get(architecture, architecture)
    size = DONUT_SIZE if architecture == "donut" else (LAYOUTLMV3_SIZE, LAYOUTLMV3_SIZE)
    pages = remembered(make_pages(PAGES.get(recipe_name, 1), seed=seed, split="train", size=size))
    model = start_model(architecture, pages, seed=seed)
    unseen: Sequence[Page] = make_pages(100, seed=seed, split="validation", size=size)
    if recipe_name in READS_ISSUERS:
        pages = remembered(make_issuers(range(PROVIDERS), [PAGES[recipe_name] // PROVIDERS] * PROVIDERS, seed=seed))
        unseen = make_issuers(range(LAST - 100, LAST), [1] * 100, seed=seed)
    phases = phases_of(recipe_name, steps)
    total = sum(phase.steps for phase in phases)
    start = f"spread initialisation, seed {seed}"
    write_checkpoint(model, out / f"{architecture}-start", {"recipe": start})
    began = time.perf_counter()
    recent: list[float] = []

    def show(step: int, loss: float) -> None:
        recent.append(loss)
        if not quiet and len(recent) % 50 == 0:
            left = (time.perf_counter() - began) / len(recent) * (total - len(recent))
            mean = float(np.mean(recent[-50:]))
            print(f"step {len(recent)} of {total}: loss {mean:.3f}, ETA {left / 60:.0f} min", file=sys.stderr)

    for number, phase in enumerate(phases):
        pretrain(model, pages, phase, rng=np.random.default_rng(seed + number), on_step=show)
    minutes = (time.perf_counter() - began) / 60
    recipe = f"{start}; {describe(recipe_name, phases)}; {minutes:.0f} min on one CPU thread"
    card: dict[str, object] = {"recipe": recipe, **measure(model, unseen)}
    return write_checkpoint(model, out / (recipe_name if recipe_name in VARIANTS else f"{architecture}-trained"), card)


def describe(architecture: str, phases: Sequence[PretrainConfig]) -> str:
    """The phases in words."""
    parts = []
    for p in phases:
        words = f"{p.steps} steps of {p.pages_per_step} pages x {p.questions_per_page} questions at {p.learning_rate:g}"
        words += ", shown where to look" if p.pointing_weight else ""
        parts.append(words + (f" (the first {p.text_only_steps} without the picture)" if p.text_only_steps else ""))
    whose = f"of {PROVIDERS} issuers, asked about them too" if architecture in READS_ISSUERS else "(split train)"
    return f"{' then '.join(parts)}, AdamW, {PAGES[architecture]} synthetic invoices {whose}"


def write_checkpoint(model: DocumentModel, directory: Path, card: dict[str, object]) -> dict[str, object]:
    """Save the model and its card, whole or not at all."""
    card = {**card, "parameters": sum(p.numel() for p in model.module.parameters())}
    with reported(directory), drafted_folder(directory) as draft:
        model.save(str(draft))
        return write_lineage(draft, SYNTHETIC, card)


def make_encoder(
    architecture: str, out: Path, *, steps: int | None, seed: int, quiet: bool = False, documents: str = ""
) -> dict[str, object]:
    """Write OUT/ARCH-tiny with its card (docleak.json) and return the card; ModelError for an unknown architecture.

    The pages of ``documents`` (as ``load_pages`` opens them) are trained on beside the invoices; every tenth is kept to
    validate with.

    ``steps`` other than the recipe's are rounded to whole epochs, of which there is one at least. The checkpoint is
    that of the best validation loss. It has never seen a picture: an eye is drawn with the head when
    a bimodal model is trained from it.
    """
    if architecture not in TINY:
        raise ModelError(f"unknown encoder {architecture!r}; docleak makes tiny ones of {', '.join(TINY)}.")
    per_epoch = ENCODER_PAGES // ENCODER_RECIPE.batch_size
    config = replace(
        ENCODER_RECIPE, epochs=ENCODER_RECIPE.epochs if steps is None else max(1, round(steps / per_epoch))
    )
    model = tiny_encoder(architecture, shipped_tokenizer(), seed=seed)
    began = time.perf_counter()

    def show(epoch: Epoch) -> None:
        if not quiet:
            left = (time.perf_counter() - began) / epoch.number * (config.epochs - epoch.number)
            scores = f"loss {epoch.train_loss:.3f}, masked tokens guessed {epoch.validation.accuracy:.1%}"
            print(f"epoch {epoch.number} of {config.epochs}: {scores}, ETA {left / 60:.0f} min", file=sys.stderr)

    train, held_out = (
        [model.encode(page) for page in make_pages(count, seed=seed, split=split)]
        for count, split in ((ENCODER_PAGES, "train"), (ENCODER_VALIDATION, "validation"))
    )
    given = [model.encode(page) for page in load_pages(documents, seed=seed) if page.words] if documents else []
    train, kept = [*train, *(page for number, page in enumerate(given) if number % 10)], given[::10]
    fitted = fit(model, train, [*held_out, *kept], config, seed=seed, on_epoch=show)
    best = fitted.best["loss"]
    fitted.restore(model, "loss")
    card: dict[str, object] = {
        "recipe": f"{config.epochs} epochs over {ENCODER_PAGES} synthetic invoices (split train)"
        f"{f' and {len(given) - len(kept)} pages of documents' if given else ''}, batches of "
        f"{config.batch_size} at {config.learning_rate:g}, AdamW, seed {seed}; epoch {best.number} by validation loss",
        "masked_accuracy": round(best.validation.accuracy, 4),
        "masked_loss": round(best.validation.loss, 4),
        "minutes": round((time.perf_counter() - began) / 60, 1),
        "parameters": sum(p.numel() for p in model.module.parameters()),
    }
    if kept:
        card["masked_accuracy_of_documents"] = round(validate(model, kept, batch_size=16, seed=seed).accuracy, 4)
    folder = out / f"{architecture}-tiny"
    (save_for_transformers if architecture == WORDS_OF_V3 else save_encoder)(model, folder)
    seen = Lineage(UNKNOWN, "synthetic pages, and documents that its maker named") if given else SYNTHETIC
    return write_lineage(folder, seen, card)
