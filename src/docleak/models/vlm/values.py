"""Losses that are derived once at most, quickly; and many answers to one question about a page, which are read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from docleak.models.base import IGNORED, DocumentModel, Encoded, mean_per_example, pad

if TYPE_CHECKING:
    from docleak.models.vlm.model import VisionLanguage


@contextmanager
def derived_once(model: DocumentModel) -> Iterator[None]:
    """Of a vision-language model attention by PyTorch's own kernels, twice as fast, which have no second derivative;
    other models stay as they are."""
    config = getattr(model, "attention_config", None)
    if config is None:
        yield
        return
    before = config._attn_implementation
    config._attn_implementation = "sdpa" if before == "eager" else before
    try:
        yield
    finally:
        config._attn_implementation = before


def one_prompt(model: VisionLanguage, inputs: Sequence[Encoded], pages: Sequence[int]) -> bool:
    """Whether all ``inputs`` are one question about one page, answers alone are labelled, and the model is a decoder
    whose cache may be repeated: those that place tokens by the picture's grid (Qwen's) number them anew in each call.
    """
    if model.two_sided or len(inputs) < 2 or len(set(pages)) > 1:
        return False
    if any("grid" in name for name in model.picture.constants):
        return False
    prompt = inputs[0].tensors["prompt_ids"]
    return all(
        torch.equal(prompt, one.tensors["prompt_ids"]) and bool((one.tensors["labels"][: len(prompt)] == IGNORED).all())
        for one in inputs
    )


def losses_of_values(model: VisionLanguage, pixels: Tensor, inputs: Sequence[Encoded]) -> Tensor:
    """``model.loss`` of inputs that are ``one_prompt``, (N,), from that page's pixels (1, 3, H, W): the decoder goes
    over page and question once, and over every answer from there."""
    device, count, length = pixels.device, len(inputs), len(inputs[0].tensors["prompt_ids"])
    names = ["input_ids", *model.types_of(inputs[0])]
    asked = {name: inputs[0].tensors[name][None, :length].to(device) for name in names}
    mask = torch.ones_like(asked["input_ids"])
    read = model.module(**asked, attention_mask=mask, **model.picture(pixels), use_cache=True)
    cache = read.past_key_values
    cache.batch_repeat_interleave(count)
    said = [one.tensors["input_ids"][length:] for one in inputs]
    fed = {name: pad([one.tensors[name][length:] for one in inputs], 0, device) for name in names[1:]}
    fed["input_ids"] = pad(said, int(model.tokenizer.pad_token_id), device)
    there = pad([torch.ones_like(row) for row in said], 0, device)
    mask = torch.cat([mask.expand(count, -1), there], 1)
    logits = model.module(**fed, attention_mask=mask, past_key_values=cache, use_cache=True).logits
    first = read.logits[:, -1:].expand(count, -1, -1)
    return mean_per_example(torch.cat([first, logits[:, :-1]], 1), pad(said, IGNORED, device))
