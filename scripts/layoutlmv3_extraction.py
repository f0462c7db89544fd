"""A LayoutLMv3ForTokenClassification of transformers, fine-tuned on pages, to play CDMI's game on.

    docleak models pretrain layoutlmv3-words STARTS --documents sroie:DIR     # other receipts than those of the game
    python -m scripts.layoutlmv3_extraction OUT --start STARTS/layoutlmv3-words-tiny --private FOLDER --public FOLDER
    docleak audit weights --target OUT/model --model OUT/start --documents OUT/private --public-documents OUT/public

Training is transformers' own: its head, its loss, AdamW, dropout as the start has it; nothing of docleak's but the
pages and the backbone that both models begin with. Without ``--start`` that is one that the package ships, which never
learnt words; without folders the pages are invoices. ``--head answers`` fine-tunes a LayoutLMv3ForQuestionAnswering.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, LayoutLMv3ForQuestionAnswering, LayoutLMv3ForTokenClassification

from docleak.documents import Page, load_pages
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.models.encoders.loading import words_alone
from docleak.models.encoders.tasks import classes_of
from docleak.models.shipped import CHECKPOINTS

SIDE, BATCH = 224, 8
Rows = list[dict[str, Tensor]]


def main() -> None:
    """Make the pages, fine-tune, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", default=str(CHECKPOINTS / "layoutlmv3-start"), help="a folder of transformers'")
    parser.add_argument("--private", default="", help="pages to fine-tune on, as docleak opens them")
    parser.add_argument("--public", default="", help="pages like them")
    parser.add_argument("--head", choices=("tags", "answers"), default="tags")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--pages", type=int, default=40, help="of each part")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    made = {"private": {"seed": asked.seed + 1}, "public": {"seed": asked.seed + 2, "split": "train"}}
    for name, how in made.items():
        given = getattr(asked, name)
        pages = (
            load_pages(given, seed=0, count=asked.pages) if given else make_pages(asked.pages, size=(SIDE, SIDE), **how)
        )
        save(pages, asked.out / name)
    shutil.copytree(asked.start, asked.out / "start")
    private = load_pages(str(asked.out / "private"), seed=0)
    tokenizer, config = AutoTokenizer.from_pretrained(asked.start), AutoConfig.from_pretrained(asked.start)
    model, rows = (_tags if asked.head == "tags" else _answers)(private, words_alone(tokenizer), config, asked.start)
    _train(model, rows, tokenizer.pad_token_id, epochs=asked.epochs, rate=asked.rate)
    model.save_pretrained(asked.out / "model")
    tokenizer.save_pretrained(asked.out / "model")


def _tags(pages: Sequence[Page], tokenizer: Any, config: Any, start: str) -> tuple[Any, Rows]:
    labels = ["O", *(f"{part}-{name}" for name in classes_of(pages) for part in "BI")]
    config.id2label, config.num_labels = dict(enumerate(labels)), len(labels)
    model = LayoutLMv3ForTokenClassification.from_pretrained(start, config=config)
    rows = []
    for page in pages:
        of_word = {index: (field.key, number) for field in page.fields for number, index in enumerate(field.words)}
        out = _read(tokenizer, config, [word.text for word in page.words])
        tags, before = [], None
        for word in out.word_ids():
            key, number = of_word.get(word, ("", 0)) if word is not None else ("", 0)
            first = number == 0 and word != before
            tags.append(-100 if word is None else labels.index(f"{'B' if first else 'I'}-{key}") if key else 0)
            before = word
        rows.append({**_inputs(out, page, config.input_size), "labels": torch.tensor(tags)})
    return model, rows


def _answers(pages: Sequence[Page], tokenizer: Any, config: Any, start: str) -> tuple[Any, Rows]:
    model = LayoutLMv3ForQuestionAnswering.from_pretrained(start)
    rows = []
    for page in pages:
        words = {field.key: field.words for field in page.fields}
        for question in page.questions:
            out = _read(tokenizer, config, question.text.split(), [word.text for word in page.words])
            owners = zip(out.word_ids(), out.sequence_ids(), strict=True)
            answer = words.get(question.key or "", ())
            places = [place for place, (word, part) in enumerate(owners) if part == 1 and word in answer]
            if places:
                span = {"start_positions": torch.tensor(places[0]), "end_positions": torch.tensor(places[-1])}
                rows.append({**_inputs(out, page, config.input_size), **span})
    return model, rows


def _read(tokenizer: Any, config: Any, *words: list[str]) -> Any:
    most = config.max_position_embeddings - 1 - config.pad_token_id
    return tokenizer(
        *words, is_split_into_words=True, truncation="only_second" if len(words) > 1 else True, max_length=most
    )


def _inputs(out: Any, page: Page, side: int) -> dict[str, Tensor]:
    picture = np.asarray(PIL.Image.fromarray(page.image).resize((side, side), PIL.Image.Resampling.BILINEAR))
    boxes, last = _boxes(page), max(part or 0 for part in out.sequence_ids())  # the page is behind the question
    places = [
        boxes[word] if word is not None and part == last else [0] * 4
        for word, part in zip(out.word_ids(), out.sequence_ids(), strict=True)
    ]
    return {
        "input_ids": torch.tensor(out["input_ids"]),
        "attention_mask": torch.tensor(out["attention_mask"]),
        "bbox": torch.tensor(places),
        "pixel_values": torch.from_numpy(picture.copy()).permute(2, 0, 1) / 127.5 - 1,
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
