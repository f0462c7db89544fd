"""Which part of a training takes a Donut's page out of ``gi-dqa``'s reach (GI-DQA, figure 6, asks when).

    python -m scripts.training_parts --keep FOLDER --out docs/results/gi-dqa/training-parts.md [--pages 12]

The tiny Donut is trained for figure 6's 30 steps; in copies one part of it is put back to where it was drawn, or one
part alone is trained on into the model as drawn. Each is attacked on the figure's pages with its budget. Beside what is
read stand what the paper holds responsible, how widely the decoder looks, and what else may be: the loss of the
client's answer, and the gradient's size. Models and runs stay in FOLDER and are not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import docleak
from docleak.attacks.gradients.matching import dummy_gradient
from docleak.files import write_atomically
from docleak.metrics.estimate import Estimate, ratio
from docleak.metrics.sequence import mean_over_time
from docleak.models import DocumentModel, load_model, pixels_of
from docleak.models.attention import attention_maps, spread_of
from docleak.studies.gradient.case import pages_for, question_of
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.models import model_of
from docleak.studies.identity import model_key

START, STEPS, BUDGET, SEED = "donut-start", 30, 150, 0
HEADING = "## What it shows"
#: Beginnings of the names of tensors, or what they hold.
ENCODER, DECODER, LOOKING = ("encoder.embeddings.", "encoder.encoder."), ("decoder.",), (".encoder_attn",)
WORDS = (".embed_", "lm_head")


@dataclass(frozen=True)
class Variant:
    """The weights after the training where a name holds one of ``trained`` (all: ""), and none of ``put_back``."""

    name: str
    trained: tuple[str, ...] = ("",)
    put_back: tuple[str, ...] = ()

    def takes(self, tensor: str) -> bool:
        """Whether that tensor is the trained one."""
        return any(part in tensor for part in self.trained) and not any(part in tensor for part in self.put_back)


WHOLE = f"{STEPS} steps"
VARIANTS = (
    Variant("0 steps", trained=()),
    Variant(WHOLE),
    Variant(f"{WHOLE}, encoder as drawn", put_back=ENCODER),
    Variant(f"{WHOLE}, decoder as drawn", put_back=DECODER),
    Variant(f"{WHOLE}, cross-attention as drawn", put_back=LOOKING),
    Variant(f"{WHOLE}, tokens and places as drawn", put_back=WORDS),
    Variant("0 steps, cross-attention trained", trained=LOOKING),
)


def checkpoints(folder: Path, pages: int) -> dict[str, Path]:
    """Variant -> its checkpoint, made where it is not there."""
    config = GradientConfig(models=(START,), pages=pages, seed=SEED, fine_tune_steps=STEPS)
    drawn, made = load_model(START), {}
    trained = model_of(config, START, "cpu").module.state_dict()
    for variant in VARIANTS:
        made[variant.name] = at = folder / "models" / variant.name.replace(",", "").replace(" ", "-")
        if not (at / "config.json").is_file():
            model = deepcopy(drawn)
            state = {name: trained[name] if variant.takes(name) else value
                     for name, value in drawn.module.state_dict().items()}  # fmt: skip
            model.module.load_state_dict(state)
            at.mkdir(parents=True, exist_ok=True)
            model.save(str(at))
    return made


def explanations(model: DocumentModel, pages: int) -> dict[str, float]:
    """Medians over the attacked pages: loss of the answer, norm of its gradient, the encoder's part of that norm, and
    cells that the decoder looks at."""
    losses, norms, parts, cells = [], [], [], []
    names = [name for name, weight in model.module.named_parameters() if weight.requires_grad]
    for page in pages_for(model, "synthetic", count=pages, seed=SEED):
        question = question_of(page)
        encoded, pixels = [model.encode(page, question)], pixels_of(page.image)[None]
        with torch.no_grad():
            losses.append(float(model.loss(pixels, encoded)))
        gradient = dummy_gradient(model, pixels, encoded, names, create_graph=False)
        sizes = {name: float(value.norm()) for name, value in gradient.items()}
        norms.append(math.hypot(*sizes.values()))
        parts.append(math.hypot(*(size for name, size in sizes.items() if name.startswith(ENCODER))))
        cells.append(spread_of(attention_maps(model, page, question)))
    told = {"loss": losses, "norm": norms, "encoder": parts, "cells": cells}
    return {name: statistics.median(values) for name, values in told.items()}


def read_of(run: Path) -> dict[str, dict[str, list[float]]]:
    """Checkpoint -> page -> 1.0 or 0.0 of each private field, and last the PSNR of the picture."""
    reads: dict[str, dict[str, list[float]]] = {}
    for file in sorted(run.glob("units/*/unit.json")):
        unit: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        fields = [float(field["exact"]) for field in unit["score"]["fields"]]
        reads.setdefault(str(unit["model"]), {})[str(unit["page"])] = [*fields, float(unit["score"]["psnr"])]
    return reads


def row_of(variant: str, reads: dict[str, list[float]], whole: dict[str, list[float]], why: dict[str, float]) -> str:
    """A variant's row."""
    fields = [values[:-1] for values in reads.values()]
    share = ratio(np.array([sum(f) for f in fields]), np.array([len(f) for f in fields]), np.random.default_rng(SEED))
    psnr = Estimate.spread([values[-1] for values in reads.values()])
    shared = [name for name in reads if name in whole]
    more = [float(np.mean(reads[name][:-1]) - np.mean(whole[name][:-1])) for name in shared]
    low, high = mean_over_time([(value + 1) / 2 for value in more], planned=len(shared))
    gained = Estimate(float(np.mean(more)), 2 * low - 1, 2 * high - 1).text(percent=True, digits=0, signed=True)
    cells = (
        variant, share.text(1, percent=True), psnr.text(1), "" if variant == WHOLE else gained, str(len(reads)),
        f"{why['loss']:.2f}", f"{why['norm']:.2g}", f"{why['encoder']:.2g}", f"{why['cells']:,.0f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def as_markdown(rows: Sequence[str], command: str, kept: str) -> str:
    """The page, with what was written below its heading before."""
    return "\n".join([
        "# Which part of a training hides the page", "",
        f"GI-DQA's figure 6 at tiny scale: the Donut at the start of federated training, after {STEPS} steps on other",
        "pages, and after them with one part put back to where it was drawn. `gi-dqa`, "
        f"{BUDGET} evaluations, seed {SEED}.", "",
        "| model | fields read | PSNR, dB | more than after all steps | pages | loss of the answer | gradient's norm "
        "| of the encoder | cells looked at |", "|---|---|---|---|---|---|---|---|---|", *rows, "",
        "Fields with 95 % intervals over pages, PSNR with the least and the greatest page; differences by page, with",
        "an interval that holds however many were computed. Loss, norms and cells (the exponential of the entropy of",
        "the decoder's cross-attention) are medians over the pages. Cross-attention is its projections and their layer",
        "norm. A part that was put back has not been trained with the others.", "",
        f"Command: {command}  ", f"Version: docleak {docleak.__version__}, torch {torch.__version__}", "",
        HEADING, "", kept,
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, attack, write the page."""
    parser = argparse.ArgumentParser(prog="python -m scripts.training_parts", description=__doc__)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pages", type=int, default=12)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    made = checkpoints(given.keep, given.pages)
    docleak.audit(
        [str(at) for at in made.values()], "synthetic", attacks="gi-dqa", count=given.pages, seed=SEED, budget=BUDGET,
        out=given.keep / "audit", say=print,
    )  # fmt: skip
    reads = read_of(given.keep / "audit")
    whole = reads[model_key(str(made[WHOLE]), None)]
    rows = [row_of(name, reads[model_key(str(at), None)], whole, explanations(load_model(str(at)), given.pages))
            for name, at in made.items()]  # fmt: skip
    kept = ""
    if given.out.is_file():
        kept = given.out.read_text(encoding="utf-8").partition(f"{HEADING}\n\n")[2]
    command = f"python -m scripts.training_parts --keep FOLDER --out {given.out} --pages {given.pages}"
    write_atomically(given.out, as_markdown(rows, command, kept).encode())


if __name__ == "__main__":
    main()
