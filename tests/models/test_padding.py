"""Losses of padded batches are those of ``transformers``: what a foreign client's loss is made of can be imitated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients.local_steps import LONGEST, UNPADDED, Batching
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, ModelError
from docleak.models import Encoded, load_model, pixels_of
from docleak.models.base import IGNORED, pad


@lru_cache(maxsize=2)
def batch_of(name: str) -> tuple[Any, Tensor, list[Encoded]]:
    """Two pages and questions whose texts and answers are of unlike lengths."""
    model: Any = load_model(name)
    pages = make_pages(2, seed=0, size=model.image_size)
    inputs = [model.encode(page, page.questions[i]) for i, page in enumerate(pages)]
    assert len({len(next(iter(e.tensors.values()))) for e in inputs}) == 2
    return model, torch.stack([pixels_of(page.image) for page in pages]), inputs


def loss_of_transformers(model: Any, pixels: Tensor, inputs: Sequence[Encoded], length: int) -> Tensor:
    """LayoutLMv3ForQuestionAnswering's own loss on what its tokenizer pads to ``length``."""

    def rows(name: str, value: int) -> Tensor:
        values = [e.tensors[name] for e in inputs]
        shape = (length, *values[0].shape[1:])
        full = torch.full((len(values), *shape), value)
        for row, given in zip(full, values, strict=True):
            row[: len(given)] = given
        return full

    mask = torch.stack([torch.arange(length) < len(e.tensors["input_ids"]) for e in inputs]).long()
    out = model.module(
        input_ids=rows("input_ids", model.tokenizer.pad_token_id), bbox=rows("bbox", 0), attention_mask=mask,
        pixel_values=model.normalise(pixels), start_positions=torch.stack([e.tensors["start"] for e in inputs]),
        end_positions=torch.stack([e.tensors["end"] for e in inputs]),
    )  # fmt: skip
    loss: Tensor = out.loss
    return loss


@pytest.mark.parametrize(("padding", "count"), [(LONGEST, 2), (256, 1), (256, 2)])
def test_layoutlmv3(padding: int, count: int) -> None:
    model, pixels, inputs = batch_of("layoutlmv3-start")
    pixels, inputs = pixels[:count], inputs[:count]
    longest = max(len(e.tensors["input_ids"]) for e in inputs)
    with torch.no_grad():
        theirs = loss_of_transformers(model, pixels, inputs, padding or longest)
        ours = Batching(padding).loss(model, pixels, inputs, range(count))
        alone = Batching(UNPADDED).loss(model, pixels, inputs, range(count))
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)
    assert abs(float(alone - theirs)) > 1e-4, "padding takes part in the softmax there"


def test_padding_changes_no_answer_and_no_words() -> None:
    model, pixels, inputs = batch_of("layoutlmv3-start")
    padded = [model.padded(e, 256) for e in inputs]
    for one, other in zip(model.answer(pixels, inputs), model.answer(pixels, padded), strict=True):
        assert one.text == other.text
    assert model.transcript(padded[0]) == model.transcript(inputs[0])
    assert all(len(e.tensors["bbox"]) == 256 for e in padded)
    with pytest.raises(ModelError, match="positions for 256"):
        model.padded(inputs[0], 257)


def test_donut_averages_over_the_batchs_tokens() -> None:
    model, pixels, inputs = batch_of("donut-start")
    ids = pad([e.tensors["decoder_input_ids"] for e in inputs], model.tokenizer.pad_token_id, pixels.device)
    labels = pad([e.tensors["labels"] for e in inputs], IGNORED, pixels.device)
    with torch.no_grad():
        theirs = model.module(
            pixel_values=model.normalise(pixels), decoder_input_ids=ids, labels=labels,
            decoder_attention_mask=(ids != model.tokenizer.pad_token_id).long(),
        ).loss  # fmt: skip
        ours = Batching(LONGEST, "tokens").loss(model, pixels, inputs, [0, 1])
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)


@pytest.mark.parametrize("name", ["vt5-start", "fedocvqa-start"])
def test_t5_averages_over_the_batchs_tokens(name: str) -> None:
    model, pixels, inputs = batch_of(name)
    labels = pad([e.tensors["labels"] for e in inputs], IGNORED, pixels.device)
    with torch.no_grad():
        encoded, mask = model._encoded(pixels, inputs, [0, 1])
        theirs = model.module.t5(encoder_outputs=(encoded,), attention_mask=mask, labels=labels).loss
        ours = Batching(LONGEST, "tokens").loss(model, pixels, inputs, [0, 1])
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)


def test_what_is_no_batching_is_refused() -> None:
    for wrong in ({"padding": -2}, {"mean": "sum"}):
        with pytest.raises(AttackError, match="expected a number of tokens"):
            Batching(**wrong)
