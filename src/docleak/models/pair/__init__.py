"""MMGIA's targets: an image and a text classifier trained side by side, or fused; and the space they are aligned in."""

from docleak.models.pair.model import PairModel, Side, split_gradient
from docleak.models.pair.shapes import IMAGE_SHAPES, TEXT_SHAPES, build_pair

__all__ = ["IMAGE_SHAPES", "TEXT_SHAPES", "PairModel", "Side", "build_pair", "split_gradient"]
