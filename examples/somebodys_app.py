"""An ordinary app that is not docleak's: pages, a LayoutLMv3 of transformers, and how it reads them.

The other examples train it by Trainer, Flower and NVFlare. Nothing here knows of an audit.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import AutoTokenizer, LayoutLMv3ForQuestionAnswering

import docleak
from docleak.documents import Page
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages

#: A LayoutLMv3 of 0.3 million weights with transformers' own dropout; any folder of save_pretrained does.
MODEL = Path(docleak.__file__).parent / "models" / "checkpoints" / "layoutlmv3-start"
SIDE = 224
#: Of the table of steps and batch sizes one cell, and short attacks: an example takes a minute and not ten.
QUICK = ("--steps=1", "--batch-sizes=1", "--budget=30", "--picture-budget=20", "--workers=1")


def make_clients(folder: Path, clients: int, pages: int = 2) -> Path:
    """A folder of made-up invoices for every client, one question about each: FOLDER/0, FOLDER/1 ..."""
    for client in range(clients):
        if not (folder / str(client)).is_dir():
            made = make_pages(pages, seed=40 + client, size=(SIDE, SIDE))
            save([_asked(page) for page in made], folder / str(client))
    return folder


def _asked(page: Page) -> Page:
    return replace(page, questions=page.questions[:1])


def load_model(dropout: float | None = None) -> LayoutLMv3ForQuestionAnswering:
    """The model; ``dropout`` replaces the rate in its configuration."""
    rates = {} if dropout is None else {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return LayoutLMv3ForQuestionAnswering.from_pretrained(str(MODEL), **rates)


class Questions(Dataset[dict[str, Any]]):
    """Questions about the pages of a folder, as transformers' tokenizer and model take them, padded to ``length``."""

    def __init__(self, folder: Path, length: int | None = None) -> None:
        self.pages = [(page, question) for page in docleak.load_pages(folder) for question in page.questions]
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(MODEL))
        self.length = length

    def __len__(self) -> int:
        return len(self.pages)

    def __getitem__(self, number: int) -> dict[str, Any]:
        page, question = self.pages[number]
        height, width = page.image.shape[:2]
        scale = np.array([width, height, width, height]) / 1000
        boxes = [[int(value) for value in np.array(word.box) / scale] for word in page.words]
        padding = {"padding": "max_length", "max_length": self.length} if self.length else {}
        out = self.tokenizer(question.text, [word.text for word in page.words], boxes=boxes, **padding)
        answer = next(field.words for field in page.fields if field.key == question.key)
        places = zip(out.word_ids(), out.sequence_ids(), strict=True)
        tokens = [i for i, (word, part) in enumerate(places) if part == 1 and word in answer]
        pixels = torch.from_numpy(page.image.copy()).permute(2, 0, 1) / 255.0
        return {
            **{key: torch.tensor(value) for key, value in out.items()}, "pixel_values": (pixels - 0.5) / 0.5,
            "start_positions": torch.tensor(tokens[0]), "end_positions": torch.tensor(tokens[-1]),
        }  # fmt: skip

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """A batch, padded to its longest text."""
        names = [key for key in rows[0] if key not in ("pixel_values", "start_positions", "end_positions")]
        text = self.tokenizer.pad({key: [row[key].tolist() for row in rows] for key in names}, return_tensors="pt")
        return {**text, **{key: torch.stack([row[key] for row in rows]) for key in set(rows[0]) - set(names)}}


def audit(updates: Path, pages: Path, *options: str) -> None:
    """``docleak audit updates`` as anybody would type it; prints what it says."""
    from docleak.cli import main

    words = [
        "audit",
        "updates",
        str(updates),
        "--documents",
        str(pages),
        "--out",
        str(updates.parent / "audit"),
        *QUICK,
    ]
    print("$ docleak", shlex.join([*words, *options]))
    sys.argv = ["docleak", *words, *options]
    main()
