"""The client of pairs that is attacked, and what the adversary knows of it in public: everything loaded and drawn.

How good an aligner has to be for the link between picture and text to help an attack is measured by an oracle that the
evaluator makes out of the truth: it knows where each true pair lies, and is wrong about a chosen share of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docleak.documents.files import read_text
from docleak.documents.pairs import Pair, load_pairs, make_scenes, resized, shuffled
from docleak.documents.pairs.loading import MADE
from docleak.documents.pairs.scenes import LABELS as SCENE_LABELS
from docleak.errors import AttackError, RunError
from docleak.models.base import pixels_of
from docleak.models.pair.aligner import Aligner, load_aligner, one_hot
from docleak.models.pair.language import LanguageModel, fit_trigrams, load_causal
from docleak.models.pair.model import PairModel
from docleak.models.pair.shapes import build_pair
from docleak.runs.identity import digest_of
from docleak.spec import counted_words
from docleak.studies.pairs.case import PairCase, build_pair_case
from docleak.studies.pairs.config import ALIGNER, PairConfig
from docleak.studies.pairs.privacy import LONGEST, UTILITY_SEED, noise_of, train_on_scenes, utility

#: Scenes whose sentences are public, and the seed they are made with: none that is attacked (those have others).
PUBLIC_SCENES, PUBLIC_SEED = 1000, 7919
#: Keeps the clients' noise apart from the attacks' draws.
NOISE_SEED = 500_000_003
#: Keeps the draws of an oracle's errors apart from all others.
ORACLE_SEED = 700_000_001
#: What is loaded and drawn depends on these alone, and that of so many is kept in a process: a table attacks a few
#: clients in many ways, and a client may have BERT-large.
KEPT = 4
LOADED = (
    "pairs", "count", "skip", "public", "image", "text", "fused", "train_embeddings", "image_size",
    "language", "corpus", "shuffle", "trained", "seed",
)  # fmt: skip
#: What a record is here, in the claims of privacy.
PAIR = "one pair of picture and text"


@dataclass(frozen=True, eq=False)
class OracleAligner:
    """No adversary's aligner: the space of ``base`` twice. A picture is its own embedding beside ``text_place``, a text
    ``image_place`` beside its own. So the true picture and text of a pair whose places are told coincide, and each
    modality is drawn to the embedding (D,) that its truth has in ``base``, whatever was found of the other so far."""

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
    base: Aligner, model: PairModel, pairs: Sequence[Pair], number: int, *, error: float, seed: int
) -> OracleAligner:
    """The oracle of pair ``number`` of ``pairs``: it tells its own places, or, with probability ``error``, another's.

    A pair that is mistaken at one error is mistaken at every larger one, and for the same other pair. AttackError for
    an error outside [0, 1] and where there is no other pair.
    """
    if not 0 <= error <= 1 or len(pairs) < 2:
        raise AttackError(
            f"the oracle's error is {error}, of {counted_words(len(pairs), 'pair')}; expected a share from "
            "0 to 1, and two pairs."
        )
    rng = np.random.default_rng((ORACLE_SEED, seed, number))
    other = (number + 1 + int(rng.integers(len(pairs) - 1))) % len(pairs)
    told = pairs[other if rng.random() < error else number]
    pixels = pixels_of(resized(told, model.image_size).image, model.device)[None]
    ids, mask = model.token_ids([told.text], longest=LONGEST)
    with torch.no_grad():
        places = base.image(pixels), base.text(one_hot(ids, len(model.tokenizer)), mask)
    return OracleAligner(base, *places)


@dataclass(frozen=True, eq=False)
class Setting:
    """The client's model, its pairs, and the adversary's public knowledge; no aligner where no attack asks one."""

    config: PairConfig
    model: PairModel
    targets: tuple[Pair, ...]
    aligner: Aligner | None
    language: LanguageModel
    public: tuple[Pair, ...]

    def fresh(self) -> PairModel:
        """The client's model before its step, another copy."""
        return client_of(self.config, self.model.classes, self.model.device)

    def case(self, number: int, *, plain: bool = False) -> PairCase:
        """The batch of that number; ``plain``: without the client's noise, for the self-test."""
        config, size = self.config, self.config.batch_size
        batch = self.targets[number * size : (number + 1) * size]
        if plain:
            return build_pair_case(self.model, batch)
        noise = torch.Generator().manual_seed(NOISE_SEED + config.seed * 1_000_003 + number)
        aligner, told = self.aligner, ""
        if (error := config.oracle_error) is not None and aligner is not None:
            aligner = oracle_for(aligner, self.model, self.targets, number, error=error, seed=config.seed)
            told = f"the evaluator's word where the true pair lies in that aligner's space, wrong of {error:.0%}"
        return build_pair_case(
            self.model, batch, aligner=aligner, language=self.language, privacy=config.privacy, sigma=config.noise,
            noise=noise, told=told,
        )  # fmt: skip


