"""Clients of pairs: how they were trained, what they send under DP-SGD, and what their classifiers are good for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import torch
from torch import Tensor

from docleak.defenses.defense import Gradient
from docleak.defenses.gradients import Clipping
from docleak.documents.pairs import Pair, make_scenes, resized
from docleak.errors import PrivacyError
from docleak.models.base import pixels_of
from docleak.models.pair.model import PairModel
from docleak.privacy.budget import noise_for
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.private.pairs import SHARE, Encodings, accuracy_of, at_once, train_pairs

#: Seeds of scenes: those on which the measured classifiers are trained, and those that networks saw before the step
#: that the server sees. None is attacked, public, or in both.
UTILITY_SEED, SEED = 104_729, 1_299_709
#: Tokens with special ones after which a text is cut.
LONGEST = 40
#: Scenes that networks saw before, and how they are trained on them.
SCENES, BATCH_SIZE, LEARNING_RATE = 1000, 16, 1e-3


@dataclass(frozen=True)
class PairPrivacy:
    """DP-SGD of a client with ``records`` pairs, over ``steps`` steps. The unit of epsilon is one pair.

    ``epsilon`` 0 is no privacy: nothing is clipped, and no noise is added. MMGIA's Table 4 fixes delta at 1e-5 and
    names neither steps nor clip norm.
    """

    epsilon: float = 0.0
    delta: float = 1e-5
    clip_norm: float = 1.0
    steps: int = 200
    records: int = 1000
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        idle = [name for name, default in (("delta", 1e-5), ("clip_norm", 1.0)) if getattr(self, name) != default]
        if not self.epsilon and idle:
            raise PrivacyError(
                f"{' and '.join(idle)}: of a private training, and epsilon is 0, which is none. Give an epsilon, or "
                "leave that out."
            )
        if self.epsilon < 0 or self.steps < 1 or self.records < 1 or self.learning_rate <= 0:
            raise PrivacyError(
                f"epsilon is {self.epsilon}, steps {self.steps}, records {self.records}, learning rate "
                f"{self.learning_rate}; expected 0 (none) or more, 1 or more, 1 or more, and above 0."
            )

    def plan(self, batch_size: int) -> DpPlan | None:
        """The plan with the least noise that keeps to epsilon, for steps of ``batch_size`` pairs on average."""
        if not self.epsilon:
            return None
        rate = min(1.0, batch_size / self.records)
        return DpPlan(_mechanism(self.epsilon, self.delta, self.steps, rate), self.clip_norm, batch_size, self.delta)

    def imitate(self) -> Callable[[Gradient, Gradient], Gradient] | None:
        """What clipping does to a modality's gradient, as the adversary knows it (exact for one pair)."""
        return Clipping(self.clip_norm * SHARE).imitate if self.epsilon else None


@lru_cache(maxsize=32)
def _mechanism(epsilon: float, delta: float, steps: int, rate: float) -> Mechanism:
    return noise_for(Mechanism(0.0, steps, rate, unit=Unit.RECORD), epsilon, delta).mechanism


def noise_of(plan: DpPlan) -> float:
    """Standard deviation of what every number of a step's mean gradient gets."""
    return plan.noise_std(1) / plan.denominator


def sent(
    model: PairModel, gradients: Iterable[dict[str, Tensor]], plan: DpPlan, generator: torch.Generator
) -> dict[str, Tensor]:
    """One step's mean gradient of these pairs' own: clipped per modality, with noise. They are taken as they come,
    ``at_once`` of them together."""
    clipped = (_clipped(model, gradient, plan.clip_norm * SHARE) for gradient in gradients)
    total: dict[str, Tensor] = {}
    count, together = 0, at_once(model)
    while part := list(islice(clipped, together)):
        summed = {name: torch.stack([gradient[name] for gradient in part]).sum(0) for name in part[0]}
        total = {name: value + total[name] if total else value for name, value in summed.items()}
        count += len(part)
    noise = noise_of(plan)
    mean = {name: value / count for name, value in total.items()}
    return {name: v + noise * torch.randn(v.shape, generator=generator).to(v) for name, v in mean.items()}


def _clipped(model: PairModel, gradient: dict[str, Tensor], norm: float) -> dict[str, Tensor]:
    clip, whole = Clipping(norm), dict[str, Tensor]()
    for modality in ("image", "text"):
        whole |= clip.imitate({n: v for n, v in gradient.items() if model.modality(n) == modality}, gradient)
    return {name: whole[name] for name in gradient}


def encodings_of(model: PairModel, pairs: Sequence[Pair]) -> Encodings:
    """Pairs as the model takes them."""
    pixels = torch.stack([pixels_of(resized(pair, model.image_size).image, model.device) for pair in pairs])
    ids, mask = model.token_ids([pair.text for pair in pairs], longest=LONGEST)
    image, text = ([model.class_of(pair.labels[side]) for pair in pairs] for side in (0, 1))
    labels = torch.tensor(image, device=model.device), torch.tensor(text, device=model.device)
    return Encodings(pixels, ids, mask, labels)


def utility(
    fresh: Callable[[], PairModel],
    privacy: PairPrivacy,
    training: Sequence[Pair],
    tested: Sequence[Pair],
    *,
    batch_size: int,
    seed: int,
) -> tuple[float, float]:
    """Accuracy of pictures and of texts on ``tested``, of a model trained on the plan's records, ``training``."""
    model = fresh()
    train_pairs(
        model, encodings_of(model, training), steps=privacy.steps, batch_size=batch_size,
        learning_rate=privacy.learning_rate, plan=privacy.plan(batch_size), randomness=Randomness.seeded("pairs", seed),
    )  # fmt: skip
    return accuracy_of(model, encodings_of(model, tested))


def train_on_scenes(model: PairModel, steps: int, *, seed: int) -> None:
    """``steps`` of Adam in place. The model's classes must hold those of scenes."""
    scenes = encodings_of(model, make_scenes(SCENES, seed=SEED + seed))
    train_pairs(
        model, scenes, steps=steps, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, plan=None,
        randomness=Randomness.seeded("trained", seed),
    )  # fmt: skip
