"""Reconstructed pairs against the true ones: the evaluator decides which reconstruction is of which target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from docleak.attacks.pairs.together import PairFinding
from docleak.documents.page import Image
from docleak.metrics import psnr, ssim
from docleak.metrics.text import rouge
from docleak.models.base import image_of
from docleak.studies.pairs.case import PairCase

#: Of two texts that fit alike, a target gets the one that came with its picture.
TIE = 1e-6


@dataclass(frozen=True)
class PairScore:
    """One target. ``tokens`` is the share of its tokens read exactly in place; ROUGE is in 0..1.

    ``together`` says whether picture and text of this target came out as one pair (always so for a batch of one).
    """

    name: str
    ssim: float
    psnr: float
    rouge1: float
    rouge2: float
    rouge_l: float
    tokens: float
    label: bool
    together: bool
    read: str
    true: str


def assign(gains: Sequence[Sequence[float]]) -> list[int]:
    """The column of each row such that the gains add up to the most (Hungarian method)."""
    rows, columns = linear_sum_assignment(-np.asarray(gains, dtype=np.float64))
    return [int(columns[list(rows).index(i)]) for i in range(len(rows))]


def score_pairs(case: PairCase, finding: PairFinding) -> list[PairScore]:
    """Each target with the reconstruction that is its own: pictures by SSIM, texts by ROUGE-L, the best in sum."""
    truths, reconstructed = ([image_of(p) for p in pixels] for pixels in (case.pixels, finding.pixels))
    texts = case.texts
    pictures = assign([[ssim(t, f) for f in reconstructed] for t in truths])
    words = assign([
        [rouge(read, true).rouge_l + TIE * (column == pictures[number]) for column, read in enumerate(finding.texts)]
        for number, true in enumerate(texts)
    ])  # fmt: skip
    scores = []
    for number, (pair, picture, text) in enumerate(zip(case.pairs, pictures, words, strict=True)):
        read, true = finding.texts[text], texts[number]
        shared = rouge(read, true)
        labels = (finding.labels[0][picture], finding.labels[1][text])
        scores.append(
            PairScore(
                pair.name, ssim(truths[number], reconstructed[picture]), psnr(truths[number], reconstructed[picture]),
                shared.rouge1, shared.rouge2, shared.rouge_l,
                _in_place(finding.tokens[text], case.rows[number]),
                labels == (int(case.labels[0][number]), int(case.labels[1][number])), picture == text, read, true,
            )
        )  # fmt: skip
    return scores


def pictures_of(case: PairCase, finding: PairFinding, number: int) -> dict[str, Image]:
    """The true picture of target ``number`` and the one reconstructed of it."""
    truths, reconstructed = ([image_of(p) for p in pixels] for pixels in (case.pixels, finding.pixels))
    column = assign([[ssim(t, f) for f in reconstructed] for t in truths])[number]
    return {"truth": truths[number], "reconstruction": reconstructed[column]}


def _in_place(read: Sequence[int], true: Sequence[int]) -> float:
    return sum(a == b for a, b in zip(read, true, strict=False)) / len(true) if len(true) else 0.0
