"""What is attacked of a client of pairs and how; nothing that computes is imported before it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from docleak import spec
from docleak.attacks.registries import PAIRS
from docleak.documents.ranges import BATCH_SIZE, BUDGET, COUNT, NOISE, SEED, SOME, Range
from docleak.errors import AttackError
from docleak.models.shipped import SHIPPED_ALIGNER, SHIPPED_GENERATOR
from docleak.models.sizes import parse_size
from docleak.options import Need, option
from docleak.registry import Choice

if TYPE_CHECKING:
    from docleak.attacks.pairs import AttackOnPairs, PairAttack
    from docleak.studies.pairs.privacy import PairPrivacy

#: Panels of help.
PAIRED, CLIENT, ADVERSARY = "Pairs", "What the client does", "What the adversary knows"
GIFD = Need(
    lambda config: "gifd" in {spec.split_name(name)[0] for name in (*config.attacks, config.image_attack)},
    "GIFD: the attack gifd, or --image-attack gifd",
)
ALIGNER = Need(
    lambda config: any(not _of_parts(attack) or attack.refine for attack in config.made),
    "an attack that aligns picture and text, such as mmgia",
)
LANGUAGE = Need(
    lambda config: any(
        not _of_parts(attack) or (attack.text.moves and attack.text.moves.weight) for attack in config.made
    ),
    "an attack that asks a language model, such as lamp",
)


#: With so many evaluations every attack of the registry can begin.
ENOUGH = 12


def _of_parts(attack: Any) -> TypeGuard[PairAttack]:
    """Whether it is one of docleak's, of an attack on each modality."""
    from docleak.attacks.pairs import PairAttack

    return isinstance(attack, PairAttack)


@dataclass(frozen=True)
class PairConfig:
    """What is attacked and how. ``public`` further pairs of the same data tell the adversary how people write.

    ``language`` is "trigrams" (of scenes, of those pairs, and of the lines of ``corpus``) or a causal model's path.
    ``shuffle`` gives every picture another pair's text. With ``oracle_error`` the evaluator tells where the true pair
    lies in the aligner's space, of this share another's (see ``client``): that measures, and is no adversary's.
    ``threshold``, ``rounds`` and ``strength`` are MMGIA's, where not None. ``noise`` is the standard deviation of what
    the client adds to every number; with ``epsilon`` it runs DP-SGD instead, with ``clip_norm``, ``steps`` and
    ``records`` (see PairPrivacy). ``utility``: measure what a classifier trained so is good for. ``trained``: steps on
    scenes that the networks took before; 0: as drawn.
    """

    pairs: str = option(
        "scenes",
        "scenes, described (scenes and all that their boxes hold), nlvr:DIR, nlvr-true:DIR, flickr30k:DIR, openi:DIR, "
        "cifar100:DIR, or pages:SPEC; behind DIR "
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
    batch_size: int = option(1, "Pairs averaged into one gradient.", group=CLIENT, range=BATCH_SIZE)
    attacks: tuple[Choice, ...] = option(("mmgia", "span"), "Attacks on the same pairs, comma-separated.")
    image_attack: Choice = option("", "Another attack on the picture, such as dlg or gifd.")
    text_attack: Choice = option("", "Another attack on the text: dlg-text, tag, lamp.")
    budget: int = option(300, "Gradient evaluations per modality and batch, for all attacks.", range=BUDGET)
    aligner: str = option(
        SHIPPED_ALIGNER,
        "aligner-tiny, aligner-described, or a CLIP's directory or hub name.",
        group=ADVERSARY,
        need=ALIGNER,
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
    oracle_error: float | None = None
    generator: str = option(SHIPPED_GENERATOR, "GIFD's: generator-tiny, or a directory.", need=GIFD)
    trained: int = option(
        0, "Steps on scenes that the networks took before the attack; 0: as drawn.", group=CLIENT,
        range=Range(0, 10_000_000),
    )  # fmt: skip
    noise: float = option(0.0, "Standard deviation of what the client adds to every number.", group=CLIENT, range=NOISE)
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
        if self.oracle_error is not None and (self.batch_size > 1 or not 0 <= self.oracle_error <= 1):
            raise AttackError(
                f"the oracle's error is {self.oracle_error}, in batches of {self.batch_size}; expected a share from 0 "
                "to 1, and one pair at a time."
            )
        if self.trained < 0:
            raise AttackError(f"the networks were trained for {self.trained} steps; expected 0 (as drawn) or more.")
        _ = self.privacy
        if self.refinement and not any(_of_parts(attack) and attack.refine for attack in self.made):
            raise AttackError(
                f"{' and '.join(self.refinement)} would change MMGIA's second stage, which {', '.join(self.attacks)} "
                "does not have. Leave it out, or attack with mmgia, mmgia-d or mmgia-prior."
            )
        self._require_budget()

    def _require_budget(self) -> None:
        """AttackError where the budget does not suffice for an attack to begin."""
        exchanged = self.image_attack or self.text_attack  # which are refused here if there is none of that name
        if self.budget >= ENOUGH and not self.rounds and not exchanged and all(map(PAIRS.plain, self.attacks)):
            return  # without loading them
        least = {name: made.least_budget for name, made in zip(self.attacks, self.made, strict=True) if _of_parts(made)}
        if short := [f"{name} {needed}" for name, needed in least.items() if needed > self.budget]:
            raise AttackError(
                f"the budget is {self.budget} gradient evaluations per modality; expected at least: "
                f"{', '.join(short)}. Raise --budget."
            )

    @property
    def made(self) -> list[AttackOnPairs]:
        """The attacks, with what this configuration changes of them."""
        return [self.attack(name) for name in self.attacks]

    @property
    def privacy(self) -> PairPrivacy:
        """The client's DP-SGD."""
        from docleak.studies.pairs.privacy import PairPrivacy

        return PairPrivacy(self.epsilon, clip_norm=self.clip_norm, steps=self.steps, records=self.records)

    @property
    def refinement(self) -> dict[str, float]:
        """What is changed of the second stage."""
        changes = {"threshold": self.threshold, "rounds": self.rounds, "strength": self.strength}
        return {key: value for key, value in changes.items() if value is not None}

    def attack(self, name: str) -> AttackOnPairs:
        """The attack of that name with what this configuration changes of it."""
        from docleak.attacks.pairs import PairAttack, with_parts
        from docleak.attacks.pairs.gifd import GeneratorAttack

        attack = with_parts(name, image=self.image_attack, text=self.text_attack)
        if not isinstance(attack, PairAttack):
            return attack
        if isinstance(attack.image, GeneratorAttack):
            attack = replace(attack, image=replace(attack.image, generator=self.generator))
        if not self.refinement or attack.refine is None:
            return attack
        return replace(attack, refine=replace(attack.refine, **self.refinement))  # type: ignore[arg-type]
