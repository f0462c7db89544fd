"""An aligner that the evaluator makes out of the truth: a measuring device, which no adversary has.

How good an aligner has to be for the link between picture and text to help an attack is measured by one that knows
where each true pair lies, and is wrong about a chosen share of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from docleak.documents.pairs import Pair, resized
from docleak.errors import AttackError
from docleak.models.base import pixels_of
from docleak.models.pair.aligner import Aligner, one_hot
from docleak.models.pair.model import PairModel

#: Keeps the draws of its errors apart from all others.
SEED = 700_000_001


@dataclass(frozen=True, eq=False)
class OracleAligner:
    """The space of ``base`` twice: a picture is its own embedding beside ``text_place``, a text ``image_place`` beside
    its own. So the true picture and text of a pair whose places are told coincide, and each modality is drawn to the
    embedding (D,) that its truth has in ``base``, whatever was found of the other so far."""

    base: Aligner
    image_place: Tensor
    text_place: Tensor

    @property
    def name(self) -> str:
        """That of the encoders, which are public."""
        return self.base.name

    @property
    def scale(self) -> float:
        """See Aligner."""
        return self.base.scale

    def image(self, pixels: Tensor) -> Tensor:
        """See Aligner: (B, 2 D)."""
        embeddings = self.base.image(pixels)
        return torch.cat([embeddings, self.text_place.expand_as(embeddings)], 1) / 2**0.5

    def text(self, weights: Tensor, mask: Tensor) -> Tensor:
        """See Aligner: (B, 2 D)."""
        embeddings = self.base.text(weights, mask)
        return torch.cat([self.image_place.expand_as(embeddings), embeddings], 1) / 2**0.5


def oracle_for(
    base: Aligner, model: PairModel, pairs: Sequence[Pair], number: int, *, error: float, seed: int, longest: int
) -> OracleAligner:
    """The oracle of pair ``number`` of ``pairs``: it tells its own places, or, with probability ``error``, another's.

    A pair that is mistaken at one error is mistaken at every larger one, and for the same other pair. AttackError for
    an error outside [0, 1] and where there is no other pair.
    """
    if not 0 <= error <= 1 or len(pairs) < 2:
        raise AttackError(
            f"the oracle's error is {error}, of {len(pairs)} pair(s); expected a share from 0 to 1, and two pairs."
        )
    rng = np.random.default_rng((SEED, seed, number))
    other = (number + 1 + int(rng.integers(len(pairs) - 1))) % len(pairs)
    told = pairs[other if rng.random() < error else number]
    pixels = pixels_of(resized(told, model.image_size).image, model.device)[None]
    ids, mask = model.token_ids([told.text], longest=longest)
    with torch.no_grad():
        places = base.image(pixels), base.text(one_hot(ids, len(model.tokenizer)), mask)
    return OracleAligner(base, *places)
