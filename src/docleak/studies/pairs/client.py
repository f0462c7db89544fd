"""The client of pairs that is attacked, and what the adversary knows of it in public: everything loaded and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from docleak import spec
from docleak.attacks.pairs import PAIRS, AttackOnPairs, PairAttack, with_parts
from docleak.attacks.pairs.gifd import GeneratorAttack
from docleak.attacks.pairs.together import with_refinement
from docleak.documents.files import read_text
from docleak.documents.pairs import Pair, load_pairs, make_scenes, shuffled
from docleak.documents.pairs.loading import SCENES
from docleak.documents.pairs.scenes import LABELS as SCENE_LABELS
from docleak.documents.ranges import BUDGET, COUNT, SEED, SOME, Range
from docleak.errors import AttackError, RunError
from docleak.models.pair.aligner import SHIPPED_ALIGNER, Aligner, load_aligner
from docleak.models.pair.generator import SHIPPED_GENERATOR
from docleak.models.pair.language import LanguageModel, fit_trigrams, load_causal
from docleak.models.pair.model import PairModel
from docleak.models.pair.shapes import build_pair
from docleak.models.sizes import parse_size
from docleak.options import Need, option
from docleak.registry import Choice
from docleak.studies.pairs.case import PairCase, build_pair_case
from docleak.studies.pairs.privacy import UTILITY_SEED, PairPrivacy, noise_of, train_on_scenes, utility

#: Scenes whose sentences are public, and the seed they are made with: none that is attacked (those have others).
PUBLIC_SCENES, PUBLIC_SEED = 1000, 7919
#: Keeps the clients' noise apart from the attacks' draws.
NOISE_SEED = 500_000_003
#: What a record is here, in the claims of privacy.
PAIR = "one pair of picture and text"
#: Panels of help.
PAIRED, CLIENT, ADVERSARY = "Pairs", "What the client does", "What the adversary knows"
GIFD = Need(
    lambda config: "gifd" in {spec.split_name(name)[0] for name in (*config.attacks, config.image_attack)},
    "GIFD: the attack gifd, or --image-attack gifd",
)
ALIGNER = Need(
    lambda config: any(not isinstance(attack, PairAttack) or attack.refine for attack in config.made),
    "an attack that aligns picture and text, such as mmgia",
)
LANGUAGE = Need(
    lambda config: any(
        not isinstance(attack, PairAttack) or (attack.text.moves and attack.text.moves.weight) for attack in config.made
    ),
    "an attack that asks a language model, such as lamp",
)


@dataclass(frozen=True)
class PairConfig:
    """What is attacked and how. ``public`` further pairs of the same data tell the adversary how people write.

    ``language`` is "trigrams" (of scenes, of those pairs, and of the lines of ``corpus``) or a causal model's path.
    ``shuffle`` gives every picture another pair's text. ``threshold``, ``rounds`` and ``strength`` are MMGIA's, where
    not None. ``noise`` is the standard deviation of what the client adds to every number; with ``epsilon`` it runs
    DP-SGD instead, with ``clip_norm``, ``steps`` and ``records`` (see PairPrivacy). ``utility``: measure what a
    classifier trained so is good for. ``trained``: steps on scenes that the networks took before; 0: as drawn.
    """

    pairs: str = option(
        "scenes",
        "scenes, nlvr:DIR, nlvr-true:DIR, flickr30k:DIR, openi:DIR, cifar100:DIR, or pages:SPEC; behind DIR "
        ":split=NAME for an official split, :every=yes for all texts of a picture or pictures of a text; A,B for both.",
        group=PAIRED,
    )
    count: int = option(4, "Pairs to attack.", group=PAIRED, range=SOME)
    skip: int = option(0, "Pairs of the data set to pass over first.", group=PAIRED, range=COUNT)
    public: int = option(100, "Further pairs whose texts the adversary has.", group=ADVERSARY, range=COUNT)
    image: str = option(
        "lenet5", "lenet5, resnet-tiny, resnet18, resnet50, or an image classifier's directory.", group=CLIENT
    )
    text: str = option(
        "bert-tiny", "bert-tiny, tinybert4, bert-base, bert-large, or a text classifier's directory.", group=CLIENT
    )
    fused: bool = option(False, "One classifier over both features.", group=CLIENT)
    train_embeddings: bool = option(False, "The client also trains its tables of words and positions.", group=CLIENT)
    image_size: tuple[int, int] = option((64, 16), "Pixels of the pictures.", metavar="WxH", read=parse_size)
    batch_size: int = option(1, "Pairs averaged into one gradient.", group=CLIENT, range=Range(1, 100_000))
    attacks: tuple[Choice, ...] = option(("mmgia",), "Attacks on the same pairs, comma-separated.")
    image_attack: Choice = option("", "Another attack on the picture, such as dlg or gifd.")
    text_attack: Choice = option("", "Another attack on the text: dlg-text, tag, lamp.")
    budget: int = option(300, "Gradient evaluations per modality and batch, for all attacks.", range=BUDGET)
    aligner: str = option(
        SHIPPED_ALIGNER, "aligner-tiny, or a CLIP's directory or hub name.", group=ADVERSARY, need=ALIGNER
    )
    language: str = option(
        "trigrams", "trigrams, or a causal model's directory or hub name.", group=ADVERSARY, need=LANGUAGE
    )
    corpus: str = option(
        "", "Text file of public sentences, one a line.", group=ADVERSARY,
        need=Need(lambda config: config.language == "trigrams", "--language trigrams"),
    )  # fmt: skip
    shuffle: bool = option(False, "Give every picture another pair's text.", group=PAIRED)
    threshold: float | None = option(None, "MMGIA's similarity that ends the loop (-1 to 1).", range=Range(-1, 1))
    rounds: int | None = option(None, "MMGIA's turns of both stages at most.", range=SOME)
    strength: float | None = option(
        None, "Of mmgia-prior: how much the alignment counts beside the gradient.", range=Range(0, 1e6)
    )
    generator: str = option(SHIPPED_GENERATOR, "GIFD's: generator-tiny, or a directory.", need=GIFD)
    trained: int = option(
        0, "Steps on scenes that the networks took before the attack; 0: as drawn.", group=CLIENT,
        range=Range(0, 10_000_000),
    )  # fmt: skip
    noise: float = option(
        0.0, "Standard deviation of what the client adds to every number.", group=CLIENT, range=Range(0, 1e9)
    )
    epsilon: float = option(
        0.0, "The client runs DP-SGD with this epsilon per pair (delta 1e-5); 0: none.", group=CLIENT,
        range=Range(0, 1e9),
    )  # fmt: skip
    clip_norm: float = 1.0
    steps: int = 200
    records: int = 1000
    utility: bool = False
    seed: int = option(0, "Seed of pairs, models, starts and draws.", range=SEED)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attacks", PAIRS.all_chosen(self.attacks))
        if self.batch_size < 1 or self.count % self.batch_size:
            raise AttackError(
                f"{self.count} pairs cannot be cut into batches of {self.batch_size}; expected a multiple of it."
            )
        if self.noise < 0 or (self.noise and self.epsilon):
            raise AttackError(
                f"noise is {self.noise} and epsilon {self.epsilon}; expected one of them, and nothing negative."
            )
        if self.trained < 0:
            raise AttackError(f"the networks were trained for {self.trained} steps; expected 0 (as drawn) or more.")
        _ = self.privacy
        if self.refinement and not any(isinstance(attack, PairAttack) and attack.refine for attack in self.made):
            raise AttackError(
                f"{' and '.join(self.refinement)} would change MMGIA's second stage, which {', '.join(self.attacks)} "
                "does not have. Leave it out, or attack with mmgia, mmgia-d or mmgia-prior."
            )

    @property
    def made(self) -> list[AttackOnPairs]:
        """The attacks, with what this configuration changes of them."""
        return [self.attack(name) for name in self.attacks]

    @property
    def privacy(self) -> PairPrivacy:
        """The client's DP-SGD."""
        return PairPrivacy(self.epsilon, clip_norm=self.clip_norm, steps=self.steps, records=self.records)

    @property
    def refinement(self) -> dict[str, float]:
        """What is changed of the second stage."""
        changes = {"threshold": self.threshold, "rounds": self.rounds, "strength": self.strength}
        return {key: value for key, value in changes.items() if value is not None}

    def attack(self, name: str) -> AttackOnPairs:
        """The attack of that name with what this configuration changes of it."""
        attack = with_parts(name, image=self.image_attack, text=self.text_attack)
        if not isinstance(attack, PairAttack):
            return attack
        if isinstance(attack.image, GeneratorAttack):
            attack = replace(attack, image=replace(attack.image, generator=self.generator))
        if not self.refinement or attack.refine is None:
            return attack
        return with_refinement(attack, **self.refinement)


