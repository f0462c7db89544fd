"""What asking a model costs beside a bare batched ``generate`` of the same questions.

The bare loop has its input ready: pages scaled, questions tokenised and padded, boxes and pixels in tensors; it calls
the network's encoder and transformers' greedy ``generate`` (for LayoutLMv3, which points at words, the forward pass).
``ask`` begins at the pages: it scales and encodes them, answers, and reads text and confidence. They take turns, so
that whatever else the machine does hits both alike. That both of a T5 write the same is checked first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from docleak.attacks.answers.asking import AnswersView, Item, ask
from docleak.documents.issuers import FIRST, make_issuers
from docleak.models import DocumentModel, load_model, pixels_of
from docleak.models.base import Encoded, pad
from docleak.models.donut import END, Donut
from docleak.models.layoutlmv3 import LayoutLMv3
from docleak.models.t5 import T5Reader

PAGES, BATCH = 8, 16
ROUNDS = 7
#: Answers per second of ``ask``, as a share of the bare loop's.
TARGET = 0.9
#: A random start never stops by itself: it writes this much, about as long as an answer is.
ANSWER_TOKENS = 8
MODELS = ("vt5-start", "fedocvqa-start", "donut-trained", "layoutlmv3-trained")


def measure() -> dict[str, dict[str, float]]:
    """Per model: answers per second of both, and the median ratio with its quartiles."""
    return {name: _measure(load_model(name)) for name in MODELS}


def _measure(model: DocumentModel) -> dict[str, float]:
    pages = make_issuers([FIRST + i for i in range(PAGES)], [1] * PAGES, seed=0)
    items = [Item(page, question) for page in list(pages) for question in page.questions]
    batches = [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
    if isinstance(model, T5Reader):
        model.config = replace(model.config, max_answer_tokens=ANSWER_TOKENS)
    ready = [_ready(model, batch) for batch in batches]
    view = AnswersView(model)

    def bare() -> None:
        with torch.no_grad():
            for generate in ready:
                generate()

    def asking() -> None:
        ask(view, items, batch_size=BATCH)

    bare()
    said = [spoken.text for spoken in ask(view, items, batch_size=BATCH)]
    if isinstance(model, T5Reader):
        written = [model.tokenizer.decode(ids, skip_special_tokens=True).strip() for run in ready for ids in run()]
        if written != said:
            raise RuntimeError("the bare loop writes other answers than ask: their times cannot be compared")
    seconds = [(_time(bare), _time(asking)) for _ in range(ROUNDS)]
    lower, ratio, upper = statistics.quantiles([plain / ours for plain, ours in seconds], n=4)
    return {
        "questions": len(items),
        "pages": PAGES,
        "bare_per_second": len(items) / statistics.median(plain for plain, _ in seconds),
        "ask_per_second": len(items) / statistics.median(ours for _, ours in seconds),
        "ratio": ratio,
        "ratio_lower_quartile": lower,
        "ratio_upper_quartile": upper,
        "target": TARGET,
    }


def _ready(model: DocumentModel, batch: Sequence[Item]) -> Callable[[], Any]:
    """The bare loop on a batch, its input already in tensors, one picture per question."""
    fitted = [model.fit(item.page) for item in batch]
    inputs = [model.encode(page, item.question) for page, item in zip(fitted, batch, strict=True)]
    pixels = model.normalise(torch.stack([pixels_of(page.image) for page in fitted]))
    if isinstance(model, T5Reader):
        return _t5(model, pixels, inputs)
    if isinstance(model, Donut):
        return _donut(model, pixels, inputs)
    assert isinstance(model, LayoutLMv3)
    padding = {"input_ids": model.module.config.pad_token_id, "bbox": 0}
    text = {name: pad([e.tensors[name] for e in inputs], value, pixels.device) for name, value in padding.items()}
    mask = pad([torch.ones_like(e.tensors["input_ids"]) for e in inputs], 0, pixels.device)
    return lambda: model.module(**text, attention_mask=mask, pixel_values=pixels)


def _t5(model: T5Reader, pixels: torch.Tensor, inputs: Sequence[Encoded]) -> Callable[[], Any]:
    from transformers.modeling_outputs import BaseModelOutput

    ids = pad([e.tensors["input_ids"] for e in inputs], model.tokenizer.pad_token_id, pixels.device)
    boxes = pad([e.tensors["bbox"] for e in inputs], 0, pixels.device)
    lengths = [len(e.tensors["input_ids"]) for e in inputs]
    limit = model.config.max_answer_tokens

    def generate() -> Any:
        rows = model.module.rows(pixels, range(len(inputs)), ids, boxes, lengths)
        mask = pad([torch.ones(len(row), dtype=torch.long) for row in rows], 0, pixels.device)
        embedded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        hidden = model.module.t5.encoder(inputs_embeds=embedded, attention_mask=mask).last_hidden_state
        return model.module.t5.generate(
            encoder_outputs=BaseModelOutput(hidden), attention_mask=mask, max_new_tokens=limit, do_sample=False
        )

    return generate


def _donut(model: Donut, pixels: torch.Tensor, inputs: Sequence[Encoded]) -> Callable[[], Any]:
    """Prompts padded on the left, as ``generate`` wants them."""
    prompts = [e.tensors["prompt_ids"] for e in inputs]
    ids = pad([prompt.flip(0) for prompt in prompts], model.module.config.pad_token_id, pixels.device).flip(1)
    mask = pad([torch.ones_like(prompt) for prompt in prompts], 0, pixels.device).flip(1)
    stop = [model.tokenizer.eos_token_id, model.tokenizer.convert_tokens_to_ids(END)]
    limit = min(model.max_answer_tokens, model.positions - ids.shape[1])

    def generate() -> Any:
        return model.module.generate(
            pixel_values=pixels, decoder_input_ids=ids, decoder_attention_mask=mask, max_new_tokens=limit,
            do_sample=False, eos_token_id=stop,
        )  # fmt: skip

    return generate


def _time(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def as_markdown(rows: dict[str, dict[str, float]]) -> str:
    """The numbers as a section for people."""
    lines = [
        "",
        "## Answers, beside bare batched `generate`",
        "",
        "| model | ask, answers per second | bare loop | ratio (quartiles) | target |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        spread = f"{row['ratio_lower_quartile']:.3f}-{row['ratio_upper_quartile']:.3f}"
        speeds = f"{row['ask_per_second']:.1f} | {row['bare_per_second']:.1f}"
        verdict = "met" if row["ratio"] >= row["target"] else "missed"
        lines.append(f"| `{name}` | {speeds} | {row['ratio']:.3f} ({spread}) | {verdict}: {row['target']:.2f} |")
    some = next(iter(rows.values()))
    lines += [
        "",
        f"{some['questions']:.0f} questions about {some['pages']:.0f} synthetic pages in batches of {BATCH}; medians "
        f"of {ROUNDS} rounds, the",
        "two taking turns. The bare loop's input is ready in tensors, one picture per question (`bench/answers.py`).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, row in measure().items():
        print(name, {key: round(value, 3) for key, value in row.items()})
