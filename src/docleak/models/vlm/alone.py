"""A client that uses ``transformers`` alone: what it feeds the network with, and the gradient it sends.

Nothing of docleak's adapter is in it, so that an adapter can be held against it (the self-test of a gradient that
docleak computed itself is 0, and says nothing).
"""

from __future__ import annotations

from typing import Any

import PIL.Image
import torch
from torch import Tensor

from docleak.documents.page import Page, Question
from docleak.models.base import IGNORED, trainable
from docleak.models.lilt import Lilt
from docleak.models.vlm.model import VisionLanguage


def fed_alone(model: VisionLanguage | Lilt, page: Page, question: Question) -> dict[str, Tensor]:
    """The whole conversation through the processor of ``transformers``, labels of the answer's tokens alone.

    ``page`` is fitted to the model. The prompts of PaliGemma, Florence-2 and GOT-OCR2 are those that docleak knows.
    """
    if isinstance(model, Lilt):
        return _of_lilt(model, page, question)
    inner: Any = model.processor.inner
    asked, said = question.text, question.answers[0]
    picture = PIL.Image.fromarray(page.image)
    if model.architecture == "paligemma":
        return dict(inner(images=[picture], text=[f"<image>answer en {asked}"], suffix=[said], return_tensors="pt"))
    if model.architecture == "udop":
        return _of_udop(model, page, question)
    if model.architecture == "pix2struct":
        return _of_pix2struct(model, page, question)
    if model.architecture == "florence2":
        inputs = dict(inner(images=[picture], text=[asked], return_tensors="pt"))
        return {**inputs, "labels": model.tokenizer([f"<s>{said}</s>"], return_tensors="pt")["input_ids"]}
    if model.architecture == "got_ocr2":
        text = model.processor.prompt.format(image="<imgpad>", question=asked)  # type: ignore[union-attr]
        inputs = dict(inner(images=[picture], text=[f"{text}{said}<|im_end|>"], return_tensors="pt"))
        mark = "assistant\n"
    else:
        turns = [
            {"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": asked}]},
            {"role": "assistant", "content": [{"type": "text", "text": said}]},
        ]
        inputs = dict(inner.apply_chat_template(turns, tokenize=True, return_dict=True, return_tensors="pt"))
        mark = "Assistant:" if model.architecture in ("idefics3", "smolvlm") else "assistant\n"
    labels = inputs["input_ids"].clone()
    start = len(model.tokenizer.decode(labels[0]).rpartition(mark)[0])
    places = [len(model.tokenizer.decode(labels[0, :t])) for t in range(labels.shape[1] + 1)]
    first = next(t for t, place in enumerate(places) if place >= start + len(mark))
    labels[0, :first] = IGNORED
    if model.tokenizer.decode(labels[0, -1:]) == "\n":  # behind what ends the answer
        labels[0, -1] = IGNORED
    return {**inputs, "labels": labels}


def _of_udop(model: VisionLanguage, page: Page, question: Question) -> dict[str, Tensor]:
    """Words with their boxes in 0..1, which the network takes, and the answer as a target text."""
    inner: Any = model.processor.inner
    picture = PIL.Image.fromarray(page.image)
    sides = (page.width, page.height) * 2
    boxes = [[int(1000 * edge / side) for edge, side in zip(word.box, sides, strict=True)] for word in page.words]
    text, words = f"Question answering. {question.text}", [word.text for word in page.words]
    inputs = dict(inner(images=[picture], text=[text], text_pair=[words], boxes=[boxes], return_tensors="pt"))
    labels = inner(text_target=[question.answers[0]], return_tensors="pt")["input_ids"]
    return {**inputs, "bbox": inputs["bbox"] / 1000, "labels": labels}


def _of_pix2struct(model: VisionLanguage, page: Page, question: Question) -> dict[str, Tensor]:
    """The page under the question, in the typeface that the model was loaded with."""
    inner: Any = model.processor.inner
    images, font = inner.image_processor, model.sheet.font  # type: ignore[attr-defined]
    written = type(images).render_header
    images.render_header = lambda image, header, **_: written(images, image, header, font_path=font)
    try:
        made = inner(
            images=PIL.Image.fromarray(page.image), text=question.text, max_patches=images.max_patches,
            return_tensors="pt",
        )  # fmt: skip
    finally:
        del images.render_header
    labels = model.tokenizer(question.answers[0], return_tensors="pt", add_special_tokens=False)["input_ids"]
    return {**made, "labels": torch.cat([labels, torch.tensor([[model.tokenizer.eos_token_id]])], 1)}


def _of_lilt(model: Lilt, page: Page, question: Question) -> dict[str, Tensor]:
    """Question, words and boxes, and the first and last token of the answer's words, which are a field's."""
    words, sides = [word.text for word in page.words], (page.width, page.height) * 2
    boxes = [[int(1000 * edge / side) for edge, side in zip(word.box, sides, strict=True)] for word in page.words]
    inputs = model.tokenizer(question.text, words, boxes=boxes, return_tensors="pt")
    said = next(field.words for field in page.fields if field.value == question.answers[0])
    owners = zip(inputs.word_ids(), inputs.sequence_ids(), strict=True)
    places = [place for place, (word, part) in enumerate(owners) if part == 1 and word in said]
    ends = {"start_positions": torch.tensor(places[:1]), "end_positions": torch.tensor(places[-1:])}
    return {**inputs, **ends}


def gradient_alone(model: VisionLanguage | Lilt, page: Page, question: Question) -> dict[str, Tensor]:
    """The gradient of the loss that ``transformers`` itself computes of this, by the network's names."""
    named = dict(trainable(model.module))
    device = next(iter(named.values())).device
    fed = {name: value.to(device) for name, value in fed_alone(model, page, question).items()}
    loss: Tensor = model.module(**fed, use_cache=False).loss
    values = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: torch.zeros_like(named[name]) if v is None else v for name, v in zip(named, values, strict=True)}
