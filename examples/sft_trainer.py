"""TRL's SFTTrainer with LoRA on a vision-language model, recorded by one callback, and audited.

    pip install trl; python examples/sft_trainer.py OUT

The model is a tiny LLaVA of random weights in the files of the real one; questions are asked and answered as TRL's
documentation has it: prompt, completion, images.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from PIL import Image
from somebodys_app import audit, make_clients
from transformers import AutoProcessor
from trl import SFTConfig, SFTTrainer

import docleak
from docleak.models.vlm.tiny import make_tiny

SIZE = (224, 224)


def rows(folder: str) -> Iterator[dict[str, Any]]:
    """A prompt, a completion and a picture for every question."""
    for page in docleak.load_pages(folder):
        for question in page.questions:
            asked = [{"type": "image"}, {"type": "text", "text": question.text}]
            said = [{"type": "text", "text": question.answers[0]}]
            yield {
                "prompt": [{"role": "user", "content": asked}], "completion": [{"role": "assistant", "content": said}],
                "images": [Image.fromarray(page.image).resize(SIZE)],
            }  # fmt: skip


def train(out: Path) -> Path:
    """The user's training, with the callback; the folder of what it recorded."""
    model = out / "tiny-llava"
    if not model.is_dir():
        make_tiny("llava", model, seed=0)
    trainer = SFTTrainer(
        str(model), SFTConfig(
            str(out / "checkpoints"), num_train_epochs=1, per_device_train_batch_size=1, learning_rate=1e-3,
            max_length=None, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_generator(
            rows, gen_kwargs={"folder": str(make_clients(out / "pages", 1) / "0")}, cache_dir=str(out / "cache")
        ),
        processing_class=AutoProcessor.from_pretrained(str(model)),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
        callbacks=[docleak.TrainerTap(out / "updates")],
    )  # fmt: skip
    trainer.train()
    return out / "updates"


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    audit(train(folder), folder / "pages" / "0")
