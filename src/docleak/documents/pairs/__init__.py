"""Pictures with a text about them, as a client of a multimodal federation holds them; one loader per layout."""

from docleak.documents.pairs.loading import PAIR_FORMATS, load_pairs
from docleak.documents.pairs.pair import Pair, resized, shuffled
from docleak.documents.pairs.scenes import make_scenes

__all__ = ["PAIR_FORMATS", "Pair", "load_pairs", "make_scenes", "resized", "shuffled"]
