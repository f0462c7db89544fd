"""A LayoutLMv3ForTokenClassification of transformers, fine-tuned on invoices, to play CDMI's game on.

    python -m scripts.layoutlmv3_extraction OUT [--head tags|answers] [--epochs 100]
    docleak audit weights --attack cdmi:candidates=16 --target OUT/model --model OUT/start \\
        --documents OUT/private --public-documents OUT/public --attempts 1 --no-calibrate

Training is transformers' own: its head, its loss, its tokenizer, AdamW, dropout; nothing of docleak's but the pages,
and the backbone that both models begin with (a tiny one that the package ships). ``--head answers`` fine-tunes a
LayoutLMv3ForQuestionAnswering instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoTokenizer,
    LayoutLMv3ForQuestionAnswering,
    LayoutLMv3ForTokenClassification,
    LayoutLMv3Model,
)

from docleak.documents import Page
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.models.encoders.tasks import classes_of
from docleak.models.shipped import CHECKPOINTS

START = CHECKPOINTS / "layoutlmv3-start"
SIDE, BATCH = 224, 8
Rows = list[dict[str, Tensor]]


def main() -> None:
    """Make the pages, fine-tune, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--head", choices=("tags", "answers"), default="tags")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--pages", type=int, default=40)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    private = make_pages(asked.pages, seed=asked.seed + 1, size=(SIDE, SIDE))
    public = make_pages(asked.pages, seed=asked.seed + 2, size=(SIDE, SIDE), split="train")
    for name, pages in (("private", private), ("public", public)):
        save(pages, asked.out / name)
    tokenizer = AutoTokenizer.from_pretrained(str(START))
    LayoutLMv3Model.from_pretrained(str(START)).save_pretrained(asked.out / "start")
    tokenizer.save_pretrained(asked.out / "start")
    model, rows = _tags(private, tokenizer) if asked.head == "tags" else _answers(private, tokenizer)
    _train(model, rows, tokenizer.pad_token_id, epochs=asked.epochs, rate=asked.rate)
    model.save_pretrained(asked.out / "model")
    tokenizer.save_pretrained(asked.out / "model")


def _tags(pages: Sequence[Page], tokenizer: Any) -> tuple[Any, Rows]:
    classes = classes_of(pages)
    labels = ["O", *(f"{part}-{name}" for name in classes for part in "BI")]
    config = AutoConfig.from_pretrained(str(START), id2label=dict(enumerate(labels)))
    model = LayoutLMv3ForTokenClassification.from_pretrained(str(START), config=config)
    rows = []
    for page in pages:
        of_word = {index: (field.key, number) for field in page.fields for number, index in enumerate(field.words)}
        out = tokenizer([word.text for word in page.words], boxes=_boxes(page))
        tags, before = [], None
        for word in out.word_ids():
            key, number = of_word.get(word, ("", 0)) if word is not None else ("", 0)
            first = number == 0 and word != before
            tags.append(-100 if word is None else labels.index(f"{'B' if first else 'I'}-{key}") if key else 0)
            before = word
        rows.append({**_inputs(out, page), "labels": torch.tensor(tags)})
    return model, rows


def _answers(pages: Sequence[Page], tokenizer: Any) -> tuple[Any, Rows]:
    model = LayoutLMv3ForQuestionAnswering.from_pretrained(str(START))
    rows = []
    for page in pages:
        words = {field.key: field.words for field in page.fields}
        for question in page.questions:
            out = tokenizer(question.text, [word.text for word in page.words], boxes=_boxes(page))
            owners = zip(out.word_ids(), out.sequence_ids(), strict=True)
            answer = words.get(question.key or "", ())
            places = [place for place, (word, part) in enumerate(owners) if part == 1 and word in answer]
            if places:
                span = {"start_positions": torch.tensor(places[0]), "end_positions": torch.tensor(places[-1])}
                rows.append({**_inputs(out, page), **span})
    return model, rows


def _inputs(out: Any, page: Page) -> dict[str, Tensor]:
    pixels = torch.from_numpy(page.image.copy()).permute(2, 0, 1) / 127.5 - 1
    return {name: torch.tensor(out[name]) for name in ("input_ids", "attention_mask", "bbox")} | {
        "pixel_values": pixels
    }


def _boxes(page: Page) -> list[list[int]]:
    scale = np.array([1000 / page.width, 1000 / page.height] * 2)
    return [[int(value) for value in (np.array(word.box) * scale).round().clip(0, 1000)] for word in page.words]


def _train(model: Any, rows: Rows, pad: int, *, epochs: int, rate: float) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, epochs * -(-len(rows) // BATCH))
    model.train()
    for epoch in range(epochs):
        order, total = torch.randperm(len(rows)).tolist(), 0.0
        for start in range(0, len(rows), BATCH):
            batch = _collated([rows[i] for i in order[start : start + BATCH]], pad)
            loss = model(**batch).loss
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            total += loss.item()
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss {total * BATCH / len(rows):.4f}", flush=True)


def _collated(rows: Rows, pad: int) -> dict[str, Tensor]:
    fill = {"input_ids": pad, "attention_mask": 0, "bbox": 0, "labels": -100}
    return {
        name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True, padding_value=fill[name])
        if name in fill
        else torch.stack([row[name] for row in rows])
        for name in rows[0]
    }


if __name__ == "__main__":
    main()
