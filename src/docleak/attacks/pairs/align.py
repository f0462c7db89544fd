"""MMGIA's second stage: picture and text move towards each other in a space they share (eq. 4-10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from docleak.attacks.pairs.sentence import Sentences
from docleak.errors import AttackError, refuse, those
from docleak.models.pair.aligner import Aligner

#: Above every similarity: keeps pictures and texts of different classes apart.
NEVER = 10.0


@dataclass(frozen=True)
class Refinement:
    """Stage 2 with its outer loop.

    ``target`` is "fused" (eq. 8-9) or "direct" (eq. 5, the paper's MMGIA (d)). The loop runs ``rounds`` times at most
    and ends when the similarity (eq. 11) reaches ``threshold``; ``first`` is the first round's share of the budget.
    ``image_step`` and ``text_step`` are eq. 10's η: the root mean square change that the first step on the direct loss
    would make, in pixels of [0, 1] and in standard deviations of the word table. ``temperature`` softens the projection
    of embeddings to the aligner's tokens.

    ``how`` is "steps" (the paper's: stage 2 moves what stage 1 found) or "prior" (ours: eq. 9's distance is a term of
    stage 1's objective, weighed by ``strength`` times what the gradient's noise leaves open; see ``pull``). A prior has
    one round: ``first`` of the text, the picture, the rest of the text.
    """

    target: Literal["fused", "direct"] = "fused"
    how: Literal["steps", "prior"] = "steps"
    strength: float = 1.0
    rounds: int = 3
    first: float = 0.7
    steps: int = 10
    image_step: float = 0.003
    text_step: float = 0.005
    temperature: float = 0.05
    threshold: float = 0.9

    def __post_init__(self) -> None:
        faults = those(
            (not -1 < self.threshold < 1,
             f"threshold is {self.threshold}; expected a cosine similarity above -1 and below 1"),
            (self.target not in ("fused", "direct"), f"target is {self.target!r}; expected 'fused' or 'direct'"),
            (self.rounds < 1 or self.steps < 1 or not 0 < self.first <= 1 or self.temperature <= 0,
             "expected rounds and steps of 1 or more, first in (0, 1] and a temperature above 0"),
            (self.how not in ("steps", "prior"), f"how is {self.how!r}; expected 'steps' or 'prior'"),
            (min(self.image_step, self.text_step, self.strength) < 0,
             "a step or the strength is negative; expected 0 (the modality stays) or more"),
        )  # fmt: skip
        refuse(AttackError, faults, "MMGIA's refinement cannot be run: ")


@dataclass(frozen=True)
class Aligned:
    """What stage 2 made of a reconstruction, with the similarity before and after, averaged over the batch."""

    pixels: Tensor
    embeddings: Tensor
    before: float
    after: float


def weights_of(image_quality: float, text_quality: float) -> tuple[float, float]:
    """Eq. 7. A negative quality (worse than sending nothing) counts as none; two of none weigh the same."""
    a, b = max(0.0, image_quality), max(0.0, text_quality)
    return (a / (a + b), b / (a + b)) if a + b > 0 else (0.5, 0.5)


def losses_of(z: tuple[Tensor, Tensor], weights: tuple[float, float] | None) -> tuple[Tensor, Tensor]:
    """What picture and text each descend, summed over the batch: eq. 9 with ``weights``, eq. 5 without.

    Eq. 9's target does not move with the one that descends. For two modalities z_m - z_fused = w_other (z_m - z_other):
    quality decides how far each goes, not where.
    """
    image, text = z
    if weights is None:
        return (image - text.detach()).square().sum(), (text - image.detach()).square().sum()
    fused = (weights[0] * image + weights[1] * text).detach()
    return (image - fused).square().sum(), (text - fused).square().sum()


def align(
    config: Refinement,
    aligner: Aligner,
    sentences: Sentences,
    pixels: Tensor,
    embeddings: Tensor,
    qualities: tuple[float, float],
) -> Aligned:
    """``config.steps`` of descent (eq. 10) on pixels (B, 3, H, W), kept in [0, 1], and embeddings (B, T, d)."""
    weights = weights_of(*qualities) if config.target == "fused" else None
    sizes = (config.image_step, config.text_step * float(sentences.table.std()))
    image, words = pixels.clone(), sentences.unknowns(embeddings)
    before = similarity(aligner, sentences, pixels, embeddings, config.temperature)
    units: list[Tensor] = []
    for _ in range(config.steps):
        gradients = _gradients(config, aligner, sentences, image, words, weights)
        if not units:
            direct = gradients if weights is None else _gradients(config, aligner, sentences, image, words, None)
            units = [g.square().mean().sqrt().clamp_min(1e-12) for g in direct]
        image = (image - sizes[0] * gradients[0] / units[0]).clamp(0, 1)
        words = words - sizes[1] * gradients[1] / units[1]
    moved = sentences.embeddings(words)
    after = similarity(aligner, sentences, image, moved, config.temperature)
    return Aligned(image, moved, float(before.diagonal().mean()), float(after.diagonal().mean()))


def _gradients(
    config: Refinement,
    aligner: Aligner,
    sentences: Sentences,
    image: Tensor,
    words: Tensor,
    weights: tuple[float, float] | None,
) -> tuple[Tensor, Tensor]:
    x, e = image.detach().requires_grad_(True), words.detach().requires_grad_(True)
    z = (aligner.image(x), aligner.text(sentences.weights(sentences.embeddings(e), config.temperature), sentences.free))
    first, second = losses_of(z, weights)
    to_image, to_words = torch.autograd.grad(first + second, (x, e))  # each loss reaches one of the two
    return to_image, to_words


@torch.no_grad()
def similarity(
    aligner: Aligner, sentences: Sentences, pixels: Tensor, embeddings: Tensor, temperature: float
) -> Tensor:
    """(B, B): eq. 11 between every picture (row) and text."""
    image = aligner.image(pixels)
    return image @ aligner.text(sentences.weights(embeddings, temperature), sentences.free).T


def pull(
    z: Tensor, target: Tensor, labels: tuple[tuple[int, ...], tuple[int, ...]], *, weight: float, open_variance: float
) -> Tensor:
    """What a modality in the making loses by lying far from the other one's embedding, in units of eq. 2's distance.

    A contrastive aligner's scaled cosine is, up to a constant, the log of p(picture, text) / p(picture) p(text), and a
    squared gradient difference over twice its variance is a negative log-likelihood. Both are added up here, multiplied
    by twice the variance that the gradient leaves open (its noise): a gradient without noise is not argued with.
    ``weight`` is the aligner's scale times the other modality's share (eq. 7, 1/2 each for eq. 5). ``z`` and ``target``
    (B, D) belong together as is best in sum, the same class first.
    """
    columns = partners((z @ target.T).detach(), labels) if len(z) > 1 else [0]
    return weight * open_variance * (z - target[columns]).square().sum()


def partners(near: Tensor, labels: tuple[tuple[int, ...], tuple[int, ...]]) -> list[int]:
    """Which text (column of ``near``, (B, B)) goes with each picture: most similar in sum, the same class first.

    Where pictures of a batch have one class, its gradient does not say which text is whose; the shared space may.
    """
    other = torch.tensor([[i != t for t in labels[1]] for i in labels[0]], device=near.device)
    _, columns = linear_sum_assignment(np.asarray((NEVER * other - near).cpu().double()))
    return [int(c) for c in columns]
