"""A realistic run that no attack made: synthetic pages, and blends of truth, template and noise as reconstructions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docleak.documents import Image, Page, blank_template, load_pages, private_mask
from docleak.metrics import OcrEngine, Reading, score_page
from docleak.runs.run import Run

MODELS = {"donut-start": ("Donut (tiny), start of federated training", "start", 0.0),
          "donut-trained": ("Donut (tiny), trained on synthetic invoices", "trained", 0.62)}  # fmt: skip
ATTACKS = {
    "gi-dqa": (
        "GI-DQA with whitened matching, grey pixels and bounded L-BFGS (default)",
        "Ben Hemo et al. (2025)",
        0.04,
    ),
    "dlg": ("Deep leakage from gradients: squared distance, L-BFGS", "Zhu et al. (2019)", 0.55),
    "random": ("random pixels: the floor of every attack", "", 1.0),
}
#: A text that linear algebra read in part, and none of the fields.
TEXT = {"exact": False, "believed_exact": False, "tokens": 9, "tokens_right": 5, "wrong_parts": ["labels"],
        "conditions": [], "seconds": 0.2, "question": "Who ?", "answer": "", "words": []}  # fmt: skip
THREAT = {
    "title": "Honest-but-curious server of a federated training",
    "adversary": "the server (or whoever reads its traffic): it follows the protocol and looks at what it receives",
    "sees": ["one client's gradient of every trainable parameter, computed on one example, with dropout off",
             "the weights the client started from"],
    "knows": ["the blank template of the page and where its private fields are", "the client's question", "the answer"],
    "wants": "the private fields' pixels, legible enough for an OCR engine to read",
    "cannot": ["change the model or the protocol", "see any page, or the other clients' data"],
}  # fmt: skip


class BlurEngine:
    """Reads what the page says where the picture is close to it, with an error per 12 grey levels of distance."""

    name, version = "fake", "1"

    def __init__(self, page: Page) -> None:
        fields = page.private_fields
        self.lines = [(box, field.value) for field in fields for box in page.field_boxes(field)]
        self.page = page

    def read(self, crops: list[Image]) -> list[Reading]:
        return [self._one(crop) for crop in crops]

    def _one(self, crop: Image) -> Reading:
        for box, value in self.lines:
            x0, y0, x1, y1 = (int(np.floor(box[0])), int(np.floor(box[1])), int(np.ceil(box[2])), int(np.ceil(box[3])))
            truth = self.page.image[max(y0 - 2, 0) : y1 + 2, max(x0 - 2, 0) : x1 + 2]
            if truth.shape == crop.shape:
                errors = int(np.abs(truth.astype(float) - crop).mean() / 12)
                if errors <= 3:
                    return Reading(value[: len(value) - errors] + "?" * errors, 0.9)
        return Reading("~", 0.1)


def blend(page: Page, noise: float, rng: np.random.Generator) -> Image:
    """The true page with ``noise`` (0..1) of its private pixels' information replaced by random grey."""
    private = private_mask(page)[:, :, None]
    grey = rng.integers(0, 256, size=(page.height, page.width, 1))
    mixed = (1 - noise) * page.image + noise * grey
    return np.where(private, mixed.clip(0, 255), page.image).astype(np.uint8)


def fake_run(
    path: Path,
    *,
    pages: int = 1,
    models: tuple[str, ...] = tuple(MODELS),
    attacks: tuple[str, ...] = tuple(ATTACKS),
    engine: OcrEngine | None = None,
    page_at: int = 0,
    budget: int = 200,
    change: dict[str, Any] | None = None,
) -> Run:
    """Write a whole run; ``change`` overrides keys of every record."""
    run = Run.open(path, {"models": list(models), "attacks": list(attacks), "pages": pages, "seed": 0, "from": page_at})
    recipes = {"start": "Not trained.", "trained": "1200 steps of AdamW on synthetic invoices."}
    facts = {
        name: {"title": MODELS[name][0], "parameters": 594530, "hash": "0123abcdef", "anls": None,
               "trained": recipes[MODELS[name][1]]}
        for name in models
    }  # fmt: skip
    run.write_info("models", facts)
    run.write_info("threat_model", THREAT)
    run.write_info("command", "docleak audit --documents synthetic --seed 0")
    run.write_info("signature", f"docleak 0.1.0 | seed 0 | data 5e1f9a0b2c | {budget} evaluations")
    for page in list(load_pages("synthetic", seed=0, count=page_at + pages))[page_at:]:
        for model in models:
            for attack in attacks:
                write_fake_unit(run, page, model, attack, engine or BlurEngine(page), budget, change or {})
    return run


def write_fake_unit(
    run: Run, page: Page, model: str, attack: str, engine: OcrEngine, budget: int, change: dict[str, Any]
) -> None:
    unit = f"{model}--{page.name}--{attack}"
    rng = np.random.default_rng(len(unit))
    summary, paper, noise = ATTACKS[attack]
    noise = min(1.0, noise + MODELS[model][2])
    result, template = blend(page, noise, rng), blank_template(page)
    steps = [] if attack == "random" else [5, 25, 50, 100, 150, 200]
    for step in steps:
        run.write_snapshot(unit, step, blend(page, noise + (1 - noise) * (1 - step / 200) ** 2, rng))
    record = {
        "model": model, "model_title": MODELS[model][0], "architecture": "donut", "moment": MODELS[model][1],
        "attack": attack, "attack_summary": summary, "attack_paper": paper,
        "page": page.name, "document": page.document, "provider": page.provider,
        "question": page.questions[0].text, "answer": page.questions[0].answers[0],
        "view": {"batch_size": 1, "train_mode": False, "tensors": 133, "numbers": 594530},
        "knowledge": ["the blank template of the page, and where its private fields are",
                      "the client's question and its answer"],
        "recovered": {**TEXT, "fields_by": {"answer": [False] * len(page.private_fields)},
                      "fields_read": [False] * len(page.private_fields)},
        "self_test": {"distance": 1e-14, "passed": True, "note": ""},
        "finding": {"matching": noise / 10, "explained": 1 - noise**2, "evaluations": budget if steps else 0,
                    "budget": budget, "seconds": 31.0 if steps else 0.2, "history": [[s, 1 / s] for s in steps]},
        "images": {"truth": "truth.png", "template": "template.png", "reconstruction": "reconstruction.png"},
        "fields": [{"key": f.key, "value": f.value, "boxes": [list(b) for b in page.field_boxes(f)]}
                   for f in page.private_fields],
        "score": score_page(page, result, engine).to_json(),
        "floor": score_page(page, template, engine).to_json(),
        "ceiling": score_page(page, page.image, engine).to_json(),
    }  # fmt: skip
    pictures = {"truth": page.image, "template": template, "reconstruction": result}
    run.write_unit(unit, {**record, **change}, pictures)


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    """``fake_run``; test modules cannot import it, since pytest imports them by path."""
    return fake_run
