"""Networks that were trained before the step that the server sees: on scenes, which everybody may have."""

from __future__ import annotations

from docleak.documents.pairs import make_scenes
from docleak.evidence.pairs.private import encodings_of
from docleak.models.pair.model import PairModel
from docleak.privacy.randomness import Randomness
from docleak.training.private.pairs import train_pairs

#: Scenes that are trained on, and their seed: none that is attacked, is public, or measures utility.
SCENES, SEED = 1000, 1_299_709
BATCH_SIZE, LEARNING_RATE = 16, 1e-3


def train_on_scenes(model: PairModel, steps: int, *, seed: int) -> None:
    """``steps`` of Adam in place. The model's classes must hold those of scenes."""
    scenes = encodings_of(model, make_scenes(SCENES, seed=SEED + seed))
    train_pairs(
        model, scenes, steps=steps, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, plan=None,
        randomness=Randomness.seeded("trained", seed),
    )  # fmt: skip
