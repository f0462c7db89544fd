"""Central training of a small model from scratch on question answering (how the tiny checkpoints are made)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from docleak.documents.page import Page, Question
from docleak.documents.synthetic_values import KEYS
from docleak.models.base import DocumentModel, Encoded, pixels_of, trainable
from docleak.models.donut import Donut
from docleak.models.layoutlmv3 import LayoutLMv3
from docleak.models.t5 import T5Reader
from docleak.training.reading import ReadingHead, answer_cells, pointing_loss


@dataclass(frozen=True)
class PretrainConfig:
    """AdamW with linear warm-up and cosine decay; every question of a page is asked at once.

    ``reading_weight`` and ``pointing_weight`` weigh Donut's dense supervision (see ``reading``). A LayoutLMv3 or
    a T5 reader learns from words and boxes alone for the first ``text_only_steps``; patches make a step dear.
    Without ``dropout`` the model is trained in evaluation mode; ``bfloat16`` runs the forward pass in mixed precision.
    """

    steps: int = 4000
    pages_per_step: int = 8
    questions_per_page: int = 6
    learning_rate: float = 1e-3
    warmup_steps: int = 200
    weight_decay: float = 0.01
    max_norm: float = 1.0
    reading_weight: float = 1.0
    pointing_weight: float = 0.0
    dropout: bool = True
    bfloat16: bool = False
    decay: bool = True
    text_only_steps: int = 0


def learning_rate_factor(step: int, config: PretrainConfig) -> float:
    """Linear warm-up to 1, then half a cosine to 0.02 (or 1 throughout, without ``decay``)."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if not config.decay:
        return 1.0
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def batch_loss(
    model: DocumentModel, batch: Sequence[Page], config: PretrainConfig, rng: np.random.Generator,
    head: ReadingHead | None = None, *, text_only: bool = False,
) -> Tensor:  # fmt: skip
    """Mean loss over random questions of every (fitted) page of the batch, plus dense reading if there is a head."""
    inputs: list[Encoded] = []
    owners: list[int] = []
    asked: list[Question] = []
    for index, page in enumerate(batch):
        for k in rng.permutation(len(page.questions))[: config.questions_per_page]:
            inputs.append(model.encode(page, page.questions[int(k)]))
            owners.append(index)
            asked.append(page.questions[int(k)])
    if text_only and isinstance(model, LayoutLMv3 | T5Reader):
        return model.text_loss(inputs).mean()
    pixels = torch.stack([pixels_of(page.image) for page in batch])
    if head is None or not isinstance(model, Donut):
        return model.loss(pixels, inputs, owners).mean()
    cells = model.encoded(pixels)
    reading = config.reading_weight * head.loss(cells, batch, model.grid)
    if not config.pointing_weight:
        return model.decoder_loss(cells, inputs, owners).mean() + reading
    answering, attention, labels = model.attending_loss(cells, inputs, owners)
    paths = [answer_cells(batch[owner], question, model.grid) for owner, question in zip(owners, asked, strict=True)]
    return answering.mean() + reading + config.pointing_weight * pointing_loss(attention, labels, paths)


def pretrain(
    model: DocumentModel, pages: Sequence[Page], config: PretrainConfig, *, rng: np.random.Generator,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    protect: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> None:  # fmt: skip
    """Train ``model`` in place on ``pages`` (fitted on the fly), shuffled anew each epoch.

    ``protect`` is a defence: it maps each step's named gradients to those that are used; what it leaves out stays
    as it is.
    """
    head = None
    if isinstance(model, Donut) and (config.reading_weight or config.pointing_weight):
        head = ReadingHead(model.cell_width, keys=sorted(KEYS))
    parameters = [p for _, p in trainable(model.module)] + (list(head.parameters()) if head else [])
    optimiser = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: learning_rate_factor(step, config))
    model.module.train(config.dropout)
    order: list[int] = []
    for step in range(config.steps):
        if len(order) < config.pages_per_step:
            order += rng.permutation(len(pages)).tolist()
        chosen, order = order[: config.pages_per_step], order[config.pages_per_step :]
        batch = [model.fit(pages[i]) for i in chosen]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.bfloat16):
            loss = batch_loss(model, batch, config, rng, head, text_only=step < config.text_only_steps)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if protect is not None:
            named = dict(trainable(model.module))
            protected = protect({name: p.grad for name, p in named.items() if p.grad is not None})
            for name, parameter in named.items():
                parameter.grad = protected.get(name)
        torch.nn.utils.clip_grad_norm_(parameters, config.max_norm)
        optimiser.step()
        schedule.step()
        on_step(step, float(loss.detach()))
    model.module.eval()
