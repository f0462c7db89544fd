"""One game: a data set divided by document, a target and a public model trained, and the fields to be read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from docleak.attacks.weights import METRICS, CdmiConfig, PublicKnowledge
from docleak.documents import Page, load_pages
from docleak.documents.game import GameSplit, require_disjoint, split_game
from docleak.documents.pages import document_names
from docleak.documents.storage import write_atomically
from docleak.errors import AttackError, DocumentError
from docleak.models.encoders.loading import load_encoder, save_encoder
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.scrubbing import SecretField, extract
from docleak.models.encoders.tasks import Task, classes_of
from docleak.models.encoders.tokens import TokenPage
from docleak.models.encoders.vision import VisionConfig
from docleak.training.extraction.fit import Epoch, FitConfig, fit

Criterion = Literal["precision", "loss"]
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
    saw the fields. ``repeats`` also masks the places where the page prints the value again, which the paper leaves.
    """

    documents: str = "synthetic"
    pages: int = 120
    model: str = "layoutlm-tiny"
    task: Task = "mlm"
    bimodal: bool = False
    criterion: Criterion = "precision"
    fields: int = 100
    attempts: int = 8
    metric: str = "perplexity-ratio"
    control: bool = False
    repeats: bool = False
    validation: float = 0.16
    seed: int = 0
    attack: CdmiConfig = CdmiConfig()
    vision: VisionConfig = field(default_factory=VisionConfig)
    target_training: FitConfig = trainings("mlm", epochs=0, learning_rate=1e-3)[0]
    public_training: FitConfig = trainings("mlm", epochs=0, learning_rate=1e-3)[1]

    def __post_init__(self) -> None:
        faults = []
        if self.criterion not in ("precision", "loss"):
            faults.append(f"criterion is {self.criterion!r}, expected precision or loss")
        if self.metric not in METRICS:
            faults.append(f"metric is {self.metric!r}, expected one of {', '.join(METRICS)}")
        if min(self.pages, self.fields, self.seed) < 0 or self.attempts < 1:
            faults.append("pages, fields and seed must be 0 or more, attempts 1 or more")
        if faults:
            raise AttackError("the game cannot be set up: " + "; ".join(faults) + ".")


@dataclass(frozen=True, eq=False)
class Game:
    """A game that is ready to be played. ``pages`` are the private ones by name, as the target reads them."""

    config: GameConfig
    target: EncoderModel
    knowledge: PublicKnowledge
    pages: dict[str, TokenPage]
    secrets: tuple[SecretField, ...]
    card: dict[str, object]


def set_up(
    config: GameConfig, folder: Path, *, device: str = "cpu", on_epoch: OnEpoch = lambda which, epochs, epoch: None
) -> Game:
    """Train what ``folder`` does not hold yet, and choose the fields; a second call finds everything there.

    Raises DocumentError where the data set is too small, has no fields of the right length or no links, and whatever
    loading and training raise.
    """
    pages = _pages(config)
    rng = np.random.default_rng(np.random.SeedSequence((config.seed, STREAM)))
    split = split_game(document_names(pages), validation=config.validation, rng=rng)
    require_disjoint({name: [pages[i].document or str(i) for i in numbers] for name, numbers in asdict(split).items()})
    models = folder / _digest(config)
    if not (models / "card.json").is_file():
        _train(config, pages, split, models, device, on_epoch)
    target = load_encoder(str(models / f"target-{config.criterion}"), device=device)
    public = load_encoder(str(models / "public"), device=device)
    private = {pages[i].name: target.encode(pages[i]) for i in split.private}
    secrets = [secret for i in split.private for secret in extract(pages[i], private[pages[i].name])]
    if not secrets:
        raise DocumentError(
            f"{config.documents}: none of the {len(private)} private pages has a private field of 3 to 15 tokens "
            f"within the model's {target.max_tokens}. Give pages with fields."
        )
    order = rng.permutation(len(secrets))[: config.fields or None]
    return Game(
        config=config,
        target=target,
        knowledge=PublicKnowledge(public),
        pages=private,
        secrets=tuple(secrets[int(i)] for i in order),
        card=json.loads((models / "card.json").read_text(encoding="utf-8")),
    )


def _pages(config: GameConfig) -> list[Page]:
    count = config.pages or None
    pages = list(load_pages(config.documents, count=count, seed=config.seed))
    usable = [page for page in pages if page.words and (config.task != "el" or page.links)]
    if len(usable) < 3:
        needed = "words and links between entities" if config.task == "el" else "words"
        raise DocumentError(
            f"{config.documents}: {len(usable)} of {len(pages)} pages have {needed}; a game needs 3 documents or more."
        )
    names = {page.name for page in usable}
    if len(names) < len(usable):
        raise DocumentError(f"{config.documents}: {len(usable)} pages have {len(names)} names; give each its own.")
    return usable


def _digest(config: GameConfig) -> str:
    """Ten digits of what the models depend on; the fields and the attack may change without training again."""
    same = replace(config, fields=0, attempts=1, metric="max-gap", criterion="loss", attack=CdmiConfig(), repeats=False)
    return hashlib.sha256(json.dumps(asdict(same), sort_keys=True).encode()).hexdigest()[:10]


def _train(
    config: GameConfig, pages: Sequence[Page], split: GameSplit, folder: Path, device: str, on_epoch: OnEpoch
) -> None:
    """Target (both criteria) and public model, from the same start; card.json, written last, says how well they do."""
    vision = config.vision if config.bimodal else None
    start = load_encoder(config.model, task="mlm", vision=vision, seed=config.seed, device=device)
    classes = classes_of(pages) if config.task.startswith("ee") else ()
    card: dict[str, object] = {"split": {name: len(numbers) for name, numbers in asdict(split).items()}}
    jobs = (
        ("target", config.task, split.public if config.control else split.private, config.target_training, 1),
        ("public", "mlm", split.public, config.public_training, 2),
    )
    for name, task, numbers, training, stream in jobs:
        model = start.for_task(task, classes, seed=config.seed, name=name)  # type: ignore[arg-type]
        train, held_out = ([model.encode(pages[i]) for i in part] for part in (numbers, split.validation))
        fitted = fit(
            model, train, held_out, training, seed=1000 * config.seed + stream,
            on_epoch=lambda epoch, name=name, training=training: on_epoch(name, training.epochs, epoch),  # type: ignore[misc]
        )  # fmt: skip
        card[name] = {
            "best": {k: asdict(v) for k, v in fitted.best.items()},
            "epochs": [asdict(e) for e in fitted.epochs],
        }
        if name == "public":  # the adversary wants the best guesses
            save_encoder(fitted.restore(model, "precision"), folder / "public")
            continue
        for criterion in fitted.weights:
            save_encoder(fitted.restore(model, criterion), folder / f"target-{criterion}")
    write_atomically(folder / "card.json", json.dumps(card, indent=1).encode())