def client_of(config: PairConfig, classes: Sequence[str], device: str | torch.device = "cpu") -> PairModel:
    """The model of ``config`` as drawn, or trained on scenes for as long as it says."""
    if config.trained and not set(SCENE_LABELS) <= set(classes):
        raise RunError(
            f"the classes of {config.pairs!r} are {', '.join(classes)}, and networks are trained on scenes, whose "
            f"classes are {', '.join(SCENE_LABELS)}. Take scenes or nlvr-true:DIR, or leave trained out."
        )
    model = build_pair(
        config.image, config.text, classes=classes, image_size=config.image_size, seed=config.seed, fused=config.fused,
        train_embeddings=config.train_embeddings, device=device,
    )  # fmt: skip
    if not config.trained:
        return model
    train_on_scenes(model, config.trained, seed=config.seed)
    return replace(model, name=f"{model.name} after {config.trained} steps on scenes")


def _training_pairs(config: PairConfig, classes: Sequence[str]) -> list[Pair]:
    """What the measured classifier is trained on: none of it is attacked, public or tested."""
    if set(SCENE_LABELS) <= set(classes):
        return make_scenes(config.records, seed=UTILITY_SEED + config.seed)
    seen = config.skip + config.count + config.public
    pairs = load_pairs(config.pairs, count=config.records, skip=seen, seed=config.seed)
    if unknown := {label for pair in pairs for label in pair.labels} - {*classes}:
        raise RunError(
            f"{config.pairs!r}: the pairs that a classifier is to be trained on have classes "
            f"({', '.join(sorted(unknown))}) that neither the attacked nor the public pairs have. Raise public: all "
            "classes have to be known."
        )
    return pairs


def set_up(config: PairConfig, device: str = "cpu") -> Setting:
    """Load and draw everything, on ``device``; once for all attacks on a client, unless files have changed.

    Public texts never hold a target's.
    """
    loaded: dict[str, Any] = {name: getattr(config, name) for name in LOADED}
    setting = _set_up(PairConfig(**loaded), device, digest_of(loaded))
    asked = ALIGNER.met(config) or config.oracle_error is not None
    aligner = _aligner(config.aligner, setting.model, device, digest_of({"aligner": config.aligner})) if asked else None
    return replace(setting, config=config, aligner=aligner)


def forget() -> None:
    """Load everything anew: an attack wrote into a model."""
    _set_up.cache_clear()
    _aligner.cache_clear()


@lru_cache(maxsize=KEPT)
def _set_up(config: PairConfig, device: str, files: str) -> Setting:
    targets, public = _texts(config)
    seen = {label for pair in targets for label in pair.labels} | {pair.label for pair in public}
    classes = sorted(seen | set(SCENE_LABELS if config.pairs in MADE else ()))
    model = client_of(config, classes, device)
    return Setting(config, model, targets, None, _language(config, model, targets, public), tuple(public))


@lru_cache(maxsize=KEPT)
def _aligner(source: str, model: PairModel, device: str, files: str) -> Aligner:
    return load_aligner(source, model.tokenizer, device=device)


def _language(config: PairConfig, model: PairModel, targets: Sequence[Pair], public: Sequence[Pair]) -> LanguageModel:
    if config.language != "trigrams":
        return load_causal(config.language, model.tokenizer, device=model.device)
    said = {pair.text for pair in targets}
    lines = read_text(Path(config.corpus)).splitlines() if config.corpus else []
    lines += [*_public_texts(), *(pair.text for pair in public)]
    texts = [line for line in lines if line.strip() and line not in said]
    return fit_trigrams(texts, model.tokenizer, name=f"trigrams of {len(texts)} texts")


@cache
def _public_texts() -> tuple[str, ...]:
    """Of the public scenes, which are the same for every row of every table."""
    return tuple(pair.text for pair in make_scenes(PUBLIC_SCENES, seed=PUBLIC_SEED))


def _texts(config: PairConfig) -> tuple[tuple[Pair, ...], list[Pair]]:
    def load(count: int, skip: int) -> list[Pair]:
        return load_pairs(config.pairs, count=count, skip=skip, seed=config.seed, size=config.image_size)

    targets = load(config.count, config.skip)
    public = load(config.public, config.skip + config.count) if config.public else []
    if config.shuffle:
        targets = shuffled(targets, np.random.default_rng(config.seed))
    return tuple(targets), public


def privacy_of(setting: Setting) -> dict[str, Any]:
    """What the client's noise guarantees, and the accuracy of picture and text where it is asked for.

    The measured classifier is trained on scenes, or, where the data's classes are others, on so many further pairs of
    the data.
    """
    config, privacy = setting.config, setting.config.privacy
    plan = privacy.plan(config.batch_size)
    facts: dict[str, Any] = {"epsilon": config.epsilon or None, "noise": config.noise}
    if plan is not None:
        spent = plan.guarantee()
        facts |= {"noise": noise_of(plan), "noise_multiplier": plan.mechanism.noise_multiplier,
                  "delta": plan.delta, "claim": spent.sentence(PAIR)}  # fmt: skip
    if config.utility:
        tested = [*setting.targets, *setting.public]
        facts["accuracy"] = utility(
            setting.fresh, privacy, _training_pairs(config, setting.model.classes), tested,
            batch_size=config.batch_size, seed=config.seed,
        )  # fmt: skip
        facts["tested"] = len(tested)
    return facts
