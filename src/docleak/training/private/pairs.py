"""DP-SGD (Abadi et al., 2016) on pairs: each modality's gradient is clipped by itself, and both count together.

A pair's two gradients are clipped to C / sqrt(2) each, so that together they move the sum by at most C; the noise on
every number has standard deviation sigma C. The optimisers are Opacus', one per modality.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docleak.errors import FederationError, PrivacyError
from docleak.models.base import trainable
from docleak.models.pair.model import MODALITIES, PairModel
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.private.records import dp_optimiser

#: What one modality's clip norm is of the whole one.
SHARE = 1 / math.sqrt(len(MODALITIES))
#: So many numbers of pairs' own gradients are in memory together, or those of one pair: 20 of BERT-large and ResNet-50
#: would be 29 GB.
AT_ONCE = 200_000_000


@dataclass(frozen=True)
class Encodings:
    """Pairs as tensors: pixels (N, 3, H, W), token ids and mask (N, T), classes (N,) of pictures and of texts."""

    pixels: Tensor
    ids: Tensor
    mask: Tensor
    labels: tuple[Tensor, Tensor]

    def rows(self, which: Sequence[int]) -> Encodings:
        """Some of them."""
        chosen = torch.as_tensor(list(which), dtype=torch.long, device=self.pixels.device)
        image, text = self.labels
        return Encodings(self.pixels[chosen], self.ids[chosen], self.mask[chosen], (image[chosen], text[chosen]))

    def __len__(self) -> int:
        return len(self.pixels)


def train_pairs(
    model: PairModel, pairs: Encodings, *, steps: int, batch_size: int, learning_rate: float, plan: DpPlan | None,
    randomness: Randomness,
) -> None:  # fmt: skip
    """Adam in place: ``steps`` steps over Poisson samples of ``batch_size`` pairs on average, private with a ``plan``.

    With a plan each pair is drawn with the plan's rate, whatever the number of pairs: that would tell of each of them;
    one whose gradient is not finite contributes nothing, for the same reason. PrivacyError unless the plan counts just
    these steps of single pairs; without one, FederationError for a step whose gradient is not finite.
    """
    rate = batch_size / len(pairs) if plan is None else plan.mechanism.unit_rate
    if plan is not None:
        wanted = Mechanism(plan.mechanism.noise_multiplier, steps, rate, unit=Unit.RECORD)
        if plan.mechanism != wanted or plan.denominator != batch_size:
            raise PrivacyError(f"the plan counts {plan.mechanism.sentence()}; the training has {wanted.sentence()}.")
    named = dict(trainable(model.module))
    groups = [[p for name, p in named.items() if model.modality(name) == m] for m in MODALITIES]
    steppers = [_stepper(group, learning_rate, plan, randomness) for group in groups]
    for number in range(1, steps + 1):
        drawn = np.flatnonzero(randomness.coins.random(len(pairs)) < rate).tolist()
        if plan is not None:
            _private_step(model, pairs, drawn, groups, steppers)
            continue
        for stepper in steppers:
            stepper.zero_grad(set_to_none=True)
        if drawn:
            batch = pairs.rows(drawn)
            loss = model.loss(batch.pixels, batch.ids, batch.mask, batch.labels).sum() / batch_size
            loss.backward()  # type: ignore[no-untyped-call]
            if not all(bool(p.grad.isfinite().all()) for p in named.values() if p.grad is not None):
                raise FederationError(
                    f"the gradient of step {number} is not finite. Lower the learning rate, or look at the pairs."
                )
        for stepper in steppers:
            stepper.step()


def at_once(model: PairModel) -> int:
    """Of how many pairs the own gradients are in memory together."""
    return max(1, AT_ONCE // sum(parameter.numel() for _, parameter in trainable(model.module)))


def _private_step(
    model: PairModel, pairs: Encodings, drawn: Sequence[int], groups: Sequence[Sequence[torch.nn.Parameter]],
    steppers: Sequence[Any],
) -> None:  # fmt: skip
    """One step over the pairs ``drawn``, of which there may be none: noise alone. Opacus adds up clipped gradients."""
    together = at_once(model)
    for start in range(0, max(1, len(drawn)), together):
        for stepper in steppers:
            stepper.zero_grad(set_to_none=True)
        _put_samples(model, pairs.rows(drawn[start : start + together]), groups)
        for stepper in steppers:
            stepper.signal_skip_step(do_skip=start + together < len(drawn))
            stepper.step()


def _stepper(
    group: list[torch.nn.Parameter], learning_rate: float, plan: DpPlan | None, randomness: Randomness
) -> torch.optim.Optimizer:
    inner = torch.optim.Adam(group, lr=learning_rate)
    if plan is None:
        return inner
    mechanism = replace(plan.mechanism, noise_multiplier=plan.mechanism.noise_multiplier / SHARE)
    of_each = replace(plan, mechanism=mechanism, clip_norm=plan.clip_norm * SHARE)
    optimiser: torch.optim.Optimizer = dp_optimiser(inner, of_each, randomness)
    return optimiser


def _put_samples(model: PairModel, batch: Encodings, groups: Sequence[Sequence[torch.nn.Parameter]]) -> None:
    """Put every pair's own gradient into ``grad_sample`` (B, ...) of the parameters, where Opacus looks for it; zeros
    for a pair of which a number is not finite."""
    parameters = [p for group in groups for p in group]
    gradients: list[list[Tensor]] = [[] for _ in parameters]
    for number in range(len(batch)):
        one = batch.rows([number])
        loss = model.loss(one.pixels, one.ids, one.mask, one.labels).sum()
        values = torch.autograd.grad(loss, parameters, allow_unused=True)
        usable = all(bool(value.isfinite().all()) for value in values if value is not None)
        for kept, parameter, value in zip(gradients, parameters, values, strict=True):
            kept.append(value if usable and value is not None else torch.zeros_like(parameter))
    for parameter, kept in zip(parameters, gradients, strict=True):
        parameter.grad_sample = (  # type: ignore[attr-defined]
            torch.stack(kept) if kept else parameter.new_zeros((0, *parameter.shape))
        )


@torch.no_grad()
def accuracy_of(model: PairModel, pairs: Encodings) -> tuple[float, float]:
    """Share of pictures and of texts whose class comes out right; a fused model's are the same."""
    embeddings = torch.nn.functional.embedding(pairs.ids, model.table)
    image = model.module.image_logits(model.normalise(pairs.pixels))
    text = model.module.text_logits(embeddings, pairs.mask)
    if model.module.fused:
        image = text = image + text
    right = [float((z.argmax(1) == y).float().mean()) for z, y in zip((image, text), pairs.labels, strict=True)]
    return right[0], right[1]