@dataclass(frozen=True, eq=False)
class Setting:
    """The client's model, its pairs, and the adversary's public knowledge."""

    config: PairConfig
    model: PairModel
    targets: tuple[Pair, ...]
    aligner: Aligner
    language: LanguageModel
    public: tuple[Pair, ...]

    def fresh(self) -> PairModel:
        """The client's model before its step, another copy."""
        return client_of(self.config, self.model.classes)

    def case(self, number: int, *, plain: bool = False) -> PairCase:
        """The batch of that number; ``plain``: without the client's noise, for the self-test."""
        config, size = self.config, self.config.batch_size
        batch = self.targets[number * size : (number + 1) * size]
        if plain:
            return build_pair_case(self.model, batch)
        noise = torch.Generator().manual_seed(NOISE_SEED + config.seed * 1_000_003 + number)
        return build_pair_case(
            self.model, batch, aligner=self.aligner, language=self.language, privacy=config.privacy,
            sigma=config.noise, noise=noise,
        )  # fmt: skip


def client_of(config: PairConfig, classes: Sequence[str]) -> PairModel:
    """The model of ``config`` as drawn, or trained on scenes for as long as it says."""
    if config.trained and not set(SCENE_LABELS) <= set(classes):
        raise RunError(
            f"the classes of {config.pairs!r} are {', '.join(classes)}, and networks are trained on scenes, whose "
            f"classes are {', '.join(SCENE_LABELS)}. Take scenes or nlvr-true:DIR, or leave trained out."
        )
    model = build_pair(
        config.image, config.text, classes=classes, image_size=config.image_size, seed=config.seed, fused=config.fused,
        train_embeddings=config.train_embeddings,
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


def set_up(config: PairConfig) -> Setting:
    """Load and draw everything. Public texts never hold a target's."""
    targets, public = _texts(config)
    seen = {label for pair in targets for label in pair.labels} | {pair.label for pair in public}
    classes = sorted(seen | set(SCENE_LABELS if config.pairs == SCENES else ()))
    model = client_of(config, classes)
    aligner = load_aligner(config.aligner, model.tokenizer)
    return Setting(config, model, targets, aligner, _language(config, model, targets, public), tuple(public))


def _language(config: PairConfig, model: PairModel, targets: Sequence[Pair], public: Sequence[Pair]) -> LanguageModel:
    if config.language != "trigrams":
        return load_causal(config.language, model.tokenizer)
    said = {pair.text for pair in targets}
    lines = read_text(Path(config.corpus)).splitlines() if config.corpus else []
    lines += [pair.text for pair in [*make_scenes(PUBLIC_SCENES, seed=PUBLIC_SEED), *public]]
    texts = [line for line in lines if line.strip() and line not in said]
    return fit_trigrams(texts, model.tokenizer, name=f"trigrams of {len(texts)} texts")


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
    found: dict[str, Any] = {"epsilon": config.epsilon or None, "noise": config.noise}
    if plan is not None:
        spent = plan.guarantee()
        found |= {"noise": noise_of(plan), "noise_multiplier": plan.mechanism.noise_multiplier,
                  "delta": plan.delta, "claim": spent.sentence(PAIR)}  # fmt: skip
    if config.utility:
        tested = [*setting.targets, *setting.public]
        found["accuracy"] = utility(
            setting.fresh, privacy, _training_pairs(config, setting.model.classes), tested,
            batch_size=config.batch_size, seed=config.seed,
        )  # fmt: skip
        found["tested"] = len(tested)
    return found
