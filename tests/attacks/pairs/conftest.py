"""A small client of pairs, and what its server is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.pairs import PairKnowledge, PairView
from docleak.models.base import trainable
from docleak.models.pair import PairModel, build_pair
from docleak.models.pair.aligner import load_aligner
from docleak.models.pair.language import fit_trigrams

CLASSES = ("a", "b", "c", "d")
PUBLIC = ("there are two black blocks.", "there is a yellow tower.", "a blue circle in the box.")


@dataclass(frozen=True)
class Victim:
    """The truth beside the view."""

    model: PairModel
    pixels: Tensor
    ids: Tensor
    mask: Tensor
    labels: Tensor
    view: PairView
    knowledge: PairKnowledge


@pytest.fixture(scope="session")
def victim() -> Callable[..., Victim]:
    """Makes one of texts and labels, its ``pixels`` (B, 3, 16, 16) noise if not given; ``options`` are build_pair's."""

    def make(
        texts: tuple[str, ...],
        labels: tuple[int, ...],
        *,
        seed: int = 0,
        pixels: Tensor | None = None,
        text: str = "bert-tiny",
        **options: Any,
    ) -> Victim:
        model = build_pair("lenet5", text, classes=CLASSES, image_size=(16, 16), seed=seed, **options)
        if pixels is None:
            pixels = torch.rand(len(texts), 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        ids, mask = model.token_ids(texts, longest=32)
        names, values = zip(*trainable(model.module), strict=True)
        wanted = torch.tensor(labels)
        loss = model.loss(pixels, ids, mask, (wanted, wanted)).mean()
        gradient = dict(zip(names, torch.autograd.grad(loss, values), strict=True))
        knowledge = PairKnowledge(
            tuple(int(n) - 2 for n in mask.sum(1)),
            load_aligner("aligner-tiny", model.tokenizer),
            fit_trigrams(PUBLIC, model.tokenizer, name="three sentences"),
        )
        return Victim(model, pixels, ids, mask, wanted, PairView(model, gradient, len(texts)), knowledge)

    return make
