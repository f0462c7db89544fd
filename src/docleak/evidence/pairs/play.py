"""Several pair attacks on the same clients, saved batch by batch, so that an interrupted run goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from docleak.attacks.pairs import PairAttack, load_pair_attack
from docleak.attacks.pairs.together import with_refinement
from docleak.documents.files import read_text
from docleak.documents.pairs import Pair, load_pairs, make_scenes, shuffled
from docleak.errors import AttackError
from docleak.evidence.pairs.case import PairCase, build_pair_case, self_tests
from docleak.evidence.pairs.score import pictures_of, score_pairs
from docleak.evidence.run import Run
from docleak.models.pair.aligner import SHIPPED_ALIGNER, load_aligner
from docleak.models.pair.language import LanguageModel, fit_trigrams, load_causal
from docleak.models.pair.model import PairModel
from docleak.models.pair.shapes import build_pair

#: Scenes whose sentences are public, and the seed they are made with: none that is attacked (those have others).
PUBLIC_SCENES, PUBLIC_SEED = 1000, 7919
#: done, total, label
OnUnit = Callable[[int, int, str], None]


@dataclass(frozen=True)
class PairConfig:
    """What is attacked and how. ``public`` further pairs of the same data tell the adversary how people write.

    ``language`` is "trigrams" (of scenes, of those pairs, and of the lines of ``corpus``) or a causal model's path.
    ``shuffle`` gives every picture another pair's text. ``threshold`` and ``rounds`` are MMGIA's, where not None.
    """

    pairs: str = "scenes"
    count: int = 4
    skip: int = 0
    public: int = 100
    image: str = "lenet5"
    text: str = "bert-tiny"
    fused: bool = False
    train_embeddings: bool = False
    image_size: tuple[int, int] = (64, 16)
    batch_size: int = 1
    attacks: tuple[str, ...] = ("mmgia",)
    image_attack: str = ""
    text_attack: str = ""
    budget: int = 300
    aligner: str = SHIPPED_ALIGNER
    language: str = "trigrams"
    corpus: str = ""
    shuffle: bool = False
    threshold: float | None = None
    rounds: int | None = None
    allow_pickle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.count % self.batch_size:
            raise AttackError(
                f"{self.count} pairs cannot be cut into batches of {self.batch_size}; expected a multiple of it."
            )
        for name in self.attacks:
            self.attack(name)

    def attack(self, name: str) -> PairAttack:
        """The attack of that name with what this configuration changes of it."""
        attack = load_pair_attack(name, image=self.image_attack, text=self.text_attack)
        changes = {"threshold": self.threshold, "rounds": self.rounds}
        given = {key: value for key, value in changes.items() if value is not None}
        return with_refinement(attack, **given) if given and attack.refine is not None else attack

    def units(self) -> list[tuple[str, int]]:
        """(attack, number of the batch), batch by batch."""
        return [(name, number) for number in range(self.count // self.batch_size) for name in self.attacks]


@dataclass(frozen=True, eq=False)
class Setting:
    """The client's model, its pairs, and the adversary's public knowledge."""

    config: PairConfig
    model: PairModel
    targets: tuple[Pair, ...]
    language: LanguageModel

    def case(self, number: int) -> PairCase:
        """The batch of that number, with the aligner loaded anew."""
        size = self.config.batch_size
        batch = self.targets[number * size : (number + 1) * size]
        aligner = load_aligner(self.config.aligner, self.model.tokenizer)
        return build_pair_case(self.model, batch, aligner=aligner, language=self.language)


def set_up(config: PairConfig) -> Setting:
    """Load and draw everything. Public texts never hold a target's."""
    targets, public = _texts(config)
    classes = sorted({label for pair in targets for label in pair.labels} | {pair.label for pair in public})
    model = build_pair(
        config.image, config.text, classes=classes, image_size=config.image_size, seed=config.seed, fused=config.fused,
        train_embeddings=config.train_embeddings,
    )  # fmt: skip
    if config.language != "trigrams":
        return Setting(config, model, targets, load_causal(config.language, model.tokenizer))
    said = {pair.text for pair in targets}
    lines = read_text(Path(config.corpus)).splitlines() if config.corpus else []
    lines += [pair.text for pair in [*make_scenes(PUBLIC_SCENES, seed=PUBLIC_SEED), *public]]
    texts = [line for line in lines if line.strip() and line not in said]
    return Setting(config, model, targets, fit_trigrams(texts, model.tokenizer, name=f"trigrams of {len(texts)} texts"))


def _texts(config: PairConfig) -> tuple[tuple[Pair, ...], list[Pair]]:
    def load(count: int, skip: int) -> list[Pair]:
        return load_pairs(config.pairs, count=count, skip=skip, seed=config.seed, allow_pickle=config.allow_pickle)

    targets = load(config.count, config.skip)
    public = load(config.public, config.skip + config.count) if config.public else []
    if config.shuffle:
        targets = shuffled(targets, np.random.default_rng(config.seed))
    return tuple(targets), public


def play(run: Run, config: PairConfig, *, workers: int = 1, on_unit: OnUnit = lambda done, total, label: None) -> None:
    """Attack every batch that has no result yet; ``workers`` processes of one thread each."""
    torch.set_num_threads(1)
    units = config.units()
    with run.claimed():
        setting = set_up(config)
        case = setting.case(0)
        run.write_info("knows", list(case.knowledge.sentences()))
        run.write_info("model", setting.model.name)
        todo = [unit for unit in units if not run.has(unit_id(*unit))]
        done = len(units) - len(todo)
        if workers == 1 or len(todo) < 2:
            for count, unit in enumerate(todo, start=done + 1):
                attack_batch(run, setting, *unit)
                on_unit(count, len(units), unit_id(*unit))
            return
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            waiting = {pool.submit(_work, run.path, config, *unit): unit for unit in todo}
            for count, finished in enumerate(as_completed(waiting), start=done + 1):
                finished.result()
                on_unit(count, len(units), unit_id(*waiting[finished]))


def unit_id(attack: str, number: int) -> str:
    """The name of an attack on a batch."""
    return f"{attack}-{number:04d}"


def attack_batch(run: Run, setting: Setting, name: str, number: int) -> None:
    """One attack on one batch, after the self-test; scores, texts and pictures are saved as a unit."""
    case, config = setting.case(number), setting.config
    for test in self_tests(case).values():
        test.require()
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + number)
    found = config.attack(name).run(case.view, case.knowledge, budget=config.budget, generator=generator)
    scores = score_pairs(case, found)
    images = {
        f"{which}-{target}": image
        for target in range(len(scores))
        for which, image in pictures_of(case, found, target).items()
    }
    record = {
        "attack": name,
        "scores": [score.as_json() for score in scores],
        "quality": [found.image_quality, found.text_quality],
        "evaluations": [found.image_evaluations, found.text_evaluations],
        "seconds": [found.image_seconds, found.text_seconds, found.align_seconds],
        "rounds": [asdict(turn) for turn in found.rounds],
    }
    run.write_unit(unit_id(name, number), record, images)


@lru_cache(maxsize=1)
def _setting(config: PairConfig) -> Setting:
    torch.set_num_threads(1)
    return set_up(config)


def _work(path: Path, config: PairConfig, name: str, number: int) -> None:
    attack_batch(Run.load(path), _setting(config), name, number)


def open_pairs(config: PairConfig, out: Path) -> Run:
    """Begin or resume the run of ``config`` in ``out``."""
    return Run.open(out, asdict(config))
