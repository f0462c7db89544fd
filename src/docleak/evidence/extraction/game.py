"""One game: a data set divided by document, a target and a public model trained, and the fields to be read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np

from docleak.attacks.weights import DEFAULT_METRIC, METRICS, CdmiConfig, PublicKnowledge, WeightsAttack
from docleak.documents import Page, load_pages
from docleak.documents.copies import PageText, text_of
from docleak.documents.game import GameSplit, require_disjoint, shadow_split, split_game
from docleak.documents.locate import letters
from docleak.documents.pages import document_names
from docleak.errors import AttackError, DocumentError
from docleak.files import read_stored, write_atomically
from docleak.models.encoders.loading import load_encoder, save_encoder
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import suits
from docleak.models.encoders.scrubbing import SecretField, extract, unplayable
from docleak.models.encoders.tasks import NEEDS, Task, classes_for, label_of
from docleak.models.encoders.tokens import TokenPage
from docleak.models.encoders.vision import VisionConfig
from docleak.runs.identity import digest_of
from docleak.training.extraction.fit import Epoch, FitConfig, Fitted, fit

Criterion = Literal["precision", "loss", "last"]
#: Keeps the game's streams apart from others of the same seed.
STREAM = 0xCD31
#: Told which model is trained, and each validated epoch.
OnEpoch = Callable[[str, int, Epoch], None]


def trainings(task: Task, *, epochs: int, learning_rate: float) -> tuple[FitConfig, FitConfig]:
    """The tiny models' trainings of target and public model: "mlm" needs twice the epochs, as in the paper."""
    own = epochs or (150 if task == "mlm" else 75)
    public = FitConfig(epochs=100, learning_rate=learning_rate, validate_every=5)
    return FitConfig(epochs=own, learning_rate=learning_rate, validate_every=5), public


@dataclass(frozen=True)
class GameConfig:
    """Everything that a game's numbers depend on.

    ``model`` is the backbone that target and public model start from; ``pages`` of 0 are all. ``fields`` are drawn from
    the private pages (0: all of 3 to 15 tokens). ``control`` trains the target on the public pages, so that it never
    saw the fields. ``criterion`` says which epoch is published: the best by validation accuracy or loss, or the last.
    ``repeats`` also masks the places where the page prints the value again, which the paper leaves.
    """

    documents: str = "synthetic"
    pages: int = 120
    model: str = "layoutlm-tiny"
    task: Task = "mlm"
    bimodal: bool = False
    criterion: Criterion = "precision"
    fields: int = 100
    attempts: int = 8
    metric: str = DEFAULT_METRIC
    control: bool = False
    repeats: bool = False
    validation: float = 0.16
    seed: int = 0
    attack: WeightsAttack = CdmiConfig()
    vision: VisionConfig = field(default_factory=VisionConfig)
    target_training: FitConfig = trainings("mlm", epochs=0, learning_rate=1e-3)[0]
    public_training: FitConfig = trainings("mlm", epochs=0, learning_rate=1e-3)[1]

    def __post_init__(self) -> None:
        faults = []
        if self.criterion not in get_args(Criterion):
            faults.append(f"criterion is {self.criterion!r}, expected one of {', '.join(get_args(Criterion))}")
        check_play(self, faults)

    def sources(self) -> tuple[str, ...]:
        """The data sets whose pages are played on."""
        return (self.documents,)


@dataclass(frozen=True)
class ShadowConfig:
    """The game that the adversary of ``game`` can play by itself: see ``set_up``'s ``shadow``."""

    game: GameConfig


