"""The recorded recipe of the tiny encoders: masked-language training on synthetic invoices."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models.encoders.loading import save_encoder
from docleak.models.encoders.model import BACKBONES
from docleak.models.encoders.tiny import shipped_tokenizer, tiny_encoder
from docleak.training.extraction.fit import Epoch, FitConfig, fit
from docleak.training.lineage import SYNTHETIC, write_lineage

#: Invoices of the split "train", which no game is played on, and of "validation".
PAGES, VALIDATION = 2000, 100
RECIPE = FitConfig(epochs=20, batch_size=16, learning_rate=2e-3)


def make_encoder(
    architecture: str, out: Path, *, steps: int | None, seed: int, quiet: bool = False
) -> dict[str, object]:
    """Write OUT/ARCH-tiny with its card (docleak.json) and return the card; ModelError for an unknown architecture.

    ``steps`` other than the recipe's are rounded to whole epochs, of which there is one at least. The checkpoint is
    that of the best validation loss. It has never seen a picture: an eye is drawn with the head when
    a bimodal model is trained from it.
    """
    if architecture not in BACKBONES:
        raise ModelError(f"unknown encoder {architecture!r}; docleak makes tiny ones of {', '.join(BACKBONES)}.")
    per_epoch = PAGES // RECIPE.batch_size
    config = replace(RECIPE, epochs=RECIPE.epochs if steps is None else max(1, round(steps / per_epoch)))
    model = tiny_encoder(architecture, shipped_tokenizer(), seed=seed)
    began = time.perf_counter()

    def show(epoch: Epoch) -> None:
        if not quiet:
            left = (time.perf_counter() - began) / epoch.number * (config.epochs - epoch.number)
            found = f"loss {epoch.train_loss:.3f}, masked tokens guessed {epoch.validation.accuracy:.1%}"
            print(f"epoch {epoch.number} of {config.epochs}: {found}, ETA {left / 60:.0f} min", file=sys.stderr)

    train, held_out = (
        [model.encode(page) for page in make_pages(count, seed=seed, split=split)]
        for count, split in ((PAGES, "train"), (VALIDATION, "validation"))
    )
    fitted = fit(model, train, held_out, config, seed=seed, on_epoch=show)
    best = fitted.best["loss"]
    fitted.restore(model, "loss")
    card: dict[str, object] = {
        "recipe": f"{config.epochs} epochs over {PAGES} synthetic invoices (split train), batches of "
        f"{config.batch_size} at {config.learning_rate:g}, AdamW, seed {seed}; epoch {best.number} by validation loss",
        "masked_accuracy": round(best.validation.accuracy, 4),
        "masked_loss": round(best.validation.loss, 4),
        "minutes": round((time.perf_counter() - began) / 60, 1),
        "parameters": sum(p.numel() for p in model.module.parameters()),
    }
    folder = out / f"{architecture}-tiny"
    save_encoder(model, folder)
    return write_lineage(folder, SYNTHETIC, card)
