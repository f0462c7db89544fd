"""What a defence costs: the model trained under it for a while, the bytes a client sends, the time a step takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from docleak.defenses import DEFENSES, GradientDefense
from docleak.defenses.defense import protected
from docleak.documents.page import Page
from docleak.documents.pages import remembered
from docleak.documents.synthetic import make_pages
from docleak.metrics.estimate import Estimate, ratio_of
from docleak.models import load_model, trainable
from docleak.training.federated.validation import answered
from docleak.training.pretrain import PretrainConfig, pretrain

#: A LayoutLMv3 learns from words and boxes first, as in its recorded recipe; others see everything at once.
TEXT_ONLY_SHARE = 0.9
TEST_PAGES = 20


@dataclass(frozen=True)
class Utility:
    """Quality after ``steps`` of training under a defence, on unseen pages; ``loss`` is the mean of the last tenth."""

    anls: Estimate
    loss: float
    steps: int
    seconds_per_step: float
    bytes_per_round: int


def utility_under(spec: str, source: str, *, steps: int, seed: int) -> Utility:
    """Train ``source`` on synthetic invoices for ``steps`` under the defence and ask it about unseen ones.

    The same seed gives the same pages and order under every defence. A template defence leaves training alone.
    """
    model = load_model(source, seed=seed)
    defense = DEFENSES.load(spec)
    generator = torch.Generator().manual_seed(seed)

    def protect(gradient: dict[str, Tensor]) -> dict[str, Tensor]:
        assert isinstance(defense, GradientDefense)
        return protected(defense, gradient, model, generator=generator)

    text_only = round(TEXT_ONLY_SHARE * steps) if model.architecture == "layoutlmv3" else 0
    config = PretrainConfig(steps=steps, questions_per_page=3, warmup_steps=max(1, steps // 10), reading_weight=0.0,
                            text_only_steps=text_only, dropout=False)  # fmt: skip
    losses: list[float] = []
    began = time.perf_counter()
    hook = protect if isinstance(defense, GradientDefense) else None
    pages = remembered(make_pages(1000, seed=seed, split="train", size=model.image_size))
    pretrain(
        model, pages, config, rng=np.random.default_rng(seed), on_step=lambda step, loss: losses.append(loss),
        protect=hook,
    )  # fmt: skip
    seconds = (time.perf_counter() - began) / steps
    unseen: Sequence[Page] = make_pages(TEST_PAGES, seed=seed, split="validation", size=model.image_size)
    by_page = [[similarity for similarity, _ in answered(model, page)] for page in unseen]
    anls = ratio_of(by_page, np.random.default_rng(seed))
    loss = float(np.mean(losses[-max(1, steps // 10) :]))
    return Utility(anls, loss, steps, seconds, sent_bytes(spec, source))


def sent_bytes(spec: str, source: str) -> int:
    """Bytes of one update: 4 per number, and 4 more for its place where only some are sent."""
    defense = DEFENSES.load(spec)
    model = load_model(source)
    gradient = {name: torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) for name, p in
                trainable(model.module)}  # fmt: skip
    if not isinstance(defense, GradientDefense):
        return 4 * sum(value.numel() for value in gradient.values())
    sent = protected(defense, gradient, model, generator=torch.Generator().manual_seed(0))
    total = 0
    for value in sent.values():
        kept = int((value != 0).sum())
        total += 4 * value.numel() if 2 * kept >= value.numel() else 8 * kept
    return total
