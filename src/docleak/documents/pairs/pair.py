"""The noun: a picture, a text about it, and the class both are trained to tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image as Pillow

from docleak.documents.page import Image
from docleak.errors import DocumentError


@dataclass(frozen=True, eq=False)
class Pair:
    """``image`` is uint8 RGB (H, W, 3); ``label`` the class of both, ``text_label`` of the text where it is another's.

    ``data_set`` is which of several data sets opened as one the pair is of. Raises DocumentError if there is no picture
    or no text.
    """

    name: str
    image: Image
    text: str
    label: str
    text_label: str | None = None
    data_set: str = ""

    def __post_init__(self) -> None:
        if self.image.dtype != np.uint8 or self.image.ndim != 3 or self.image.shape[2] != 3 or 0 in self.image.shape:
            raise DocumentError(
                f"pair {self.name!r}: image has shape {self.image.shape} and dtype {self.image.dtype}; expected a "
                "non-empty (H, W, 3) uint8 array."
            )
        if not self.text.strip():
            raise DocumentError(f"pair {self.name!r} has no text; expected a picture with a text about it.")

    @property
    def labels(self) -> tuple[str, str]:
        """The classes of picture and text; the same, unless the pair was shuffled."""
        return self.label, self.label if self.text_label is None else self.text_label


def resized(pair: Pair, size: tuple[int, int]) -> Pair:
    """The pair with its picture at ``size`` (width, height), averaged over the pixels it loses."""
    picture = Pillow.fromarray(pair.image).resize(size, Pillow.Resampling.BOX)
    return replace(pair, image=np.array(picture, dtype=np.uint8))


def shuffled(pairs: Sequence[Pair], rng: np.random.Generator) -> list[Pair]:
    """Every picture with the text of another pair, in a random circle, so that none keeps its own.

    Raises DocumentError for fewer than two pairs.
    """
    if len(pairs) < 2:
        raise DocumentError(f"{len(pairs)} pair cannot be shuffled; expected at least two.")
    order = [int(i) for i in rng.permutation(len(pairs))]
    nexts = {order[i]: order[(i + 1) % len(order)] for i in range(len(order))}
    mixed = []
    for number, pair in enumerate(pairs):
        giver = pairs[nexts[number]]
        mixed.append(replace(pair, name=f"{pair.name}|{giver.name}", text=giver.text, text_label=giver.labels[1]))
    return mixed
