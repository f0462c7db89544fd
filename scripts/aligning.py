"""Contrastive training of the tiny aligner (Radford et al., 2021): the texts of a batch tell its pictures apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from docleak.documents.pairs import Pair
from docleak.models.base import pixels_of
from docleak.models.pair.aligner import TinyAligner, one_hot


@dataclass(frozen=True)
class AligningConfig:
    """AdamW over ``epochs`` epochs of ``batch_size`` pairs, its step falling to zero as a cosine.

    Each picture gets normal noise of a deviation between 0 and ``noise`` (in pixels of [0, 1]): what the aligner will
    see are pictures in the making, and what it must not learn are patterns that noise can imitate.
    """

    epochs: int = 12
    batch_size: int = 128
    learning_rate: float = 2e-3
    longest: int = 40
    noise: float = 0.3


def train_aligner(
    aligner: TinyAligner,
    pairs: Sequence[Pair],
    tokenizer: Any,
    config: AligningConfig,
    *,
    rng: np.random.Generator,
    on_epoch: Callable[[int, float], None] = lambda number, loss: None,
) -> None:
    """Train in place. Pictures must be of one size. A text that occurs twice in a batch is right for both pictures."""
    pixels = torch.stack([pixels_of(pair.image) for pair in pairs])
    ids, mask, texts = encode(pairs, tokenizer, config.longest)
    network = aligner.network.train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=config.learning_rate)
    steps = config.epochs * (len(pairs) // config.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    draws = torch.Generator().manual_seed(int(rng.integers(2**62)))
    for epoch in range(config.epochs):
        losses = []
        for batch in _batches(len(pairs), config.batch_size, rng):
            loss = contrastive(
                network.image(noisy(pixels[batch], config.noise, draws)),
                network.text(one_hot(ids[batch], network.config.vocabulary), mask[batch]),
                texts[batch],
                network.scale.exp(),
            )
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
        on_epoch(epoch + 1, float(np.mean(losses)) if losses else float("nan"))
    network.eval()


def noisy(pixels: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Pixels (B, 3, H, W) plus normal noise, each picture's of a deviation drawn from [0, most]; kept in [0, 1]."""
    if not most:
        return pixels
    size = most * torch.rand(len(pixels), 1, 1, 1, generator=generator)
    return (pixels + size * torch.randn(pixels.shape, generator=generator)).clamp(0, 1)


def encode(pairs: Sequence[Pair], tokenizer: Any, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids (N, T) without special tokens, their mask, and (N,) which texts are the same."""
    rows = tokenizer(
        [p.text for p in pairs], add_special_tokens=False, padding=True, truncation=True, max_length=longest,
        return_tensors="pt",
    )  # fmt: skip
    numbers = {text: number for number, text in enumerate(dict.fromkeys(p.text for p in pairs))}
    return rows["input_ids"], rows["attention_mask"].bool(), torch.tensor([numbers[p.text] for p in pairs])


def contrastive(image: Tensor, text: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """Cross-entropy both ways of scaled similarities (B, B), spread evenly over pairs with the same text."""
    logits = scale * image @ text.T
    same = (texts[:, None] == texts[None]).to(logits.dtype)
    target = same / same.sum(1, keepdim=True)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


@torch.no_grad()
def similarity_of(aligner: TinyAligner, pairs: Sequence[Pair], tokenizer: Any) -> Tensor:
    """(N, N): how near each picture (row) is to each text."""
    ids, mask, _ = encode(pairs, tokenizer, aligner.network.config.longest)
    image = aligner.image(torch.stack([pixels_of(p.image) for p in pairs]))
    return image @ aligner.text(one_hot(ids, aligner.network.config.vocabulary), mask).T


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    order = rng.permutation(count)
    for first in range(0, count - size + 1, size):
        yield torch.from_numpy(order[first : first + size])