class Played(Protocol):
    """What every game's configuration says of its play, whoever made the models."""

    @property
    def pages(self) -> int: ...
    @property
    def fields(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def metric(self) -> str: ...
    @property
    def repeats(self) -> bool: ...
    @property
    def seed(self) -> int: ...
    @property
    def attack(self) -> WeightsAttack: ...

    def sources(self) -> tuple[str, ...]:
        """The data sets whose pages are played on."""


@dataclass(frozen=True, eq=False)
class Game:
    """A game that is ready to be played. ``pages`` are the private ones by name, as the target reads them.

    ``texts`` are the words of all private and public pages, by part and name, to find copies of a field among them.
    ``left_out`` counts, by reason, the private fields that are not played. ``answers_only`` hides the target's
    confidences from the adversary (``WeightsView``).
    """

    config: Played
    target: EncoderModel
    knowledge: PublicKnowledge
    pages: dict[str, TokenPage]
    secrets: tuple[SecretField, ...]
    card: dict[str, object]
    texts: dict[str, dict[str, PageText]] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    answers_only: bool = False


def check_play(config: Played, faults: Sequence[str] = ()) -> None:
    """AttackError for ``faults`` and for settings of the play that make no sense, all at once."""
    found = list(faults)
    if config.metric not in METRICS:
        found.append(f"metric is {config.metric!r}, expected one of {', '.join(METRICS)}")
    if min(config.pages, config.fields, config.seed) < 0 or config.attempts < 1:
        found.append("pages, fields and seed must be 0 or more, attempts 1 or more")
    if found:
        raise AttackError("the game cannot be set up: " + "; ".join(found) + ".")


def set_up(
    config: GameConfig,
    folder: Path,
    *,
    device: str = "cpu",
    shadow: bool = False,
    on_epoch: OnEpoch = lambda which, epochs, epoch: None,
) -> Game:
    """Train what ``folder`` does not hold yet, and choose the fields; a second call finds everything there.

    ``shadow`` is the game that the adversary can play on its own, with its public pages alone: half of them are the
    private ones. Raises DocumentError where the data set is too small, has no fields of the right length or no links,
    and whatever loading and training raise.
    """
    pages = _pages(config)
    rng = np.random.default_rng(np.random.SeedSequence((config.seed, STREAM)))
    names = document_names(pages)
    split = split_game(names, validation=config.validation, rng=rng)
    if shadow:
        split = shadow_split(split, names, rng=rng)
        config = replace(config, control=False)
    require_disjoint({name: [pages[i].document or str(i) for i in numbers] for name, numbers in asdict(split).items()})
    models = models_of(config, folder, shadow=shadow)
    if not (models / "card.json").is_file() or not (models / f"target-{config.criterion}").is_dir():
        _train(config, pages, split, models, device, on_epoch)
    target = load_encoder(str(models / f"target-{config.criterion}"), device=device)
    public = load_encoder(str(models / "public"), device=device)
    private, others = ([pages[i] for i in numbers] for numbers in (split.private, split.public))
    card = read_stored(models / "card.json")
    return assemble(config, target, PublicKnowledge(public), private, others, card, rng=rng)


def assemble(
    config: Played,
    target: EncoderModel,
    knowledge: PublicKnowledge,
    private: Sequence[Page],
    public: Sequence[Page],
    card: dict[str, object],
    *,
    rng: np.random.Generator,
) -> Game:
    """The game of these models on the fields of the ``private`` pages; DocumentError where there are none to play."""
    encoded = {page.name: target.encode(page) for page in private}
    fields = [(page, secret) for page in private for secret in extract(page, encoded[page.name])]
    secrets = [secret for page, secret in fields if not _is_class(secret, page, target)]
    left_out = unplayable(private, encoded)
    if len(secrets) < len(fields):
        left_out["that name the page's class"] = len(fields) - len(secrets)
    if not secrets:
        why = "; ".join(f"{count} {reason}" for reason, count in left_out.items()) or "they have no private field"
        raise DocumentError(
            f"{' and '.join(config.sources())}: none of the {len(private)} private pages has a private field of 3 to "
            f"15 tokens within the model's {target.max_tokens} ({why}). Give pages with fields."
        )
    order = rng.permutation(len(secrets))[: config.fields or None]
    texts = {
        part: {page.name: text_of(page, document=page.document or page.name) for page in pages}
        for part, pages in (("private", private), ("public", public))
    }
    chosen = tuple(secrets[int(i)] for i in order)
    return Game(config, target, knowledge, encoded, chosen, card, texts, left_out)


def _is_class(secret: SecretField, page: Page, target: EncoderModel) -> bool:
    """Whether the field prints the page's class, which the adversary is given with the page's labels."""
    label = label_of(page)
    return target.task == "classify" and label in target.config.classes and letters(secret.value) == letters(label)


def _pages(config: GameConfig) -> list[Page]:
    return usable_pages(config.documents, config, config.task, least=3)


def usable_pages(source: str, config: Played, task: Task, *, least: int) -> list[Page]:
    """The pages of ``source`` that have words, and what ``task`` needs beside them.

    Raises DocumentError for fewer than ``least`` of them, or for two with the same name.
    """
    pages = list(load_pages(source, count=config.pages or None, seed=config.seed))
    usable = [page for page in pages if suits(page, task)]
    if len(usable) < least:
        needed = f"words and {NEEDS[task]}" if task in NEEDS else "words"
        raise DocumentError(
            f"{source}: {len(usable)} of {len(pages)} pages have {needed}; a game needs {least} documents or more."
        )
    names = {page.name for page in usable}
    if len(names) < len(usable):
        raise DocumentError(f"{source}: {len(usable)} pages have {len(names)} names; give each its own.")
    return usable


def models_of(config: GameConfig, folder: Path, *, shadow: bool = False) -> Path:
    """Where in ``folder`` a game's models are: card.json, target-CRITERION, public.

    Its name tells what they depend on; the fields and the attack may change without training again.
    """
    same = replace(config, fields=0, attempts=1, metric="max-gap", criterion="loss", attack=CdmiConfig(), repeats=False)
    return folder / ("shadow-" * shadow + digest_of(asdict(same), length=10))


def _train(
    config: GameConfig, pages: Sequence[Page], split: GameSplit, folder: Path, device: str, on_epoch: OnEpoch
) -> None:
    """Target (by each criterion) and public model, from the same start; card.json, written last, says how they do."""
    vision = config.vision if config.bimodal else None
    start = load_encoder(config.model, task="mlm", vision=vision, seed=config.seed, device=device)
    classes = classes_for(config.task, pages)
    card: dict[str, object] = {"split": {name: len(numbers) for name, numbers in asdict(split).items()}}
    jobs = (
        ("target", config.task, split.public if config.control else split.private, config.target_training, 1),
        ("public", "mlm", split.public, config.public_training, 2),
    )
    held_out = [pages[i] for i in split.validation]
    for name, task, numbers, training, stream in jobs:
        model = start.for_task(task, classes, seed=config.seed, name=name)  # type: ignore[arg-type]
        train = [pages[i] for i in numbers]
        fitted = train_one(model, train, held_out, training, seed=1000 * config.seed + stream, on_epoch=on_epoch)
        card[name] = card_of(fitted)
        if name == "public":  # the adversary wants the best guesses
            save_encoder(fitted.restore(model, "precision"), folder / "public")
            continue
        save_encoder(model, folder / "target-last")
        for criterion in fitted.weights:
            save_encoder(fitted.restore(model, criterion), folder / f"target-{criterion}")
    write_atomically(folder / "card.json", json.dumps(card, indent=1).encode())


def train_one(
    model: EncoderModel,
    pages: Sequence[Page],
    held_out: Sequence[Page],
    training: FitConfig,
    *,
    seed: int,
    on_epoch: OnEpoch,
) -> Fitted:
    """``fit`` on pages that the model has yet to encode; epochs are told under the model's name."""
    train, validation = ([model.encode(page) for page in part] for part in (pages, held_out))
    return fit(
        model, train, validation, training, seed=seed,
        on_epoch=lambda epoch: on_epoch(model.name, training.epochs, epoch),
    )  # fmt: skip


def card_of(fitted: Fitted) -> dict[str, object]:
    """What card.json says of one training."""
    return {"best": {k: asdict(v) for k, v in fitted.best.items()}, "epochs": [asdict(e) for e in fitted.epochs]}
