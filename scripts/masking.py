"""Masked words (Devlin et al., 2019), so that a small text classifier for pairs begins from something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: What the loss leaves aside.
NOT_ASKED = -100


@dataclass(frozen=True)
class MaskingConfig:
    """AdamW for ``steps`` batches, its step falling to zero as a cosine; ``share`` of the words is asked for."""

    steps: int = 800
    batch_size: int = 64
    learning_rate: float = 2e-3
    share: float = 0.15
    longest: int = 40


def train_masked(
    classifier: Any,
    texts: Sequence[str],
    tokenizer: Any,
    config: MaskingConfig,
    *,
    seed: int,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> Any:
    """Train the encoder of a BertForSequenceClassification in place; return the BertForMaskedLM that shares it.

    The pooler, which masked words do not reach, stays as it was drawn.
    """
    import transformers

    masked = transformers.BertForMaskedLM(classifier.config)
    masked.bert.embeddings, masked.bert.encoder = classifier.bert.embeddings, classifier.bert.encoder
    masked.cls.predictions.decoder.weight = masked.bert.embeddings.word_embeddings.weight
    masked.train()
    rng, draws = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(masked.parameters(), lr=config.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, config.steps)
    for step in range(config.steps):
        batch = [texts[int(i)] for i in rng.integers(len(texts), size=config.batch_size)]
        ids, mask, asked = _masked(batch, tokenizer, config, draws)
        logits = masked(input_ids=ids, attention_mask=mask).logits
        loss = F.cross_entropy(logits.flatten(0, 1), asked.flatten(), ignore_index=NOT_ASKED)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(masked.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        on_step(step + 1, float(loss.detach()))
    classifier.eval()
    return masked.eval()


@torch.no_grad()
def guessed(masked: Any, texts: Sequence[str], tokenizer: Any, config: MaskingConfig, *, seed: int) -> float:
    """Of the words of unseen texts that are asked for, the share that is guessed."""
    ids, mask, asked = _masked(texts, tokenizer, config, torch.Generator().manual_seed(seed))
    best = masked(input_ids=ids, attention_mask=mask).logits.argmax(-1)
    return float((best == asked)[asked != NOT_ASKED].float().mean())


def _masked(
    texts: Sequence[str], tokenizer: Any, config: MaskingConfig, draws: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids (B, T) with masks in them, the mask of tokens, and what is asked for."""
    rows = tokenizer(
        list(texts), padding=True, truncation=True, max_length=config.longest, return_special_tokens_mask=True,
        return_tensors="pt",
    )  # fmt: skip
    ids = rows["input_ids"]
    chosen = (torch.rand(ids.shape, generator=draws) < config.share) & (rows["special_tokens_mask"] == 0)
    return ids.masked_fill(chosen, tokenizer.mask_token_id), rows["attention_mask"], ids.masked_fill(~chosen, NOT_ASKED)
