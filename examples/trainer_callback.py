"""transformers' Trainer, recorded by one callback, and audited: what one local epoch would send.

    python examples/trainer_callback.py OUT [--lora]

Trainer's own defaults: AdamW, a falling rate, clipping, shuffling, dropout. ``--lora`` trains adapters alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from somebodys_app import Questions, audit, load_model, make_clients
from transformers import Trainer, TrainingArguments

import docleak


def train(out: Path, *, lora: bool = False, dropout: float | None = None) -> Path:
    """The user's training, with the callback; the folder of what it recorded."""
    model = load_model(dropout)
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    pages = Questions(make_clients(out / "pages", 1, pages=4) / "0")
    arguments = TrainingArguments(
        str(out / "checkpoints"), num_train_epochs=1, per_device_train_batch_size=2, learning_rate=1e-3,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, remove_unused_columns=False,
    )  # fmt: skip
    tap = docleak.TrainerTap(out / "updates")
    Trainer(model, arguments, data_collator=pages.collate, train_dataset=pages, callbacks=[tap]).train()
    return out / "updates"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    audit(train(folder, lora="--lora" in sys.argv), folder / "pages" / "0")
